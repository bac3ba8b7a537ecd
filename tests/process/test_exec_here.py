"""`launch exec` on two names of this machine: what it says beside the output of the hosts."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from machines.launches import PROGRAM, run_launch, start_launch
from machines.patience import DEADLINE_S

from launcher.errors import EXIT_UNREACHABLE

Launch = Callable[..., subprocess.CompletedProcess[str]]
IS_HERE = re.compile(r"launch: (localhost|127\.0\.0\.1) is this machine; not using SSH\n")  # in any order


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Run `launch exec` on both names."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        done = run_launch("exec", "--hosts", "localhost,127.0.0.1", *words, cwd=tmp_path)
        done.stderr = IS_HERE.sub("", done.stderr)
        return done

    return run


def test_the_summary_is_in_host_order(launch: Launch) -> None:
    done = launch("-b", "--", "case $LAUNCH_MARK in *.0) sleep 0.3; echo a; exit 5;; *) echo b; exit 3;; esac")
    assert (done.returncode, done.stdout) == (5, "---- localhost ----\na\n---- 127.0.0.1 ----\nb\n")
    assert done.stderr == "launch: localhost: exit code 5\nlaunch: 127.0.0.1: exit code 3\n"


def test_ctrl_c_again_and_again_as_a_failed_command_ends(tmp_path: Path) -> None:
    """From when the exit codes are shown until the process is gone."""
    argv = [PROGRAM, "exec", "--hosts", "localhost", "--", "exit 7"]
    with subprocess.Popen(argv, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(line == "launch: localhost: exit code 7\n" for line in process.stderr)
        deadline = time.monotonic() + DEADLINE_S
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGINT)
            time.sleep(0.005)
        assert (process.returncode, process.stderr.read()) == (7, "")


@pytest.mark.parametrize(
    "words", [("--", "yes"), ("--", "yes >&2"), ("--json", "--", "while echo y; do sleep 0.1; done")]
)
def test_a_reader_that_is_gone_ends_the_command(tmp_path: Path, words: tuple[str, ...]) -> None:
    """As with `| head -2`: what runs without end would run on, and nobody would see it."""
    read, write = os.pipe()
    with os.fdopen(write, "wb") as end:
        process = start_launch("exec", "--hosts", "localhost,127.0.0.1", *words, cwd=tmp_path, stdout=end, stderr=end)
    try:
        with os.fdopen(read, "rb") as shown:
            assert any(b"y" in line.split() or b'"text": "y"' in line for line in shown)
        assert process.wait() == 128 + signal.SIGPIPE
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("words", "closed"),
    [(("exec", "--"), ">&-"), (("--detach", "--no-python"), "<&- >&- 2>&-")],
)
def test_a_closed_stream_breaks_nothing(tmp_path: Path, words: tuple[str, ...], closed: str) -> None:
    launch = f"{shlex.quote(str(PROGRAM))} {words[0]} --hosts nowhere.invalid {' '.join(words[1:])} true"
    done = subprocess.run(
        ["bash", "-c", f"{launch} {closed}"], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (EXIT_UNREACHABLE, False)


@pytest.mark.linux
@pytest.mark.parametrize("words", ["ps --json --all", "completion bash", "exec --help"])
def test_a_full_disk_below_stdout_is_an_error(tmp_path: Path, words: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [PROGRAM, *words.split()], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE,
            text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "launch: can't write the output: No space left on device\n")


def test_a_command_inherits_what_took_a_closed_stream_s_place() -> None:
    """Without that the first file or socket that the command opens would be its stdin."""
    code = "from launcher.cli import main; import os; main.open_closed_streams(); os.system('readlink /proc/self/fd/0')"
    done = subprocess.run(
        ["bash", "-c", f'{shlex.quote(sys.executable)} -c "{code}" <&-'], cwd=Path(__file__).parents[2],
        capture_output=True, text=True, timeout=DEADLINE_S, check=True,
    )  # fmt: skip
    assert done.stdout == "/dev/null\n"
