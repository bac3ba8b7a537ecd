"""A Python that has imported torch before the ranks start, and then forks one process for each.

It is the ranks' own command line, `PYTHON -u train.py ...`, in their directory, with a sitecustomize of `launch` first
on its path: Python runs that before the script. There it imports torch, waits for its order, and forks; each fork
returns from the sitecustomize, and Python continues with the script as in any process. So a rank's arguments,
`__main__`, tracebacks, exit and name are those of a Python that was started for it alone.

It never has a second thread before it forks (it looks), opens no CUDA context and asks no GPU. Whenever a rank might
differ from one that has imported torch by itself, it says why and exits, and the shim starts the ranks instead.

Once it has forked, it is for its ranks what the shim is: the starter, which reports each start and exit in the same
words, ignores the signals that mean stop, and ends the ranks if guardian and supervisor are both killed. On node 0 it
then also holds the store at the master port, as torchrun does: it outlives rank 0, whose end is then no other rank's
error. If the run may be restarted, it first forks its successor, which waits for the order of the next attempt at the
same pipes. That one ends when its order's pipe closes.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable

from launcher.node.loop import Loop
from launcher.node.processes import proc, sitecustomize, torchrun, workers

REPORT_FD, ORDER_FD = 3, 5  # of the Python; torchrun.KEEPERS_FD is between them

# What a plan may set after torch was imported: read when a process group is made, by the script, or by nobody else.
# torch/csrc/distributed/c10d: ProcessGroupGloo.cpp and ProcessGroupNCCL.cpp read theirs in their constructors, NCCL in
# ncclInit; the C library reads RES_OPTIONS with the first look-up of a name.
LATE_VARIABLES = frozenset((
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "LAUNCH_ATTEMPT", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
    "NCCL_RAS_ADDR", "RES_OPTIONS", "PYTHONPATH", "TORCHELASTIC_ERROR_FILE",
))  # fmt: skip

# `launch_is_heard` tells the search for a Python that it runs this file: without it, the script itself would be run.
# numpy's OpenBLAS starts its threads when it is loaded; with one it starts none, and each rank asks for its others.
SITECUSTOMIZE = (
    """\
import os
import sys

FOLDER = os.path.dirname(__file__)
REPORT, KEEPERS, ORDER = 3, 4, 5
DEVICES = """
    + repr((*proc.GPU_DEVICES, "/dev/accel", "/dev/davinci", "/dev/infiniband", "/dev/hl"))
    + """


"""
    + sitecustomize.GO_ON
    + """

def become_rank():
    global own
    own = os.getpid()
    try:
        order, entry = await_fork(import_torch())
        dress(order, entry)
    except BaseException as error:  # never continue with the script: this is no rank
        if os.getpid() == own:
            fail("%s: %s" % (type(error).__name__, error))
        tell(failure="start: a rank: %s: %s" % (type(error).__name__, error))
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    go_on([os.fsdecode(encode(path)) for path in order["first_on_path"]])


def import_torch():
    sys.path.remove(FOLDER)
    path = os.environ["PYTHONPATH"].partition(os.pathsep)[2]  # a Python that torch starts must not come here
    if path:
        os.environ["PYTHONPATH"] = path
    else:
        del os.environ["PYTHONPATH"]
    before = set(sys.modules)
    threads = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        import torch.distributed
    except BaseException as error:
        leave("torch can't be imported: %s: %s" % (type(error).__name__, error))
    global as_imported
    try:
        as_imported = identify_files(), identify_folder()
    except OSError as error:
        leave(str(error))
    del os.environ["OPENBLAS_NUM_THREADS"]
    if threads is not None:
        os.environ["OPENBLAS_NUM_THREADS"] = threads
    return set(sys.modules) - before


def await_fork(loaded):
    import json
    while True:
        with os.fdopen(os.dup(ORDER), "rb") as file:
            line = file.readline()
        if not line.endswith(b"\\n"):  # cut short: the supervisor is gone
            os._exit(0)
        obstacle = find_obstacle(loaded)
        if obstacle:
            leave(obstacle)
        tell(is_ready=True)
        take_claims()
        __import__("ctypes").CDLL(None).fflush(None)  # else each fork would print what C libraries have printed
        order = json.loads(line.decode())
        if not (order["wants_successor"] and fork_successor()):
            return start_ranks(order)


def take_claims():  # the sockets of the run's claim, which lasts as long as this process, and without any rank
    import socket
    global claims
    with socket.socket(fileno=os.dup(ORDER)) as orders:
        go, passed, _, _ = orders.recvmsg(1, socket.CMSG_SPACE(1 << 10), socket.MSG_CMSG_CLOEXEC)
    if not go:
        os._exit(0)
    data = b"".join(each[2] for each in passed)
    claims = [int.from_bytes(data[at:at + 4], sys.byteorder) for at in range(0, len(data), 4)]


def fork_successor():  # returns whether this is the successor
    global own
    if read("/proc/self/task/%d/children" % os.getpid()):  # a helper of torch would be no child of the next attempt
        return False
    try:
        pid = os.fork()
    except OSError:  # a run needs none
        return False
    if pid:
        tell(successor=read("/proc/%d/stat" % pid))
        return False
    own = os.getpid()
    os.setsid()
    for fd in claims:
        os.close(fd)
    null = os.open(os.devnull, os.O_RDWR)  # the pipes of this attempt must end with it
    for fd in (1, 2):
        os.dup2(null, fd)
    os.close(null)
    return True


def identify_files():
    found = [os.stat(path) for path in (sys.modules["torch"].__file__, sys.executable) if path]
    return [(each.st_dev, each.st_ino, each.st_mtime_ns) for each in found]


def identify_folder():
    found = os.stat(os.environ.get("PWD", "."))
    return found.st_dev, found.st_ino


def find_obstacle(loaded):
    try:
        if identify_folder() != as_imported[1]:
            return "the working directory has been replaced since torch was imported"
        if identify_files() != as_imported[0]:
            return "torch or its Python has changed since it was imported"
    except OSError as error:
        return str(error)
    tasks = os.listdir("/proc/self/task")
    if len(tasks) > 1:
        names = sorted({read("/proc/self/task/%s/comm" % task).strip() for task in tasks if task != str(os.getpid())})
        return "importing torch starts threads (%s)" % ", ".join(names)
    devices = [path for path in map(read_link, os.listdir("/proc/self/fd")) if path.startswith(DEVICES)]
    if devices:
        return "importing torch opens %s" % devices[0]
    if getattr(sys.flags, "safe_path", False):
        return None
    argv = getattr(sys, "orig_argv", None) or read("/proc/self/cmdline").split("\\0")
    folder = os.getcwd() if argv[2] == "-m" else os.path.realpath(argv[2])
    folder = folder if os.path.isdir(folder) else os.path.dirname(folder)
    try:
        entries = os.listdir(folder)
    except OSError:
        return None
    names = {name.partition(".")[0] for name in loaded}
    for entry in sorted(entry for entry in entries if entry.partition(".")[0] in names):
        path, suffix = os.path.join(folder, entry), entry.partition(".")[2]
        if suffix == "py" or suffix.endswith("so") or os.path.exists(os.path.join(path, "__init__.py")):
            return "%s hides a module that torch has imported" % path


def start_ranks(order):
    import select, signal
    global mark, folder, stop_timeout_s
    mark, folder, stop_timeout_s = os.environ["LAUNCH_MARK"], order["folder"], order["stop_timeout_s"]
    server = listen(order["world"])
    libc = __import__("ctypes").CDLL(None)
    libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: daemons without the mark become children of this process
    ignored = signal.SIGTERM, signal.SIGHUP, signal.SIGINT, order["hold_signal"]
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
    starter = os.getpid()
    for entry in order["ranks"]:
        pid = os.fork()  # an error, such as no more processes, ends this process and so the ranks
        if pid == 0:
            os.setsid()
            libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
            if os.getppid() != starter:
                os._exit(127)
            for number, handler in handlers.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            if server:
                server.close()
            return order, entry
        tell(rank=entry["rank"], stat=read("/proc/%d/stat" % pid))
    if server:
        import threading
        threading.Thread(target=serve, args=(server, order["world"]), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])  # whatever torch has imported
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    if order["lock"]:  # of the code: no other run takes it while this process, and so a rank, may live
        import fcntl
        try:
            fcntl.flock(os.open(encode(order["lock"]), os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # a file system without locks
            pass
    wake_read, wake_write = os.pipe()
    for fd in (wake_read, wake_write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    reap()
    while KEEPERS not in select.select([wake_read, KEEPERS], [], [])[0]:
        os.read(wake_read, 4096)
        reap()
    end_ranks()


def listen(world):
    if world["GROUP_RANK"] != "0" or not may_hold_store():
        return None
    import socket
    address = "", int(world["MASTER_PORT"])
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(address, family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096)
        return socket.create_server(address, backlog=4096)
    except OSError as error:
        fail("the master port %d: %s" % (address[1], os.strerror(error.errno)))


def may_hold_store():  # an older torch puts a prefix before the keys of its clients, and hosts with a shim would not
    connect = getattr(sys.modules.get("torch.distributed.rendezvous"), "_create_c10d_store", None)
    return connect is not None and not any("/attempt_" in str(each) for each in connect.__code__.co_consts)


def serve(server, world):  # in a thread: it connects to itself, at an address that might not respond
    global store
    from torch.distributed import TCPStore
    place = world["MASTER_ADDR"], int(world["MASTER_PORT"]), int(world["WORLD_SIZE"])
    options = {"is_master": True, "wait_for_workers": False, "multi_tenant": True}
    try:
        try:
            store = TCPStore(*place, master_listen_fd=server.detach(), **options)
        except TypeError:  # an older torch has no such argument
            store = TCPStore(*place, **options)
    except Exception as error:
        fail(error)


def fail(error):
    tell(failure="start: %s" % (error,))
    os._exit(1)


def dress(order, entry):
    global REPORT
    local_rank, folder = entry["rank"], order["folder"]
    for number, name in ((1, "out"), (2, "err")):
        fd = os.open(encode("%s/%s.%d" % (folder, name, local_rank)), os.O_RDWR)
        os.dup2(fd, number)
        os.close(fd)
    for fd in (REPORT, KEEPERS, ORDER, *claims):
        os.close(fd)
    REPORT = -1
    # Only what differs: Python's .pth files and what torch imports may have set variables, too.
    os.environb.update({encode(name): encode(value) for name, value in entry["env"].items()})
    if may_hold_store():
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    torch = sys.modules["torch"]
    if hasattr(torch, "default_generator"):
        torch.default_generator.seed()  # torch.seed() would also change CUDA's, which is the same in every process
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # random reseeds itself
    give_threads()


def read_link(fd):
    try:
        return os.readlink("/proc/self/fd/" + fd)
    except OSError:
        return ""


def encode(text):  # the supervisor reads all bytes as UTF-8, whatever the encoding is here
    return text.encode("utf-8", "surrogateescape")


def give_threads():
    wanted = [os.environ.get(name, "") for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")]
    cores = len(os.sched_getaffinity(0))
    count = min([int(each) for each in wanted if each.isdigit() and int(each)][:1] or [cores])
    paths = {line.split()[-1] for line in read("/proc/self/maps").splitlines() if "openblas" in line}
    for path in paths if count > 1 else ():
        library = __import__("ctypes").CDLL(path)
        for name in ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads",
                     "openblas_set_num_threads64_", "openblas_set_num_threads"):
            if hasattr(library, name):
                getattr(library, name)(min(count, cores))
                break


def reap():
    import time
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None:
            return
        is_exit = ended.si_code == os.CLD_EXITED
        status = ended.si_status << 8 if is_exit else ended.si_status | 0x80 * (ended.si_code == os.CLD_DUMPED)
        tell(pid=ended.si_pid, status=status, ended_at=time.monotonic())  # before it is reaped, as the shim does
        os.waitpid(ended.si_pid, 0)


def tell(**fields):
    import json
    try:
        os.write(REPORT, json.dumps(fields).encode() + b"\\n")
    except OSError:
        pass


def leave(reason):
    tell(is_ready=False, reason=reason)
    os._exit(0)


"""
    + torchrun.END_RANKS
    + """

if sys.argv[:1] == ["-c"]:
    sys.launch_is_heard = True
    go_on()
else:
    become_rank()
"""
)


class WarmPython:
    """A Python that imports torch, and waits for the order to start the ranks."""

    def __init__(
        self, argv: list[str], env: dict[str, str], cwd: str, output_fds: list[int], keepers_fd: int, armed_folder: str
    ) -> None:
        """Start it; raise OSError. armed_folder: what `arm` returned; output_fds: its stdout and stderr."""
        self.report_fd, report_write = os.pipe()
        order_read, self.order_fd = workers.make_channel()
        null = os.open(os.devnull, os.O_RDONLY)
        self._env = env
        self._argv = argv
        self._cwd = cwd
        fds = {0: null, 1: output_fds[0], 2: output_fds[1], REPORT_FD: report_write, ORDER_FD: order_read}
        fds[torchrun.KEEPERS_FD] = keepers_fd
        try:
            self.child = workers.spawn(argv, sitecustomize.put_first(armed_folder, env), cwd, fds, proc.HOLD)
        finally:
            for fd in (null, report_write, order_read):
                os.close(fd)
        os.set_blocking(self.report_fd, False)

    def find_difference(self, processes: list[dict[str, Any]], env: dict[str, str], cwd: str | None) -> str | None:
        """Return what of the ranks differs from what this Python was started for, or None."""
        for process in processes:
            if process["argv"] != self._argv or cwd != self._cwd:
                return "the plan has changed since torch was imported"
            after = dict(env, **process["env"])
            names = {name for name in {*after, *self._env} if after.get(name) != self._env.get(name)} - LATE_VARIABLES
            if names:
                return "%s was set after torch was imported" % ", ".join(sorted(names))
        return None

    def is_for(self, argv: list[str], env: dict[str, str], cwd: str) -> bool:
        """Tell whether it lives and may start ranks with these arguments, in this environment and directory."""
        is_alive = self.child.process is not None and proc.is_alive(self.child.process)
        has_path = env.get("PYTHONPATH") == self._env.get("PYTHONPATH")  # only START may put something before it
        return is_alive and has_path and self.find_difference([{"argv": argv, "env": {}}], env, cwd) is None

    def find_changes(self, env: dict[str, str]) -> dict[str, str]:
        """Return the variables that this Python wasn't started with, or not with this value."""
        return {name: value for name, value in env.items() if self._env.get(name) != value}

    def give_order(
        self, loop: Loop, order: dict[str, Any], on_ready: Callable[[], object], on_refusal: Callable[[str], object]
    ) -> None:
        """Send the order; once torch is imported call `on_ready`, or `on_refusal` with the reason against it."""
        report = bytearray()

        def take() -> None:
            data = os.read(self.report_fd, 1 << 16)
            report.extend(data)
            if data and not report.endswith(b"\n"):
                return
            loop.forget(self.report_fd)
            answer = json.loads(report.decode()) if data else {"reason": "the Python that imports torch has ended"}
            if answer.get("is_ready"):
                on_ready()
            else:
                self.end()
                on_refusal(answer.get("reason") or answer["failure"])

        loop.watch(self.report_fd, take)
        loop.write_all(os.dup(self.order_fd), json.dumps(order).encode() + b"\n")

    def go(self, claim_fds: list[int]) -> None:
        """Let it start the ranks, with the sockets of the run's claim; it reports them on `report_fd`."""
        workers.pass_on(self.order_fd, claim_fds)  # if it was killed, its reports end

    def end(self) -> None:
        """Kill it: no rank needs it."""
        workers.kill(self.child)
        os.close(self.order_fd)
        os.close(self.report_fd)


def arm(run_folder: str) -> str:
    """Make a directory with the sitecustomize, and return it."""
    return sitecustomize.make_folder(run_folder, "warm", SITECUSTOMIZE)
