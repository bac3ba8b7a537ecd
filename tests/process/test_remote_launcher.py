"""This package's own code on another host: what travels, where it is kept, and which hosts can't run it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S, NEVER_S, long_enough
from machines.processes import wait_until
from node_process import code_cache

from launcher.controller import orders, remote_launcher
from launcher.controller.orders import Control
from launcher.controller.remote_launcher import RemoteLauncher
from launcher.hosts.host import Host
from launcher.job.job import Job, Program, ProgramKind
from launcher.node import messages
from launcher.output.output_streams import OutputStreams
from launcher.runs.run_list import RunList
from launcher.runs.run_request import RunOptions
from launcher.transports import bootstrap
from launcher.transports.agents.credentials import make_credentials
from launcher.transports.archives import pack_launcher
from launcher.transports.base import TransportError
from launcher.transports.process_channel import LocalTransport, ProcessChannel, end_process

TIMEOUT_S = 10.0
RUN = "20261120-091233"
ROWS = ("ps", "--all", "--json")
WAIT = ("wait", RUN)
VIEW = OutputStreams(frozenset(), is_one_file=False, with_color=False)

# Imports every module but those that only the ranks, the nodes or another system need.
IMPORTS = """
import importlib, pathlib, sys
RANKS = ("launcher.distributed", "launcher.exchange", "launcher.trainer", "launcher.collectives", "launcher.node.")
sys.path.insert(0, sys.argv[1])
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.py")):
    name = ".".join(path.relative_to(sys.argv[1]).with_suffix("").parts).removesuffix(".__init__")
    if name not in ("launcher.__main__", "click._winconsole") and not name.startswith(RANKS):
        importlib.import_module(name)
"""


@pytest.fixture(autouse=True)
def _code_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(code_cache(pack_launcher)))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the code will be kept, for a test that sends it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "launch" / "code"


def open_list() -> RunList:
    return RunList.of_user(os.environ)


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


def ask(action: orders.Action) -> tuple[bytes, int | None]:
    launcher = start()
    launcher.ask(action, VIEW)
    output = launcher.read_output()
    launcher.close()
    return output, launcher.exit_code


def test_what_travels_needs_nothing_else(tmp_path: Path) -> None:
    zipfile.ZipFile(BytesIO(pack_launcher().content)).extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", IMPORTS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_code_is_sent_once(cache: Path) -> None:
    """By the loader of a node, whose tests show that only what was sent runs."""
    cache.mkdir(parents=True, mode=0o775)
    cache.chmod(0o775)  # of an earlier version, with a umask of 002
    assert ask(ROWS) == (b"[]\n", 0)
    (kept,) = cache.glob(f"{pack_launcher().name}.*")
    assert [each.stat().st_mode & 0o777 for each in (cache.parent, cache, kept)] == [0o700, 0o700, 0o600]
    before = kept.stat().st_ino
    assert ask(ROWS) == (b"[]\n", 0)
    assert kept.stat().st_ino == before, "it was not sent again"


def test_what_is_removed_while_it_runs_is_not_missed(cache: Path) -> None:
    """`launch clean` or a cleaner of caches may remove it, while a controller still has modules to import."""
    launcher = start()
    shutil.rmtree(cache)
    launcher.ask(ROWS, VIEW)
    assert launcher.read_output() == b"[]\n"
    launcher.close()


def test_a_request_that_fails_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    with listed(Path("nowhere")):
        assert ask(("logs", RUN)) == (b"", 2)
    assert capfd.readouterr().err.splitlines()[0] == f"launch: the logs in {Path.cwd() / 'nowhere'} were removed"


def test_a_run_that_is_not_listed_there(capfd: pytest.CaptureFixture[str]) -> None:
    """The launch host knows more of it, and says that."""
    launcher = start()
    launcher.ask(("wait", "1"), VIEW)
    assert (launcher.copy_output(), launcher.is_unknown) == (2, True)
    launcher.close()
    assert capfd.readouterr().err == ""


def test_no_rank_can_forge_the_last_line(tmp_path: Path) -> None:
    """It knows what is in the command line there."""
    with contextlib.closing(start()) as launcher:
        pid = launcher.channel._process.pid  # type: ignore[attr-defined] # it is a LocalTransport's
        words = re.findall("[0-9a-f]{16}", Path(f"/proc/{pid}/cmdline").read_text())
        assert words
        forged = "".join(f"~{word} 7 " for word in words)
        entry = open_list().begin(RUN, forged, tmp_path)
        launcher.ask(ROWS, VIEW)
        assert [row["name"] for row in json.loads(launcher.read_output())] == [forged]
        entry.close(is_kept=False)


@pytest.mark.parametrize("is_printed", [False, True])
def test_what_a_host_says_can_t_move_the_cursor(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], is_printed: bool
) -> None:
    """Nor write the clipboard, whoever has put it there; only the output of a run comes as it is."""
    python = tmp_path / "python"
    stained = r"sed -u 's/^/\x1b]52;c;aGk=\x07/' >&2"
    python.write_text(f'#!/bin/sh\n{{ "{sys.executable}" "$@" 2>&1 >&3 3>&- | {stained}; }} 3>&1\n')
    python.chmod(0o755)
    with listed(Path("nowhere")), contextlib.closing(start(str(python))) as launcher:
        launcher.ask(("logs", RUN), VIEW)
        assert launcher.copy_output(is_of_a_run=False) == 2 if is_printed else launcher.read_output() == b""
    assert capfd.readouterr().err.splitlines()[0] == f"launch: the logs in {Path.cwd() / 'nowhere'} were removed"


def test_it_ends_with_its_login(tmp_path: Path) -> None:
    """Nobody waits for a run on a host when nobody reads the answer."""
    with listed(tmp_path):
        launcher = start()
        launcher.ask(WAIT, VIEW)
        launcher.close()
        assert wait_until(lambda: launcher.channel.exit_code() == 128 + signal.SIGHUP)


def test_an_answer_ends_if_its_launch_host_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a loss of power there, of which sshd hears hours later."""
    monkeypatch.setattr(orders, "SILENCE_S", 0.5)  # less than between two heartbeats
    with listed(tmp_path):
        launcher = start()
        launcher.ask(WAIT, VIEW)
        assert wait_until(lambda: launcher.channel.exit_code() == 128 + signal.SIGHUP)


def test_a_launcher_that_is_stopped_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by SIGSTOP, or when its machine stands still: nobody waits for ever for what it would say."""
    monkeypatch.setattr(orders, "BEAT_S", 0.1)
    monkeypatch.setattr(remote_launcher, "CODE_S", 0.0)  # whether it is there or not
    with listed(tmp_path), contextlib.closing(start()) as launcher:
        os.kill(launcher.channel._process.pid, signal.SIGSTOP)  # type: ignore[attr-defined] # it is a LocalTransport's
        launcher.ask(WAIT, VIEW)
        try:
            with pytest.raises(TransportError, match=r"^here: launch doesn't respond there any more$") as raised:
                launcher.copy_output()
        finally:
            os.kill(launcher.channel._process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    assert raised.value.failure.fix.startswith("log in there, and see whether it is overloaded")


def test_a_launcher_that_says_nothing_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a run; its heartbeats are no output."""

    def attempt(silence_s: float) -> None:
        monkeypatch.setattr(orders, "BEAT_S", 0.6 * silence_s)
        monkeypatch.setattr(orders, "SILENCE_S", silence_s)  # there, heartbeats come as often as that demands
        with ThreadPoolExecutor() as pool, contextlib.closing(start()) as launcher:
            with listed(tmp_path):
                launcher.ask(WAIT, VIEW)
                output = pool.submit(lambda: b"".join(data for _, data in launcher.pieces()))
                time.sleep(0.6 * silence_s * (remote_launcher.MOST_MISSED + 3))
                assert not output.done()
            assert (
                output.result(DEADLINE_S).decode() == f"launch: run {RUN} was never started; its launch has said why\n"
            )

    long_enough(attempt, 0.5)


def test_an_answer_that_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a dead file system, while the heartbeats go on."""
    monkeypatch.setattr(remote_launcher, "_ANSWER_S", 0.5)
    with (
        listed(tmp_path),
        contextlib.closing(start()) as launcher,
        pytest.raises(TransportError, match="no answer within"),
    ):
        launcher.ask(WAIT, VIEW)
        launcher.read_output()


def write_python(folder: Path, then: str) -> str:
    """Write a Python that says that it has started, and then does this instead of taking the code."""
    python = folder / "python"
    says = "import os,sys,time;print(sys.argv[1],'missing 3.11',flush=True)"
    python.write_text(f'#!/bin/sh\nbegin=${{4#?}}\nexec "{sys.executable}" -c "{says};{then}" "${{begin%%\\"*}}"\n')
    python.chmod(0o755)
    return str(python)


def test_a_python_that_does_not_take_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "CODE_S", 0.5)
    transport = KeptTransport()
    try:
        with pytest.raises(TransportError, match=r"^here: it has not taken launch's code in 0.5 s$"):
            RemoteLauncher(transport, Host("here"), [write_python(tmp_path, f"time.sleep({NEVER_S})")], TIMEOUT_S)
    finally:
        end_process(transport.channels[0]._process)


class KeptTransport(LocalTransport):
    """Keeps what it has opened."""

    def __init__(self) -> None:
        self.channels: list[ProcessChannel] = []

    def open(self, host: Host, command: str, timeout_s: float) -> ProcessChannel:
        self.channels.append(super().open(host, command, timeout_s))
        return self.channels[-1]


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


def test_a_python_that_ends_before_its_code_comes(tmp_path: Path) -> None:
    """As one that a signal ends: what can't be sent to it is no error of its own."""
    with contextlib.closing(start(write_python(tmp_path, "os.close(0);os.kill(os.getpid(),9)"))) as launcher:
        launcher.ask(ROWS, VIEW)
        with pytest.raises(TransportError, match=r"here: launch was killed there \(exit code 137\)"):
            launcher.read_output()


@pytest.mark.parametrize("is_taken", [False, True])
def test_the_id_that_the_launch_host_proposes(is_taken: bool) -> None:
    """Another run may have it here; what was taken is given back."""
    proposed = "20261120-091233"
    if is_taken:
        open_list().claim(proposed)
    job = Job(Program(ProgramKind.COMMAND, "true", ()))
    launcher = start()
    launcher.ask(Control(job, (), (), RunOptions(), {}, make_credentials(0), proposed), VIEW)
    decoder, headers = messages.Decoder(), list[dict[str, object]]()
    while not headers:
        headers += [header for header, _ in decoder.feed(next(launcher.pieces())[1])]
    assert (headers[0]["run"] != proposed) == is_taken
    launcher.close()
    assert wait_until(lambda: len([*open_list().base.iterdir()]) == is_taken)


def test_ctrl_c_that_comes_with_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run listens to no signals yet; its directory of logs is removed all the same."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    job = Job(Program(ProgramKind.COMMAND, "true", ()))
    launcher = start()
    launcher.ask(Control(job, (), (), RunOptions(), {}, make_credentials(0), RUN), VIEW)
    launcher.channel.write(messages.encode(messages.GO) + messages.encode(orders.SIGNAL, number=signal.SIGINT))
    launcher.read_output()
    launcher.close()
    assert (launcher.exit_code, launcher.was_refused) == (130, True)
    assert not list((tmp_path / "state" / "launch" / "logs").iterdir())
