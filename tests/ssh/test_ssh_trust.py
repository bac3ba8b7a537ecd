"""Whoever answers in place of a host costs that host its place: one line, in bounded time and memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import ExitStack

import hostile_server as hostile
import pytest
from hostile_server import Listener
from launching import Launch
from machines.patience import slowed
from ssh_hosts import SshHosts

PEAK_KIB = 160 << 10
PLACE = r"127\.0\.0\.1 port \d+"

NO_SSH = f"the server at {PLACE} does not speak SSH: "
DROPPED = "sshd dropped the connection before its banner"
SILENT = f"{PLACE} does not answer"
SLOW = "it did not finish the login in time"
LATE = f"{SILENT}|{SLOW}"  # on a busy machine an ssh may find out later than `launch` waits for it
# Who answers, and what is said of it: where we speak SSH, and where OpenSSH does and tells less.
ANSWERS: dict[str, tuple[Callable[..., object], str, str]] = {
    "mute": (hostile.be_silent, SILENT, LATE),
    "closed": (hostile.hang_up, DROPPED, DROPPED),
    "garbage": (hostile.send_garbage, f"{SILENT}|{DROPPED}", f"{NO_SSH}banner line contains invalid characters"),
    "flood": (hostile.flood, f"{SILENT}|{DROPPED}", f"{NO_SSH}banner line too long"),
    "huge": (hostile.send_huge_packet, *[f"{NO_SSH}Bad packet length 4294967284"] * 2),
}
# Who is waited for, or tried again, until the time is over; all others get the time that they need on a busy machine.
NEVER_DONE = ("mute", "closed", "garbage", "flood")
AFTER_THE_LOGIN = {
    "endless": (hostile.print_without_end, "its login shell printed over 64 KiB and has not started Python"),
    # On stdout and stderr, so either line may come last.
    "nonsense": (
        hostile.print_nonsense,
        r"its login shell ended \(exit code 0\): (\?\]0;title\?this account is closed|\ufffd\?\?\[2J~launch nonsense)",
    ),
}


def settings_of(server: Listener, hosts: SshHosts) -> dict[str, object]:
    kex = "ecdh-sha2-nistp256"  # which paramiko's server has as well
    known = f"[127.0.0.1]:{hosts['node1'].port}"  # whose key it has
    return {"HostName": "127.0.0.1", "Port": server.port, "HostKeyAlias": known, "KexAlgorithms": kex}


@pytest.mark.parametrize("transport", ["fabric", "ssh"])
def test_each_costs_its_own_host_one_line(launch: Launch, hosts: SshHosts, transport: str) -> None:
    host_key = hosts["node1"].folder / "host_key"
    expected = {name: texts[transport == "ssh"] for name, (_, *texts) in ANSWERS.items()}
    expected |= {name: text for name, (_, text) in AFTER_THE_LOGIN.items()}
    with ExitStack() as ends:
        servers = {name: ends.enter_context(Listener(serve)) for name, (serve, *_) in ANSWERS.items()}
        for name, (behave, _) in AFTER_THE_LOGIN.items():
            servers[name] = ends.enter_context(Listener(hostile.let_in(host_key, behave)))
        settings = {name: settings_of(server, hosts) for name, server in servers.items()}
        for name in NEVER_DONE:
            settings[name]["ConnectTimeout"] = round(slowed(3))
        config = hosts.write_config(launch.folder / "config", **settings)
        names = ("--hosts", ",".join(["node1", *servers]), "--ssh-config", str(config))
        done = launch.exec(*names, "--json", "--", "echo fine")
    *lines, result = [json.loads(line) for line in done.lines]
    assert (done.exit_code, [(line["host"], line["text"]) for line in lines]) == (69, [("node1", "fine")])
    wrong = {name: said for name, said in result["failures"].items() if not re.fullmatch(expected[name], said)}
    assert (wrong, result["failures"].keys()) == ({}, expected.keys())
    assert done.words[0] == f"launch: {len(servers)} hosts can't be used:"
    assert len(done.words) <= 1 + 2 * len(servers)  # a line and a fix
    assert re.search("[^ -~\n\ufffd]", done.stderr) is None
    assert done.peak_kib < PEAK_KIB
