"""`launch exec` on two names of this machine: what it says beside the output of the hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S

from launcher.errors import EXIT_USAGE

Launch = Callable[..., subprocess.CompletedProcess[str]]
IS_HERE = re.compile(r"launch: (localhost|127\.0\.0\.1) is this machine; not using SSH\n")  # in any order
NO_STDIN = "launch: stdin is not sent to the hosts: the command reads /dev/null there\n"


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Run `launch exec` on both names."""

    def run(*words: str, stdin: int = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "launcher", "exec", "--hosts", "localhost,127.0.0.1", *words]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run(
            argv, cwd=tmp_path, env=env, stdin=stdin, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        done.stderr = IS_HERE.sub("", done.stderr)
        return done

    return run


def test_the_summary_is_in_host_order(launch: Launch) -> None:
    done = launch("-b", "--", "case $LAUNCH_MARK in *.0) sleep 0.3; echo a; exit 5;; *) echo b; exit 3;; esac")
    assert (done.returncode, done.stdout) == (5, "---- localhost ----\na\n---- 127.0.0.1 ----\nb\n")
    assert done.stderr == "launch: localhost: exit code 5\nlaunch: 127.0.0.1: exit code 3\n"


def test_what_waits_on_stdin_is_not_dropped_in_silence(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "input").write_text("text\n")
    with (tmp_path / "input").open() as file:
        done = launch("-b", "--", "cat; echo end", stdin=file.fileno())
    assert (done.stdout, done.stderr) == ("---- 127.0.0.1,localhost ----\nend\n", NO_STDIN)
    reading, writing = os.pipe()
    os.write(writing, b"text\n")
    os.close(writing)
    assert launch("true", stdin=reading).stderr == NO_STDIN
    assert launch("true", stdin=reading).stderr == NO_STDIN  # nothing was read of it
    os.read(reading, 100)
    assert launch("true", stdin=reading).stderr == ""
    os.close(reading)


def test_what_comes_to_stdin_while_the_command_runs_is_told_at_its_end(launch: Launch, tmp_path: Path) -> None:
    """The command itself is the producer that is slower than the start."""
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)
    done = launch("--workdir", str(tmp_path), "--", "echo text >pipe", stdin=pipe)
    os.close(pipe)
    assert (done.returncode, done.stderr) == (0, NO_STDIN)


def test_output_is_folded_or_json(launch: Launch) -> None:
    done = launch("-b", "--json", "true")
    said = "launch: --fold and --json are both given\n  fix: pass only one of them\n"
    assert (done.returncode, done.stdout, done.stderr) == (EXIT_USAGE, "", said)
