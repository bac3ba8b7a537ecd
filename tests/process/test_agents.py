"""Agents and the hub that they dial: bytes, strangers, and the end of each of the two."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import select
import signal
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from machines.channels import read_all, read_line
from machines.patience import DEADLINE_S, NEVER_S, long_enough, slowed
from machines.processes import is_alive
from node_process import find_marked, wait_until

from launcher.errors import HostFailureKind
from launcher.hosts.host import Host
from launcher.node import messages
from launcher.transports import bootstrap
from launcher.transports.agents import hub
from launcher.transports.agents.credentials import make_credentials, make_server_context
from launcher.transports.agents.hub import AgentTransport, Hub, Notice
from launcher.transports.archives import pack_node
from launcher.transports.base import STDERR, STDOUT, Channel, TransportError
from launcher.transports.process_channel import LocalTransport

MARK = "AGENT_TEST_MARK"
RUN = "20261120-091233"
A, B = Host("n1"), Host("n2")
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


@pytest.fixture
def make_fleet() -> Iterator[Callable[..., Fleet]]:
    """Make hubs with agents; each must leave nothing."""
    with ExitStack() as ends:

        def make(*names: str, silence_s: float = NEVER_S, notice: Notice | None = None) -> Fleet:
            fleet = Fleet(*(names or ("n1",)), silence_s=silence_s, notice=notice)
            ends.callback(fleet.close)
            return fleet

        yield make
    assert "agents" not in [thread.name for thread in threading.enumerate()]


@pytest.fixture
def fleet(make_fleet: Callable[..., Fleet]) -> Fleet:
    """Return a hub whose two agents may start processes."""
    fleet = make_fleet("n1", "n2")
    fleet.start()
    return fleet


def run(transport: AgentTransport, host: Host, command: str) -> tuple[dict[int, bytes], int | None]:
    channel = transport.open(host, command, DEADLINE_S)
    streams = read_all(channel)
    channel.close()
    return streams, channel.exit_code()


def fail_of(channel: Channel) -> tuple[HostFailureKind, str]:
    with pytest.raises(TransportError) as caught:
        read_all(channel)
    assert channel.exit_code() is None
    return caught.value.failure.kind, caught.value.failure.text


# ---- bytes


def test_bytes_come_back_as_they_were(make_fleet: Callable[..., Fleet], any_python: str) -> None:
    fleet, data = make_fleet(), os.urandom(5_000_000)
    planted = fleet.plant("n1", python=any_python)
    assert planted.read_answer() == {"type": "dialled", "address": f"127.0.0.1 port {fleet.port}"}
    fleet.hub.go()
    channel = fleet.hub.open_transport().open(A, f"head -c {len(data)} | tee /dev/stderr", DEADLINE_S)
    writer = threading.Thread(target=channel.write, args=(data,))
    writer.start()
    streams = read_all(channel)
    writer.join()
    assert channel.exit_code() == 0
    assert streams[STDOUT] == data
    assert streams[STDERR] == data


def test_exit_codes(fleet: Fleet) -> None:
    transport = fleet.hub.open_transport()
    assert [run(transport, A, command)[1] for command in ("exit 7", "kill -9 $$", "no-such")] == [7, 137, 127]


def test_a_process_that_is_not_read_or_does_not_read_stops_no_other(fleet: Fleet, tmp_path: Path) -> None:
    transport, size = fleet.hub.open_transport(), 20_000_000
    flood = transport.open(A, f"head -c {size} /dev/zero", DEADLINE_S)
    data = os.urandom(4_000_000)
    os.mkfifo(tmp_path / "go")
    deaf = transport.open(A, f"read go <{tmp_path}/go; head -c {len(data)} | sha256sum", DEADLINE_S)
    writer = threading.Thread(target=deaf.write, args=(data,))
    writer.start()
    for _ in range(10):
        assert run(transport, A, "echo on")[0][STDOUT] == b"on\n"
        assert run(transport, B, "echo on")[0][STDOUT] == b"on\n"
    assert len(flood._pending[STDOUT]) <= messages.AGENT_WINDOW_BYTES + (64 << 10)
    assert writer.is_alive(), "it waits for the process, which has taken a window at most"
    (tmp_path / "go").write_text("go\n")
    assert read_all(deaf)[STDOUT].split()[0].decode() == hashlib.sha256(data).hexdigest()
    writer.join()
    assert len(read_all(flood)[STDOUT]) == size


def test_close_wakes_who_writes_and_the_process_sees_the_end(fleet: Fleet) -> None:
    channel = fleet.hub.open_transport().open(A, "echo $$; exec sleep 300 <&-", DEADLINE_S)
    pid = int(read_line(channel))
    ended = threading.Event()
    cat = fleet.hub.open_transport().open(A, "echo $$; read line; echo end", DEADLINE_S)
    reader = int(read_line(cat))

    def write() -> None:
        channel.write(bytes(3_000_000))
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    channel.close()
    assert ended.wait(DEADLINE_S)
    cat.close()
    wait_until(lambda: not is_alive(reader))
    assert is_alive(pid), "a process that heeds neither pipe nor signal ends by itself"
    os.kill(pid, signal.SIGKILL)
    writer.join()


# ---- strangers


def make_client(port: int) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port)))


def read_to_end(sock: socket.socket) -> bytes:
    text = b""
    try:
        while data := sock.recv(4096):
            text += data
    except OSError:  # it was reset
        pass
    return text


@pytest.mark.parametrize(
    "change",
    [
        {"token": "0" * 64},
        {"index": 1},
        {"index": True},
        {"type": "out"},
        {"more": "x" * 4096},
    ],
)
def test_a_hello_of_nobody(make_fleet: Callable[..., Fleet], change: dict[str, object]) -> None:
    fleet = make_fleet("n1", "n2")
    hello = {
        "type": "hello",
        "run": RUN,
        "index": 0,
        "token": fleet.credentials.tokens[0],
        **change,
    }
    with make_client(fleet.port) as sock:
        sock.sendall(messages.encode(**{"kind" if name == "type" else name: value for name, value in hello.items()}))
        assert read_to_end(sock) == b""
    wait_until(lambda: fleet.hub.refused == 1)
    assert fleet.hub.missing() == ["n1", "n2"]
    assert fleet.changes == 0


def test_strangers_harm_nobody(
    make_fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hub, "MOST_STRANGERS", 8)
    fleet = make_fleet()
    silent = [socket.create_connection(("127.0.0.1", fleet.port)) for _ in range(40)]
    fleet.start()
    holds = fleet.hub.open_transport().open(A, "cat", DEADLINE_S)
    for text in (b"GET / HTTP/1.0\r\n\r\n", os.urandom(100_000), b""):
        with socket.create_connection(("127.0.0.1", fleet.port)) as sock:
            try:
                sock.sendall(text)
                sock.shutdown(socket.SHUT_WR)
                read_to_end(sock)
            except OSError:  # it was reset
                pass
    with make_client(fleet.port) as sock:
        sock.sendall(b"not JSON\n")
        assert read_to_end(sock) == b""
    with make_client(fleet.port) as sock:
        try:
            for _ in range(100):
                sock.sendall(bytes(1 << 16))
        except OSError:
            pass
    wait_until(lambda: fleet.hub.refused >= 40 - (8 + 1) + 5)
    for sock in silent:
        sock.close()
    wait_until(lambda: fleet.hub.refused == 40 + 5)
    holds.write(b"on\n")
    assert read_line(holds) == b"on\n"
    assert fleet.hub.missing() == []
    assert capfd.readouterr() == ("", "")


def test_strangers_of_another_address_keep_no_agent_out(
    make_fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, silent ones and some that begin TLS as an agent does."""
    monkeypatch.setattr(hub, "MOST_STRANGERS", 16)
    fleet = make_fleet()
    silent = [socket.create_connection(("127.0.0.1", fleet.port), None, ("127.0.0.2", 0)) for _ in range(24)]
    for sock in silent[-12:]:
        with contextlib.suppress(OSError):  # it was closed already
            sock.send(b"\x16\x03\x01")
    fleet.start()
    for sock in silent:
        sock.close()


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"garbage\n", "its agent sent an invalid message: MalformedMessage("),
        (b'{"type":"exit","channel":-1,"code":0}\n', "its agent sent an invalid message: MalformedMessage("),
        (b'{"type":"exit","channel":1}\n', "its agent sent an invalid message: KeyError('code')"),
        (messages.encode("beat", b"x"), "its agent sent an invalid message: MalformedMessage("),
        (messages.encode("out", bytes(1 << 16), channel=1) * 70, "it sent more than its window allows"),
        (messages.encode("out", b"x", channel=7) + messages.encode("exit", channel=1, code=3), ""),
    ],
)
def test_an_agent_that_misbehaves(make_fleet: Callable[..., Fleet], message: bytes, text: str) -> None:
    fleet = make_fleet()
    hello = {"run": RUN, "index": 0, "token": fleet.credentials.tokens[0]}
    with make_client(fleet.port) as sock:
        sock.sendall(messages.encode("hello", **hello))
        assert sock.recv(4096) == messages.encode("welcome")
        channel = fleet.hub.open_transport().open(A, "cat", DEADLINE_S)
        assert sock.recv(4096) == messages.encode("open", channel=1, command="cat")
        with contextlib.suppress(OSError):  # the hub may hang up before it has read all of it
            sock.sendall(message)
        if not text:  # what belongs to no channel is dropped
            assert (read_all(channel), channel.exit_code()) == ({STDOUT: b"", STDERR: b""}, 3)
            return
        wait_until(lambda: channel.is_over)  # a reader would take output in time
        kind, said = fail_of(channel)
    assert kind is HostFailureKind.PROTOCOL
    assert said.startswith(text)


def test_an_impostor_gets_no_token(make_fleet: Callable[..., Fleet]) -> None:
    """Nor does it keep the agent from the controller."""
    fleet, heard = make_fleet(), list[bytes]()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        context = make_server_context(make_credentials(1))

        def answer() -> None:
            sock, _ = listener.accept()
            with context.wrap_socket(sock, server_side=True) as secured:
                heard.append(read_to_end(secured))

        impostor = threading.Thread(target=answer)
        impostor.start()
        port = listener.getsockname()[1]
        planted = fleet.plant("n1", [("127.0.0.1", port)])
        impostor.join()  # the agent has hung up
        planted.end_input()
        assert planted.read_answer() == {
            "type": "refused",
            "why": f"127.0.0.1 port {port}: certificate does not fit",
        }
        assert planted.wait_for_end() == 1
    assert heard == [b""]


def test_one_address_that_works_is_enough(make_fleet: Callable[..., Fleet]) -> None:
    fleet, other = make_fleet(), make_fleet()
    with socket.create_server(("127.0.0.1", 0)) as hangs, socket.create_server(("127.0.0.1", 0)) as closed:
        closed_port = closed.getsockname()[1]
        closed.close()
        ports = [hangs.getsockname()[1], closed_port, other.port, fleet.port]
        addresses = [*(("127.0.0.1", port) for port in ports[:3]), ("::1", fleet.port)]
        planted = fleet.plant(
            "n1", addresses if socket.has_dualstack_ipv6() else [("127.0.0.1", port) for port in ports]
        )
        assert planted.read_answer()["type"] == "dialled"
    assert fleet.hub.wait_for_all(DEADLINE_S) == []


def test_no_address_that_works(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet()
    with socket.create_server(("127.0.0.1", 0)) as hangs, socket.create_server(("127.0.0.1", 0)) as closed:
        hanging, refusing = hangs.getsockname()[1], closed.getsockname()[1]
        closed.close()
        addresses = [("127.0.0.1", hanging), ("127.0.0.1", refusing), ("n1.invalid", 1)]
        planted = fleet.plant("n1", addresses, connect_timeout_s=slowed(0.5))
        why = planted.read_answer()["why"].split("; ")
        assert f"127.0.0.1 port {refusing}: connection refused" in why
        assert f"127.0.0.1 port {hanging}: no answer" in why
        assert any(line.startswith("n1.invalid port 1: ") for line in why)
        assert planted.wait_for_end() == 1
    assert fleet.hub.missing() == ["n1"]


# ---- before GO


def test_before_go_nothing_is_started_and_the_login_ends_it(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet()
    planted = fleet.plant("n1")
    assert planted.read_answer()["type"] == "dialled"
    transport = fleet.hub.open_transport()
    assert len(fleet.pids()) == 1
    planted.channel.close()
    wait_until(lambda: fleet.hub.missing() == ["n1"])
    wait_until(lambda: not fleet.pids())
    with pytest.raises(TransportError) as caught:
        transport.open(A, "echo on", 0.01)
    failure = caught.value.failure
    assert failure.kind is HostFailureKind.TIMED_OUT
    assert re.fullmatch(r"its agent is not connected \(for \d+\.0 s\)", failure.text)


# ---- the end of one side


@pytest.fixture
def wire() -> Iterator[Callable[[int], Wire]]:
    with ExitStack() as ends:

        def make(port: int) -> Wire:
            made = Wire(port)
            ends.callback(made.close)
            return made

        yield make


def test_after_go_the_login_may_end(fleet: Fleet) -> None:
    channel = fleet.hub.open_transport().open(A, "echo $PPID; cat", DEADLINE_S)
    pid = int(read_line(channel))
    assert os.getsid(pid) == os.getpgid(pid) != os.getsid(0)
    assert {str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in range(3)} == {os.devnull}
    assert str(Path(f"/proc/{pid}/cwd").readlink()) == "/"
    for planted in fleet.planted:
        planted.channel.close()
    os.kill(pid, signal.SIGHUP)
    channel.write(b"on\n")
    assert read_line(channel) == b"on\n"


def test_once_accepted_an_agent_waits_for_nothing(make_fleet: Callable[..., Fleet]) -> None:
    fleet, connect_timeout_s = make_fleet(), slowed(1.0)
    fleet.start(connect_timeout_s=connect_timeout_s)
    over_at = time.monotonic() + connect_timeout_s
    wait_until(lambda: time.monotonic() > over_at)
    assert run(fleet.hub.open_transport(), A, "echo on") == ({STDOUT: b"on\n", STDERR: b""}, 0)


def test_an_agent_whose_connection_is_cut_hangs_up_and_comes_back(
    wire: Callable[[int], Wire], make_fleet: Callable[..., Fleet]
) -> None:
    fleet = make_fleet()
    way = wire(fleet.port)
    planted = fleet.plant("n1", [("127.0.0.1", way.port)])
    fleet.hub.wait_for_all(DEADLINE_S)
    fleet.hub.go()
    assert planted.read_answer()["type"] == "dialled"
    assert planted.wait_for_end() == 0
    first = fleet.hub.open_transport()
    channel = first.open(A, "echo $PPID; echo $$; cat; sleep 300", DEADLINE_S)
    text = read_line(channel)
    while text.count(b"\n") < 2:
        text += read_line(channel)
    agent, child = map(int, text.split())
    held = first.open(A, "cat; echo end", DEADLINE_S)
    way.cut()
    assert fail_of(channel)[1] == fail_of(held)[1] == "the connection to its agent was lost"
    second = fleet.hub.open_transport()
    streams, code = run(second, A, "echo $PPID")
    assert (int(streams[STDOUT]), code) == (agent, 0)
    assert is_alive(child), "it ends by itself: the agent has only closed its pipes"
    os.killpg(child, signal.SIGKILL)
    wait_until(lambda: fleet.pids() == [agent])


def test_an_agent_that_comes_again_replaces_the_older_one(fleet: Fleet) -> None:
    """As where no socket can show that there is one; the older one dials again, too."""
    older = fleet.hub.open_transport().open(A, "cat", DEADLINE_S)
    hello = {"run": RUN, "index": 0, "token": fleet.credentials.tokens[0]}
    with make_client(fleet.port) as sock:
        sock.sendall(messages.encode("hello", **hello))
        assert fail_of(older) == (HostFailureKind.CONNECTION, "its agent has connected again")
        assert read_to_end(sock) == messages.encode("welcome") + messages.encode("go")
    assert run(fleet.hub.open_transport(), A, "echo on") == ({STDOUT: b"on\n", STDERR: b""}, 0)


def test_a_second_agent_of_a_run_ends_at_once(fleet: Fleet) -> None:
    holds = fleet.hub.open_transport().open(A, "cat", DEADLINE_S)
    second = fleet.plant("n1", is_after_go=True)
    assert second.read_answer() == {"type": "present"}
    assert second.wait_for_end() == 0
    holds.write(b"on\n")
    assert read_line(holds) == b"on\n"


def test_an_agent_after_go_needs_no_login(make_fleet: Callable[..., Fleet]) -> None:
    """As after a reboot of its host, of which no other host hears."""
    fleet = make_fleet("n1", "n2")
    fleet.start()
    transport = fleet.hub.open_transport()
    first, other = transport.open(A, "echo $PPID; cat", DEADLINE_S), transport.open(B, "cat", DEADLINE_S)
    os.kill(int(read_line(first)), signal.SIGKILL)
    assert fail_of(first) == (HostFailureKind.CONNECTION, "the connection to its agent was lost")
    with pytest.raises(BrokenPipeError):
        first.write(b"x")
    other.write(b"on\n")
    assert (fleet.hub.missing(), read_line(other)) == (["n1"], b"on\n")
    (absence,) = fleet.hub.find_absences()
    assert absence.host == "n1"
    fleet.hub.note_try("n1", "from n2: its host key is not known")
    with pytest.raises(TransportError) as caught:
        fleet.hub.open_transport().open(A, "echo on", 0.01)
    failure = caught.value.failure
    assert failure.text.endswith("and launch could not start it again from n2: its host key is not known")
    assert failure.fix == f"launch stop {RUN}, and launch again {RUN} once all hosts are back"
    planted = fleet.plant("n1", is_after_go=True)
    assert planted.read_answer()["type"] == "dialled"
    assert planted.wait_for_end() == 0
    assert fleet.hub.wait_for_all(DEADLINE_S) == []
    assert [found.host for found in fleet.hub.take_returns()] == ["n1"]
    assert fleet.hub.take_returns() == fleet.hub.find_absences() == []
    assert run(fleet.hub.open_transport(), A, "echo on") == ({STDOUT: b"on\n", STDERR: b""}, 0)


def test_a_frozen_agent_is_dropped_and_hangs_up_when_it_thaws(make_fleet: Callable[..., Fleet]) -> None:

    def freeze(silence_s: float) -> tuple[Fleet, Channel, int, int]:
        fleet = make_fleet(silence_s=silence_s)
        fleet.start()
        channel = fleet.hub.open_transport().open(A, "echo $PPID $$; cat", DEADLINE_S)
        agent, child = map(int, read_line(channel).split())
        os.kill(agent, signal.SIGSTOP)
        return fleet, channel, agent, child

    fleet, channel, agent, child = long_enough(freeze, 0.6)
    try:
        kind, text = fail_of(channel)
        assert kind is HostFailureKind.SILENT
        assert text.startswith("no heartbeat for ")
        assert fleet.hub.missing() == ["n1"]
        assert is_alive(child)
    finally:
        os.kill(agent, signal.SIGCONT)
    wait_until(lambda: not is_alive(child))
    assert fleet.hub.wait_for_all(DEADLINE_S) == []


def test_one_agent_tells_that_the_controller_is_gone(
    monkeypatch: pytest.MonkeyPatch, wire: Callable[[int], Wire], make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    """Not that of the controller's host, and another one if that was cut off meanwhile."""
    monkeypatch.setattr(hub, "RETURN_S", 0.1)  # they don't come back

    def stall(silence_s: float) -> tuple[Fleet, Path]:
        said = tmp_path / f"said {silence_s}"
        notice = Notice(f'echo "$LAUNCH_CAUSE" >>"{said}"', {"LAUNCH_CAUSE": "gone"}, "n1")
        fleet = make_fleet("n1", "n2", "n3", silence_s=silence_s, notice=notice)
        way = wire(fleet.port)
        fleet.start(addresses=[("127.0.0.1", way.port)], redial_s=5 * silence_s)
        for _ in range(2):
            transport = fleet.hub.open_transport()
            assert [run(transport, Host(name), "echo on")[1] for name in fleet.names] == [0, 0, 0]
            least = fleet.changes + 2 * len(fleet.names)
            way.cut()
            wait_until(lambda least=least: fleet.changes >= least)
            assert fleet.hub.wait_for_all(DEADLINE_S) == []
        assert [run(fleet.hub.open_transport(), Host(name), "echo on")[1] for name in fleet.names] == [0, 0, 0]
        way.stall()
        return fleet, said

    fleet, said = long_enough(stall, 1.0)
    wait_until(lambda: not fleet.pids())
    assert said.read_text() == "gone\n"


def test_a_controller_whose_port_refuses_is_gone(
    monkeypatch: pytest.MonkeyPatch, make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    """The agents don't wait, and one of them tells."""
    monkeypatch.setattr(hub, "RETURN_S", 0.1)  # they don't come back
    said = tmp_path / "said"
    fleet = make_fleet("n1", "n2", notice=Notice(f'echo "$LAUNCH_CAUSE" >>"{said}"', {"LAUNCH_CAUSE": "gone"}, "n1"))
    way = Wire(fleet.port)
    fleet.start(addresses=[("127.0.0.1", way.port)], redial_s=NEVER_S)
    holds = fleet.hub.open_transport().open(B, "echo $PPID; cat; sleep 8", DEADLINE_S)  # it saves, say
    read_line(holds)
    way.cut()
    way.close()
    wait_until(lambda: not fleet.pids())
    assert said.read_text() == "gone\n"


def list_sockets() -> list[str]:
    """Return the sockets and event loops of this process."""
    paths = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sorted(str(path) for path in paths if str(path).startswith(("socket:", "anon_inode:")))


def test_the_end_waits_for_what_runs_and_leaves_nothing(
    make_fleet: Callable[..., Fleet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = list_sockets()
    fleet = make_fleet()
    fleet.start()
    channel = fleet.hub.open_transport().open(A, f"echo on; cat; sleep 0.1; touch {tmp_path}/done", DEADLINE_S)
    assert read_line(channel) == b"on\n"
    with socket.create_connection(("127.0.0.1", fleet.port)):
        fleet.hub.close(DEADLINE_S)
    assert (tmp_path / "done").exists()
    assert read_all(channel) == {STDOUT: b"", STDERR: b""}
    assert channel.exit_code() == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", fleet.port))
    assert fleet.hub.missing() == ["n1"]
    fleet.hub.close()
    fleet.close()
    assert list_sockets() == before
    assert [path.name for path in tmp_path.iterdir()] == ["done"]
