"""The channel of an SSH connection, read while paramiko's thread fills it."""

from __future__ import annotations

import errno
import queue
import socket
import threading
from collections import Counter
from types import SimpleNamespace

import fabric
import paramiko
import pytest
from machines.patience import DEADLINE_S

from launcher.transports.base import STDERR, STDOUT
from launcher.transports.ssh.fabric import FabricChannel, _tune

PIECES = 10_000  # on each stream; with paramiko's own descriptor some hundreds were enough


def test_nothing_is_slept_through() -> None:
    """Each stream gets a piece as soon as its last one was read, so often while the other is being read."""
    channel = paramiko.Channel(1)
    channel._set_window(1 << 30, 1 << 15)
    ours = FabricChannel(fabric.Connection("nobody"), channel)
    was_read: dict[int, queue.SimpleQueue[None]] = {STDOUT: queue.SimpleQueue(), STDERR: queue.SimpleQueue()}
    found: Counter[int] = Counter()

    def feed(stream: int, pipe: paramiko.buffered_pipe.BufferedPipe) -> None:
        for _ in range(PIECES):
            pipe.feed(b"x")
            was_read[stream].get(timeout=DEADLINE_S)

    def read() -> None:
        while stream := ours.read()[0]:
            found[stream] += 1
            was_read[stream].put(None)

    reader = threading.Thread(target=read, daemon=True)
    feeders = [
        threading.Thread(target=feed, args=args, daemon=True)
        for args in ((STDOUT, channel.in_buffer), (STDERR, channel.in_stderr_buffer))
    ]
    for thread in (reader, *feeders):
        thread.start()
    for thread in feeders:
        thread.join()
    channel._handle_eof(None)
    reader.join(DEADLINE_S)
    assert not reader.is_alive(), "it sleeps through the end"
    assert found == {STDOUT: PIECES, STDERR: PIECES}


class SocketOnMacOS(socket.socket):
    """A socket whose peer is gone, as macOS has it."""

    def setsockopt(self, *args: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")


def test_a_peer_that_is_gone_is_told_by_what_follows() -> None:
    with SocketOnMacOS() as sock:
        _tune(SimpleNamespace(sock=sock))  # type: ignore[arg-type]
        assert sock.gettimeout() == 30


@pytest.mark.linux
def test_a_peer_that_is_lost_is_noticed_with_nothing_under_way() -> None:
    """The user timeout alone counts only what was not acknowledged."""
    with socket.socket() as sock:
        _tune(SimpleNamespace(sock=sock))  # type: ignore[arg-type]
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        found = [sock.getsockopt(socket.IPPROTO_TCP, option) for option in (
            socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_USER_TIMEOUT)]  # fmt: skip
    assert found == [10, 10, 30_000]
