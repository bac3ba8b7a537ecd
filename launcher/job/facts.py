"""What a node reports about itself, as typed values.

The values are already checked: `session.facts_message` makes them, and rejects malformed ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SLOW_DNS_S = 0.5


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that has memory on a GPU; None: not visible to the node, as in another container."""

    pid: int
    memory_mib: int | None = None
    owner: str | None = None
    name: str | None = None
    mark: str | None = None  # of the `launch` run that it belongs to


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
class RunFolder:
    """The leftover directory of a run that is over, for example because the host lost power."""

    path: str
    run_id: str
    files: int = 0  # written by its ranks, and not copied back


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
    """Facts that no plan needs but that can break a run; None: not known, unless noted at the field."""

    memory_mib: int | None = None
    memory_free_mib: int | None = None
    shm_mib: int | None = None
    memlock_kib: int | None = None  # None: no limit
    open_files: int | None = None  # None: no limit
    disks: Mapping[str, int | None] = field(default_factory=dict)  # directory -> free MiB
    script_hash: str | None = None
    code_hash: str | None = None  # over the other Python files beside and below the script
    code_is_complete: bool = True  # whether all of these were read in time
    networks: tuple[Network, ...] = ()
    infiniband: tuple[str, ...] = ()
    xids: tuple[Xid, ...] = ()
    runs: tuple[RunProcess, ...] = ()
    folders: tuple[RunFolder, ...] = ()
    planted: tuple[tuple[int, str], ...] = ()  # controllers, agents and what waits for its code: pid and name


@dataclass(frozen=True, slots=True)
class Route:
    """How a node reaches node 0: its own interface and address, and the port that node 0 holds."""

    interface: str | None
    address: str | None
    port: int | None = None
    error: str | None = None
    probe_port: int | None = None  # where it answers the previous node's probe
    clock_offset_s: float | None = None  # its clock minus the launch host's
    clock_error_s: float = 0.0  # half of the time that the request took


@dataclass(frozen=True, slots=True)
class Link:
    """How well a connection between two nodes works, as the kernel of the one that opened it has measured."""

    round_trip_s: float  # the quickest
    sent: int  # packets
    lost: int  # of those


@dataclass(frozen=True, slots=True)
class Probe:
    """One attempt of a node to reach an address and port of another node; error None: it worked, or is to be tried."""

    host: str
    address: str
    port: int
    is_master: bool
    error: str | None = None
    link: Link | None = None  # None: not measured


@dataclass(frozen=True, slots=True)
class Probes:
    """What a node found out about its network by testing connections to other nodes and look-ups of names."""

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
    """All facts of one node: what a plan needs, what the checks compare, and what was requested later.

    None: not known or not there, unless noted at the field.
    """

    folder: str  # the run's private directory there
    hostname: str = ""
    machine: str | None = None  # equal for two names of one machine or container
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
    numpy_version: str | None = None  # if it is installed beside torch
    packages: Mapping[str, str] | None = None  # normalized name -> `1.2.3` or `1.2.3 (editable, a1b2c3d)`
    editables: Mapping[str, str] = field(default_factory=dict)  # the directories of editable packages, by name
    packages_are_complete: bool = True  # whether all of these were listed in time
    pythons_tried: tuple[tuple[str, str], ...] = ()  # before it, each with the reason why it wasn't used
    route: Route | None = None
    checks: Checks | None = None  # if they were requested
    probes: Probes | None = None
    tree: str | None = None  # the root of the code that launch has sent
    python_path: str = ""  # PYTHONPATH before that; known only if code was sent
    code_files: Mapping[str, str] | None = None  # path -> hash, if its code differs from another node's
    sees_checkpoints: bool | None = None  # in the directory in which node 0 saves them

    @property
    def is_on_loopback(self) -> bool:
        """Whether it reaches node 0 over lo, at whatever address: 127.0.0.0/8, ::1, or one that was given to lo."""
        return self.route is not None and self.route.interface == "lo"

    @property
    def has_slow_dns(self) -> bool:
        """Whether a reverse DNS look-up takes longer than the ranks should wait for one."""
        return self.probes is not None and (self.probes.reverse_dns_s or 0) > SLOW_DNS_S
