"""Read what a node says of itself into typed values.

A node is not trusted: a message of the wrong form, or a list longer than any machine's, raises LauncherError, and that
host takes no part. From then on nobody has to check a fact again.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.errors import LauncherError

SLOW_DNS_S = 0.5
MOST_PROCESSES = 20_000  # of one kind on a node: more than a system lets a user have, mostly
# Longer than any machine's list; whoever sends more costs itself its place, and nobody else the time.
MOST = {
    "addresses": 4096, "networks": 4096, "GPUs": 256, "processes on a GPU": MOST_PROCESSES, "Xids": 1024, "disks": 64,
    "InfiniBand ports": 256, "processes of runs": MOST_PROCESSES, "Pythons": 64, "variables": 4096,
    "lines of its setup": 64,
}  # fmt: skip
_MAX_NUMBER = 1 << 64  # some limits of the kernel's are almost that; a float still holds it


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that has memory on a GPU; None: the node can't see it, as in another container."""

    pid: int
    memory_mib: int | None = None
    owner: str | None = None
    name: str | None = None
    mark: str | None = None  # of the run of ours that it belongs to


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi or rocm-smi describes it; None: the tool doesn't say."""

    index: int
    name: str
    memory_mib: int | None
    driver: str
    free_mib: int | None = None
    is_persistent: bool | None = None  # whether the driver stays loaded while nobody uses it
    compute_mode: str = ""
    ecc_errors: int | None = None  # uncorrectable ones since the driver was loaded
    processes: tuple[GpuProcess, ...] = ()
    bus_id: str = ""  # its PCI address as the tool writes it: 00000000:3B:00.0

    @property
    def pci_address(self) -> str:
        """Its PCI address as the kernel writes it, 0000:3b:00; empty if it is not known."""
        domain, colon, place = self.bus_id.lower().partition(":")
        return f"{domain.lstrip('0'):0>4}:{place.partition('.')[0]}" if colon else ""


@dataclass(frozen=True, slots=True)
class RunProcess:
    """A process of another run of `launch` that is on a node, found by the mark in its environment."""

    pid: int
    name: str
    mark: str
    is_owned: bool  # whether its supervisor is alive

    @property
    def run_id(self) -> str:
        """The run's id, which its mark begins with."""
        return self.mark.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Xid:
    """A fault of a GPU that the driver has written to the kernel's log, with its number in NVIDIA's list (Xid)."""

    gpu: str  # its PCI address
    number: int


@dataclass(frozen=True, slots=True)
class Network:
    """An IPv4 subnet that a node is in."""

    interface: str
    network: str  # 10.0.1.0/24
    speed_mbps: int | None


@dataclass(frozen=True, slots=True)
class Checks:
    """Facts that no plan needs but that can break a run; None: not known, unless a field says something else."""

    memory_mib: int | None = None
    memory_free_mib: int | None = None
    shm_mib: int | None = None
    memlock_kib: int | None = None  # None: no limit
    open_files: int | None = None  # None: no limit
    disks: Mapping[str, int | None] = field(default_factory=dict)  # folder -> free MiB
    script_hash: str | None = None
    networks: tuple[Network, ...] = ()
    infiniband: tuple[str, ...] = ()
    xids: tuple[Xid, ...] = ()
    runs: tuple[RunProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """How a node reaches node 0: its own interface and address, and the port that node 0 holds."""

    interface: str | None
    address: str | None
    port: int | None = None
    error: str | None = None
    probe_port: int | None = None  # where it answers a neighbour's probe
    clock_offset_s: float | None = None  # its clock minus ours
    clock_error_s: float = 0.0  # half of the time that asking took


@dataclass(frozen=True, slots=True)
class Probe:
    """One attempt of a node to reach an address and port of another node; error None: it worked, or is to be tried."""

    host: str
    address: str
    port: int
    is_master: bool
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Probes:
    """What a node found out about its network by trying: connections to other nodes, and look-ups of names."""

    tried: tuple[Probe, ...] = ()
    reverse_dns_s: float | None = None
    own_address: str | None = None  # what its own name resolves to; "": nothing


@dataclass(frozen=True, slots=True)
class SetupFailure:
    """Which step of the setup failed on a node, how, and the last lines that it printed."""

    step: str  # as `--setup`
    reason: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """All facts of one node: what a plan needs, what the checks compare, and what was asked for later.

    None: not known or not there, unless a field says something else.
    """

    folder: str  # the run's private folder there
    hostname: str = ""
    system: str = "linux"
    cpu_count: int | None = None
    home: str = ""
    ssh_client: str | None = None  # the launch host, as this node sees it
    ssh_address: str | None = None
    addresses: tuple[tuple[str, str], ...] = ()  # (interface, address)
    workdir_found: bool = True
    script_found: bool = True
    gpus: tuple[Gpu, ...] = ()
    gpu_error: str | None = None
    visible_gpus: tuple[int, ...] | None = None  # indexes, as ranks see them; -1: unknown (MIG); None: all
    venv_found: bool = True
    setup_failure: SetupFailure | None = None
    setup_names: tuple[str, ...] = ()  # the variables that the setup has set or changed
    conda: str | None = None  # the program that entered --conda
    python: str | None = None
    python_version: str | None = None
    python_source: str | None = None  # which candidate it was
    torch_version: str | None = None
    cuda_version: str | None = None  # that torch was built with; None: for CPUs, or for ROCm
    hip_version: str | None = None
    nccl_version: str | None = None  # of pip's package; None also where NCCL is part of torch
    numpy_version: str | None = None  # where it lies beside torch
    pythons_tried: tuple[tuple[str, str], ...] = ()
    route: Route | None = None
    checks: Checks | None = None  # where they were asked for
    probes: Probes | None = None

    @property
    def is_on_loopback(self) -> bool:
        """Whether its way to node 0 is lo, by whatever address: 127.0.0.0/8, ::1, or one that was given to lo."""
        return self.route is not None and self.route.interface == "lo"

    @property
    def has_slow_dns(self) -> bool:
        """Whether looking up the name of an address takes longer than all ranks should wait for one."""
        return self.probes is not None and (self.probes.reverse_dns_s or 0) > SLOW_DNS_S


def read_facts(message: Mapping[str, Any], folder: str) -> NodeFacts:
    """Read a supervisor's message; raise LauncherError where it does not have the right form."""
    if "error" in message:
        raise LauncherError(str(message["error"]))
    try:
        search = message["search"]
        setup = message.get("setup") or {}
        return NodeFacts(
            folder=folder,
            hostname=str(message["hostname"]),
            system=str(message["system"]),
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
            numpy_version=_text_or_none(search.get("numpy")),
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


def _read_checks(checks: Mapping[str, Any]) -> Checks:
    return Checks(
        **{
            name: _number_or_none(checks[name])
            for name in ("memory_mib", "memory_free_mib", "shm_mib", "memlock_kib", "open_files")
        },
        disks={str(path): _number_or_none(free) for path, free in _list([*checks["disks"].items()], "disks")},
        script_hash=_text_or_none(checks["script_hash"]),
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
    )


def _list(values: object, what: str) -> list[Any]:
    """Return a list from a message; raise LauncherError if it has more elements than `MOST` allows for `what`."""
    if not isinstance(values, list):
        raise TypeError(f"no list: {values!r:.80}")
    if len(values) > MOST[what]:
        raise LauncherError(f"it named {len(values)} {what}; at most {MOST[what]} are accepted")
    return values


def _typed(kind: type) -> Callable[[object], Any]:
    def check(value: object) -> Any:
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise TypeError(f"no {kind.__name__}: {value!r:.80}")
        return value

    return check


_text_or_none = _typed(str)
_integer_or_none = _typed(int)
_flag_or_none = _typed(bool)


def _number_or_none(value: object) -> int | None:
    """Refuse numbers beyond 64 bits: JSON has no limit, and arithmetic with 4,000 digits may raise later on."""
    number: int | None = _integer_or_none(value)
    if number is not None and not -_MAX_NUMBER < number < _MAX_NUMBER:
        raise ValueError("too large a number")
    return number


def _count(value: object) -> int:
    number = _number_or_none(value)
    if number is None or number < 0:
        raise TypeError(f"no count: {value!r:.80}")
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
    """Read a supervisor's answer about the way to node 0.

    asked_at, answered_at: wall-clock seconds of this machine. The node read its clock in between, so the offset is
    taken from the middle, and may be wrong by half of the time that passed.
    """
    offset, error = None, 0.0
    if asked_at is not None:
        offset = message["clock"] - (asked_at + answered_at) / 2
        error = (answered_at - asked_at) / 2
    return Route(
        message.get("interface"), message.get("address"), message.get("port"), message.get("error"),
        message.get("probe_port"), offset, error,
    )  # fmt: skip
