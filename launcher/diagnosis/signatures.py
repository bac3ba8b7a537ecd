"""Explain known log lines: what a failed program printed -> why, and what to do. Nothing here does I/O.

docs/log_lines.py writes the tables of TROUBLESHOOTING.md from SIGNATURES. The lines come from the issue threads of
torch, NCCL and other launchers; tests/unit/diagnosis/seen_lines.txt has examples.

The first signature that matches a line explains it, so special signatures come before general ones.
Patterns have no nested repetition, and only the start of a line is searched: a rank may print megabytes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

# Double bit and row-remap errors, NVLink (144 to 150 of its fifth generation, if they are fatal), off the bus, ECC
# rates, GSP, initialization, timeouts (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html);
# others, such as 13 and 31, are usually caused by the program.
HARDWARE_XIDS = frozenset((
    48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 136, 140, 143, 144, 145, 146, 147, 148, 149, 150, 158, 167, 171, 172,
))  # fmt: skip
AT_EXIT = "exit-aborted"  # explains no rank that raised an exception: it may print this line after that
MAX_LINE = 4000  # characters of a line that are searched; torch's longest line has 2000


class Kind(Enum):
    """What a line says about the process that printed it."""

    CAUSE = "cause"
    CONSEQUENCE = "consequence"  # printed by healthy ranks when another one died or is missing


@dataclass(frozen=True, slots=True)
class Signature:
    """One row of the table: what a line looks like, and what it means.

    `cause` and `fix` may name groups of `pattern` in braces; the matched text replaces them.
    """

    name: str
    pattern: str
    cause: str
    fix: str
    kind: Kind = Kind.CAUSE
    says: str = ""  # how TROUBLESHOOTING.md quotes the line, if the pattern is hard to read

    @property
    def groups(self) -> tuple[str, ...]:
        """The names that `cause` and `fix` may use."""
        return tuple(re.compile(self.pattern).groupindex)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why something failed and what to do, each in one line; `name` is its name in run.json.

    `launcher.errors` describes how it reaches the screen.
    """

    name: str
    cause: str
    fix: str
    kind: Kind = Kind.CAUSE


_NODE_LOGS = "look for another rank's error in the logs; if there is none, test the network with `launch check`"
_BLOCKING = "run it once with --env CUDA_LAUNCH_BLOCKING=1; the traceback then names the line"

SIGNATURES: tuple[Signature, ...] = (
    # Slurm
    Signature(
        "slurm-ended",
        r"CANCELLED AT \S+ DUE TO (?P<reason>TIME LIMIT|PREEMPTION|NODE FAILURE)",
        "Slurm ended the job: {reason}",
        "request more time with --time; after another reason submit it again, and resume from the checkpoint",
        says="`CANCELLED AT ... DUE TO TIME LIMIT`, `PREEMPTION`, `NODE FAILURE`",
    ),
    Signature(
        "slurm-aborted",
        r"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT|srun: Job step aborted: Waiting up to",
        "the Slurm job, or the step of it that this run uses, was cancelled",
        "find out whether it was scancel or the time limit: `sacct -j JOB --format=JobID,State%30,End`",
        says="`*** STEP ... ON n1 CANCELLED AT ...`, `srun: Job step aborted`",
    ),
    # memory
    Signature(
        "gpu-memory-shared",
        r"(?:CUDA|HIP) out of memory.* Process (?P<pid>\d+) has (?P<size>[\d.]+ [KMGT]iB) memory in use",
        "the GPU's memory is full, and process {pid} holds {size} of it",
        "use a smaller batch; if {pid} isn't part of this run, `launch check` names its owner, "
        "and `launch clean` stops your leftovers",
        says="`CUDA out of memory` ... `Process N has ... memory in use`",
    ),
    Signature(
        "gpu-memory",
        r"(?:CUDA|HIP) out of memory|CUDA error: out of memory|[Cc]uda failure (?:\d+ )?'out of memory'"
        r"|CUBLAS_STATUS_ALLOC_FAILED|cuda runtime error \(2\)",
        "the GPU's memory is full",
        "use a smaller batch, or free the GPU: `launch check` names who uses it",
        says="`CUDA out of memory`, `CUBLAS_STATUS_ALLOC_FAILED`",
    ),
    Signature(
        "locked-memory",
        r"ibv_(?:reg_mr|create_)\w*.{0,40} failed.{0,40}Cannot allocate memory",
        "the locked-memory limit is too low for InfiniBand",
        "set `ulimit -l unlimited` for sshd on that host (docker: --ulimit memlock=-1)",
        says="`ibv_reg_mr ... failed ... Cannot allocate memory`",
    ),
    Signature(
        "shared-memory",
        r"posix_fallocate failed ?: No space|failed to extend /dev/shm/nccl-"
        r"|Error while creating shared memory segment|Unexpected bus error"
        r"|killed by signal: Bus error|/dev/shm/.{0,200}No space left|</?torch_[\w-]+>: No space left",
        "/dev/shm is too small or full; docker's default is 64 MB",
        "docker: pass --shm-size=8g or --ipc=host; otherwise clear /dev/shm there, or use fewer loader workers",
        says="`DataLoader worker ... is killed by signal: Bus error`, `Error while creating shared memory segment`, "
        "`failed to extend /dev/shm/nccl-...`, `posix_fallocate failed`",
    ),
    Signature(
        "worker-killed",
        r"DataLoader worker \(pid[^)]{0,200}\) is killed by signal: Killed",
        "a data loader worker was killed, usually by the kernel because the host's memory is full",
        "use fewer workers or a smaller prefetch_factor; `dmesg -T` on that host shows whether it was memory",
        says="`DataLoader worker ... is killed by signal: Killed`",
    ),
    Signature(
        "host-memory",
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|(?<!OutOf)MemoryError\b|Cannot allocate memory"
        r"|std::bad_alloc",
        "the host's main memory is full",
        "use fewer loader workers, or load less at once; `launch exec --hosts HOST -- free -g` shows its memory",
        says="`DefaultCPUAllocator: can't allocate memory`, `MemoryError`, `Cannot allocate memory`",
    ),
    Signature(
        "oom-killer",
        r"Out of memory: Killed process (?P<pid>\d+)|[Dd]etected \d+ oom.kill event",
        "the kernel ran out of memory and killed a process",
        "use fewer loader workers, a smaller batch, or a higher memory limit for the container or job",
        says="`Out of memory: Killed process`, `Detected 1 oom-kill event`",
    ),
    Signature(
        "killed-by-shell",
        r"line \d+: +\d+ Killed\b",
        "a program that the script started was killed, usually by the kernel because the host's memory is full",
        "check `dmesg -T` on that host; use fewer loader workers, or a smaller batch",
        says="`line 28: 8156 Killed`",
    ),
    # the GPU and its driver
    Signature(
        "gpu-fell-off",
        r"fallen off the bus|GPU is lost|Unable to determine the device handle for GPU",
        "the host lost a GPU: power, heat, or a loose card",
        "reboot the host; until then, pass `--exclude HOST:GPU`, or leave the host out",
        says="`GPU has fallen off the bus`, `GPU is lost`",
    ),
    Signature(
        "gpu-ecc",
        r"uncorrectable (?:ECC|NVLink) error|ECC_UNCORRECTABLE|cudaErrorNvlinkUncorrectable",
        "the GPU's memory, or an NVLink connection of it, has a hardware fault",
        "reset the GPU or reboot that host; if the error returns, the card is broken: `--exclude HOST:GPU`",
        says="`uncorrectable ECC error encountered`, `uncorrectable NVLink error detected`",
    ),
    Signature(
        "gpu-assert",
        r"device-side assert triggered|block: \[[\d,]+\], thread: \[[\d,]+\] Assertion",
        "an index was out of range on the GPU, usually a label or token that is too large",
        _BLOCKING,
        says="`device-side assert triggered`",
    ),
    Signature(
        "gpu-illegal-access",
        r"an illegal memory access was encountered|cudaErrorIllegalAddress|unspecified launch failure"
        r"|misaligned address|an illegal instruction was encountered",
        "a GPU kernel failed: a bug in native code, or a bad card if it is always the same GPU",
        _BLOCKING + "; check `dmesg -T | grep Xid` on that host",
        says="`an illegal memory access was encountered`, `unspecified launch failure`",
    ),
    Signature(
        "gpu-number",
        r"invalid device ordinal|device >= 0 && device < num_gpus",
        "this rank requests a GPU that it can't see: more processes than GPUs, or a fixed number in the script",
        "pass a smaller --gpus; in the script, call torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
        says="`CUDA error: invalid device ordinal`",
    ),
    Signature(
        "gpu-checkpoint",
        r"Attempting to deserialize object on (?:a )?CUDA device",
        "the checkpoint was saved on a GPU that doesn't exist here",
        "use torch.load(..., map_location=...) in the script",
        says="`Attempting to deserialize object on CUDA device 1`",
    ),
    Signature(
        "gpu-model",
        r"no kernel image is available for execution on the device",
        "this torch wasn't built for this GPU model",
        "install a torch that was (a newer or older CUDA build), or select one with --python",
    ),
    Signature(
        "driver-old",
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient"
        r"|forward compatibility was attempted on non supported HW|compiled with an unsupported toolchain",
        "the host's NVIDIA driver is too old for this torch",
        "update the driver, or install a torch for an older CUDA; `launch check` compares the hosts' drivers",
        says="`The NVIDIA driver on your system is too old`, `CUDA driver version is insufficient`, "
        "`compiled with an unsupported toolchain`",
    ),
    Signature(
        "driver-mismatch",
        r"Driver/library version mismatch|unsupported display driver|(?:error|failure) '?\(?803\b",
        "a library doesn't fit the loaded NVIDIA driver: that was updated, or a container has its own libcuda",
        "reboot that host, or reload the nvidia kernel modules; in a container, drop cuda/compat from LD_LIBRARY_PATH",
        says="`Driver/library version mismatch`, `unsupported display driver / cuda driver combination` (803)",
    ),
    Signature(
        "driver-not-loaded",
        r"couldn't communicate with the NVIDIA driver|could not communicate with the NVIDIA driver"
        r"|NVML: Driver Not Loaded",
        "the NVIDIA driver isn't loaded",
        "run modprobe nvidia on that host; if that fails, install the driver again for its kernel",
        says="`NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver`",
    ),
    Signature(
        "driver-finds-none",
        r"No devices were found",
        "the NVIDIA driver finds no GPU that works",
        "look for NVRM in dmesg on that host, and for the card in lspci",
    ),
    Signature(
        "nvml-unknown",
        r"Failed to initialize NVML: Unknown Error",
        "the container lost its GPUs, usually because systemd was reloaded on its host",
        "restart the container",
    ),
    Signature(
        "fabric-manager",
        r"system not yet initialized|(?:error|failure) '?\(?802\b",
        "NVIDIA's fabric manager isn't running, or its version differs from the driver's",
        "on that host, install the driver's own version of it, then: systemctl restart nvidia-fabricmanager",
        says="`CUDA error: system not yet initialized` (802)",
    ),
    Signature(
        "driver-state",
        r"CUDA unknown error",
        "the NVIDIA driver doesn't respond, or CUDA_VISIBLE_DEVICES was changed after the start",
        "check with `launch exec --hosts HOST -- nvidia-smi`; reload nvidia_uvm, or reboot that host",
    ),
    Signature(
        "gpu-busy",
        r"devices?(?:\(s\))? (?:is/)?are busy or unavailable",
        "another process has exclusive use of this GPU, or the GPU hangs",
        "run `launch check` to see who uses it, and `launch clean` to stop leftover processes",
        says="`CUDA-capable device(s) is/are busy or unavailable`",
    ),
    Signature(
        "torch-for-cpu",
        r"Torch not compiled with CUDA enabled|Distributed package doesn't have NCCL",
        "this host's torch is a CPU-only build",
        "install the CUDA build there, or select another --python; on CPUs, pass --cpu (launch also needs --nproc N)",
        says="`Torch not compiled with CUDA enabled`, `Distributed package doesn't have NCCL`",
    ),
    Signature(
        "no-gpu",
        r"No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device is detected|no GPUs found!",
        "this rank sees no GPU: the host has none, CUDA_VISIBLE_DEVICES hides them, or the container got none",
        "check with `launch exec --hosts HOST -- nvidia-smi`; on CPUs, pass --cpu (launch also needs --nproc N)",
        says="`No CUDA GPUs are available`, `Found no NVIDIA driver`",
    ),
    Signature(
        "forked-cuda",
        r"Cannot re-initialize CUDA in forked subprocess|(?:CUDA error: |[Cc]uda failure (?:3 )?')initialization error",
        "the script used the GPU before it forked",
        "use DataLoader(multiprocessing_context='spawn'), and don't call .cuda() in a dataset",
        says="`Cannot re-initialize CUDA in forked subprocess`, `CUDA error: initialization error`",
    ),
    Signature(
        "cudnn",
        r"CU(?:DNN|BLAS|SOLVER)_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED)",
        "a CUDA library failed, usually because the GPU's memory is full",
        "use a smaller batch; if that doesn't help, " + _BLOCKING,
        says="`CUDNN_STATUS_...`, `CUBLAS_STATUS_...`",
    ),
    # what is installed
    Signature(
        "module-missing",
        r"(?:Error|python[\d.]*): No module named '?(?P<module>[\w.]+)",  # not torch's warning that numpy is missing
        "this host's Python has no module {module}",
        "install it there, or select another --python; if it is yours, pass --workdir, or edit .launchignore",
        says="`ModuleNotFoundError: No module named 'x'`",
    ),
    Signature(
        "numpy-missing",
        r"Numpy is not available",
        "this host's Python has no numpy, which torch needs for this call",
        "install numpy on all hosts, or select another --python",
    ),
    Signature(
        "library-missing",
        r"(?P<library>\blib[\w.+-]{1,80}): cannot open shared object file",
        "{library} was not found on this host",
        "use the same installation on all hosts, --env LD_LIBRARY_PATH=..., or load its module with --setup",
        says="`libcudnn.so.9: cannot open shared object file`",
    ),
    Signature(
        "library-mixed",
        r"undefined symbol: (?P<symbol>\w+)",
        "two libraries don't match: {symbol} is missing in one of them",
        "look for two versions of one in `pip list | grep nvidia`; remove other directories from LD_LIBRARY_PATH",
        says="`libtorch_cuda.so: undefined symbol`",
    ),
    Signature(
        "system-old",
        r"version `(?P<version>GLIBC(?:XX)?_[\d.]+)' not found",
        "this host's system is older than a package requires: it has no {version}",
        "install a build for this system, a newer libstdc++ (conda has one), or use a container",
        says="``version `GLIBC_2.34' not found``",
    ),
    Signature(
        "compiler-missing",
        r"Failed to find C compiler|CUDA_HOME environment variable is not set|nvcc: not found",
        "something needs to compile code on this host, but the compiler was not found",
        "install gcc or the CUDA toolkit there; pass --env CC=... or --env CUDA_HOME=/usr/local/cuda",
        says="`Failed to find C compiler`, `CUDA_HOME environment variable is not set`",
    ),
    Signature(
        "line-ends",
        r"(?:\benv: .|no interpreter '|: )(?P<interpreter>[^\s'’:\\^]{1,200})(?:\\r['’]|\^M: bad interpreter)",
        r"a script has Windows line ends, so its first line (#!) names '{interpreter}\r', which isn't there",
        r"save it with Unix line ends: sed -i 's/\r$//' FILE",
        says="`env: 'bash\\r': No such file or directory`, `bad interpreter`",
    ),
    Signature(
        "cannot-run",
        r"^launch: can't start (?P<program>.{1,300}): "
        r"(?P<reason>Permission denied|Exec format error|no interpreter '.{0,300}')$",
        "{program} isn't an executable program on this host: {reason}",
        "run chmod +x there, correct its first line (#!), or mount its file system without noexec",
        says="`launch: can't start X: Permission denied`, `... no interpreter '/opt/python'`",
    ),
    Signature(
        "cannot-start",
        r"^launch: can't start (?P<program>.{1,300}): (?P<reason>[^:]{1,100})$",
        "this host can't start {program}: {reason}",
        "use its full path, or load what puts it on the PATH with --setup; for a directory, pass --workdir",
        says="`launch: can't start X`",
    ),
    Signature(
        "command-missing",
        r"(?:(\w: \d+: )|(?:^|\s))(?P<command>[^\s:]{1,200}): (?(1)|command )not found",
        "{command} is not on the PATH of this host; an SSH login doesn't load what a terminal loads",
        "pass --setup 'conda activate NAME' or whatever else loads it, pass --python, or use its full path",
        says="`torchrun: command not found`",
    ),
    Signature(
        "script-missing",
        r"can't open file '(?P<file>[^']{1,300})': \[Errno 2\]",
        "{file} is not on this host",
        "copy it there, or pass --workdir",
        says="`can't open file '/data/train.py': [Errno 2]`",
    ),
    Signature(
        "path-missing",
        r"sh: (?:line )?(?:\d+: )?(?:cd: )?(?P<path>[^\s:]{1,300}): No such file or directory",
        "{path} is not on this host",
        "copy it there, or pass --workdir; for a Python elsewhere, pass --python",
        says="`bash: line 1: cd: /data: No such file or directory`",
    ),
    # the script
    Signature(
        "local-rank",
        r"(?:unrecognized arguments|arguments are required):.{0,200} --local[-_]rank",
        "only the old torch.distributed.launch passed --local_rank to the script",
        "remove it; the script finds its local rank in os.environ['LOCAL_RANK']",
        says="`unrecognized arguments: --local-rank=0`, `the following arguments are required: --local_rank`",
    ),
    Signature(
        "arguments",
        r"error: unrecognized arguments: (?P<arguments>.{1,200})",
        "the script doesn't accept {arguments}",
        "put launch's options before the script's name, and the script's own options after it",
        says="`error: unrecognized arguments`",
    ),
    Signature(
        "variable-missing",
        r"environment variable (?P<variable>\w+) expected, but not set",
        "the script needs {variable}, which torchrun sets for its ranks",
        "start it without --no-python; a wrapper script must start Python through `launch`",
        says="`environment variable RANK expected, but not set`",
    ),
    Signature(
        "unused-parameters",
        r"Expected to have finished reduction in the prior iteration",
        "some parameters did not contribute to the loss, and DDP waits for their gradients",
        "pass find_unused_parameters=True, or freeze them; --env TORCH_DISTRIBUTED_DEBUG=DETAIL names them",
    ),
    Signature(
        AT_EXIT,
        r"terminate called without an active exception",
        "the script was over: gloo's threads were still running while Python exited, and aborted it",
        "end it with torch.distributed.destroy_process_group(); if it does so, add sys.stdout.flush() and os._exit(0)",
    ),
    Signature(
        "different-models",
        r"DDP expects same model across all ranks|appears not to match (?:sizes|strides) of the same param",
        "the ranks built different models",
        "use the same configuration, seed and code on every host; `launch check` compares the script",
        says="`DDP expects same model across all ranks`",
    ),
    Signature(
        "different-collectives",
        r"Detected mismatch between collectives on ranks|Mismatched collective detected|collective mismatch error"
        r"|[Mm]essage truncated ?: receiv",
        "the ranks don't call the same collective with the same sizes, or their NCCL versions or settings differ",
        "look for a branch in the script that depends on the rank; `launch check` compares torch and NCCL",
        says="`Detected mismatch between collectives on ranks`, `message truncated`",
    ),
    Signature(
        "no-keyboard",
        r"EOFError: EOF when reading a line",
        "the script asks for keyboard input, which a rank doesn't have",
        "use an argument or a variable instead of input()",
    ),
    Signature(
        "wandb-key",
        r"api_key not configured \(no-tty\)",
        "Weights & Biases has no API key on this host",
        "set WANDB_API_KEY here, and `launch` forwards it; or pass --env WANDB_MODE=offline",
        says="`api_key not configured (no-tty)`",
    ),
    # files and limits
    Signature(
        "open-files",
        r"Too many open files|received 0 items of ancdata",
        "the open-file limit is too low",
        "pass --setup 'ulimit -n 65536', use fewer workers, or call "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
        says="`Too many open files`, `received 0 items of ancdata`",
    ),
    Signature(
        "threads",
        r"can't start new thread|Thread creation failed|pthread_create failed|Errno 11\] Resource temporarily",
        "the limit on processes and threads is reached on this host",
        "pass --setup 'ulimit -u unlimited' or --env OMP_NUM_THREADS=1, or use fewer loader workers",
        says="`can't start new thread`, `pthread_create failed`",
    ),
    Signature(
        "disk-full",
        r"No space left on device|Disk quota exceeded",
        "a disk on this host is full, or your quota on it is used up",
        "see which with `launch exec --hosts HOST -- df -h`, and free some space",
        says="`No space left on device`, `Disk quota exceeded`",
    ),
    Signature(  # torch.save's own words: its archive is shorter than what it wrote
        "save-cut-short",
        r"inline_container\.cc:\d+\] \. (unexpected pos|PytorchStreamWriter failed writing file)"
        r"|basic_ios::clear: iostream error",
        "a checkpoint could not be written: the disk is full, your quota on it is used up, or it is failing",
        "see which with `launch exec --hosts HOST -- df -h`, free some space, and remove the incomplete file",
        says="`inline_container.cc... unexpected pos`, `iostream error` of `torch.save`",
    ),
    Signature(
        "file-system",
        r"Stale file handle|Read-only file system|\[Errno 5\] Input/output error",
        "the file system failed: its server restarted, another host replaced the file, or a disk is failing",
        "remount it on that host; let one rank write what all ranks read",
        says="`Stale file handle`, `Read-only file system`, `Input/output error`",
    ),
    Signature(
        "checkpoint-cut",
        r"PytorchStreamReader failed|unexpected EOF, expected \d+ more bytes",
        "a checkpoint is truncated: a download or save did not finish, or is still in progress",
        "download it again, or use the previous one; save under another name, then rename",
        says="`PytorchStreamReader failed reading zip archive`",
    ),
    Signature(
        "no-internet",
        r"Failed to resolve '(?P<host>[^']{1,100})'|couldn't connect to 'https://huggingface.co'",
        "this host can't reach the internet",
        "download on a host that can, to a directory that all hosts share; pass --env HF_HUB_OFFLINE=1",
        says="`Failed to resolve 'huggingface.co'`",
    ),
    # the network between the hosts
    Signature(
        "port-taken",
        r"EADDRINUSE|errno: 98\b|Errno 98\b|[Aa]ddress already in use",
        "a port is taken on this host, often by a leftover process",
        "omit --master-port: `launch` picks a free port; `launch clean` stops leftover processes",
        says="`EADDRINUSE`, `Address already in use`",
    ),
    Signature(
        "interface-unknown",
        r"Unable to find address for: (?P<interface>\S{1,60})",
        "this host has no interface {interface}; gloo needs one exact name, and names differ between hosts",
        "don't set GLOO_SOCKET_IFNAME: each host then uses the interface that leads to node 0",
        says="`Unable to find address for: eth0`",
    ),
    Signature(
        "interface-none",
        r"no (?:NCCL_SOCKET_IFNAME |socket )?interface found|family \d+ is neither AF_INET",
        "NCCL finds no interface on this host with the name it was given",
        "don't set NCCL_SOCKET_IFNAME: each host then uses the interface that leads to node 0",
        says="`no socket interface found`",
    ),
    Signature(
        "duplicate-gpu",
        r"Duplicate GPU detected|Multiple Ranks are using the same GPU",
        "two ranks use the same GPU: no set_device in the script, or one machine listed as two hosts",
        "call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])); `launch hosts` shows the hosts",
        says="`Duplicate GPU detected : rank 1 and rank 0`, `Multiple Ranks are using the same GPU/Partition`",
    ),
    Signature(
        "nccl-versions",
        r"Mismatched NCCL version detected ?: rank (?P<rank>\d+) version (?P<version>\d+) "
        r"rank (?P<other>\d+) version (?P<theirs>\d+)",
        "rank {rank} uses NCCL {version} and rank {other} uses NCCL {theirs}",
        "install the same torch on every host, and look for another libnccl in LD_LIBRARY_PATH and LD_PRELOAD",
        says="`Mismatched NCCL version detected`",
    ),
    Signature(
        "nvls",
        r"Failed to bind (?:NVLink SHARP|NVLS)",
        "NCCL can't use the NVLink switch of this host for collectives (NVLS), usually because of the fabric manager",
        "pass --env NCCL_NVLS_ENABLE=0; on that host: systemctl restart nvidia-fabricmanager",
        says="`Failed to bind NVLink SHARP (NVLS) Multicast memory`",
    ),
    Signature(
        "infiniband-port",
        r"Got async event : (?:port error|local catastrophic error)",
        "an InfiniBand or RoCE port of this host went down",
        "look at its cable and switch port (ibstat, `dmesg -T`); until then, leave the host out",
        says="`NET/IB : Got async event : port error`",
    ),
    Signature(
        "infiniband-lost",
        r"ibv_modify_qp failed|Got completion .{0,80}with (?:error |status=)12\b",
        "InfiniBand or RoCE connects, but then its traffic is lost",
        "pass --env NCCL_IB_GID_INDEX=3 (show_gids lists them); --env NCCL_IB_DISABLE=1 confirms the cause",
        says="`ibv_modify_qp failed`, `Got completion ... with error 12`",
    ),
    Signature(
        "gloo-loopback",
        r"connectFullMesh failed.{0,300}remote=\[127\.",
        "a host gave the others its loopback address, because its own name resolves to 127.x there",
        "don't set GLOO_SOCKET_IFNAME, or correct the name in that host's /etc/hosts",
        says="`connectFullMesh failed ... remote=[127.0.0.1]`",
    ),
    Signature(
        "no-route",
        r"No route to host|Network is unreachable|Software caused connection abort",
        "one host can't reach another: a firewall blocks it, or the interface is wrong",
        "open all TCP ports between the hosts, not only node 0's; `launch check` tests the connections",
        says="`No route to host`, `Network is unreachable`",
    ),
    Signature(
        "name-unknown",
        r"(?<!- )(?:Name or service not known|Temporary failure in name resolution)",  # torch only warns of `-2 - Name`
        "a host's name can't be resolved on this host",
        "use addresses instead of names (addr= in the hostfile), or add the names to /etc/hosts on every host",
        says="`Name or service not known`, `Temporary failure in name resolution`",
    ),
    # consequences: another rank is gone, or never joined
    Signature(
        "clients-missing",
        r"Timed out after \d+ seconds waiting for clients\. (?P<some>\d+)/(?P<all>\d+) clients joined",
        "only {some} of {all} processes joined in time",
        "see in their logs why the others were late or died; for a slow start, pass a longer --rdzv-timeout",
        Kind.CONSEQUENCE,
        says="`Timed out after 901 seconds waiting for clients. 1/2 clients joined`",
    ),
    Signature(
        "master-unreachable",
        r"(?:while trying to connect to|failed to connect to any network address of|connect/validate to host) "
        r"[(\[]{0,2}(?P<host>[^\s,\])]{1,100})\]?(?:, ?|:)(?P<port>\d+)",
        "this rank could not reach rank 0 at {host} port {port}: rank 0 isn't running, or a firewall blocks the port",
        "check that rank 0 started; open the port; set addr= in the hostfile to the address that the hosts use",
        Kind.CONSEQUENCE,
        says="`client socket has timed out ... trying to connect to (10.0.0.1, 29500)`",
    ),
    Signature(
        "rendezvous",
        r"Rendezvous(?:Timeout|Connection|Closed)Error|DistNetworkError|client socket has (?:timed out|failed)",
        "the hosts did not find each other",
        "check that all hosts started; open node 0's port; for a slow start, pass a longer --rdzv-timeout",
        Kind.CONSEQUENCE,
        says="`RendezvousTimeoutError`, `DistNetworkError`, `(errno: 110 - Connection timed out)`",
    ),
    Signature(
        "watchdog",
        r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send) operation"
        r"|operations have failed or timed out|Heartbeat monitor timed out|watchdog got stuck"
        r"|Observed flight recorder dump signal|Terminating the process after attempting to dump debug info",
        "this rank waited for the others in a collective, and one never joined",
        "look at the rank that prints nothing or has the lowest SeqNum; on GPUs, "
        "the flight recorder is in logs/RUN/files",
        Kind.CONSEQUENCE,
        says="`Watchdog caught collective operation timeout`, `Timed out waiting 1800000ms for recv operation`, "
        "`Heartbeat monitor timed out`",
    ),
    Signature(
        "rank-0-gone",
        r"store->get\(.{0,200}got error|possible application crash on rank 0|recvValue failed|sendBytes failed"
        r"|failed to recv, got|TCPStore server has shut down",
        "this rank lost its connection to rank 0, which keeps the list of all ranks",
        "read rank 0's last lines",
        Kind.CONSEQUENCE,
        says="`store->get('0') got error`, `recvValue failed`",
    ),
    Signature(
        "nccl-usage",
        r"ncclInvalidUsage|, invalid usage[ ,(]|ncclInvalidArgument",
        "NCCL was called in a way that it doesn't support, usually with two ranks on one GPU",
        "call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])); --env NCCL_DEBUG=WARN shows more",
        says="`NCCL error ... invalid usage`",
    ),
    Signature(
        "nccl-cuda",
        r"unhandled cuda error|ncclUnhandledCudaError",
        "a CUDA call inside NCCL failed",
        "run it again with --env NCCL_DEBUG=WARN: NCCL then says which call failed, and why",
        says="`NCCL error ... unhandled cuda error`",
    ),
    Signature(
        "nccl-peer",
        r"remote process exited or there was a network error|ncclRemoteError"
        r"|Connection closed by (?:remote peer|localRank)",
        "NCCL lost another rank: it died, or the network between them failed",
        _NODE_LOGS,
        Kind.CONSEQUENCE,
        says="`remote process exited or there was a network error`",
    ),
    Signature(
        "nccl-system",
        r"unhandled system error|ncclSystemError|ncclInternalError",
        "NCCL could not communicate with another rank, or ran out of a resource on this host",
        "run it again with --env NCCL_DEBUG=WARN: NCCL then says what failed; `launch check` compares the hosts",
        Kind.CONSEQUENCE,
        says="`NCCL error ... unhandled system error`",
    ),
    Signature(
        "gloo-mesh",
        r"connectFullMesh failed",
        "gloo could not reach the other ranks: one of them died, or gloo uses the wrong interface",
        _NODE_LOGS + "; don't set GLOO_SOCKET_IFNAME",
        Kind.CONSEQUENCE,
    ),
    Signature(
        "peer-gone",
        r"[Cc]onnection (?:closed|reset) by (?:remote )?peer|[Cc]onnection refused|Broken pipe|Socket Timeout"
        r"|Application timeout caused pair closure|DistBackendError|DistStoreError",
        "this rank lost its connection to another rank",
        _NODE_LOGS,
        Kind.CONSEQUENCE,
        says="`Connection closed by peer`, `Connection refused`, `Broken pipe`, `Socket Timeout`, `DistBackendError`",
    ),
    Signature(
        "worker-gone",
        r"DataLoader worker \(pid.{0,200}exited unexpectedly",
        "a data loader worker died, usually for lack of memory or space in /dev/shm",
        "read its own error above; if there is none, run once with num_workers=0",
        says="`DataLoader worker (pid 4711) exited unexpectedly`",
    ),
)


def explain_lines(lines: Iterable[str]) -> Iterator[Explanation]:
    """Yield an explanation for each line that a signature matches, in the order of SIGNATURES: special ones first."""
    lines = [line[:MAX_LINE] for line in lines]
    for signature, pattern in _compiled():
        for match in filter(None, map(pattern.search, lines)):
            words = {name: value or "?" for name, value in match.groupdict().items()}
            cause, fix = (plain(text).format(**words) for text in (signature.cause, signature.fix))
            yield Explanation(signature.name, cause, fix, signature.kind)


def plain(text: str) -> str:
    """Return text without the backticks that only the Markdown page needs."""
    return text.replace("`", "")


@functools.cache
def _compiled() -> tuple[tuple[Signature, re.Pattern[str]], ...]:
    """Compile the patterns on first use: it takes 5 ms, which only failed runs need to spend."""
    return tuple((signature, re.compile(signature.pattern)) for signature in SIGNATURES)
