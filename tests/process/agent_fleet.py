"""A hub in the test, agents in processes of their own that are planted as over SSH, and a wire that can be cut."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any

from machines.channels import read_all
from machines.patience import DEADLINE_S, NEVER_S
from node_process import find_marked, wait_until

from launcher.hosts.host import Host
from launcher.node import messages
from launcher.transports import bootstrap
from launcher.transports.agents.credentials import make_credentials
from launcher.transports.agents.hub import Hub, Notice
from launcher.transports.archives import pack_node
from launcher.transports.base import STDERR, STDOUT
from launcher.transports.process_channel import LocalTransport

MARK = "AGENT_TEST_MARK"
RUN = "20261120-091233"
Addresses = Sequence[tuple[str, int]]


class Planted:
    """An agent as the launch host sees it: the channel over which it was started."""

    def __init__(self, host: Host, order: dict[str, Any], python: str) -> None:
        self._nonce = secrets.token_hex(8)
        self.channel = LocalTransport().open(
            host, bootstrap.loader_command(python, self._nonce, pack_node()), DEADLINE_S
        )
        marker = self._read_line().split()
        assert marker[:2] == [bootstrap.MARKER.encode(), self._nonce.encode()]
        self.channel.write(bootstrap.start_code(bootstrap.AGENT, pack_node(), is_kept=marker[2] == b"kept"))
        self.channel.write(messages.encode(messages.PLANT, **order))

    def read_answer(self) -> dict[str, Any]:
        """Return what it says to the launch host, without what every answer has."""
        ((header, _),) = messages.Decoder().feed(self._read_line())
        assert header.pop("nonce") == self._nonce
        return header

    def end_input(self) -> None:
        """End the login's stdin, which ends the agent before GO; its answer can still be read."""
        stdin = self.channel._process.stdin
        assert stdin is not None  # it is a pipe
        stdin.close()

    def wait_for_end(self) -> int | None:
        """Return the exit code of what the login has started: 0 also at GO, when the agent leaves it."""
        assert read_all(self.channel) == {STDOUT: b"", STDERR: b""}
        return self.channel.exit_code()

    def _read_line(self) -> bytes:
        text = b""
        while not text.endswith(b"\n"):
            stream, data = self.channel.read()
            assert stream == STDOUT, (stream, data, text)
            text += data
        return text


class Fleet:
    """One hub, and agents for some of its hosts."""

    def __init__(self, *names: str, silence_s: float = NEVER_S, notice: Notice | None = None) -> None:
        self.mark = secrets.token_hex(8)
        self.credentials = make_credentials(len(names))
        self.names = names
        self.changes = 0
        self._silence_s = silence_s
        self.planted: list[Planted] = []
        self.state = tempfile.TemporaryDirectory()  # no agent uses that of the user
        self.hub = Hub(
            RUN, names, self.credentials, silence_s=silence_s, on_change=self._count, may_rejoin=True, notice=notice
        )
        self.port = self.hub.listen()

    def _count(self) -> None:
        self.changes += 1

    def plant(self, name: str, addresses: Addresses = (), *, python: str = sys.executable, **fields: Any) -> Planted:
        """Start an agent; fields: of its first message, instead of those that are right."""
        index = self.names.index(name)
        order = {
            "run": RUN,
            "index": index,
            "token": self.credentials.tokens[index],
            "addresses": list(addresses) or [("127.0.0.1", self.port)],
            "fingerprint": self.credentials.fingerprint,
            "silence_s": self._silence_s,
            "redial_s": NEVER_S,
            "connect_timeout_s": NEVER_S,
            "is_after_go": False,
        }
        added = {MARK: self.mark, "XDG_STATE_HOME": self.state.name}
        before = {key: os.environ.get(key) for key in added}
        os.environ.update(added)
        try:
            self.planted.append(Planted(Host(name), {**order, **fields}, python))
        finally:
            for key, value in before.items():
                os.environ.pop(key) if value is None else os.environ.update({key: value})
        return self.planted[-1]

    def start(self, **fields: Any) -> None:
        """Plant all agents, and let them leave their logins; fields: of their first messages."""
        planted = [self.plant(name, **fields) for name in self.names]
        assert {one.read_answer()["type"] for one in planted} == {"dialled"}
        assert self.hub.wait_for_all(DEADLINE_S) == []
        self.hub.go()
        assert [one.wait_for_end() for one in planted] == [0] * len(planted)

    def pids(self) -> list[int]:
        """Return the living agents, and all that they have started."""
        return [*find_marked(self.mark, MARK)]

    def close(self) -> None:
        """Close the hub and all logins; then nothing may be left."""
        self.hub.close(DEADLINE_S)
        for planted in self.planted:
            planted.channel.close()
        try:
            wait_until(lambda: not self.pids())
        finally:
            for pid in self.pids():
                os.kill(pid, signal.SIGKILL)
            for planted in self.planted:
                planted.channel._process.wait()
                read_all(planted.channel)
            self.state.cleanup()


class Wire:
    """A way to the hub that can be cut, as a network can."""

    def __init__(self, port: int) -> None:
        self.target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._is_stalled = self._is_closed = False
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()

    def cut(self) -> None:
        """Break every connection; new ones are carried again."""
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def stall(self) -> None:
        """Carry nothing any more, not even the end of a connection, and take no new one."""
        self._is_stalled = True
        os.write(self._wake_write, b"x")

    def close(self) -> None:
        self._is_closed = True
        os.write(self._wake_write, b"x")
        self._thread.join()
        for end in (self._listener, *(end for pair in self._pairs for end in pair)):
            end.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _carry(self) -> None:
        others: dict[socket.socket, socket.socket] = {}
        while not self._is_closed:
            ends = [] if self._is_stalled else [self._listener, *others]
            ready, _, _ = select.select([self._wake_read, *ends], [], [])
            if self._wake_read in ready:
                os.read(self._wake_read, 1)
                continue
            for end in ready:
                if end is self._listener:
                    pair = (self._listener.accept()[0], socket.create_connection(("127.0.0.1", self.target)))
                    self._pairs.append(pair)
                    others.update([pair, pair[::-1]])
                elif end in others:
                    self._pass(end, others)

    @staticmethod
    def _pass(end: socket.socket, others: dict[socket.socket, socket.socket]) -> None:
        try:
            data = end.recv(1 << 16)
            others[end].sendall(data)
        except OSError:
            data = b""
        if not data:
            other = others.pop(end)
            others.pop(other, None)
            for one in (end, other):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)


MakeFleet = Callable[..., Fleet]
