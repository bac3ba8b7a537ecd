"""Completion in the real shells: what a Tab makes of a line, with nothing of the user's or of the network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from completing_shells import BASH_COMPLETION, ROOT, Fish, TypedShell, make_program, open_shell, print_script

from launcher.cli.completion.command import INSTALL

SHELLS = ("bash", "bash with bash-completion", "zsh", "fish")
HOSTILE = "x$(touch${IFS}owned)"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with scripts and hostfiles, and a home with hosts and runs, some of which are hostile."""
    place = tmp_path_factory.mktemp("place")
    for name in ("train.py", "a b.py", "$(touch owned).py", "more/x.py", "home/.ssh/config", "home/.ssh/more"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).touch()
    (place / "gpus.txt").write_text("node1 slots=8\nnode2 slots=8\n")
    (place / "home/.ssh/more").write_text("Host included\n")
    hostile = f'{HOSTILE} a;b "c d" e`id` f\x1b]0;owned\x07 "g\'h"'
    (place / "home/.ssh/config").write_text(f"Host gpu1 gpu2 *.lan !gpu3\n  User me\nHost {hostile}\nInclude more\n")
    runs = place / "home/state/launch/runs"
    for run_id, name in {"20261120-091233": "baseline", "20261121-101500": None, HOSTILE: "ok", "y": HOSTILE}.items():
        (runs / run_id).mkdir(parents=True)
        (runs / run_id / "controller.json").write_text(json.dumps({"name": name}))
    return place


@pytest.fixture(scope="module")
def env(place: Path) -> dict[str, str]:
    """Return an environment of this home, with no `launch` but this checkout."""
    make_program(place / "bin")
    home = place / "home"
    others = [folder for folder in os.environ["PATH"].split(":") if not Path(folder, "launch").exists()]
    return {
        "PATH": ":".join([str(place / "bin"), *others]), "HOME": str(home), "XDG_STATE_HOME": str(home / "state"),
        "TERM": "dumb", "LANG": "C.UTF-8", "HISTFILE": os.devnull,
    }  # fmt: skip


def _open(name: str, env: dict[str, str], place: Path) -> TypedShell | Fish:
    program = name.partition(" ")[0]
    if shutil.which(program) is None:
        pytest.skip(f"install {program}")
    if name != program and not BASH_COMPLETION.exists():
        pytest.skip("install bash-completion")
    return open_shell(name, env, place)


@pytest.fixture(scope="module", params=SHELLS)
def shell(request: pytest.FixtureRequest, env: dict[str, str], place: Path) -> Iterator[TypedShell | Fish]:
    if request.param == "fish":
        shutil.rmtree(place / "home/.config", ignore_errors=True)
    opened = _open(request.param, env, place)
    yield opened
    opened.close()


@pytest.fixture(scope="module", params=SHELLS[:-1])
def typed(request: pytest.FixtureRequest, env: dict[str, str], place: Path) -> Iterator[TypedShell]:
    opened = _open(request.param, env, place)
    assert isinstance(opened, TypedShell)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("launch sin", ["singlenode"]),
        ("launch help sto", ["stop"]),
        ("launch --tran", ["--transport"]),
        ("launch --no-st", ["--no-stacks"]),
        ("launch --transport ", ["fabric", "pdsh", "srun", "ssh"]),
        ("launch --transport=s", ["--transport=srun", "--transport=ssh"]),
        ("launch --on-hang re", ["restart"]),
        ("launch --hang-timeout ", ["auto", "off"]),
        ("launch --hosts gpu", ["gpu1", "gpu2"]),
        ("launch --hosts gpu1,in", ["gpu1,included"]),
        ("launch --hosts=gpu1,gp", ["--hosts=gpu1,gpu2"]),
        ("launch --hosts root@inc", ["root@included"]),
        ("launch --hosts 'gpu[1-4]' --exclude gpu", ["gpu1", "gpu2", "gpu3", "gpu4"]),
        ("launch --hostfile gpus.txt --exclude node1,", ["node1,node2"]),
        ("launch --controller he", ["here"]),
        ("launch attach ba", ["baseline"]),
        ("launch wait baseline 202611", ["20261120-091233", "20261121-101500"]),
        ("launch ps --forget 2026112", ["20261120-091233", "20261121-101500"]),
        ("launch again baseline --resta", ["--restarts"]),
        ("launch stop --n", ["--now"]),
        ("launch completion z", ["zsh"]),
        ("launch tra", ["train.py"]),
        ("launch run train.py tra", ["train.py"]),
        ("launch run train.py --hostf", []),
        ("launch --hostfile gp", ["gpus.txt"]),
        ("launch --log-dir=mo", ["--log-dir=more"]),
        ("launch --ssh-config home/.ssh/mo", ["home/.ssh/more"]),
        ("launch --ssh-config home/.ssh/more --hosts ", ["included"]),
        ("test-distributed --hosts inc", ["included"]),
        ("test-distributed 2 --max", ["--max-size"]),
        ("launch --gpus 8 --nproc ", []),
    ],
)
def test_a_tab(shell: TypedShell | Fish, line: str, words: list[str]) -> None:
    assert sorted(word.removesuffix("/") for word in shell.list_words(line)) == words


def test_all_commands_are_offered(shell: TypedShell | Fish) -> None:
    from launcher.cli.command_table import COMMANDS

    assert {*COMMANDS} <= {*shell.list_words("launch ")}


@pytest.mark.parametrize("line", ["launch --hosts ", "launch stop ", "launch attach y", "launch --hosts x"])
def test_hostile_names_are_not_offered(shell: TypedShell | Fish, place: Path, line: str) -> None:
    offered = " ".join(shell.list_words(line))
    assert not {*"$`;'\x1b\x07"} & {*offered}
    assert not (place / "owned").exists()


@pytest.mark.parametrize("line", ["launch '$(touch owned)", "launch --hosts '$(touch owned),gp", "launch $(touch own"])
def test_what_is_typed_is_not_run(shell: TypedShell | Fish, place: Path, line: str) -> None:
    shell.list_words(line)
    assert not (place / "owned").exists()


def test_a_hostile_file_is_quoted(typed: TypedShell, place: Path) -> None:
    assert typed.complete("launch ./\\$") == "launch ./\\$\\(touch\\ owned\\).py "
    assert typed.complete("launch a\\ ") == "launch a\\ b.py "
    assert typed.complete("launch ~/set") == "launch ~/setup "
    assert not (place / "owned").exists()


def test_fish_completes_after_an_escaped_space(env: dict[str, str], place: Path) -> None:
    shutil.rmtree(place / "home/.config", ignore_errors=True)
    fish = _open("fish", env, place)
    assert [fish.list_words(f"launch {typed}") for typed in ("a\\ ", "'a ", "--env-file=a\\ ", "x\\")] == [
        ["a b.py"], ["a b.py"], ["--env-file=a b.py"], [],
    ]  # fmt: skip


def test_a_list_may_continue(typed: TypedShell) -> None:
    assert typed.complete("launch --hosts inc") == "launch --hosts included"
    assert typed.complete("launch --transport f") == "launch --transport fabric "


@pytest.mark.parametrize("before", ["true && ", "X=1 ", "true; "])
def test_a_later_command_of_a_line(typed: TypedShell, before: str) -> None:
    assert typed.complete(f"{before}launch --hosts=inc") == f"{before}launch --hosts=included"


def test_a_line_is_completed_up_to_the_cursor(typed: TypedShell) -> None:
    left = "\x02" * len(" train.py")
    assert typed.complete(f"launch --tran train.py{left}").split() == ["launch", "--transport", "train.py"]


def test_broken_files_are_silent(typed: TypedShell, place: Path) -> None:
    """The terminal shows the line and nothing else."""
    (place / "launcher.toml").write_text("hosts = [\n")
    config = place / "home/.ssh/config"
    text = config.read_text()
    config.write_text('Host "open\n')
    try:
        assert typed.complete("launch --hosts inc") == "launch --hosts inc"
        assert "launch --hosts inc" in typed.screen
        assert "Traceback" not in typed.screen
        assert "error" not in typed.screen
    finally:
        (place / "launcher.toml").unlink()
        config.write_text(text)


def test_bash_3_has_no_compopt(place: Path, env: dict[str, str]) -> None:
    """As on macOS: a space follows each word, and files come where there is no word."""
    shell = _open("bash", env, place)
    assert isinstance(shell, TypedShell)
    try:
        shell.complete("enable -n compopt\r")
        assert shell.complete("launch --hosts inc") == "launch --hosts included "
        assert shell.complete("launch --transport=f") == "launch --transport=fabric "
        assert shell.complete("launch tra") == "launch train.py "
        assert "compopt" not in shell.screen
    finally:
        shell.close()


def test_without_launch_a_tab_completes_files(shell: TypedShell | Fish, place: Path) -> None:
    (place / "bin/launch").rename(place / "bin/away")
    try:
        assert shell.list_words("launch tra") == ["train.py"]
        assert not isinstance(shell, TypedShell) or "not found" not in shell.screen
    finally:
        (place / "bin/away").rename(place / "bin/launch")


@pytest.mark.parametrize(
    ("shell", "asked"),
    [
        ("bash", ["bash", "-i", "-c", "complete -p launch test-distributed"]),
        ("zsh", ["zsh", "-i", "-c", "print $_comps[launch] $_comps[test-distributed]"]),
        ("fish", ["fish", "-c", "complete -c launch; complete -c test-distributed"]),
    ],
)
def test_the_line_that_installs_it(
    shell: str, asked: list[str], tmp_path: Path, place: Path, env: dict[str, str]
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"install {shell}")
    own = {**env, "HOME": str(tmp_path)}
    (tmp_path / ".config/fish/conf.d").mkdir(parents=True)  # which an interactive fish makes
    for argv in ([shell, "-c", INSTALL[shell]], asked):
        done = subprocess.run(argv, env=own, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert done.stdout.count("launch") >= 2
    assert INSTALL[shell] in print_script(shell, own)


# Of an answer: what reaches out of the process, and what would take too long to import.
WATCH = """
import sys
reached = []
def note(event, args):
    if event.startswith(("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.system", "ctypes.")):
        reached.append(event)
sys.addaudithook(note)
from launcher.cli.completion.answer import describe_answer
answer = describe_answer(sys.argv[1:])
slow = {"click", "rich", "paramiko", "fabric", "asyncio", "socket", "launcher.cli.options.table"} & sys.modules.keys()
print(reached, slow, len(answer.splitlines()))
"""


@pytest.mark.parametrize("line", ["", "--re", "--transport ", "attach ", "--hosts ", "--hostfile gpus.txt --exclude "])
def test_an_answer_reaches_nobody(line: str, place: Path, env: dict[str, str]) -> None:
    print_script("fish", env)  # the words of all commands are known then
    argv = [sys.executable, "-c", WATCH, "fish", "launch", *line.split(" ")]
    own = {**env, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, env=own, cwd=place, capture_output=True, text=True, check=True)
    reached, slow, lines = done.stdout.strip().rpartition(" ")[0], "set()", int(done.stdout.split()[-1])
    assert (reached, done.stderr, lines > 1) == (f"[] {slow}", "", True)


@pytest.mark.parametrize("question", [[], ["fish"], ["bash", "launch"], ["bash", "launch", "x", "launch 'y'"]])
def test_a_wrong_question_is_answered_with_nothing(question: list[str], place: Path, env: dict[str, str]) -> None:
    argv = [place / "bin/launch", "__complete", *question]
    done = subprocess.run(argv, env=env, cwd=place, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
