"""Stands for a program of Python: its process is forked by a `warm_python`, on the same host."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys

SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def pass_on(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended, and its exit code is on the way
        os.kill(pid, number)


# What is forked may do much before this process is told so: a signal that comes meanwhile waits for its handler.
signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
ignored = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_IGN]  # as in a script's background
place, name, program, *argv = sys.argv[1:]
descriptors = [number for number in range(10) if is_open(number)]
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect(place)
    order = {"program": program, "name": name, "argv": argv, "env": dict(os.environ), "descriptors": descriptors}
    order["ignored"] = ignored
    order["cwd"] = os.getcwd()  # noqa: PTH109 - to import pathlib takes as long as all the rest
    socket.send_fds(server, [json.dumps(order).encode()], descriptors)
    pid = json.loads(server.recv(100))
    for number in set(SIGNALS).difference(ignored):
        signal.signal(number, lambda number, frame: pass_on(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    exit_code = json.loads(server.recv(100))
if exit_code < 0:
    with contextlib.suppress(OSError):  # SIGKILL has no handler
        signal.signal(-exit_code, signal.SIG_DFL)
    os.kill(os.getpid(), -exit_code)
sys.exit(exit_code)
