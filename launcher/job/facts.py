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

    pid: Count  # a process that has memory on it
    memory_mib: int | None = None  # how much memory it has
    owner: str | None = None  # its user
    name: str | None = None  # its program
    mark: str | None = None  # the run that it belongs to


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi or rocm-smi describes it; None: the tool doesn't say."""

    index: Count  # the GPU's number
    name: str  # its model
    memory_mib: int | None  # its memory
    driver: str  # the version of its driver
    free_mib: int | None = None  # memory that is free
    compute_mode: str = ""  # its compute mode, as nvidia-smi prints it
    ecc_errors: int | None = None  # uncorrectable memory errors since the driver was loaded
    processes: Annotated[tuple[GpuProcess, ...], Most(MOST_VALUES)] = ()
    uuid: str = ""  # what names it for all users of the host, before and after a boot
    bus_id: str = ""  # its PCI address, as nvidia-smi or rocm-smi prints it
    fault: str | None = None  # what the tool prints instead of its values, such as `GPU is lost`
    has_display: bool = False  # whether a desktop is on it
    is_mig: bool = False  # whether it is divided into MIG devices

    @property
    def pci_address(self) -> str:
        """Its PCI address as the kernel writes it, 0000:3b:00; empty if it is not known."""
        domain, colon, place = self.bus_id.lower().partition(":")
        return f"{domain.lstrip('0'):0>4}:{place.partition('.')[0]}" if colon else ""


@dataclass(frozen=True, slots=True)
class RunProcess:
    """A process of another run of `launch` that is on a node, found by the mark in its environment."""

    pid: Count  # a process of another run of `launch`
    name: str  # its program
    mark: str  # the mark of that run
    is_owned: bool  # whether that run's helper is alive

    @property
    def run_id(self) -> str:
        """The run's id, which its mark begins with."""
        return self.mark.partition(".")[0]


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The leftover directory of a run that is over, for example because the host lost power."""

    path: str  # the directory of a run that is over
    run_id: Annotated[str, SentAs("run")]  # that run
    files: Count = 0  # how many files its ranks left in it


Moment = Annotated[float, Within(0, 1e11)]  # seconds since 1970; a text in --json


@dataclass(frozen=True, slots=True)
class BoxClaim:
    """What says on a box that a run uses GPUs of it; all but the user is the run's own word."""

    user: Annotated[str, Most(100)]  # a user who has claimed GPUs of the host
    run: Annotated[str, Most(100)]  # for which run, in that user's words; empty if it doesn't respond
    since: Moment  # since when the run lasts
    name: Annotated[str, Most(200)] | None = None  # the run's `--name`
    gpus: Annotated[tuple[Count, ...], Most(1024)] = ()  # the numbers of the claimed GPUs
    is_shared: bool = False  # whether the run was started on claimed GPUs (`--share`)
    is_waiting: bool = False  # whether it is a place in the queue (`--queue`)
    is_mine: bool = False  # whether it is the user's own; another one's run may have the same id
    until: Moment | None = None  # when the run will be stopped (`--until`, `--for`); `null` if it has no time limit

    @property
    def title(self) -> str:
        """Whose run it is, such as `ann's nightly`."""
        return f"{self.user}'s {self.name or (f'run {self.run}' if self.run else 'unresponsive run')}"


@dataclass(frozen=True, slots=True)
class Xid:
    """A fault of a GPU that the driver has written to the kernel's log, with its number in NVIDIA's list (Xid)."""

    gpu: str  # the PCI address of a GPU with a fault in the kernel's log
    number: Count  # the fault's number in NVIDIA's list (Xid)


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

    index: Count  # the GPU's number
    name: Annotated[str, Most(200)]  # its model
    utilization: Annotated[float, Within(0, 1e4)] | None = None  # percent of the time in which a kernel ran
    memory_used_mib: Count | None = None  # how much of it is used
    memory_mib: Count | None = None  # its memory
    power_w: Annotated[float, Within(0, 1e5)] | None = None  # its power
    power_limit_w: Annotated[float, Within(0, 1e5)] | None = None  # the limit of its power
    temperature_c: Annotated[float, Within(-300, 1e4)] | None = None  # in degrees Celsius
    clock_mhz: Annotated[float, Within(0, 1e6)] | None = None  # the clock of its multiprocessors
    max_clock_mhz: Annotated[float, Within(0, 1e6)] | None = None  # the highest clock that they can have
    # why its clock is held down: NVML's `nvmlClocksThrottleReasons`, as a number
    reasons: Annotated[int, Within(0, 1 << 64)] | None = None
    # uncorrectable memory errors since the driver was loaded
    ecc_errors: Annotated[int, Within(0, 1 << 64)] | None = None


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

    cpu_percent: Annotated[float, Within(0, 100)] | None = None  # how busy all CPUs are
    load: Annotated[float, Within(0, 1e6)] | None = None  # processes that ran or waited, over the last minute
    memory_mib: Count | None = None  # main memory
    memory_used_mib: Count | None = None  # how much of it is used
    swap_mib_s: Annotated[float, Within(0, 1e9)] | None = None  # swapped in and out, in MiB/s
    disk_free_percent: Annotated[float, Within(0, 100)] | None = None  # of the disk of the working directory
    # sent and received on all network devices but virtual ones, in MiB/s
    network_mib_s: Annotated[float, Within(0, 1e9)] | None = None
    # faults that the driver has logged since the last sample; only root can read them
    xids: Annotated[tuple[Xid, ...], Most(20)] = ()


@dataclass(frozen=True, slots=True)
class Network:
    """An IPv4 subnet that a node is in."""

    interface: str  # an interface
    network: str  # its subnet, such as 10.0.1.0/24
    speed_mbps: int | None  # its speed


@dataclass(frozen=True, slots=True)
class Checks:
    """Facts that no plan needs but that can break a run; None: not known, unless noted at the field."""

    memory_free_mib: int | None = None  # memory that is free
    shm_mib: int | None = None  # the size of /dev/shm
    memlock_kib: int | None = None  # the limit on locked memory; `null`: no limit
    disks: Annotated[Mapping[str, int | None], Most(64)] = field(default_factory=dict)  # free MiB by directory
    script_hash: str | None = None  # the SHA-256 of the script (its first 64 MiB)
    # one SHA-256 over the paths and contents of the other Python files next to and below the script; `null`: not
    # compared
    code_hash: str | None = None
    networks: Annotated[tuple[Network, ...], Most(4096)] = ()
    infiniband: Annotated[tuple[str, ...], Most(256)] = ()  # active InfiniBand ports
    runs: tuple[RunProcess, ...] = ()
    folders: tuple[RunFolder, ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """How a node reaches node 0: its own interface and address, and the port that node 0 holds."""

    interface: str | None  # its own interface
    address: str | None  # its own address
    port: int | None = None  # the port that node 0 holds; on node 0 only
    error: str | None = None  # why there is no route
    probe_port: int | None = None  # the port on which it answered the previous host's probe


@dataclass(frozen=True, slots=True)
class Probe:
    """One attempt of a node to reach an address and port of another node; error None: it worked, or is to be tried."""

    host: str  # the host that it connected to
    address: str  # the address
    port: int  # the port
    is_master: bool  # whether that is the port of node 0 that the ranks will use
    error: str | None = None  # why the connection failed; `null`: it succeeded


@dataclass(frozen=True, slots=True)
class Probes:
    """What a node found out about its network by testing connections to other nodes and look-ups of names."""

    tried: tuple[Probe, ...] = ()
    reverse_dns_s: float | None = None  # how long it took to look up the name of an address


@dataclass(frozen=True, slots=True)
class SetupFailure:
    """Which step of the setup failed on a node, how, and the last lines that it printed."""

    step: str  # the step that failed, such as `--setup`
    reason: str  # how it failed
    lines: Annotated[tuple[str, ...], Most(64)] = ()  # its last lines


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """All facts of one node: what a plan needs, what the checks compare, and what was requested later.

    None: not known or not there, unless noted at the field.
    """

    folder: Annotated[str, NOT_SENT]  # the private directory of this check on the host
    hostname: str = ""  # what the host calls itself
    machine: str | None = None  # a text that is equal for two names of one machine or container
    cpu_count: Count | None = None  # CPUs that processes may use
    home: str = ""  # the home directory
    ssh_client: Address | None = None  # the address of the launch host, as the host sees it
    ssh_address: Address | None = None  # the address at which its SSH server was reached
    # its IPv4 addresses, each as `[interface, address]`
    addresses: Annotated[tuple[tuple[str, Address], ...], Most(messages.MAX_ADDRESSES)] = ()
    workdir_found: bool = True  # whether the working directory exists
    script_found: bool = True  # whether the script exists
    gpus: Annotated[tuple[Gpu, ...], Most(256)] = ()
    gpu_error: str | None = None  # why its GPUs couldn't be listed
    claimed_gpus: Annotated[tuple[int, ...], NOT_SENT] = ()  # the numbers of its GPUs that a run has claimed
    # the numbers of the GPUs that ranks will see; -1: unknown (MIG); `null`: all GPUs
    visible_gpus: Annotated[tuple[int, ...] | None, SentAs("visible")] = None
    venv_found: bool = True  # whether the directory of `--venv` exists
    setup_failure: Annotated[SetupFailure | None, SentAs("setup.failure")] = None  # the step of the setup that failed
    # the variables that the setup set or changed
    setup_names: Annotated[tuple[str, ...], Most(4096), SentAs("setup.names")] = ()
    conda: Annotated[str | None, SentAs("setup.conda")] = None  # the program that entered `--conda`
    python: Annotated[str | None, SentAs("search.python")] = None  # the Python that runs the ranks
    python_version: Annotated[str | None, SentAs("search.version")] = None  # its version
    # `true` only in a run with `--start warm`, if that Python can start ranks warm
    python_is_warmable: Annotated[bool, SentAs("search.is_warmable")] = False
    python_source: Annotated[str | None, SentAs("search.candidate")] = None  # how it was found
    torch_version: Annotated[str | None, SentAs("search.torch")] = None  # the version of its torch
    # the CUDA that torch was built with; `null` for CPUs and ROCm
    cuda_version: Annotated[str | None, SentAs("search.cuda")] = None
    hip_version: Annotated[str | None, SentAs("search.hip")] = None  # the ROCm that torch was built with
    # the version of pip's NCCL; `null` also where NCCL is part of torch
    nccl_version: Annotated[str | None, SentAs("search.nccl")] = None
    numpy_version: Annotated[str | None, SentAs("search.numpy")] = None  # the version of numpy
    # the packages of that Python: the version by name, such as `1.2.3` or `1.2.3 (editable, a1b2c3d)`
    packages: Annotated[Mapping[_Name, _Name] | None, Most(5000), SentAs("search.packages")] = None
    # the directories of editable packages, by name
    editables: Annotated[Mapping[_Name, str], Most(5000), SentAs("search.editables")] = field(default_factory=dict)
    # Pythons that were rejected, each as `[Python, why]`
    pythons_tried: Annotated[tuple[tuple[str, str], ...], Most(64), SentAs("search.tried")] = ()
    route: Annotated[Route | None, NOT_SENT] = None  # its route to node 0
    checks: Checks | None = None  # facts that no plan needs but that can break a run
    probes: Annotated[Probes | None, NOT_SENT] = None  # the results of connecting to other hosts
    tree: Annotated[str | None, NOT_SENT] = None  # the directory of the code that `--sync` has sent; `null` without it
    python_path: str = ""  # `PYTHONPATH` on the host before `launch` changed it; empty without `--sync`
    # whether it sees the directory in which node 0 saves; `null` in `launch check`, which has none
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
