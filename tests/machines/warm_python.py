"""A Python that has imported much, and forks processes for tests: the imports take longer than most of what they do.

It listens on a Unix socket. An order, in JSON with the descriptors that the process gets, is answered by the process
id, and once that process has ended by its exit code, as `subprocess` has it. If whoever gave the order is gone before
that, the process is killed with its group. It ends with its stdin.

It must have no threads, which a fork would not copy; so torch needs OMP_NUM_THREADS=1. What an interpreter looks at as
it starts is as it was here: PYTHONIOENCODING, the seed of hashes and, in /proc, command line and environment.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn


class Server:
    """Starts processes and tells how they ended."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(0, selectors.EVENT_READ, lambda: os._exit(0))

    def serve(self) -> NoReturn:
        while True:
            for key, _ in self._selector.select():
                if key in self._selector.get_map().values():  # another event of this turn may have removed it
                    key.data()

    def _accept(self) -> None:
        orderer, _ = self._listener.accept()
        self._selector.register(orderer, selectors.EVENT_READ, lambda: self._start(orderer))

    def _start(self, orderer: socket.socket) -> None:
        data, descriptors, _, _ = socket.recv_fds(orderer, 1 << 20, 10)
        self._selector.unregister(orderer)
        if not data:
            orderer.close()
            return
        pid = os.fork()
        if pid == 0:
            become(json.loads(data), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        ending = os.pidfd_open(pid)
        self._selector.register(ending, selectors.EVENT_READ, lambda: self._tell_end(orderer, pid, ending))
        self._selector.register(orderer, selectors.EVENT_READ, lambda: self._kill(orderer, pid))
        orderer.send(json.dumps(pid).encode())

    def _kill(self, orderer: socket.socket, pid: int) -> None:
        self._selector.unregister(orderer)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    def _tell_end(self, orderer: socket.socket, pid: int, ending: int) -> None:
        exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._selector.unregister(ending)
        os.close(ending)
        if orderer in self._selector.get_map():
            self._selector.unregister(orderer)
        with orderer, contextlib.suppress(OSError):
            orderer.send(json.dumps(exit_code).encode())


def become(order: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Be a process that was started with these arguments."""
    os.setsid()
    for number in order.get("ignored", ()):
        signal.signal(number, signal.SIG_IGN)
    program, argv = order["program"], order["argv"]
    Path("/proc/self/comm").write_text(order["name"])
    kept = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 100) for descriptor in descriptors]
    os.closerange(0, 100)
    for descriptor, number in zip(kept, order["descriptors"], strict=True):
        os.dup2(descriptor, number)
    os.closerange(100, 1024)
    sys.executable, sys.orig_argv = program, [program, *argv]
    os.environ.clear()
    os.environ.update(order["env"])
    if "torch" in sys.modules:
        threads = int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
        sys.modules["torch"].set_num_threads(threads)
    os.chdir(order["cwd"])
    exit_code = 1
    try:
        run(argv)
        exit_code = 0
    except SystemExit as end:
        exit_code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(ValueError, OSError):  # it is closed, or nobody reads it
                stream.flush()
        os._exit(exit_code)


def run(argv: list[str]) -> None:
    """Run a module after `-m`, a program after `-c`, or a script, as `python` does; `-u` changes nothing."""
    argv = argv[1:] if argv[0] == "-u" else argv
    if os.environ.get("PYTHONPATH"):
        sys.path[1:1] = os.environ["PYTHONPATH"].split(os.pathsep)
    if argv[0] == "-m":
        sys.path[0], sys.argv = str(Path.cwd()), argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    elif argv[0] == "-c":
        sys.path[0], sys.argv = "", ["-c", *argv[2:]]
        exec(argv[1], {"__name__": "__main__"})
    else:
        sys.path[0], sys.argv = str(Path(argv[0]).parent), argv
        runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    place, imported = sys.argv[1:]
    importlib.import_module(imported)
    gc.collect()
    gc.freeze()  # so that a collection in one of those that are forked copies nothing
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{place}.new")
        listener.listen(100)
        Path(f"{place}.new").rename(place)
        Path("/proc/self/comm").write_text(Path(__file__).stem)
        Server(listener).serve()
