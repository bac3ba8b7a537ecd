"""Who answers on a port and is no SSH server, or is one and does not keep to it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import paramiko
from paramiko import common

VERSION = b"SSH-2.0-hostile\r\n"
BLOCK = b"x" * 32_000


class Listener:
    """Takes connections on a port of its own, and lets `serve` have each in a thread."""

    def __init__(self, serve: Callable[[socket.socket], object]) -> None:
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._clients: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Listener:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for sock in (self._listener, *self._clients):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it has hung up
            self._serve(client)


# ---- in place of a banner -------------------------------------------------------------------------------------------


def be_silent(client: socket.socket) -> None:
    while client.recv(1000):
        pass


def hang_up(client: socket.socket) -> None:
    client.close()


def send_garbage(client: socket.socket) -> None:
    client.sendall(b"\x16\x03\x01\x00\xff\x1b[2J\n")
    be_silent(client)


def flood(client: socket.socket) -> None:
    while True:
        client.sendall(BLOCK)


def send_huge_packet(client: socket.socket) -> None:
    client.sendall(VERSION + struct.pack(">I", 0xFFFF_FFF4))
    flood(client)


# ---- after the login ------------------------------------------------------------------------------------------------


class HostileLogin(paramiko.ServerInterface):
    """Lets everybody in, and does with a command what it likes."""

    def __init__(self, transport: paramiko.Transport, behave: Callable[[paramiko.Channel], object]) -> None:
        self._behave = behave
        # An answer must not come before that to the request for it: it is given behind paramiko's own handler.
        handlers = transport._channel_handler_table
        self._handle = handlers[common.MSG_CHANNEL_REQUEST]
        transport._channel_handler_table = {**handlers, common.MSG_CHANNEL_REQUEST: self._answer}

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return common.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return common.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        return True

    def _answer(self, channel: paramiko.Channel, message: paramiko.Message) -> None:
        self._handle(channel, message)
        threading.Thread(target=self._run, args=(channel,), daemon=True).start()

    def _run(self, channel: paramiko.Channel) -> None:
        with contextlib.suppress(OSError, EOFError):  # it has hung up
            self._behave(channel)


def let_in(host_key: Path, behave: Callable[[paramiko.Channel], object]) -> Callable[[socket.socket], object]:
    """Return a server that is one until somebody has logged in."""

    def serve(client: socket.socket) -> None:
        transport = paramiko.Transport(client)
        transport.add_server_key(paramiko.PKey.from_path(host_key))
        transport.start_server(event=threading.Event(), server=HostileLogin(transport, behave))

    return serve


def print_without_end(channel: paramiko.Channel) -> None:
    while True:
        channel.sendall(BLOCK)


def print_nonsense(channel: paramiko.Channel) -> None:
    channel.sendall(b"\xff\x00\x1b[2J~launch nonsense\n")
    channel.sendall_stderr(b"\x1b]0;title\x07this account is closed\r\n")
    channel.send_exit_status(0)
    channel.close()
