"""An SSH server that wants a password: sshd could only ask for that of a real account."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import paramiko
from paramiko import common

PASSWORD = "correct horse"


class PasswordServer:
    """Lets in who tells PASSWORD, by one of the methods; each command there prints `in` and is not found."""

    def __init__(self, methods: str, host_key: Path, address: str = "127.0.0.1") -> None:
        """methods: `password`, `keyboard-interactive`, or `publickey,password` for both, one after the other."""
        self.methods = methods
        self.told: list[str] = []
        self.shown: list[str] = []  # processes that show the password, as seen while it is used
        self._key = paramiko.PKey.from_path(host_key)
        self._listener = socket.create_server((address, 0))
        self.port = self._listener.getsockname()[1]
        self._transports: list[paramiko.Transport] = []

    def __enter__(self) -> PasswordServer:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for transport in self._transports:
            transport.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            transport = paramiko.Transport(client)
            transport.add_server_key(self._key)
            login = _Login(self)
            # An answer must not come before that to the request for it: it is given behind paramiko's own handler.
            handlers = transport._channel_handler_table
            login.handle_request = handlers[common.MSG_CHANNEL_REQUEST]
            transport._channel_handler_table = {**handlers, common.MSG_CHANNEL_REQUEST: login.answer_request}
            transport.start_server(event=threading.Event(), server=login)
            self._transports.append(transport)

    def judge(self, password: str) -> int:
        self.told.append(password)
        files = [entry / name for entry in Path("/proc").iterdir() for name in ("cmdline", "environ")]
        self.shown += [str(path) for path in files if password.encode() in _read(path)]
        return common.AUTH_SUCCESSFUL if password == PASSWORD else common.AUTH_FAILED


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


class _Login(paramiko.ServerInterface):
    def __init__(self, server: PasswordServer) -> None:
        self._server = server
        self._has_key = "publickey" not in server.methods

    def get_allowed_auths(self, username: str) -> str:
        return self._server.methods if self._has_key else "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self._has_key = True
        return common.AUTH_PARTIALLY_SUCCESSFUL

    def check_auth_password(self, username: str, password: str) -> int:
        allowed = self._has_key and "password" in self._server.methods
        return self._server.judge(password) if allowed else common.AUTH_FAILED

    def check_auth_interactive(self, username: str, submethods: str) -> object:
        if "keyboard-interactive" not in self._server.methods:
            return common.AUTH_FAILED
        return paramiko.InteractiveQuery("", "", ("Password: ", False))

    def check_auth_interactive_response(self, responses: list[str]) -> int:
        return self._server.judge(responses[0])

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return common.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        return True

    def answer_request(self, channel: paramiko.Channel, message: paramiko.Message) -> None:
        self.handle_request(channel, message)
        channel.sendall(b"in\n")
        channel.send_exit_status(127)
        channel.close()
