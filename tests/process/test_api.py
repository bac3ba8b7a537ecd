"""`import launcher`: runs of this machine from Python, however the program that started them goes on or ends."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from machines.launches import write_python
from machines.patience import DEADLINE_S
from machines.processes import list_pids, list_processes, read_command, read_namespace, wait_until

import launcher
from launcher.api import child
from launcher.api.child import as_words
from launcher.api.values import read_free
from launcher.runs.run_list import RemoteRun, RunList, Way

ROOT = Path(__file__).parents[2]
PYTHON = sys.executable
forked = pytest.mark.usefixtures("forks")
TWO: Mapping[str, Any] = {"nproc": 2, "cpu": True, "no_check": True}
RANKS: Mapping[str, Any] = {"no_python": True, **TWO}
# A rank that says its process id and waits, whatever it is asked; the run's stop ends it.
WAITS = ["sh", "-c", 'echo "ready $$"; exec sleep 1000']
FAILS = """
import os, sys, time
if os.environ["RANK"] == "0":
    time.sleep(1000)

def step():
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")

step()
"""


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in a directory of the test, and look for processes of its runs when it has ended."""
    monkeypatch.chdir(tmp_path)
    yield
    assert wait_until(lambda: not find_ranks()), find_ranks()


@pytest.fixture
def forks(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each `launch` forked, where its start isn't what the test is about."""
    monkeypatch.setattr(sys, "executable", str(write_python(tmp_path_factory.mktemp("python") / "python")))


def find_ranks() -> list[str]:
    """Return the command lines of all processes of runs."""
    own = read_namespace(os.getpid(), "pid")
    return [read_command(each.pid) for each in list_processes(own, "here") if each.is_ours]


def read_pids(text: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"ready (\d+)", text)]


def start_program(source: str, **how: Any) -> subprocess.Popen[str]:
    """Start a user's program; its standard output is a pipe."""
    path = Path("program.py")
    path.write_text(textwrap.dedent(source))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([PYTHON, str(path)], stdout=subprocess.PIPE, text=True, env=env, **how)


# ---- lines and results ----------------------------------------------------------------------------------------------


def test_lines_messages_files_and_the_result(capfd: pytest.CaptureFixture[str]) -> None:
    """The child imports what this process has imported, and nothing of the current directory."""
    for name in ("launcher", "click", "json"):
        Path(f"{name}.py").write_text("raise SystemExit('the wrong module')")
    script = 'echo "out $RANK $GREETING"; echo err >&2; mkdir -p out; echo $RANK > out/$RANK'
    with launcher.singlenode(["sh", "-c", script], env={"GREETING": "hi"}, **RANKS) as run:
        lines = [*run]
        result = run.wait()
    host = lines[0].host
    found = {(line.host, line.rank, line.stream, line.text) for line in lines}
    expected = {(host, rank, "stdout", f"out {rank} hi") for rank in (0, 1)}
    assert found == expected | {(host, rank, "stderr", "err") for rank in (0, 1)}
    assert str(lines[0]).startswith(f"[{host}:")
    assert (result.run, result.exit_code, result.cause, result.attempts) == (run.id, 0, None, 1)
    assert result == run.result
    assert run.messages[0].startswith(f"launch: 1 host x 2 processes = 2 ranks, run {run.id}")
    assert run.messages[-1].endswith("2 ranks succeeded, 0 processes left on 1 host")
    record = json.loads(Path("logs", run.id, "run.json").read_text())
    assert (record["result"]["exit_code"], record["result"]["seconds"]) == (0, result.seconds)
    assert capfd.readouterr() == ("", "")  # nothing is printed unless asked
    launcher.fetch(run, Path("out"), log_dir="copies")
    assert sorted(path.name for path in Path("copies").rglob("*") if path.is_file()) == ["0", "1"]
    launcher.fetch(paths=[Path("out/1")])
    assert [path.name for path in Path("logs", f"{run.id}-fetched").rglob("*") if path.is_file()] == ["1"]
    with pytest.raises(launcher.Error, match=r"has nothing in .* that matches none"):
        launcher.fetch(run, "none")


@forked
def test_whoever_does_not_read_does_not_stall_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is more than all buffers hold; the lines that are kept are the last ones."""
    monkeypatch.setattr(child, "MOST_BYTES", 1 << 20)
    loud = ["sh", "-c", "yes 0123456789012345678901234567890123456789 | head -c 500000; echo last"]
    with launcher.singlenode(loud, **RANKS) as run:
        assert run.wait().exit_code == 0
        kept = [*run]
    assert kept[-1].text.endswith("last")
    assert 0 < len(kept) < run.dropped_lines


# ---- failures -------------------------------------------------------------------------------------------------------


@forked
def test_a_rank_that_fails() -> None:
    """Also of an earlier run, which has its lines and its failure; an error has the exit code of `launch`."""
    Path("train.py").write_text(FAILS)
    with launcher.singlenode([PYTHON, "train.py"], **RANKS) as run:
        assert run.wait(check=False).exit_code == 1
        with pytest.raises(launcher.RankFailed) as caught:
            run.wait()
    error = caught.value
    assert (error.rank, error.gpu, error.exit_code, [*error.failures]) == (1, None, 1, [1])
    assert error.failures[1].text == "exit code 1"
    assert error.traceback.startswith("Traceback (most recent call last):")
    assert error.traceback.endswith("RuntimeError: CUDA error: uncorrectable ECC error encountered")
    assert "line 7, in step" in error.traceback
    assert error.why == error.result.cause.explanation.cause != ""
    assert error.fix != ""
    assert f"launch: {str(error).splitlines()[0]}" in run.messages
    assert error.fix in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (launcher.RankFailed, str(error), vars(error))
    with launcher.attach() as earlier:
        assert error.traceback.splitlines() == [line.text for line in earlier if line.rank == 1]
        with pytest.raises(launcher.RankFailed, match="failed first \\(exit code 1\\), stopping the run on 1 host"):
            earlier.wait()
    with pytest.raises(launcher.UsageError, match="no run 'none'"):
        launcher.attach("none")
    with pytest.raises(launcher.Error, match="FAILED after") as told:
        child.call(["wait", run.id])
    assert told.value.exit_code == 1


@forked
def test_what_can_not_start() -> None:
    """What is raised has the text of the terminal, and nothing was started."""
    with pytest.raises(launcher.ChecksFailed) as caught:
        launcher.singlenode("train.py", nproc=1, cpu=True, python="/none")
    error = caught.value
    assert error.findings[0].text == "--python /none: not found"
    assert str(error).startswith("nothing was started; these would break the run:\n")
    assert pickle.loads(pickle.dumps(error)).findings == error.findings
    with pytest.raises(launcher.HostsUnreachable) as lost:
        launcher.launch("train.py", hosts="no.such.host.invalid", nproc=1, cpu=True)
    assert [failure.host for failure in lost.value.failures] == ["no.such.host.invalid"]
    assert str(lost.value).startswith("1 host can't be used:\n  no.such.host.invalid: ")
    assert [failure.host for failure in pickle.loads(pickle.dumps(lost.value)).failures] == ["no.such.host.invalid"]


def test_a_launch_that_is_killed_has_its_exit_code() -> None:
    with launcher.singlenode(WAITS, **RANKS) as killed:
        assert next(iter(killed)).text.startswith("ready")
        killed._child._process.kill()
        with pytest.raises(launcher.Error, match=r"^launch ended with exit code 137 and no result") as lost:
            killed.wait()
    assert lost.value.exit_code == 137


@forked
def test_a_controller_that_can_not_be_reached() -> None:
    runs = RunList.of_user(os.environ)
    run_id = runs.take_id(datetime(2026, 11, 20, 9, 12, 33), "token")
    runs.add(RemoteRun(run_id, Way("127.0.0.1", port=1), "far", time.time()))
    calls: tuple[Callable[[str], object], ...] = (launcher.stop, launcher.attach)
    for call in calls:
        with pytest.raises(launcher.HostsUnreachable) as caught:
            call("far")
        assert (caught.value.exit_code, [failure.host for failure in caught.value.failures]) == (69, ["127.0.0.1"])
        assert f"only 127.0.0.1 knows whether run {run_id} continues" in str(caught.value)


@forked
@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"gpu": 8}, "no option '--gpu'; did you mean '--gpus'?\n  fix: see launch singlenode --help for the options"),
        ({"gpus": 8, "cpu": True}, "--gpus and --cpu are both given"),
        ({"dry_run": True}, "launcher.singlenode takes no dry_run"),
    ],
)
def test_wrong_options(options: dict[str, Any], shown: str) -> None:
    with pytest.raises(launcher.UsageError) as caught:
        launcher.singlenode("train.py", **options)
    assert str(caught.value).startswith(shown)
    assert isinstance(caught.value, launcher.Error)


def test_options_become_words() -> None:
    options: dict[str, Any] = {
        "hosts": ["gpu1", "gpu2"], "gpus": 8, "env_file": [Path("a.env"), "b.env"], "env": {"A": "1", "B": None},
        "sync": True, "queue": False, "cpu": False, "stacks": False, "name": None, "for_": "6h", "ranks": [0, 8],
        "link": "-x",
    }  # fmt: skip
    assert as_words(options) == [
        "--hosts=gpu1,gpu2", "--gpus=8", "--env-file=a.env", "--env-file=b.env", "--env=A=1", "--env=B", "--sync",
        "--no-queue", "--no-cpu", "--no-stacks", "--for=6h", "--ranks=0,8", "--link=-x",
    ]  # fmt: skip


@forked
def test_a_secret_is_in_no_command_line() -> None:
    shows = ["sh", "-c", 'echo "$MY_TOKEN"; exec sleep 1000']
    notify = ": s3cret-value"
    with launcher.singlenode(shows, env={"MY_TOKEN": "s3cret-value"}, notify=notify, **RANKS) as run:
        assert next(iter(run)).text == "s3cret-value"
        commands = [*map(read_command, list_pids(read_namespace(os.getpid(), "pid")))]
        record = Path("logs", run.id, "run.json").read_text()
    assert any("sleep" in command for command in commands)
    assert not any("s3cret-value" in text for text in (*commands, record))


# ---- other runs -----------------------------------------------------------------------------------------------------


@forked
def test_a_detached_run_outlives_the_block() -> None:
    with launcher.singlenode(WAITS, detach=True, name="long", **RANKS) as run:
        pids = read_pids("\n".join(line.text for _, line in zip(range(2), run, strict=False)))
    assert len(pids) == 2
    (listed,) = launcher.runs()
    assert (listed.run, listed.name, listed.state) == (run.id, "long", "running")
    with launcher.attach(listed) as again:
        assert [line.rank for _, line in zip(range(2), again, strict=False)] in ([0, 1], [1, 0])
        assert again.id == run.id
    assert launcher.runs()[0].state == "running"
    result = launcher.attach("long").stop()
    assert (result.exit_code, result.interrupted_by) == (130, 2)
    with pytest.raises(launcher.RunFailed, match=r"^stopped by you after .*, 0 processes left on 1 host$") as caught:
        launcher.attach("long").wait()
    assert not isinstance(caught.value, launcher.RankFailed)
    assert launcher.runs()[0].state == "stopped"


@forked
def test_a_run_is_stopped_started_again_and_found() -> None:
    with launcher.singlenode(WAITS, detach=True, name="first", **RANKS) as first:
        assert first.logs == Path.cwd() / "logs" / first.id
        assert (first.logs / "run.json").is_file()
    launcher.stop("first", now=True)
    assert launcher.runs()[0].state == "stopped"
    with pytest.raises(launcher.UsageError, match=r"^no run is running on this machine"):
        launcher.stop()
    with launcher.again("first", name="second", env={"GREETING": "hi"}) as again:
        assert [line.text.split()[0] for _, line in zip(range(2), again, strict=False)] == ["ready", "ready"]
        again.stop()
    assert [(row.run, row.name) for row in launcher.runs()] == [(again.id, "second"), (first.id, "first")]
    assert json.loads((again.logs / "run.json").read_text())["again_of"] == first.id
    with pytest.raises(launcher.UsageError, match=r"^launcher\.again takes no dry_run"):
        launcher.again(first, dry_run=True)  # type: ignore[call-arg]


@forked
def test_free_gpus() -> None:
    with pytest.raises(launcher.UsageError, match="no hosts given"):
        launcher.free()
    found = launcher.free(hosts="localhost,no.such.host.invalid", connect_timeout=DEADLINE_S)
    assert found.exit_code == 69
    assert "no.such.host.invalid" in [failure.host for failure in found.unreachable]
    gpus = [{"index": 0, "state": "claimed"}, {"index": 1, "state": "free"}]
    event = {"exit_code": 0, "hosts": [{"host": "gpu1", "gpus": gpus}, {"host": "cpu1", "gpus": []}], "unreachable": []}
    assert read_free(event).gpus == {"gpu1": [1], "cpu1": []}


@forked
def test_hosts_and_checks() -> None:
    Path("two").write_text("gpu1 slots=4\ngpu2 slots=4 spare\n")
    first, second = launcher.hosts(hostfile=Path("two"))
    assert (first.node_rank, first.host, first.slots, first.source) == (0, "gpu1", 4, "two:1")
    assert (second.node_rank, second.host) == (None, "gpu2")
    with pytest.raises(launcher.UsageError, match="host name 'a;b' contains ';'"):
        launcher.hosts(hosts="a;b")
    found = launcher.check("train.py", hosts="localhost,no.such.host.invalid", cpu=True, nproc=1, python=PYTHON)
    assert found.exit_code == 69
    assert [failure.host for failure in found.unreachable] == ["no.such.host.invalid"]
    assert [finding.hosts for finding in found.problems] == [("localhost",)]
    assert found.facts["localhost"]["python"] == PYTHON


# ---- the end of the block and of the program -------------------------------------------------------------------------


def test_an_exception_ends_the_run_and_stays_what_it_is() -> None:
    text = r"^the run has not ended after 0\.1 s$"
    with pytest.raises(TimeoutError, match=text) as caught, launcher.singlenode(WAITS, **RANKS) as run:
        next(iter(run))
        assert run.result is None
        run.wait(0.1)
    assert not find_ranks()
    assert caught.value.__context__ is None
    assert run.result is not None
    assert run.result.interrupted_by == signal.SIGINT


def test_ctrl_c() -> None:
    """All of its process group get it, as from a terminal or Jupyter, and `launch` once, from the block that ends."""
    program = start_program(f"""
        import launcher, sys
        try:
            with launcher.singlenode({WAITS}, **{RANKS}) as run:
                print(next(iter(run)).text, flush=True)
                run.wait()
        except KeyboardInterrupt as interrupt:
            print(interrupt.__context__, run.messages[-1], run.result.exit_code)
    """, start_new_session=True)  # fmt: skip
    assert program.stdout is not None
    assert read_pids(program.stdout.readline())
    os.killpg(program.pid, signal.SIGINT)
    said, _ = program.communicate(timeout=DEADLINE_S)
    assert re.search(r"None launch: stopped by you after .*, 0 processes left on 1 host 130\n", said)
    assert not find_ranks()


def test_ctrl_c_before_the_run_has_begun(tmp_path: Path) -> None:
    """`launch` is still called then, and there is no block yet."""
    program = start_program(f"""
        import launcher
        launcher.singlenode({WAITS}, setup="touch begun; sleep 1000", **{RANKS})
    """, stderr=subprocess.DEVNULL)  # fmt: skip
    assert wait_until((tmp_path / "begun").exists)
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=DEADLINE_S)
    assert program.returncode == -signal.SIGINT
    assert not find_ranks()


def test_a_second_ctrl_c_kills() -> None:
    """Ranks that don't exit at SIGTERM would have ten minutes to save."""
    stubborn = ["sh", "-c", 'trap "echo asked" TERM; echo ready; while :; do sleep 0.1; done']
    program = start_program(f"""
        import launcher, sys, threading
        with launcher.singlenode({stubborn}, stop_timeout=600, **{RANKS}) as run:
            for line in run:
                print(line.text, flush=True)
                break
            threading.Thread(target=lambda: [print(line.text, flush=True) for line in run], daemon=True).start()
            raise KeyboardInterrupt
    """, stderr=subprocess.DEVNULL)  # fmt: skip
    assert program.stdout is not None
    assert any("asked" in line for line in program.stdout)
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=DEADLINE_S)
    assert program.returncode == -signal.SIGINT
    assert not find_ranks()


def test_a_killed_program_leaves_nothing() -> None:
    """Though a child that the program has forked has all of its pipes."""
    program = start_program(f"""
        import launcher, os, time
        with launcher.singlenode({WAITS}, **{RANKS}) as run:
            print(next(iter(run)).text, flush=True)
            if os.fork() == 0:
                time.sleep({DEADLINE_S})
                os._exit(0)
            print("forked", flush=True)
            run.wait()
    """)
    assert program.stdout is not None
    (pid,) = read_pids(program.stdout.readline())
    assert program.stdout.readline() == "forked\n"
    program.kill()
    program.wait()
    assert wait_until(lambda: not read_command(pid))
    assert wait_until(lambda: not find_ranks())


def test_a_program_that_ends_without_a_block() -> None:
    program = start_program(f"import launcher; launcher.singlenode({WAITS}, **{RANKS})")
    program.communicate(timeout=DEADLINE_S)
    assert program.returncode == 0
    assert wait_until(lambda: not find_ranks())
