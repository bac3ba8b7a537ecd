"""This package's own code on another host: what travels, where it is kept, and which hosts can't run it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from machines.patience import NEVER_S, slowed
from machines.processes import wait_until

from launcher.controller import remote_launcher, requests
from launcher.controller.remote_launcher import RemoteLauncher
from launcher.controller.travelling_code import list_modules, pack_code
from launcher.hosts.host import Host
from launcher.job.job import Job, Program, ProgramKind
from launcher.node import messages
from launcher.output.view import View
from launcher.runs.run_list import RunList
from launcher.runs.run_options import RunOptions
from launcher.runs.state_directory import find_state
from launcher.transports.agents.credentials import make_credentials
from launcher.transports.base import TransportError
from launcher.transports.local import LocalTransport

TIMEOUT_S = 10.0
RUN = "20261120-091233"
VIEW = View(frozenset(), is_one_file=False, with_color=False, columns=None)

IMPORTS = """
import importlib, sys, time
sys.path.insert(0, sys.argv[1])
from launcher.controller import program
start = time.monotonic()
for name in sys.argv[2:]:
    importlib.import_module(name)
print(len(sys.argv[2:]), time.monotonic() - start)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the code is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "launch" / "code"


def open_list() -> RunList:
    return RunList(find_state(os.environ) / "runs")


@contextlib.contextmanager
def listed(folder: Path) -> Iterator[None]:
    """List a run of this process meanwhile."""
    entry = open_list().begin(RUN, None, folder)
    try:
        yield
    finally:
        entry.close(is_kept=False)


def start(python: str = sys.executable) -> RemoteLauncher:
    return RemoteLauncher(LocalTransport(), Host("here"), [python], TIMEOUT_S)


def ask(request: requests.Request) -> tuple[bytes, int | None]:
    launcher = start()
    launcher.ask(request, VIEW)
    output = launcher.read_output()
    launcher.close()
    return output, launcher.exit_code


def test_what_travels_needs_the_standard_library_only(tmp_path: Path) -> None:
    zipfile.ZipFile(BytesIO(pack_code().archive)).extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", IMPORTS, str(tmp_path), *list_modules()],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_code_is_sent_once_and_again_if_a_file_is_missing(cache: Path) -> None:
    for _ in range(2):
        assert ask(requests.List()) == (b"[]\n", 0)
        (folder,) = cache.iterdir()
        (folder / "launcher" / "errors.py").unlink()
    assert (cache.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o700, 0o700)


def test_a_request_that_fails_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    assert ask(requests.Wait("1")) == (b"", 2)
    assert capfd.readouterr().err.splitlines()[0] == "launch: no run '1'"


def test_it_ends_with_its_login(tmp_path: Path) -> None:
    """Nobody waits for a run on a host when nobody reads the answer."""
    with listed(tmp_path):
        launcher = start()
        launcher.ask(requests.Wait(RUN), VIEW)
        launcher.close()
        assert wait_until(lambda: launcher.channel.exit_code() == 128 + signal.SIGHUP)


def test_an_answer_ends_if_its_launch_host_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a loss of power there, of which sshd hears hours later."""
    monkeypatch.setattr(requests, "SILENCE_S", 0.5)  # less than between two heartbeats
    with listed(tmp_path):
        launcher = start()
        launcher.ask(requests.Wait(RUN), VIEW)
        assert wait_until(lambda: launcher.channel.exit_code() == 128 + signal.SIGHUP)


def test_a_controller_ends_if_its_launch_host_is_silent_before_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so do its agents, whose connection it is; nothing of the run is left."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(remote_launcher, "MARKER_TIMEOUT_S", 0.0)
    monkeypatch.setattr(remote_launcher, "BEAT_S", NEVER_S)
    launcher = RemoteLauncher(LocalTransport(), Host("here"), [sys.executable], slowed(1.0))
    launcher._is_closed.set()  # no heartbeat is sent
    job = Job(Program(ProgramKind.COMMAND, "true", ()))
    launcher.ask(requests.Control(job, (), (), RunOptions(), {}, make_credentials(0)), VIEW)
    assert wait_until(lambda: launcher.channel.exit_code() == 1)
    assert not list((tmp_path / "state" / "launch" / "logs").iterdir())


def test_a_cache_that_can_t_be_written(cache: Path) -> None:
    cache.parent.parent.joinpath("launch").touch()
    with pytest.raises(TransportError) as raised:
        start()
    assert raised.value.failure.text.startswith(f"can't write {cache}/")


def test_a_python_that_is_too_old(any_python: str) -> None:
    """It may run the ranks."""
    if any_python == sys.executable:
        start(any_python).close()
        return
    with pytest.raises(TransportError) as raised:
        start(any_python)
    failure = raised.value.failure
    assert failure.text == "its Python is 3.8, and the controller of a run needs 3.10 or newer"
    assert failure.fix.endswith("or --controller here")


def test_rows_of_this_machine(tmp_path: Path) -> None:
    entry = open_list().begin("20261120-091233", "base", tmp_path)
    (row,) = json.loads(ask(requests.List())[0])
    assert (row["run"], row["name"], row["state"], row["logs"]) == (
        "20261120-091233",
        "base",
        "starting",
        str(tmp_path),
    )
    entry.close(is_kept=False)


def test_ctrl_c_that_comes_with_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run listens to no signals yet; its directory of logs is removed all the same."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    job = Job(Program(ProgramKind.COMMAND, "true", ()))
    launcher = start()
    launcher.ask(requests.Control(job, (), (), RunOptions(), {}, make_credentials(0)), VIEW)
    launcher.channel.write(messages.encode(messages.GO) + messages.encode(messages.SIGNAL, number=signal.SIGINT))
    launcher.read_output()
    launcher.close()
    assert (launcher.exit_code, launcher.was_refused) == (130, True)
    assert not list((tmp_path / "state" / "launch" / "logs").iterdir())
