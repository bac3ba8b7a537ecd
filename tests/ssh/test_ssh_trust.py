"""Whoever answers in place of a host costs that host its place: one line, in bounded time and memory."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from launching import Launch
from machines.patience import slowed
from ssh_hosts import SshHosts

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


PEAK_KIB = 160 << 10
PLACE = r"127\.0\.0\.1 port \d+"

NO_SSH = f"the server at {PLACE} does not speak SSH: "
DROPPED = "sshd dropped the connection before its banner"
SILENT = f"{PLACE} does not answer"
SLOW = "it did not finish the login in time"
LATE = f"{SILENT}|{SLOW}"  # on a busy machine an ssh may find out later than `launch` waits for it
# Who answers, and what is said of it: where we speak SSH, and where OpenSSH does and tells less.
ANSWERS: dict[str, tuple[Callable[..., object], str, str]] = {
    "mute": (be_silent, SILENT, LATE),
    "closed": (hang_up, DROPPED, DROPPED),
    "garbage": (send_garbage, f"{SILENT}|{DROPPED}", f"{NO_SSH}banner line contains invalid characters"),
    "flood": (flood, f"{SILENT}|{DROPPED}", f"{NO_SSH}banner line too long"),
    "huge": (send_huge_packet, *[f"{NO_SSH}Bad packet length 4294967284"] * 2),
}
# Who is waited for, or tried again, until the time is over; all others get the time that they need on a busy machine.
NEVER_DONE = ("mute", "closed", "garbage", "flood")
# What a host's login shell does, and what is said of it.
AFTER_THE_LOGIN = {
    "endless": ("yes", "its login shell printed over 64 KiB and has not started Python"),
    # On stdout and stderr, so either line may come last.
    "nonsense": (
        r"printf '\377\000\033[2J~launch nonsense\n'; printf '\033]0;title\007this account is closed\r\n' >&2; exit 0",
        r"its login shell ended \(exit code 0\): (\?\]0;title\?this account is closed|\ufffd\?\?\[2J~launch nonsense)",
    ),
}


def settings_of(server: Listener, hosts: SshHosts) -> dict[str, object]:
    return {"HostName": "127.0.0.1", "Port": server.port, "HostKeyAlias": hosts["node1"].known_name}


@pytest.mark.parametrize("transport", ["fabric", "ssh"])
def test_each_costs_its_own_host_one_line(launch: Launch, hosts: SshHosts, transport: str) -> None:
    expected = {name: texts[transport == "ssh"] for name, (_, *texts) in ANSWERS.items()}
    expected |= {name: text for name, (_, text) in AFTER_THE_LOGIN.items()}
    with ExitStack() as ends:
        servers = {name: ends.enter_context(Listener(serve)) for name, (serve, *_) in ANSWERS.items()}
        settings = {name: settings_of(server, hosts) for name, server in servers.items()}
        for name, (rc_file, _) in AFTER_THE_LOGIN.items():
            hosts.add_login(launch.folder / name, rc_file)
            place = {"HostName": hosts["node2"].address, "Port": hosts["node2"].port}
            settings[name] = {**place, "IdentityFile": launch.folder / name}
        for name in NEVER_DONE:
            settings[name]["ConnectTimeout"] = round(slowed(3))
        config = hosts.write_config(launch.folder / "config", **settings)
        names = ("--hosts", ",".join(["node1", *settings]), "--ssh-config", str(config))
        done = launch.exec(*names, "--json", "--", "echo fine")
    *lines, result = [json.loads(line) for line in done.lines]
    assert (done.exit_code, [(line["host"], line["text"]) for line in lines]) == (69, [("node1", "fine")])
    wrong = {name: said for name, said in result["failures"].items() if not re.fullmatch(expected[name], said)}
    assert (wrong, result["failures"].keys()) == ({}, expected.keys())
    assert done.words[0] == f"launch: {len(settings)} hosts can't be used:"
    assert len(done.words) <= 1 + 2 * len(settings)  # a line and a fix
    assert re.search("[^ -~\n\ufffd]", done.stderr) is None
    assert done.peak_kib < PEAK_KIB
