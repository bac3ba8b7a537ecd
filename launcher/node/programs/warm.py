"""A Python that has imported torch before the ranks start, and then forks one process for each.

It is the ranks' own command line, `PYTHON -u train.py ...`, in their directory, with `entry` as a sitecustomize: Python
runs that before the script. There it imports torch, waits for its order, and forks; each fork returns from the
sitecustomize, and Python continues with the script as in any process. So a rank's arguments, `__main__`, tracebacks,
exit and name are those of a Python that was started for it alone.

It never has a second thread before it forks (it looks), opens no CUDA context and asks no GPU. Whenever a rank might
differ from one that has imported torch by itself, it says why and exits, and the shim starts the ranks instead.

Once it has forked, it is for its ranks what the shim is. On node 0 it then also holds the store at the master port, as
torchrun does: it outlives rank 0, whose end is then no other rank's error.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from typing import Any, List, NoReturn

from launcher.node.processes import proc, starter, workers
from launcher.node.processes.run_processes import become_subreaper
from launcher.node.processes.starter import Starter
from launcher.node.programs.entry import ANSWER_FD, KEEPERS_FD, ORDER_FD
from launcher.node.system import read_text

_DEVICES = (*proc.GPU_DEVICES, "/dev/accel", "/dev/davinci", "/dev/infiniband", "/dev/hl")

_stores: List[Any] = []  # what node 0 holds lives as long as this process


def become_rank(folder: str, loaded: set[str]) -> List[str]:
    """Return in each rank, with the directories that come first on its path.

    loaded: the modules that were there before anything of launch.
    """
    python = _WarmPython(loaded)
    try:
        python.import_torch(folder)
        order, entry = python.await_fork()
        python.dress(order, entry)
    except BaseException as error:
        if os.getpid() == python.pid:
            _fail("%s: %s" % (type(error).__name__, error))
        _tell_failure("a rank: %s: %s" % (type(error).__name__, error))
        raise
    return [starter.as_path(path) for path in order["first_on_path"]]


class _WarmPython:
    """This process, until it has forked."""

    def __init__(self, loaded: set[str]) -> None:
        self.pid = os.getpid()
        self._loaded = loaded  # before the import; then what the import has loaded
        self._claims: list[int] = []  # the sockets of the run's claim

    def import_torch(self, own_folder: str) -> None:
        sys.path.remove(own_folder)
        path = os.environ["PYTHONPATH"].partition(os.pathsep)[2]  # a Python that torch starts must not come here
        if path:
            os.environ["PYTHONPATH"] = path
        else:
            del os.environ["PYTHONPATH"]
        # numpy's OpenBLAS starts its threads when it is loaded; with one it starts none, and each rank asks for others.
        threads = os.environ.get("OPENBLAS_NUM_THREADS")
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        try:
            import torch.distributed  # noqa: F401
        except BaseException as error:  # noqa: BLE001 - then the ranks fail as well, or don't
            _leave("torch can't be imported: %s: %s" % (type(error).__name__, error))
        del os.environ["OPENBLAS_NUM_THREADS"]
        if threads is not None:
            os.environ["OPENBLAS_NUM_THREADS"] = threads
        self._loaded = set(sys.modules) - self._loaded

    def await_fork(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the order and its entry for this rank, in each rank."""
        order = starter.read_order(ORDER_FD)
        if order is None:
            os._exit(0)
        obstacle = self._find_obstacle()
        if obstacle:
            _leave(obstacle)
        _answer(None)
        claims = workers.take_passed(ORDER_FD)
        if claims is None:
            os._exit(0)
        self._claims = claims
        proc.call_c("fflush", None)  # else each fork would print what C libraries have printed
        return order, self._start_ranks(order)

    def _find_obstacle(self) -> str | None:
        others = [task for task in os.listdir("/proc/self/task") if task != str(self.pid)]
        if others:
            names = sorted({read_text("/proc/self/task/%s/comm" % task).strip() for task in others})
            return "importing torch starts threads (%s)" % ", ".join(names)
        devices = [path for path in map(_read_link, os.listdir("/proc/self/fd")) if path.startswith(_DEVICES)]
        if devices:
            return "importing torch opens %s" % devices[0]
        if getattr(sys.flags, "safe_path", False):
            return None
        words = read_text("/proc/self/cmdline", errors="surrogateescape").split("\0")
        argv: list[str] = getattr(sys, "orig_argv", None) or words
        folder = os.getcwd() if argv[2] == "-m" else os.path.realpath(argv[2])
        hidden = find_hidden(folder if os.path.isdir(folder) else os.path.dirname(folder), self._loaded)
        return "%s hides a module that torch has imported" % hidden if hidden is not None else None

    def _start_ranks(self, order: dict[str, Any]) -> dict[str, Any]:
        """Return in each rank, with its entry; the starter never does."""
        server = _listen(order["world"])
        own = _make_starter(order["stop_timeout_s"])
        become_subreaper()  # so that a daemon without the mark becomes its child
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in starter.IGNORED}
        for entry in order["ranks"]:
            pid = os.fork()  # an error, such as no more processes, ends this process and so the ranks
            if pid == 0:
                os.setsid()
                workers.die_with(self.pid, signal.SIGKILL)
                for number, handler in handlers.items():
                    signal.signal(number, signal.SIG_DFL if handler is None else handler)
                if server is not None:
                    server.close()
                return dict(entry)
            own.add_rank(entry["rank"], pid)
        if server is not None:
            threading.Thread(target=_serve, args=(server, order["world"]), daemon=True).start()
        workers.silence(1, 2)
        return own.serve()

    def dress(self, order: dict[str, Any], entry: dict[str, Any]) -> None:
        """Make this fork a rank."""
        for number, fd in _make_starter(0).open_streams(entry["rank"]).items():
            os.dup2(fd, number)
            os.close(fd)
        # Only what differs: Python's .pth files and what torch imports may have set variables, too.
        starter.add_to_environment(entry["env"])
        if _may_hold_store():
            os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        torch = sys.modules["torch"]
        if hasattr(torch, "default_generator"):
            torch.default_generator.seed()  # torch.seed() would also change CUDA's, the same in every process
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()  # random reseeds itself
        _give_threads()
        for fd in (ANSWER_FD, KEEPERS_FD, ORDER_FD, *self._claims):
            os.close(fd)


def find_hidden(folder: str, loaded: set[str]) -> str | None:
    """Return what in the directory of a script would be imported instead of one of these modules, or None."""
    try:
        entries = os.listdir(folder)
    except OSError:
        return None
    names = {name.partition(".")[0] for name in loaded}
    for entry in sorted(entry for entry in entries if entry.partition(".")[0] in names):
        path, suffix = os.path.join(folder, entry), entry.partition(".")[2]
        if suffix == "py" or suffix.endswith("so") or os.path.exists(os.path.join(path, "__init__.py")):
            return path
    return None


# ---- the store of node 0 ---------------------------------------------------------------------------------------------


def _listen(world: dict[str, str]) -> socket.socket | None:
    if world["GROUP_RANK"] != "0" or not _may_hold_store():
        return None
    address = "", int(world["MASTER_PORT"])
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(address, family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096)
        return socket.create_server(address, backlog=4096)
    except OSError as error:
        _fail("port %d of node 0: %s" % (address[1], os.strerror(error.errno or 0)))


def _may_hold_store() -> bool:
    """Tell whether all ranks would meet there.

    An older torch puts a prefix before the keys of its clients, and hosts with a shim would not.
    """
    connect = getattr(sys.modules.get("torch.distributed.rendezvous"), "_create_c10d_store", None)
    return connect is not None and not any("/attempt_" in str(each) for each in connect.__code__.co_consts)


def _serve(server: socket.socket, world: dict[str, str]) -> None:
    """Hold the store, in a thread: it connects to itself, at an address that might not respond."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    place = world["MASTER_ADDR"], int(world["MASTER_PORT"]), int(world["WORLD_SIZE"])
    options: dict[str, Any] = {"is_master": True, "wait_for_workers": False, "multi_tenant": True}
    try:
        try:
            _stores.append(TCPStore(*place, master_listen_fd=server.detach(), **options))
        except TypeError:  # an older torch has no such argument
            _stores.append(TCPStore(*place, **options))
    except Exception as error:  # noqa: BLE001 - it ends the run
        _fail(str(error))


# ---- what a rank gets ------------------------------------------------------------------------------------------------


def _give_threads() -> None:
    """Give OpenBLAS the threads that it would have had."""
    wanted = [os.environ.get(name, "") for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")]
    cores = len(os.sched_getaffinity(0))
    count = min([int(each) for each in wanted if each.isdigit() and int(each)][:1] or [cores])
    maps = read_text("/proc/self/maps", errors="surrogateescape").splitlines()
    for path in {line.split()[-1] for line in maps if "openblas" in line} if count > 1 else ():
        import ctypes

        library = ctypes.CDLL(path)
        for name in (
            "scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads", "openblas_set_num_threads64_",
            "openblas_set_num_threads",
        ):  # fmt: skip
            if hasattr(library, name):
                getattr(library, name)(min(count, cores))
                break


def _read_link(fd: str) -> str:
    try:
        return os.readlink("/proc/self/fd/" + fd)
    except OSError:
        return ""


def _make_starter(stop_timeout_s: float) -> Starter:
    return Starter([os.environ[proc.MARK]], os.path.dirname(os.environ[proc.FILES]), stop_timeout_s, KEEPERS_FD)


def _fail(text: str) -> NoReturn:
    _tell_failure(text)
    os._exit(1)


def _tell_failure(text: str) -> None:
    _make_starter(0).report(failure="start: %s" % text)


def _leave(reason: str) -> NoReturn:
    _answer(reason)
    os._exit(0)


def _answer(obstacle: str | None) -> None:
    os.write(ANSWER_FD, json.dumps({"obstacle": obstacle}).encode() + b"\n")
