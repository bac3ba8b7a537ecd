"""The boot unit of an agent (launcher.node.boot_units), with which it comes again after a reboot of its node.

The file that a boot starts holds the agent's code, the token of its order, and the environment and limits of the login
that started it first. An agent that finds no controller soon ends for good: mostly the run is over by then, and a run
that continues starts another one by a login.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import time
from binascii import b2a_base64
from typing import Any

from launcher.node import archive, boot_units, clock
from launcher.node.processes import workers

BOOT_S = 60.0  # at least, for a controller whose host may have booted as well
REMOVE_S = 5.0  # for a disk that hangs, at the end of the run
_ANSWER_BYTES = 2048
_POLL_S = 0.02
_LOGIN = ("SSH_", "XDG_SESSION_")  # variables of a login: after a boot the sockets in them may be another user's
_PROGRAM = """\
import binascii, io, sys, zipfile
content = binascii.a2b_base64("%s")
archive = type(sys)("archive")
exec(zipfile.ZipFile(io.BytesIO(content)).read("launcher/node/archive.py"), archive.__dict__)
archive.Archive(content, {}).enter()
from launcher.node.agents import agent
agent.main_after_boot(%r)
"""
_ENDS = "SSH_CONNECTION"  # which of them shows the address by which others reach this node


class AgentUnit:
    """Installs and removes the unit of one agent.

    Child processes do that, one at a time: neither a disk nor a program that hangs may delay a heartbeat, and they hold
    no descriptor of the agent. `fd` is where the answer to `install` comes; it is -1 before and after.
    """

    def __init__(self, plant: dict[str, Any], *, is_installed: bool = False) -> None:
        """plant: the order of the agent.

        is_installed: it has started this agent.
        """
        self.fd = -1
        self._plant = plant
        self._is_installed = is_installed
        self._name = name_agent(plant)
        self._child = 0

    def install(self) -> None:
        """Begin to install it, unless it is; `take_answer` ends that."""
        if self._is_installed:
            return
        self.fd, answer = os.pipe()
        self._start(answer)
        os.close(answer)

    def take_answer(self) -> str:
        """Return why nothing will start the agent after a boot, or "", once there is something to read."""
        text = os.read(self.fd, _ANSWER_BYTES) or b"E\nit could not be tried"
        os.close(self.fd)
        self.fd = -1
        return text.decode("utf-8", "replace").partition("\n")[2]

    def reap(self) -> bool:
        """Take note of a child that has exited; return whether there is none."""
        if self._child and os.waitpid(self._child, os.WNOHANG)[0]:
            self._child = 0
        return not self._child

    def remove(self) -> None:
        """Remove it, once a child that may just install it has ended, or leave that to another one."""
        deadline = clock.boottime() + REMOVE_S
        while not self.reap() and clock.boottime() < deadline:
            time.sleep(_POLL_S)
        self._start()
        while not self.reap() and clock.boottime() < deadline:
            time.sleep(_POLL_S)

    def _start(self, answer: int = -1) -> None:
        """Fork a child that installs the unit and answers, or else removes it."""
        try:
            pid = workers.fork(death_signal=0)
        except OSError:  # no process is left
            return
        if pid:
            self._child = pid
            return
        try:
            workers.drop_descriptors(answer)
            if answer >= 0:
                why = boot_units.install(self._name, self._describe())
                os.write(answer, ("\n%s" % why).encode("utf-8", "replace")[:_ANSWER_BYTES])
            else:
                boot_units.remove(self._name)
        except OSError:
            pass
        finally:
            os._exit(0)

    def _describe(self) -> str:
        """Return the program that a boot starts."""
        order = {
            "plant": {**self._plant, "boot_s": max(BOOT_S, self._plant["connect_timeout_s"])},
            "environment": {
                name: value for name, value in os.environ.items() if name == _ENDS or not name.startswith(_LOGIN)
            },
            "limits": _read_limits(),
            "umask": _read_umask(),
        }
        own = archive.find_own()
        assert own is not None  # nothing else is sent
        return _PROGRAM % (b2a_base64(own.content, newline=False).decode(), json.dumps(order))


def restore_login(order: dict[str, Any]) -> None:
    """Give this process what the login had that started the agent first: a boot gives less."""
    os.environ.clear()
    os.environ.update(order["environment"])
    if not _has_address(os.environ.get(_ENDS, "")):
        os.environ.pop(_ENDS, None)
    os.umask(order["umask"])
    for name, soft in order["limits"].items():
        number = getattr(resource, name, None)
        if number is None:
            continue
        _, hard = resource.getrlimit(number)
        if hard != resource.RLIM_INFINITY and not 0 <= soft <= hard:
            soft = hard
        try:
            resource.setrlimit(number, (soft, hard))
        except (OSError, ValueError):
            pass


def _has_address(ends: str) -> bool:
    """Tell whether this node still has the address to which the login went: addresses may change with a boot."""
    words = ends.split()
    try:
        found = socket.getaddrinfo(words[2], 0, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)[0]
        with socket.socket(found[0], socket.SOCK_DGRAM) as probe:
            probe.bind(found[4])
    except (IndexError, OSError):
        return False
    return True


def name_agent(plant: dict[str, Any]) -> str:
    """Return the name of an agent on its host.

    Two runs from two launch hosts may have one id; their certificates, of which `fingerprint` is the hash, differ.
    """
    return "%s.%s.%d" % (plant["run"], plant["fingerprint"][:8], plant["index"])


def _read_limits() -> dict[str, int]:
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {name: resource.getrlimit(getattr(resource, name))[0] for name in names}


def _read_umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
