"""`launch` on a Mac, and Linux on its hosts: Python without what Linux alone has, up to hosts that really answer.

What is really different there, such as its kernel, its ssh and its file systems, is not to be had on Linux.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
from machines.launches import PROGRAM
from machines.macos import missing_names
from machines.patience import DEADLINE_S
from machines.ports import free_port
from ssh_hosts import SshHosts

AS_ON_MACOS = Path(__file__).with_name("macos")
# As long as those that macOS makes.
TMPDIR = "var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T"
IMPORT_ALL = """
import importlib, pkgutil, select, sys, launcher
assert (sys.platform, hasattr(select, "epoll")) == ("darwin", False)
for found in pkgutil.walk_packages(launcher.__path__, "launcher."):
    if found.name.split(".")[1] not in ("node", "distributed", "exchange", "collectives", "trainer"):
        importlib.import_module(found.name)
from launcher.diagnosis.exit_codes import signal_name
print(*(signal_name(number) for number in (7, 10, 12, 17, 30, 34)))
"""
LOCAL = "launch: this machine runs macOS, and ranks need Linux\n  fix: name Linux hosts: launch --hosts a,b\n"

# It ends by a signal that has another number on a Mac.
RANK = ("--cpu", "--nproc", "1", "--no-python", "sh", "-c", "echo $RANK; kill -USR1 $$")

Launch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Have nothing in it but TMPDIR."""
    (tmp_path / "mac" / TMPDIR).mkdir(parents=True)
    return tmp_path / "mac"


@pytest.fixture
def from_macos(folder: Path) -> Launch:
    """Run a program of ours as on a Mac."""
    missing = {module: sorted(names) for module, names in missing_names().items()}
    paths = {"PYTHONPATH": str(AS_ON_MACOS), "TMPDIR": str(folder / TMPDIR), "HOME": str(folder)}
    return partial(launch_in, folder, {**paths, "MISSING_ON_MACOS": json.dumps(missing), "LC_CTYPE": "UTF-8"})


def launch_in(folder: Path, env: Mapping[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable] if argv[0] == "python" else [str(PROGRAM.with_name(argv[0]))]
    return subprocess.run(
        [*program, *argv[1:]], env={**os.environ, **env}, cwd=folder, capture_output=True, text=True,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def from_linux(hosts: SshHosts, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, str]:
    """What RANK leads to where Linux launches it."""
    folder = tmp_path_factory.mktemp("linux")
    return outcome(launch_in(folder, {}, *reach(hosts, folder, "fabric"), *RANK))


def reach(hosts: SshHosts, folder: Path, transport: str) -> list[str]:
    config = hosts.write_config(folder / "ssh_config")
    return ["launch", "--transport", transport, "--ssh-config", str(config), "--hosts", "node1"]


def outcome(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr without what differs from run to run, and on a slow machine."""
    said = re.sub(r"^launch: waiting for .*\n", "", done.stderr, flags=re.MULTILINE)
    words = re.sub(r"\d{8}-\d{6}(-\d+)?|\b\d\d:\d\d:\d\d\b|\b\d+(\.\d)? s\b", "N", said)
    return done.returncode, done.stdout, words


def test_every_module_of_the_launch_host_is_imported_and_a_node_s_signals_are_linux_s(from_macos: Launch) -> None:
    done = from_macos("python", "-c", IMPORT_ALL)
    assert (done.stdout, done.stderr) == ("SIGBUS SIGUSR1 SIGUSR2 SIGCHLD SIGPWR SIGRTMIN\n", "")


@pytest.mark.parametrize(
    "argv",
    [
        ("launch", "demo"),
        ("test-distributed", "2", "--cpu"),
    ],
)
def test_what_would_run_ranks_on_the_mac_says_so_in_one_line(
    from_macos: Launch, folder: Path, argv: tuple[str, ...]
) -> None:
    done = from_macos(*argv)
    said = done.stderr.removeprefix("test-distributed: gloo on CPUs\n").replace("test-distributed:", "launch:")
    assert (done.returncode, done.stdout, said) == (2, "", LOCAL)
    assert [path.name for path in folder.iterdir()] == ["var"]


@pytest.mark.parametrize("transport", ["fabric", "ssh", "pdsh"])
def test_a_run_on_linux_hosts_is_as_from_linux(
    from_macos: Launch, from_linux: tuple[int, str, str], hosts: SshHosts, folder: Path, transport: str
) -> None:
    if shutil.which(transport) is None and transport != "fabric":
        pytest.skip(f"no {transport}: apt-get install {'openssh-client' if transport == 'ssh' else 'pdsh'}")
    assert outcome(from_macos(*reach(hosts, folder, transport), *RANK)) == from_linux
    assert from_linux[0] == 138
    assert "killed by SIGUSR1" in from_linux[2]


@pytest.mark.parametrize("transport", ["fabric", "ssh"])
def test_a_login_that_fails_is_told(from_macos: Launch, transport: str) -> None:
    """On a Mac, poll() says of the empty pipe of an ssh that has ended what it says of output."""
    port = free_port()
    done = from_macos("launch", "exec", "--transport", transport, "--hosts", f"127.0.0.1:{port}", "--", "true")
    assert (done.returncode, done.stderr) == (
        69,
        "launch: 1 host can't be used:\n"
        f"  127.0.0.1: 127.0.0.1 port {port} refuses the connection\n"
        "    fix: check that sshd is running there, on that port\n",
    )
