"""What a node reports about itself, as typed values: `launcher.forms` reads them by these types, and refuses others.

A field with a default may be missing in the message. So a new fact is a field here, and what sends it on the node. The
limits of lists are longer than any real machine's; a host that sends more fails, and costs the others no time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from launcher.forms import MOST_VALUES, NOT_SENT, Address, Count, FormError, Most, SentAs, Within
from launcher.node import messages

SLOW_DNS_S = 0.5
_Name = Annotated[str, Most(200)]  # of a package, or its version


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that has memory on a GPU; None: not visible to the node, as in another container."""

    pid: Count
    memory_mib: int | None = None
    owner: str | None = None
    name: str | None = None
    mark: str | None = None  # of the `launch` run that it belongs to


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi or rocm-smi describes it; None: the tool doesn't say."""

    index: Count
    name: str
    memory_mib: int | None
    driver: str
    free_mib: int | None = None
    is_persistent: bool | None = None  # whether the driver stays loaded while nobody uses it
    compute_mode: str = ""
    ecc_errors: int | None = None  # uncorrectable ones since the driver was loaded
    processes: Annotated[tuple[GpuProcess, ...], Most(MOST_VALUES)] = ()
    uuid: str = ""  # the same for all users of the machine, and after each boot
    bus_id: str = ""  # its PCI address as the tool writes it: 00000000:3B:00.0
    fault: str | None = None  # what the tool says instead of its values: `GPU is lost`
    has_display: bool = False  # a desktop is on it
    is_mig: bool = False  # it is divided into MIG devices

    @property
    def pci_address(self) -> str:
        """Its PCI address as the kernel writes it, 0000:3b:00; empty if it is not known."""
        domain, colon, place = self.bus_id.lower().partition(":")
        return f"{domain.lstrip('0'):0>4}:{place.partition('.')[0]}" if colon else ""


@dataclass(frozen=True, slots=True)
class RunProcess:
    """A process of another run of `launch` that is on a node, found by the mark in its environment."""

    pid: Count
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
    run_id: Annotated[str, SentAs("run")]
    files: Count = 0  # written by its ranks, and not copied back


@dataclass(frozen=True, slots=True)
class BootUnit:
    """What a node starts after a boot for a run, a unit of systemd or a line of a crontab."""

    name: str
    run_id: Annotated[str, SentAs("run")]
    is_running: bool  # what it starts; it then removes this itself


@dataclass(frozen=True, slots=True)
class BoxClaim:
    """What says on a box that a run uses GPUs of it, or all of its CPUs; all but the user is the run's own word."""

    user: Annotated[str, Most(100)]
    run: Annotated[str, Most(100)]  # "": it doesn't respond
    since: Annotated[float, Within(0, 1e11)]  # seconds since 1970
    name: Annotated[str, Most(200)] | None = None
    gpus: Annotated[tuple[Count, ...], Most(1024)] = ()
    is_of_cpus: bool = False
    is_shared: bool = False  # started with --share on GPUs that were claimed
    is_reserved: bool = False  # for the run's next attempt
    is_waiting: bool = False  # a place in the queue, not a claim
    is_mine: bool = False  # of the user who asks: another one's run may have the same id
    until: Annotated[float, Within(0, 1e11)] | None = None  # when it will be stopped, in seconds since 1970

    @property
    def title(self) -> str:
        """Whose run it is, such as `ann's nightly`."""
        return f"{self.user}'s {self.name or (f'run {self.run}' if self.run else 'unresponsive run')}"


@dataclass(frozen=True, slots=True)
class Xid:
    """A fault of a GPU that the driver has written to the kernel's log, with its number in NVIDIA's list (Xid)."""

    gpu: str  # its PCI address
    number: Count


# Bits of nvmlClocksThrottleReasons, from NVIDIA's nvml.h, in words; the first ones say the most.
_REASONS = {
    0x40: "thermal slowdown",
    0x20: "thermal slowdown",
    0x80: "power brake",
    0x08: "hardware slowdown",
    0x04: "power cap",
    0x10: "sync boost",
    0x02: "clock setting",
}
_EXACT = 0x40 | 0x20 | 0x80
FAULTS = _EXACT | 0x08  # reasons that no healthy GPU has; a power cap is usual for one that is busy


def describe_reasons(bits: int | None) -> str:
    """Return why a GPU's clock is held down, `thermal slowdown, power cap`; empty if nothing holds it."""
    bits = bits or 0
    if bits & _EXACT:
        bits &= ~0x08  # which comes with one of these, if the driver knows which
    return ", ".join(dict.fromkeys(text for bit, text in _REASONS.items() if bits & bit))


@dataclass(frozen=True, slots=True)
class GpuSample:
    """What one GPU does at a moment; None: not told. It travels as a row of these values, in this order."""

    index: Count
    name: Annotated[str, Most(200)]
    utilization: Annotated[float, Within(0, 1e4)] | None = None  # percent of the time in which a kernel ran
    memory_used_mib: Count | None = None
    memory_mib: Count | None = None
    power_w: Annotated[float, Within(0, 1e5)] | None = None
    power_limit_w: Annotated[float, Within(0, 1e5)] | None = None
    temperature_c: Annotated[float, Within(-300, 1e4)] | None = None
    clock_mhz: Annotated[float, Within(0, 1e6)] | None = None  # of its multiprocessors
    max_clock_mhz: Annotated[float, Within(0, 1e6)] | None = None
    reasons: Annotated[int, Within(0, 1 << 64)] | None = None  # why its clock is held down, as NVML's bits
    ecc_errors: Annotated[int, Within(0, 1 << 64)] | None = None  # uncorrectable ones since the driver was loaded
    pcie_replays: Count | None = None  # since the driver was loaded
    nvlink_recoveries: Annotated[int, Within(0, 1 << 64)] | None = None  # since then, of all its links


@dataclass(frozen=True, slots=True)
class GpuUse:
    """A process on a GPU, while somebody watches it."""

    gpu: Annotated[str, Most(200)]  # its UUID
    pid: Count
    owner: str | None = None
    name: str | None = None
    mark: str | None = None  # of the `launch` run that it belongs to


@dataclass(frozen=True, slots=True)
class HostSample:
    """What a host does at a moment, beside its GPUs; rates are those since the sample before. None: not told."""

    cpu_percent: Annotated[float, Within(0, 100)] | None = None  # of all CPUs
    iowait_percent: Annotated[float, Within(0, 100)] | None = None
    load: Annotated[float, Within(0, 1e6)] | None = None  # processes that ran or waited, in the last minute
    memory_mib: Count | None = None
    memory_used_mib: Count | None = None
    swap_mib_s: Annotated[float, Within(0, 1e9)] | None = None  # in and out
    disk_free_percent: Annotated[float, Within(0, 100)] | None = None  # of the disk of the working directory
    disk_mib_s: Annotated[float, Within(0, 1e9)] | None = None  # read and written, all disks
    network_mib_s: Annotated[float, Within(0, 1e9)] | None = None  # in and out, all devices but virtual ones
    speeds: Annotated[Mapping[Annotated[str, Most(64)], Count], Most(64)] = field(default_factory=dict)  # Mbit/s
    clock_step_s: Annotated[float, Within(-1e11, 1e11)] | None = None  # by which the time of day was set
    xids: Annotated[tuple[Xid, ...], Most(20)] = ()  # since the sample before, where the kernel's log may be read


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
    disks: Annotated[Mapping[str, int | None], Most(64)] = field(default_factory=dict)  # directory -> free MiB
    script_hash: str | None = None
    code_hash: str | None = None  # over the other Python files beside and below the script
    code_is_complete: bool = True  # whether all of these were read in time
    networks: Annotated[tuple[Network, ...], Most(4096)] = ()
    infiniband: Annotated[tuple[str, ...], Most(256)] = ()  # its ports
    xids: Annotated[tuple[Xid, ...], Most(1024)] = ()
    runs: tuple[RunProcess, ...] = ()
    folders: tuple[RunFolder, ...] = ()
    # Controllers, agents and what waits for its code: pid and name.
    planted: tuple[tuple[Count, str], ...] = ()
    units: tuple[BootUnit, ...] = ()


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
class LinkQuality:
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
    link: LinkQuality | None = None  # None: not measured


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
    lines: Annotated[tuple[str, ...], Most(64)] = ()


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """All facts of one node: what a plan needs, what the checks compare, and what was requested later.

    None: not known or not there, unless noted at the field.
    """

    folder: Annotated[str, NOT_SENT]  # the run's private directory there
    hostname: str = ""
    machine: str | None = None  # equal for two names of one machine or container
    cpu_count: Count | None = None
    home: str = ""
    ssh_client: Address | None = None  # the launch host, as this node sees it
    ssh_address: Address | None = None
    # With its interface before each.
    addresses: Annotated[tuple[tuple[str, Address], ...], Most(messages.MAX_ADDRESSES)] = ()
    workdir_found: bool = True
    script_found: bool = True
    gpus: Annotated[tuple[Gpu, ...], Most(256)] = ()
    gpu_error: str | None = None
    claimed_gpus: Annotated[tuple[int, ...], NOT_SENT] = ()  # by any run
    # Indexes, as ranks see them; -1: unknown (MIG); None: all.
    visible_gpus: Annotated[tuple[int, ...] | None, SentAs("visible")] = None
    venv_found: bool = True
    setup_failure: Annotated[SetupFailure | None, SentAs("setup.failure")] = None
    # The variables that the setup has set or changed.
    setup_names: Annotated[tuple[str, ...], Most(4096), SentAs("setup.names")] = ()
    conda: Annotated[str | None, SentAs("setup.conda")] = None  # the program that entered --conda
    python: Annotated[str | None, SentAs("search.python")] = None
    python_version: Annotated[str | None, SentAs("search.version")] = None
    # Whether it runs a sitecustomize that `launch` puts on its path; known only if it is to start the ranks warm.
    python_is_warmable: Annotated[bool, SentAs("search.is_warmable")] = False
    python_source: Annotated[str | None, SentAs("search.candidate")] = None  # which candidate it was
    torch_version: Annotated[str | None, SentAs("search.torch")] = None
    # That torch was built with; None: for CPUs, or for ROCm.
    cuda_version: Annotated[str | None, SentAs("search.cuda")] = None
    hip_version: Annotated[str | None, SentAs("search.hip")] = None
    # Of pip's package; None also where NCCL is part of torch.
    nccl_version: Annotated[str | None, SentAs("search.nccl")] = None
    numpy_version: Annotated[str | None, SentAs("search.numpy")] = None  # if it is installed beside torch
    # Normalized name -> `1.2.3` or `1.2.3 (editable, a1b2c3d)`.
    packages: Annotated[Mapping[_Name, _Name] | None, Most(5000), SentAs("search.packages")] = None
    # The directories of editable packages, by name.
    editables: Annotated[Mapping[_Name, str], Most(5000), SentAs("search.editables")] = field(default_factory=dict)
    # Whether all of these were listed in time.
    packages_are_complete: Annotated[bool, SentAs("search.packages_are_complete")] = True
    # Before it, each with the reason why it wasn't used.
    pythons_tried: Annotated[tuple[tuple[str, str], ...], Most(64), SentAs("search.tried")] = ()
    route: Annotated[Route | None, NOT_SENT] = None
    checks: Checks | None = None  # if they were requested
    probes: Annotated[Probes | None, NOT_SENT] = None
    tree: Annotated[str | None, NOT_SENT] = None  # the root of the code that launch has sent
    python_path: str = ""  # PYTHONPATH before that; known only if code was sent
    # Path -> hash, if its code differs from another node's.
    code_files: Annotated[Mapping[str, str] | None, NOT_SENT] = None
    # In the directory in which node 0 saves them.
    sees_checkpoints: Annotated[bool | None, NOT_SENT] = None

    def __post_init__(self) -> None:
        visible = self.visible_gpus or ()
        if len(visible) > len(self.gpus) or not set(visible) <= {-1, *(gpu.index for gpu in self.gpus)}:
            raise FormError("more GPUs visible than there are")

    @property
    def typical_gpu(self) -> Gpu:
        """Its first GPU that responds, of those that it has: of a lost one the tool knows neither name nor memory."""
        return next((gpu for gpu in self.gpus if gpu.fault is None), self.gpus[0])

    @property
    def is_on_loopback(self) -> bool:
        """Whether it reaches node 0 over lo, at whatever address: 127.0.0.0/8, ::1, or one that was given to lo."""
        return self.route is not None and self.route.interface == "lo"

    @property
    def has_slow_dns(self) -> bool:
        """Whether a reverse DNS look-up takes longer than the ranks should wait for one."""
        return self.probes is not None and (self.probes.reverse_dns_s or 0) > SLOW_DNS_S
