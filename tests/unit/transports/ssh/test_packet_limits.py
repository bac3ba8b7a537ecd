"""What a server may send before anybody trusts it: a banner and packets of some size, and what is told of others."""

from __future__ import annotations

import socket
import struct
import threading

import paramiko
import pytest
from machines.patience import DEADLINE_S

from launcher.transports.ssh.packet_limits import (
    MAX_BANNER_BYTES,
    MAX_PACKET_BYTES,
    BoundedPacketizer,
    BoundedPipe,
    OversizedError,
)

VERSION = b"SSH-2.0-OpenSSH_9.2\r\n"


def greet(banner: bytes) -> tuple[str | None, Exception | None]:
    """Send a banner to paramiko; return the words of who is no SSH server, and how the greeting ended."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        threading.Thread(target=send, args=(theirs, banner), daemon=True).start()
        transport = paramiko.Transport(ours, packetizer_class=BoundedPacketizer)
        transport.banner_timeout = DEADLINE_S
        try:
            transport._check_banner()
        except paramiko.SSHException as error:
            return transport.packetizer.non_ssh_reply, error
        return transport.packetizer.non_ssh_reply, None


def send(sock: socket.socket, data: bytes) -> None:
    try:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
    except OSError:  # it has heard enough
        pass


@pytest.mark.parametrize("banner", [VERSION, b"Welcome to gpu1!\r\nno access without a key\r\n" + VERSION])
def test_a_server_may_say_some_lines_before_its_version(banner: bytes) -> None:
    assert greet(banner) == (None, None)


@pytest.mark.parametrize(
    ("banner", "words"),
    [
        (b"", None),
        (b"\r\n\r\n", None),
        (b"SSH-1.5-old\r\n", None),  # no version that we speak; but SSH
        (b"Exceeded MaxStartups\r\n", None),  # sshd's own words when it drops a connection
        (b"Not allowed at this time\r\n", None),
        (b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        (b"\n\n220 mail.example.com ESMTP\r\n", "220 mail.example.com ESMTP"),
        (b"half a line", "half a line"),
        (b"\x16\x03\xff\n", "\x16\x03\ufffd"),
        (b"hello\n" * 200, "hello"),
        (b"x" * (MAX_BANNER_BYTES + 200), "x" * 60),
        (b"SSH-2.0-" + b"z" * MAX_BANNER_BYTES + b"\r\n", "SSH-2.0-" + "z" * 52),
    ],
)
def test_who_does_not_speak_ssh_is_known_by_its_words(banner: bytes, words: str | None) -> None:
    found, error = greet(banner)
    assert found == words
    assert error is not None


@pytest.mark.parametrize("size", [MAX_PACKET_BYTES + 12, (1 << 32) - 4])
def test_a_huge_packet_is_not_waited_for(size: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(theirs, struct.pack(">I", size) + bytes(4))
        with pytest.raises(OversizedError, match=r"^a packet of \d+ bytes$"):
            BoundedPacketizer(ours).read_message()


def test_a_channel_holds_its_window_and_no_more() -> None:
    pipe = BoundedPipe(10, threading.Event())
    pipe.feed(b"12345")
    pipe.feed(b"67890")
    with pytest.raises(OversizedError):
        pipe.feed(b"1")
    assert pipe.read(100) == b"1234567890"
    pipe.feed(b"1")
    assert pipe.read(100) == b"1"
