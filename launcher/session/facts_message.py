"""Read a node's messages into facts, and validate them.

A node is not trusted: a malformed message, or a list longer than any real machine's, raises LauncherError, and the
host counts as failed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

from launcher.errors import LauncherError
from launcher.job.facts import (
    Checks,
    Gpu,
    GpuProcess,
    Network,
    NodeFacts,
    Route,
    RunFolder,
    RunProcess,
    SetupFailure,
    Xid,
)

MOST_PROCESSES = 20_000  # of one kind on a node: more than most systems let a user have
# Longer than any real machine's list; a host that sends more fails, and costs the others no time.
MOST = {
    "addresses": 4096, "networks": 4096, "GPUs": 256, "processes on a GPU": MOST_PROCESSES, "Xids": 1024, "disks": 64,
    "InfiniBand ports": 256, "processes of runs": MOST_PROCESSES, "directories of runs": MOST_PROCESSES,
    "Pythons": 64, "variables": 4096, "lines of its setup": 64, "packages": 5000,
}  # fmt: skip
_MOST_LETTERS = 200  # of a package's name, or of its version
_MAX_NUMBER = 1 << 64  # some limits of the kernel are almost that large; a float still holds it


def read_facts(message: Mapping[str, Any], folder: str) -> NodeFacts:
    """Read a supervisor's message; raise LauncherError if it is malformed."""
    if "error" in message:
        raise LauncherError(str(message["error"]))
    try:
        search = message["search"]
        setup = message.get("setup") or {}
        return NodeFacts(
            folder=folder,
            hostname=str(message["hostname"]),
            machine=_text_or_none(message.get("machine")),
            cpu_count=_count(message["cpu_count"]),
            home=str(message["home"]),
            ssh_client=_address_or_none(message["ssh_client"]),
            ssh_address=_address_or_none(message["ssh_address"]),
            addresses=tuple(
                (str(name), str(address))
                for name, address in _list(message["addresses"], "addresses")
                if is_address(address)
            ),
            workdir_found=bool(message["workdir_found"]),
            script_found=bool(message["script_found"]),
            venv_found=bool(message.get("venv_found", True)),
            setup_failure=_read_setup_failure(setup.get("failure")),
            setup_names=tuple(map(str, _list(setup.get("names", []), "variables"))),
            conda=_text_or_none(setup.get("conda")),
            gpus=tuple(map(_read_gpu, _list(message["gpus"], "GPUs"))),
            gpu_error=_text_or_none(message["gpu_error"]),
            visible_gpus=_read_visible(message.get("visible"), message["gpus"]),
            python=_text_or_none(search.get("python")),
            python_version=_text_or_none(search.get("version")),
            python_source=_text_or_none(search.get("candidate")),
            torch_version=_text_or_none(search.get("torch")),
            cuda_version=_text_or_none(search.get("cuda")),
            hip_version=_text_or_none(search.get("hip")),
            nccl_version=_text_or_none(search.get("nccl")),
            python_path=_text_or_none(message.get("python_path")) or "",
            numpy_version=_text_or_none(search.get("numpy")),
            packages=_read_packages(search.get("packages")),
            editables=_read_editables(search.get("editables")),
            packages_are_complete=bool(search.get("packages_are_complete", True)),
            pythons_tried=tuple((str(path), str(why)) for path, why in _list(search.get("tried", []), "Pythons")),
            checks=_read_checks(message["checks"]) if "checks" in message else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise LauncherError(f"its facts can't be read: {error!r}") from None


def _read_gpu(gpu: Mapping[str, Any]) -> Gpu:
    return Gpu(
        index=_count(gpu["index"]),
        name=str(gpu["name"]),
        memory_mib=_number_or_none(gpu["memory_mib"]),
        driver=str(gpu["driver"]),
        free_mib=_number_or_none(gpu["free_mib"]),
        is_persistent=_flag_or_none(gpu["is_persistent"]),
        compute_mode=str(gpu["compute_mode"]),
        ecc_errors=_number_or_none(gpu["ecc_errors"]),
        processes=tuple(
            GpuProcess(
                _count(process["pid"]),
                _number_or_none(process["memory_mib"]),
                *(_text_or_none(process[name]) for name in ("owner", "name", "mark")),
            )
            for process in _list(gpu["processes"], "processes on a GPU")
        ),
        bus_id=str(gpu["bus_id"]),
    )


def _read_visible(indexes: Any, gpus: Any) -> tuple[int, ...] | None:
    if indexes is None:
        return None
    found = tuple(map(_number_or_none, indexes))
    if len(found) > len(gpus) or not set(found) <= {-1, *(gpu["index"] for gpu in gpus)}:
        raise ValueError("more GPUs visible than there are")
    return tuple(index for index in found if index is not None)


def _read_setup_failure(value: Mapping[str, Any] | None) -> SetupFailure | None:
    if value is None:
        return None
    return SetupFailure(
        str(value["step"]), str(value["reason"]), tuple(map(str, _list(value["lines"], "lines of its setup")))
    )


def _read_editables(editables: Mapping[str, Any] | None) -> Mapping[str, str]:
    return {_short_text(name): str(path) for name, path in _list([*(editables or {}).items()], "packages")}


def _read_packages(packages: Mapping[str, Any] | None) -> Mapping[str, str] | None:
    if packages is None:
        return None
    return {_short_text(name): _short_text(version) for name, version in _list([*packages.items()], "packages")}


def _short_text(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MOST_LETTERS:
        raise TypeError(f"not a name or a version: {value!r:.80}")
    return value


def _read_checks(checks: Mapping[str, Any]) -> Checks:
    return Checks(
        **{
            name: _number_or_none(checks[name])
            for name in ("memory_mib", "memory_free_mib", "shm_mib", "memlock_kib", "open_files")
        },
        disks={str(path): _number_or_none(free) for path, free in _list([*checks["disks"].items()], "disks")},
        script_hash=_text_or_none(checks["script_hash"]),
        code_hash=_text_or_none(checks.get("code_hash")),
        code_is_complete=bool(checks.get("code_is_complete", True)),
        networks=tuple(
            Network(str(entry["interface"]), str(entry["network"]), _number_or_none(entry["speed_mbps"]))
            for entry in _list(checks["networks"], "networks")
        ),
        infiniband=tuple(map(str, _list(checks["infiniband"], "InfiniBand ports"))),
        xids=tuple(Xid(str(entry["gpu"]), _count(entry["number"])) for entry in _list(checks["xids"], "Xids")),
        runs=tuple(
            RunProcess(_count(run["pid"]), str(run["name"]), str(run["mark"]), bool(run["is_owned"]))
            for run in _list(checks["runs"], "processes of runs")
        ),
        folders=tuple(
            RunFolder(str(folder["path"]), str(folder["run"]), _count(folder["files"]))
            for folder in _list(checks["folders"], "directories of runs")
        ),
        planted=tuple(
            (_count(process["pid"]), str(process["name"]))
            for process in _list(checks.get("planted", []), "processes of runs")
        ),
    )


def _list(values: object, what: str) -> list[Any]:
    """Return a list from a message; raise LauncherError if it has more elements than `MOST` allows for `what`."""
    if not isinstance(values, list):
        raise TypeError(f"not a list: {values!r:.80}")
    if len(values) > MOST[what]:
        raise LauncherError(f"it named {len(values)} {what}; at most {MOST[what]} are accepted")
    return values


def _typed(kind: type) -> Callable[[object], Any]:
    def check(value: object) -> Any:
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise TypeError(f"not of type {kind.__name__}: {value!r:.80}")
        return value

    return check


_text_or_none = _typed(str)
_integer_or_none = _typed(int)
_flag_or_none = _typed(bool)


def _number_or_none(value: object) -> int | None:
    """Refuse numbers beyond 64 bits: JSON has no limit, and arithmetic with 4,000 digits may raise later on."""
    number: int | None = _integer_or_none(value)
    if number is not None and not -_MAX_NUMBER < number < _MAX_NUMBER:
        raise ValueError("number too large")
    return number


def _count(value: object) -> int:
    number = _number_or_none(value)
    if number is None or number < 0:
        raise TypeError(f"not a count: {value!r:.80}")
    return number


def _address_or_none(value: object) -> str | None:
    """Return an IP address, or None for anything else: sshd says UNKNOWN if a client has no address."""
    text: str | None = _text_or_none(value)
    return text if is_address(text) else None


def is_address(value: object) -> bool:
    """Tell whether a value is an IP address, so that a node can be reached by it without looking up a name."""
    try:
        return isinstance(value, str) and bool(ipaddress.ip_address(value))
    except ValueError:
        return False


def read_route(message: Mapping[str, Any], asked_at: float | None = None, answered_at: float = 0.0) -> Route:
    """Read a supervisor's answer about the route to node 0.

    asked_at, answered_at: wall-clock seconds of this machine. The node read its clock in between, so the offset is
    taken from the middle, and may be wrong by half the time that passed.
    """
    offset, error = None, 0.0
    if asked_at is not None:
        offset = message["clock"] - (asked_at + answered_at) / 2
        error = (answered_at - asked_at) / 2
    return Route(
        message.get("interface"), message.get("address"), message.get("port"), message.get("error"),
        message.get("probe_port"), offset, error,
    )  # fmt: skip
