"""The table of known log lines: what a failed program says -> why, and what to do. Nothing here does I/O.

docs/log_lines.py makes the table of TROUBLESHOOTING.md from it. Lines come from the issue threads of torch, NCCL and
other launchers; tests/unit/diagnosis/seen_lines.txt has some.

A line is explained by the first signature that matches it, so special ones stand above general ones.
Patterns hold no nested repetition and lines are cut: a rank may print megabytes, and its last lines are searched too.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from launcher.wording import listed

# Double bit and row-remap errors, NVLink, off the bus, ECC rates, GSP (docs.nvidia.com/deploy/xid-errors);
# others, as 13 and 31, are mostly the program's own.
HARDWARE_XIDS = frozenset((48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140))
MAX_LINE = 4000  # characters of a line that are searched; the longest of torch's has 2000


class Kind(Enum):
    """What a line says of the process that printed it."""

    CAUSE = "cause"
    CONSEQUENCE = "consequence"  # what healthy ranks say when another one died or is missing
    HINT = "hint"  # also said by runs that go well; explains only ranks of several nodes that can't reach each other
    NOTE = "note"  # never why a run failed; the guide has it


@dataclass(frozen=True, slots=True)
class Signature:
    """One row of the table: what a line looks like, and what it means.

    `cause` and `fix` may name groups of `pattern` in braces, which get what the line has there.
    """

    name: str
    pattern: str
    cause: str
    fix: str
    kind: Kind = Kind.CAUSE
    says: str = ""  # how the guide quotes it, where the pattern is no good reading

    @property
    def groups(self) -> tuple[str, ...]:
        """The names that `cause` and `fix` may use."""
        return tuple(re.compile(self.pattern).groupindex)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why something failed and what to do, each in one line of plain words; `name` stands in run.json.

    `launcher.errors` tells how it comes to the screen.
    """

    name: str
    cause: str
    fix: str
    kind: Kind = Kind.CAUSE


_NODE_LOGS = "look for another rank's error in the logs; without one the network broke: `launch check` tries it"
_BLOCKING = "once with --env CUDA_LAUNCH_BLOCKING=1, then the traceback names the line"

SIGNATURES: tuple[Signature, ...] = (
    # Slurm
    Signature(
        "slurm-time",
        r"CANCELLED AT \S+ DUE TO TIME LIMIT",
        "the time of the Slurm job was over",
        "more of it with --time; `sbatch --signal=TERM@120` warns in time to save",
        says="`CANCELLED AT ... DUE TO TIME LIMIT`",
    ),
    Signature(
        "slurm-preemption",
        r"CANCELLED AT \S+ DUE TO PREEMPTION",
        "Slurm gave the nodes to another job",
        "sbatch --requeue, and a trainer that resumes",
        says="`CANCELLED AT ... DUE TO PREEMPTION`",
    ),
    Signature(
        "slurm-node",
        r"CANCELLED AT \S+ DUE TO NODE FAILURE",
        "Slurm lost a node of the job",
        "`sinfo -R` says why; the same job again takes another node",
        says="`CANCELLED AT ... DUE TO NODE FAILURE`",
    ),
    Signature(
        "slurm-cancelled",
        r"\*\*\* (?:STEP|JOB) (?P<job>\d+)\S* ON \S+ CANCELLED AT",
        "Slurm was told to end job {job}, or the step that we are",
        "who called scancel: `sacct -j {job} --format=JobID,State%30,End`",
        says="`*** STEP ... ON n1 CANCELLED AT ...`",
    ),
    Signature(
        "slurm-aborted",
        r"srun: Job step aborted: Waiting up to",
        "Slurm was told to end the job, or the step that we are",
        "who called scancel, or whether the time was over: `sacct -j JOB --format=JobID,State%30,End`",
    ),
    # memory
    Signature(
        "gpu-memory-shared",
        r"(?:CUDA|HIP) out of memory.* Process (?P<pid>\d+) has (?P<size>[\d.]+ [KMGT]iB) memory in use",
        "the GPU's memory is full, and process {pid} holds {size} of it",
        "a smaller batch; is {pid} not of this run: `launch check` names its owner, `launch clean` ends your leftovers",
        says="`CUDA out of memory` ... `Process N has ... memory in use`",
    ),
    Signature(
        "gpu-memory",
        r"(?:CUDA|HIP) out of memory|CUDA error: out of memory|[Cc]uda failure (?:\d+ )?'out of memory'"
        r"|CUBLAS_STATUS_ALLOC_FAILED|cuda runtime error \(2\)",
        "the GPU's memory is full",
        "a smaller batch, or free the GPU: `launch check` names who holds it",
        says="`CUDA out of memory`, `CUBLAS_STATUS_ALLOC_FAILED`",
    ),
    Signature(
        "locked-memory",
        r"ibv_(?:reg_mr|create_)\w*.{0,40} failed.{0,40}Cannot allocate memory",
        "the limit of locked memory is too low for InfiniBand",
        "`ulimit -l unlimited` for sshd on that node (docker: --ulimit memlock=-1)",
        says="`ibv_reg_mr ... failed ... Cannot allocate memory`",
    ),
    Signature(
        "shared-memory",
        r"posix_fallocate failed ?: No space|Error while creating shared memory segment|Unexpected bus error"
        r"|killed by signal: Bus error|/dev/shm/.{0,200}No space left|</?torch_[\w-]+>: No space left",
        "/dev/shm is too small or full; docker gives 64 MB",
        "docker: --shm-size=8g or --ipc=host; else clear /dev/shm there, or use fewer loader workers",
        says="`DataLoader worker ... is killed by signal: Bus error`, `Error while creating shared memory segment`, "
        "`posix_fallocate failed`",
    ),
    Signature(
        "worker-killed",
        r"DataLoader worker \(pid[^)]{0,200}\) is killed by signal: Killed",
        "a data loader's worker was killed, mostly by the kernel: the node's memory is full",
        "fewer workers or a smaller prefetch_factor; `dmesg -T` on that node says whether it was memory",
        says="`DataLoader worker ... is killed by signal: Killed`",
    ),
    Signature(
        "host-memory",
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|(?<!OutOf)MemoryError\b|Cannot allocate memory"
        r"|std::bad_alloc",
        "the node's main memory is full",
        "fewer loader workers, or load less at once; `launch exec -- free -g` shows each node",
        says="`DefaultCPUAllocator: can't allocate memory`, `MemoryError`, `Cannot allocate memory`",
    ),
    Signature(
        "oom-killer",
        r"Out of memory: Killed process (?P<pid>\d+)|[Dd]etected \d+ oom.kill event",
        "the kernel ran out of memory and killed a process",
        "fewer loader workers, a smaller batch, or a higher memory limit of the container or job",
        says="`Out of memory: Killed process`, `Detected 1 oom-kill event`",
    ),
    Signature(
        "killed-by-shell",
        r"line \d+: +\d+ Killed\b",
        "a program of the script was killed, mostly by the kernel: the node's memory is full",
        "`dmesg -T` on that node; fewer loader workers, a smaller batch",
        says="`line 28: 8156 Killed`",
    ),
    # the GPU and its driver
    Signature(
        "gpu-fell-off",
        r"fallen off the bus|GPU is lost|Unable to determine the device handle for GPU",
        "the node lost a GPU: power, heat, or a loose card",
        "reboot it; until then `--exclude HOST:GPU`, or leave the host out",
        says="`GPU has fallen off the bus`, `GPU is lost`",
    ),
    Signature(
        "gpu-ecc",
        r"uncorrectable ECC error|ECC_UNCORRECTABLE",
        "the GPU's memory has a fault of its hardware",
        "reset or reboot that node; if it comes again the card is broken: `--exclude HOST:GPU`",
        says="`uncorrectable ECC error encountered`",
    ),
    Signature(
        "gpu-xid",
        r"NVRM: Xid \([^)]{0,60}\): (?P<number>\d+)",
        "the driver reports fault {number} of a GPU",
        f"NVIDIA's list: {listed(sorted(HARDWARE_XIDS))} are the card or its driver, 13, 31 and 43 mostly the program",
        says="`NVRM: Xid (PCI:...): 31`",
    ),
    Signature(
        "gpu-assert",
        r"device-side assert triggered|block: \[[\d,]+\], thread: \[[\d,]+\] Assertion",
        "an index was out of range on the GPU, mostly a label or a token that is too large",
        _BLOCKING,
        says="`device-side assert triggered`",
    ),
    Signature(
        "gpu-illegal-access",
        r"an illegal memory access was encountered|cudaErrorIllegalAddress|unspecified launch failure"
        r"|misaligned address|an illegal instruction was encountered",
        "a kernel went wrong on the GPU: a bug in native code, or a bad card if it is always the same GPU",
        _BLOCKING + "; `dmesg -T | grep Xid` on that node",
        says="`an illegal memory access was encountered`, `unspecified launch failure`",
    ),
    Signature(
        "gpu-number",
        r"invalid device ordinal|device >= 0 && device < num_gpus",
        "this rank asks for a GPU that it can't see: more processes than GPUs, or a fixed number in the script",
        "a smaller --gpus; in the script torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
        says="`CUDA error: invalid device ordinal`",
    ),
    Signature(
        "gpu-checkpoint",
        r"Attempting to deserialize object on (?:a )?CUDA device",
        "the checkpoint was saved on a GPU that is not here",
        "torch.load(..., map_location=...) in the script",
        says="`Attempting to deserialize object on CUDA device 1`",
    ),
    Signature(
        "gpu-model",
        r"no kernel image is available for execution on the device",
        "this torch was not built for this model of GPU",
        "install a torch that is (a newer or older CUDA build), or name another one's --python",
    ),
    Signature(
        "driver-old",
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient"
        r"|forward compatibility was attempted on non supported HW",
        "the node's NVIDIA driver is too old for this torch",
        "update the driver, or a torch for an older CUDA; `launch check` compares the nodes' drivers",
        says="`The NVIDIA driver on your system is too old`, `CUDA driver version is insufficient`",
    ),
    Signature(
        "driver-mismatch",
        r"Driver/library version mismatch",
        "the NVIDIA driver was updated, and the old one is still loaded",
        "reboot that node, or reload the nvidia modules",
    ),
    Signature(
        "nvml-unknown",
        r"Failed to initialize NVML: Unknown Error",
        "the container lost its GPUs, mostly when systemd was reloaded on its host",
        "start the container again",
    ),
    Signature(
        "fabric-manager",
        r"system not yet initialized|(?:error|failure) '?\(?802\b",
        "NVIDIA's fabric manager does not run, or is of another version than the driver",
        "on that node: systemctl restart nvidia-fabricmanager, after installing the driver's own version of it",
        says="`CUDA error: system not yet initialized` (802)",
    ),
    Signature(
        "driver-state",
        r"CUDA unknown error",
        "the NVIDIA driver does not answer, or CUDA_VISIBLE_DEVICES was changed after the start",
        "`launch exec -- nvidia-smi`; reload nvidia_uvm or reboot that node",
    ),
    Signature(
        "gpu-busy",
        r"devices?(?:\(s\))? (?:is/)?are busy or unavailable",
        "another process holds this GPU for itself, or the GPU hangs",
        "`launch check` names who holds it, and `launch clean` ends what an earlier run left",
        says="`CUDA-capable device(s) is/are busy or unavailable`",
    ),
    Signature(
        "torch-for-cpu",
        r"Torch not compiled with CUDA enabled|Distributed package doesn't have NCCL",
        "this node's torch is a build for CPUs",
        "install the CUDA build there, or name another --python; on CPUs: --cpu (launch also needs --nproc N)",
        says="`Torch not compiled with CUDA enabled`, `Distributed package doesn't have NCCL`",
    ),
    Signature(
        "no-gpu",
        r"No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device is detected|no GPUs found!",
        "this rank sees no GPU: none there, hidden by CUDA_VISIBLE_DEVICES, or the container got none",
        "`launch exec -- nvidia-smi`; on CPUs: --cpu (launch also needs --nproc N)",
        says="`No CUDA GPUs are available`, `Found no NVIDIA driver`",
    ),
    Signature(
        "forked-cuda",
        r"Cannot re-initialize CUDA in forked subprocess",
        "the script used the GPU before it forked",
        "DataLoader(multiprocessing_context='spawn'), and no .cuda() in a dataset",
    ),
    Signature(
        "peer-access",
        r"peer access is not supported between these two devices",
        "NCCL tried a direct way between two GPUs that this node does not have",
        "--env NCCL_P2P_DISABLE=1",
    ),
    Signature(
        "cudnn",
        r"CU(?:DNN|BLAS|SOLVER)_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED)",
        "a CUDA library failed, mostly because the GPU's memory is full",
        "a smaller batch; if that does not help: " + _BLOCKING,
        says="`CUDNN_STATUS_...`, `CUBLAS_STATUS_...`",
    ),
    # what is installed
    Signature(
        "module-missing",
        r"No module named '?(?P<module>[\w.]+)",
        "the Python of this node has no module {module}",
        "install it there, or name another --python; is it your own code: --workdir",
        says="`No module named 'x'`",
    ),
    Signature(
        "library-missing",
        r"(?P<library>\blib[\w.+-]{1,80}): cannot open shared object file",
        "{library} is not found on this node",
        "the same installation on all nodes, --env LD_LIBRARY_PATH=..., or load its module with --setup",
        says="`libcudnn.so.9: cannot open shared object file`",
    ),
    Signature(
        "library-mixed",
        r"undefined symbol: (?P<symbol>\w+)",
        "two libraries that don't belong together: {symbol} is missing in one of them",
        "`pip list | grep nvidia` for two versions of one; take foreign folders out of LD_LIBRARY_PATH",
        says="`libtorch_cuda.so: undefined symbol`",
    ),
    Signature(
        "system-old",
        r"version `(?P<version>GLIBC(?:XX)?_[\d.]+)' not found",
        "this node's system is older than a package was built for: it has no {version}",
        "a build for this system there, a newer libstdc++ (conda has one), or a container",
        says="``version `GLIBC_2.34' not found``",
    ),
    Signature(
        "compiler-missing",
        r"Failed to find C compiler|CUDA_HOME environment variable is not set|nvcc: not found",
        "something wants to compile on this node, and the compiler is not found",
        "install gcc or the CUDA toolkit there; --env CC=... or --env CUDA_HOME=/usr/local/cuda",
        says="`Failed to find C compiler`, `CUDA_HOME environment variable is not set`",
    ),
    Signature(
        "cannot-run",
        r"^launch: can't start (?P<program>.{1,300}): (?:Permission denied|Exec format error)$",
        "{program} is no program on this node, or may not be run",
        "chmod +x there, its first line (#!), or a mount with noexec",
        says="`launch: can't start X: Permission denied`",
    ),
    Signature(
        "cannot-start",
        r"^launch: can't start (?P<program>.{1,300}): (?P<reason>[^:]{1,100})$",
        "this node can't start {program}: {reason}",
        "its full path, or load what puts it on the PATH with --setup; for a folder: --workdir",
        says="`launch: can't start X`",
    ),
    Signature(
        "command-missing",
        r"(?:(\w: \d+: )|(?:^|\s))(?P<command>[^\s:]{1,200}): (?(1)|command )not found",
        "{command} is not on the PATH of this node; a login over SSH does not load what a terminal does",
        "--setup 'conda activate NAME' or what else loads it, --python, or its full path",
        says="`torchrun: command not found`",
    ),
    Signature(
        "script-missing",
        r"can't open file '(?P<file>[^']{1,300})': \[Errno 2\]",
        "{file} is not on this node",
        "copy it there, or --workdir",
        says="`can't open file '/data/train.py': [Errno 2]`",
    ),
    Signature(
        "path-missing",
        r"sh: (?:line )?(?:\d+: )?(?:cd: )?(?P<path>[^\s:]{1,300}): No such file or directory",
        "{path} is not on this node",
        "copy it there, or --workdir; a Python elsewhere: --python",
        says="`bash: line 1: cd: /data: No such file or directory`",
    ),
    # the script
    Signature(
        "local-rank-unknown",
        r"unrecognized arguments:.{0,200} (?P<option>--local[-_]rank\S*)",
        "the script was given {option}, a habit of the old torch.distributed.launch, and does not know it",
        "leave it away; the script finds its number in os.environ['LOCAL_RANK']",
        says="`unrecognized arguments: --local-rank=0`",
    ),
    Signature(
        "local-rank-wanted",
        r"the following arguments are required:.{0,200}--local[-_]rank",
        "the script wants --local_rank, which the old torch.distributed.launch gave it",
        "let it read os.environ['LOCAL_RANK'], which is set for every rank",
        says="`the following arguments are required: --local_rank`",
    ),
    Signature(
        "arguments",
        r"error: unrecognized arguments: (?P<arguments>.{1,200})",
        "the script does not know {arguments}",
        "options of launch go before the script's name, the script's own go after it",
        says="`error: unrecognized arguments`",
    ),
    Signature(
        "variable-missing",
        r"environment variable (?P<variable>\w+) expected, but not set",
        "the script wants {variable}, which torchrun sets for its ranks",
        "start it without --no-python; a wrapper script has to start Python through `launch`",
        says="`environment variable RANK expected, but not set`",
    ),
    Signature(
        "no-group",
        r"Default process group has not been initialized",
        "the script talks to the other ranks before it has met them",
        "torch.distributed.init_process_group() or launcher.distributed.init() first",
    ),
    Signature(
        "unused-parameters",
        r"Expected to have finished reduction in the prior iteration",
        "some parameters had no part in the loss, and DDP waits for their gradients",
        "find_unused_parameters=True, or freeze them; --env TORCH_DISTRIBUTED_DEBUG=DETAIL names them",
    ),
    Signature(
        "ready-twice",
        r"Expected to mark a variable ready only once",
        "a parameter was used twice in one backward, mostly by activation checkpointing under DDP",
        "checkpoint(..., use_reentrant=False), or DDP(..., static_graph=True)",
    ),
    Signature(
        "different-models",
        r"DDP expects same model across all ranks|appears not to match (?:sizes|strides) of the same param",
        "the ranks built different models",
        "the same configuration, seed and code on every node; `launch check` compares the script",
        says="`DDP expects same model across all ranks`",
    ),
    Signature(
        "different-collectives",
        r"Detected mismatch between collectives on ranks|Mismatched collective detected|collective mismatch error"
        r"|[Mm]essage truncated ?: receiv",
        "the ranks don't call the same collective with the same sizes, or run different NCCL versions or settings",
        "a branch in the script that depends on the rank; `launch check` compares torch and NCCL of the nodes",
        says="`Detected mismatch between collectives on ranks`, `message truncated`",
    ),
    Signature(
        "no-keyboard",
        r"EOFError: EOF when reading a line",
        "the script asks a question, and a rank has no keyboard",
        "an argument or a variable in place of input()",
    ),
    Signature(
        "wandb-key",
        r"api_key not configured \(no-tty\)",
        "Weights & Biases has no key on this node",
        "set WANDB_API_KEY here, and it is passed on; or --env WANDB_MODE=offline",
        says="`api_key not configured (no-tty)`",
    ),
    # files and limits
    Signature(
        "open-files",
        r"Too many open files|received 0 items of ancdata",
        "the limit of open files is too low",
        "--setup 'ulimit -n 65536', fewer workers, or torch.multiprocessing.set_sharing_strategy('file_system')",
        says="`Too many open files`, `received 0 items of ancdata`",
    ),
    Signature(
        "threads",
        r"can't start new thread|Thread creation failed|pthread_create failed|Errno 11\] Resource temporarily",
        "the limit of processes and threads is reached on this node",
        "--setup 'ulimit -u unlimited', --env OMP_NUM_THREADS=1, fewer loader workers",
        says="`can't start new thread`, `pthread_create failed`",
    ),
    Signature(
        "disk-full",
        r"No space left on device|Disk quota exceeded",
        "a disk of this node is full, or your quota on it",
        "`launch exec -- df -h` shows which; make room",
        says="`No space left on device`, `Disk quota exceeded`",
    ),
    Signature(
        "file-system",
        r"Stale file handle|Read-only file system|\[Errno 5\] Input/output error",
        "the file system is in trouble: its server restarted, another node replaced the file, or a disk is ill",
        "mount it again on that node; let one rank write what all read",
        says="`Stale file handle`, `Read-only file system`, `Input/output error`",
    ),
    Signature(
        "checkpoint-cut",
        r"PytorchStreamReader failed|unexpected EOF, expected \d+ more bytes",
        "a checkpoint is cut off: a download or a save did not finish, or is still going on",
        "get it again, or take the one before; save to another name and rename",
        says="`PytorchStreamReader failed reading zip archive`",
    ),
    Signature(
        "no-internet",
        r"Failed to resolve '(?P<host>[^']{1,100})'|couldn't connect to 'https://huggingface.co'",
        "this node can't reach the internet",
        "download on a node that can, to a folder that all see; --env HF_HUB_OFFLINE=1",
        says="`Failed to resolve 'huggingface.co'`",
    ),
    # the way between the nodes
    Signature(
        "port-number-taken",
        r"failed to (?:listen on any local network address\. port: |bind to \S{1,60}:)(?P<port>\d+)"
        r".{0,80}(?:EADDRINUSE|errno: 98)",
        "port {port} is taken on this node, often by a run that was left over",
        "is it --master-port: leave it away and a free one is found; `launch clean` ends what an earlier run left",
        says="`The server socket has failed to listen ... port: 29500 ... EADDRINUSE`",
    ),
    Signature(
        "port-taken",
        r"EADDRINUSE|errno: 98\b|Errno 98\b|[Aa]ddress already in use",
        "a port is taken on this node, often by a run that was left over",
        "another port, or --master-port left away; `launch clean` ends what an earlier run left",
        says="`EADDRINUSE`, `Address already in use`",
    ),
    Signature(
        "interface-unknown",
        r"Unable to find address for: (?P<interface>\S{1,60})",
        "this node has no interface {interface}; gloo takes one exact name, and names differ per node",
        "don't set GLOO_SOCKET_IFNAME: each node then gets the one that leads to node 0",
        says="`Unable to find address for: eth0`",
    ),
    Signature(
        "interface-none",
        r"no (?:NCCL_SOCKET_IFNAME |socket )?interface found|family \d+ is neither AF_INET",
        "NCCL finds no interface on this node with the name it was given",
        "don't set NCCL_SOCKET_IFNAME: each node then gets the one that leads to node 0",
        says="`no socket interface found`",
    ),
    Signature(
        "duplicate-gpu",
        r"Duplicate GPU detected ?: rank (?P<rank>\d+) and rank (?P<other>\d+)",
        "ranks {rank} and {other} use the same GPU: no set_device in the script, or one machine listed as two hosts",
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])); `launch hosts` shows the hosts",
        says="`Duplicate GPU detected : rank 1 and rank 0`",
    ),
    Signature(
        "infiniband-lost",
        r"ibv_modify_qp failed|Got completion .{0,80}with (?:error |status=)12\b",
        "InfiniBand or RoCE connects, and then its traffic is lost",
        "--env NCCL_IB_GID_INDEX=3 (show_gids lists them); --env NCCL_IB_DISABLE=1 proves it",
        says="`ibv_modify_qp failed`, `Got completion ... with error 12`",
    ),
    Signature(
        "gloo-loopback",
        r"connectFullMesh failed.{0,300}remote=\[127\.",
        "a node gave the others its loopback address, because its own name means 127.x there",
        "don't set GLOO_SOCKET_IFNAME; or mend the name in that node's /etc/hosts",
        says="`connectFullMesh failed ... remote=[127.0.0.1]`",
    ),
    Signature(
        "no-route",
        r"No route to host|Network is unreachable|Software caused connection abort",
        "one node has no way to another: a firewall, or a wrong interface",
        "open all TCP ports between the nodes, not only the master's; `launch check` tries the ways",
        says="`No route to host`, `Network is unreachable`",
    ),
    Signature(
        "name-unknown",
        r"(?<!- )(?:Name or service not known|Temporary failure in name resolution)",  # torch only warns of `-2 - Name`
        "a host's name is not known on this node",
        "addresses in place of names (addr= in the hostfile), or /etc/hosts on every node",
        says="`Name or service not known`, `Temporary failure in name resolution`",
    ),
    # SSH
    Signature(
        "ssh-banner",
        r"Error reading SSH protocol banner|kex_exchange_identification",
        "sshd dropped the connection: more at once than its MaxStartups, or it is overloaded",
        "it was retried already; raise MaxStartups on that host or bastion",
        says="`Error reading SSH protocol banner`, `kex_exchange_identification`",
    ),
    Signature(
        "ssh-login",
        r"No authentication methods available|Permission denied \([\w,-]{0,100}publickey|Too many authentication fail"
        r"|not a valid \w+ private key file",
        "no key of yours is accepted there",
        "ssh-copy-id; the user goes into user= or ssh_config; an agent with many keys: IdentitiesOnly yes",
        says="`Permission denied (publickey)`, `No authentication methods available`",
    ),
    Signature(
        "ssh-host-key",
        r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED",
        "the host's key is not known, or not the one that was known",
        "--accept-new-host-keys for a new one; ssh-keygen -R only if you know why it changed",
        says="`Host key verification failed`",
    ),
    Signature(
        "hung-up",
        r"got signal: 1\b|Received 1 death signal|closing signal SIGHUP",
        "the terminal or the SSH session that it hung on was closed",
        "type `launch` inside tmux, or on a machine that stays on",
        says="`got signal: 1`, `Received 1 death signal`",
    ),
    # said by healthy runs too
    Signature(
        "node-0-unnamed",
        r"network addresses of \((?P<host>[^,()]{1,100}), \d+\) cannot be retrieved",
        "the name {host} is not known on this node",
        "addr= for that host in the hostfile, or /etc/hosts on every node",
        Kind.HINT,
        says="`network addresses of (X, 29500) cannot be retrieved`",
    ),
    Signature(
        "loopback-master",
        r"trying to connect to [(\[]?(?:127\.|localhost|::1)|network address of [(\[]?(?:127\.|localhost|::1)",
        "this rank looks for rank 0 on its own node",
        "addr= for the first host in the hostfile, with its address in the nodes' network",
        Kind.HINT,
        says="`client socket has timed out ... connect to (127.0.0.1, 29500)`",
    ),
    Signature(
        "interface-local",
        r"Using (?:interface |\[\d+\])(?P<interface>lo|docker\w*|veth\w*|virbr\w*):",
        "NCCL uses {interface}, which other nodes can't reach",
        "don't set NCCL_SOCKET_IFNAME: each node then gets the one that leads to node 0",
        Kind.HINT,
        says="`Using interface lo:`, `Using [0]docker0:`",
    ),
    Signature(
        "infiniband-missing",
        r"NET/IB : No device found|NET/IB : Unable to open device|Failed to open libibverbs",
        "NCCL finds no InfiniBand and uses TCP, which is slow",
        "none there: all is well; else give the container /dev/infiniband and libibverbs",
        Kind.NOTE,
        says="`NET/IB : No device found`",
    ),
    # consequences: another rank is gone, or never came
    Signature(
        "torchrun-stopped-it",
        r"failed \(exitcode: -15\) local_rank: \d+",
        "torchrun ended this rank because another one failed",
        "that other rank's last lines",
        Kind.CONSEQUENCE,
        says="`failed (exitcode: -15) local_rank: 5`",
    ),
    Signature(
        "torchrun-page",
        r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+)",
        "local rank {rank} ended with {code}; -9 is mostly out of memory, -11 a crash in native code",
        "that rank's last lines",
        says="`failed (exitcode: -9) local_rank: 5`",
    ),
    Signature(
        "clients-missing",
        r"Timed out after \d+ seconds waiting for clients\. (?P<some>\d+)/(?P<all>\d+) clients joined",
        "only {some} of {all} processes came in time",
        "why the others were late or died: their logs; a slow start needs a longer --rdzv-timeout",
        Kind.CONSEQUENCE,
        says="`Timed out after 901 seconds waiting for clients. 1/2 clients joined`",
    ),
    Signature(
        "master-unreachable",
        r"(?:while trying to connect to|failed to connect to any network address of|connect/validate to host) "
        r"[(\[]{0,2}(?P<host>[^\s,\])]{1,100})\]?(?:, ?|:)(?P<port>\d+)",
        "this rank could not reach rank 0 at {host} port {port}: it is not there, or a firewall is between",
        "did rank 0 start? open the port; addr= in the hostfile for the address that the nodes use",
        Kind.CONSEQUENCE,
        says="`client socket has timed out ... trying to connect to (10.0.0.1, 29500)`",
    ),
    Signature(
        "rendezvous",
        r"Rendezvous(?:Timeout|Connection|Closed)Error|DistNetworkError|client socket has (?:timed out|failed)",
        "the nodes did not find each other",
        "did all nodes start? open the master's port; a slow start needs a longer --rdzv-timeout",
        Kind.CONSEQUENCE,
        says="`RendezvousTimeoutError`, `DistNetworkError`",
    ),
    Signature(
        "watchdog",
        r"Rank (?P<rank>\d+)\].{0,200}Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<number>\d+), "
        r"OpType=(?P<operation>\w+)",
        "rank {rank} waited for the others in {operation} number {number}, and one did not come",
        "the rank that says nothing, or has the lowest SeqNum; on GPUs the flight recorder is in logs/RUN/files",
        Kind.CONSEQUENCE,
        says="`Watchdog caught collective operation timeout: WorkNCCL(SeqNum=808, ...)`",
    ),
    Signature(
        "waited-in-vain",
        r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send) operation"
        r"|operations have failed or timed out|Heartbeat monitor timed out|watchdog got stuck",
        "this rank waited for the others in a collective, and one did not come",
        "the rank that says nothing: it hangs, or took another branch of the script",
        Kind.CONSEQUENCE,
        says="`Timed out waiting 1800000ms for recv operation`, `Heartbeat monitor timed out`",
    ),
    Signature(
        "rank-0-gone",
        r"store->get\(.{0,200}got error|possible application crash on rank 0|recvValue failed|sendBytes failed"
        r"|failed to recv, got|TCPStore server has shut down",
        "this rank lost rank 0, which keeps the list of all ranks",
        "rank 0's last lines",
        Kind.CONSEQUENCE,
        says="`store->get('0') got error`, `recvValue failed`",
    ),
    Signature(
        "nccl-usage",
        r"ncclInvalidUsage|, invalid usage[ ,(]|ncclInvalidArgument",
        "NCCL was called in a way it can't serve, mostly two ranks on one GPU",
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])); --env NCCL_DEBUG=WARN says more",
        says="`NCCL error ... invalid usage`",
    ),
    Signature(
        "nccl-cuda",
        r"unhandled cuda error|ncclUnhandledCudaError",
        "a CUDA call inside NCCL failed",
        "--env NCCL_DEBUG=WARN and once more: NCCL then says which, and why",
        says="`NCCL error ... unhandled cuda error`",
    ),
    Signature(
        "nccl-peer",
        r"remote process exited or there was a network error|ncclRemoteError|Connection closed by remote peer",
        "NCCL lost another rank: it died, or the network between them broke",
        _NODE_LOGS,
        Kind.CONSEQUENCE,
        says="`remote process exited or there was a network error`",
    ),
    Signature(
        "nccl-system",
        r"unhandled system error|ncclSystemError|ncclInternalError",
        "NCCL could not talk to another rank, or ran out of something on this node",
        "--env NCCL_DEBUG=WARN and once more: NCCL then says what; `launch check` compares the nodes",
        Kind.CONSEQUENCE,
        says="`NCCL error ... unhandled system error`",
    ),
    Signature(
        "gloo-mesh",
        r"connectFullMesh failed",
        "gloo could not reach the other ranks: one of them died, or it took a wrong interface",
        _NODE_LOGS + "; don't set GLOO_SOCKET_IFNAME",
        Kind.CONSEQUENCE,
    ),
    Signature(
        "peer-gone",
        r"[Cc]onnection (?:closed|reset) by (?:remote )?peer|[Cc]onnection refused|Broken pipe|Socket Timeout"
        r"|Application timeout caused pair closure|DistBackendError|DistStoreError",
        "this rank lost its connection to another one",
        _NODE_LOGS,
        Kind.CONSEQUENCE,
        says="`Connection closed by peer`, `Connection refused`, `Broken pipe`, `Socket Timeout`, `DistBackendError`",
    ),
    Signature(
        "worker-gone",
        r"DataLoader worker \(pid.{0,200}exited unexpectedly",
        "a data loader's worker died, mostly for lack of memory or /dev/shm",
        "its own error stands above; once with num_workers=0 shows it",
        says="`DataLoader worker (pid 4711) exited unexpectedly`",
    ),
)


def explain_lines(lines: Iterable[str]) -> Iterator[Explanation]:
    """Yield an explanation for each line that a signature matches, in the order of the table: special ones first."""
    lines = [line[:MAX_LINE] for line in lines]
    for signature, pattern in _compiled():
        for match in filter(None, map(pattern.search, lines)):
            words = {name: value or "?" for name, value in match.groupdict().items()}
            cause, fix = (plain(text).format(**words) for text in (signature.cause, signature.fix))
            yield Explanation(signature.name, cause, fix, signature.kind)


def plain(text: str) -> str:
    """Return text without the backticks that it has for the guide."""
    return text.replace("`", "")


@functools.cache
def _compiled() -> tuple[tuple[Signature, re.Pattern[str]], ...]:
    """Compile the patterns on first use: it takes 5 ms, which only failed runs need to spend."""
    return tuple((signature, re.compile(signature.pattern)) for signature in SIGNATURES)
