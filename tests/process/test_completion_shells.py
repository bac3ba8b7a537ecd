"""The line that installs completion, in the real shells, and what they offer then."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S

from launcher.cli.completion import INSTALL

ROOT = Path(__file__).parents[2]
# What each shell calls at a Tab, here with the line of $1 and the last word of $2.
ASK = {
    "bash": """. ~/.bashrc; compopt() { :; }; COMP_WORDS=($1); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
               _launch_completion launch; printf '%s\\n' "${COMPREPLY[@]}" """,
    "zsh": """. ~/.zshrc; print -r -- $_comps[launch] $_comps[test-distributed] >&2
              _path_files() { : }; compadd() { print -rl -- $completions }; _describe() { print -rl -- ${(P)3%%:*} }
              words=(${=1}); CURRENT=$#words; _launch_completion""",
    "fish": "complete -C $argv[1]",
}


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Return an environment of an empty home, with no `launch` but this checkout."""
    for name, entry in (("launch", "main"), ("test-distributed", "main_test_distributed")):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
            f"from launcher.cli.main import {entry}\n{entry}()\n"
        )
        program.chmod(0o755)
    (tmp_path / ".config/fish/conf.d").mkdir(parents=True)  # which an interactive fish makes
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(tmp_path), "TERM": "dumb", "LANG": "C.UTF-8"}


def run_shell(shell: str, script: str, *words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"install {shell}")
    argv = [shell, "-c", script, *([shell] if shell != "fish" else []), *words]
    return subprocess.run(
        argv, env=env, cwd=env["HOME"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S,
        check=True,
    )  # fmt: skip


@pytest.mark.parametrize("shell", INSTALL)
def test_a_tab_after_the_line_that_installs_it(shell: str, env: dict[str, str]) -> None:
    Path(env["HOME"], ".ssh").mkdir()
    Path(env["HOME"], ".ssh/config").write_text("Host gpu1 gpu2 $(touch${IFS}owned)\n")
    Path(env["HOME"], "launcher.toml").write_text("gpus = 8\n")  # a run says that it is used
    run_shell(shell, INSTALL[shell], env=env)
    for line, words in {
        "launch singl": ["singlenode"], "launch --restar": ["--restarts"], "launch --hosts gpu1,g": ["gpu1,gpu2"],
        "launch --transport s": ["srun", "ssh"],
    }.items():  # fmt: skip
        done = run_shell(shell, ASK[shell], line, line.split()[-1], env=env)
        assert [each.partition("\t")[0] for each in done.stdout.split("\n") if each] == words
        assert done.stderr == ("_launch_completion _test_distributed_completion\n" if shell == "zsh" else "")


def test_an_error_at_a_tab_is_silent(env: dict[str, str]) -> None:
    """What a shell asks of a line that no command would take, and of a question that is none."""
    asked = {"COMP_WORDS": "launch nosuch x", "COMP_CWORD": "x"}
    for more in (asked, {}):
        own = {**env, **more, "_LAUNCH_COMPLETE": "fish_complete"}
        done = subprocess.run(["launch"], env=own, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert (done.stdout, done.stderr) == ("", "")
