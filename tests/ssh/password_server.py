"""An SSH server that wants a password: sshd could only ask for that of a real account."""

from __future__ import annotations

import socket
import subprocess
import threading
from pathlib import Path

import paramiko
from paramiko import common

PASSWORD = "correct horse"


class PasswordServer:
    """Lets in who tells PASSWORD, by one of the methods; each command there prints `in` and is not found.

    With a home it is an account: commands run there, and the keys of its authorized_keys are let in as well.
    """

    def __init__(self, methods: str, host_key: Path, address: str = "127.0.0.1", *, home: Path | None = None) -> None:
        """methods: `password`, `keyboard-interactive`, or `publickey,password` for both, one after the other."""
        self.methods = methods
        self.home = home
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
        if self._server.home is not None:
            return f"publickey,{self._server.methods}"
        return self._server.methods if self._has_key else "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        if self._server.home is not None:
            allowed = _read(self._server.home / ".ssh" / "authorized_keys")
            return common.AUTH_SUCCESSFUL if key.get_base64().encode() in allowed else common.AUTH_FAILED
        if "publickey" not in self._server.methods:
            return common.AUTH_FAILED
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
        self._command = command
        return True

    def answer_request(self, channel: paramiko.Channel, message: paramiko.Message) -> None:
        self.handle_request(channel, message)
        if self._server.home is None:
            _end(channel, b"in\n", 127)
        else:  # this thread is the one that reads for the channel
            threading.Thread(target=self._run, args=(channel, self._server.home), daemon=True).start()

    def _run(self, channel: paramiko.Channel, home: Path) -> None:
        done = subprocess.run(
            ["/bin/sh", "-c", self._command], input=channel.makefile("rb").read(), env={"HOME": str(home)}, cwd=home,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        _end(channel, done.stdout, done.returncode)


def _end(channel: paramiko.Channel, output: bytes, exit_code: int) -> None:
    channel.sendall(output)
    channel.send_exit_status(exit_code)
    channel.close()
