"""What a node said of itself, checked when it comes in and typed from then on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher.errors import LauncherError


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device as the GPU tool names it."""

    index: int
    name: str
    memory_mib: int | None
    driver: str


@dataclass(frozen=True, slots=True)
class Route:
    """How a node reaches node 0: its own interface and address, and the port that node 0 holds."""

    interface: str | None
    address: str | None
    port: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts that a plan needs from one node."""

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
    python: str | None = None
    python_version: str | None = None
    python_source: str | None = None  # which candidate it was
    torch_version: str | None = None
    pythons_tried: tuple[tuple[str, str], ...] = ()
    route: Route | None = None


def read_facts(message: Mapping[str, Any], folder: str) -> NodeFacts:
    """Read a supervisor's message; raise LauncherError where it does not have the right form."""
    if "error" in message:
        raise LauncherError(str(message["error"]))
    try:
        search = message["search"]
        return NodeFacts(
            folder=folder,
            hostname=str(message["hostname"]),
            system=str(message["system"]),
            cpu_count=int(message["cpu_count"]),
            home=str(message["home"]),
            ssh_client=_text_or_none(message["ssh_client"]),
            ssh_address=_text_or_none(message["ssh_address"]),
            addresses=tuple((str(name), str(address)) for name, address in message["addresses"]),
            workdir_found=bool(message["workdir_found"]),
            script_found=bool(message["script_found"]),
            gpus=tuple(
                Gpu(int(gpu["index"]), str(gpu["name"]), gpu["memory_mib"], str(gpu["driver"]))
                for gpu in message["gpus"]
            ),
            gpu_error=_text_or_none(message["gpu_error"]),
            python=_text_or_none(search.get("python")),
            python_version=_text_or_none(search.get("version")),
            python_source=_text_or_none(search.get("candidate")),
            torch_version=_text_or_none(search.get("torch")),
            pythons_tried=tuple((str(path), str(why)) for path, why in search.get("tried", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise LauncherError(f"its facts can't be read: {error!r}") from None


def _text_or_none(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"no text: {value!r}")
    return value


def read_route(message: Mapping[str, Any]) -> Route:
    """Read a supervisor's answer about the way to node 0."""
    return Route(message.get("interface"), message.get("address"), message.get("port"), message.get("error"))
