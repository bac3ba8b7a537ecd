"""Ranks that a node starts itself: their output, their ends, and what they find when they begin."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S
from node_process import STDERR, STDOUT, WAITS, Node, Nodes, python, shell, wait_until

from launcher.node import messages

ECHO = """
    import os, sys
    os.write(1, b"\\0".join(map(os.fsencode, sys.argv[1:])))
"""

# What shells, JSON, printf, string.Template and line-based wires trip over.
NASTY = [
    "", " ", "a b", "  two  ", "'", '"', "\\", "\\n", "\n", "\r\n", "\t", "$HOME", "${HOME}", "$(id)", "`id`", "$$",
    "%s", "%n", "!", "!!", "*", "?", "[a]", "{a,b}", "~", "#", ";", "&", "|", "<", ">", "(", ")", "-", "--", "-c",
    "$", "=", "ü€😀", "\u202e", "\udcff", "\x01\x1b[31m", "\x7f", "x" * 10_000,
]  # fmt: skip

# Those of which this machine can build a locale.
LEGACY_CHARSETS = [path.stem for path in Path("/usr/share/i18n/charmaps").glob("ISO-8859-1.gz")]


# ---- output ---------------------------------------------------------------------------------------------------------


def test_output_is_exact_per_rank_and_stream(nodes: Nodes, any_python: str) -> None:
    """All bytes, carriage returns, no newline at the end, and half a character."""
    node = nodes.start(python=any_python)
    node.prepare()
    every_byte = bytes(range(256))
    node.start(
        python("import os; os.write(1, bytes(range(256))); os.write(2, b'50%\\r100%')"),
        python("import os; os.write(1, 'é'.encode()[:1])"),
        python("import os; os.write(2, b'\\n\\n')"),
    )
    node.wait_for_exits(3)
    assert {key: bytes(data) for key, data in node.output.items() if data} == {
        (0, STDOUT): every_byte,
        (0, STDERR): b"50%\r100%",
        (1, STDOUT): b"\xc3",
        (2, STDERR): b"\n\n",
    }


def test_output_comes_before_the_exit_of_its_rank(node: Node) -> None:
    node.start(shell("head -c 3000000 /dev/zero; echo last >&2; exit 3"))
    node.wait_for_exits()
    kinds = [message["type"] for message in node.messages if message["type"] in (messages.OUTPUT, messages.EXIT)]
    assert kinds[-1] == messages.EXIT
    assert (len(node.output[0, STDOUT]), node.output[0, STDERR]) == (3_000_000, b"last\n")


def test_output_of_a_child_that_outlives_its_rank_still_comes(node: Node, tmp_path: Path) -> None:
    go = tmp_path / "go"
    node.start(shell(f"(while ! [ -e {go} ]; do sleep 0.01; done; echo late) & echo early"))
    node.wait_for_exits()
    go.touch()
    node.wait_for_output("late")


# ---- ends -----------------------------------------------------------------------------------------------------------


def test_exit_codes_and_signals(nodes: Nodes, any_python: str) -> None:
    node = nodes.start(python=any_python)
    node.prepare()
    scripts = ["exit 0", "exit 3", "exit 255", "kill -KILL $$", "kill -TERM $$", "kill -SEGV $$"]
    node.start(*map(shell, scripts))
    assert node.wait_for_exits(6) == {
        0: (0, None),
        1: (3, None),
        2: (255, None),
        3: (None, signal.SIGKILL),
        4: (None, signal.SIGTERM),
        5: (None, signal.SIGSEGV),
    }


def test_the_end_is_told_when_the_last_rank_has_ended(node: Node, tmp_path: Path) -> None:
    go = tmp_path / "go"
    node.start(shell("exit 0"), shell(f"while ! [ -e {go} ]; do sleep 0.01; done; exit 4"))
    node.wait_for_exits()
    assert not node.find(messages.ENDED)
    go.touch()
    assert node.wait_for(messages.ENDED)["code"] == 4
    assert not node.find(messages.CENSUS)


def test_a_short_command_ends_the_connection(node: Node) -> None:
    """Its daemon goes with it: ssh would wait for that, and pdsh would leave it."""
    node.start(shell("setsid sleep 300 & echo pids $!"), is_short=True)
    assert node.wait_for(messages.CENSUS)["left"] == []
    assert node.wait_for_exits() == {0: (0, None)}
    node.wait_until_gone()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["/nonexistent/train", "x"], "/nonexistent/train: No such file or directory"),
        (["/etc/passwd"], "/etc/passwd: Permission denied"),
        (["/"], "/: Permission denied"),
        (["true", "a\0b"], "true: embedded null byte"),
        (["nonexistent-train"], "nonexistent-train: No such file or directory"),
        (["true", "x" * 200_000], "true: Argument list too long"),
    ],
    ids=["missing", "no program", "folder", "nul", "not on PATH", "too long"],
)
def test_a_program_that_can_t_be_started(node: Node, argv: list[str], words: str) -> None:
    node.start(argv, shell("echo I am well"))
    assert node.wait_for_exits(2) == {0: (127, None), 1: (0, None)}
    assert node.output[0, STDERR].decode() == f"launch: can't start {words}\n"
    assert node.output[1, STDOUT] == b"I am well\n"


@pytest.mark.parametrize("interpreter", ["/bin/sh\r", "/nonexistent/python -u"])
def test_a_script_whose_interpreter_is_missing(node: Node, tmp_path: Path, interpreter: str) -> None:
    script = tmp_path / "run.sh"
    script.write_bytes(f"#! {interpreter}\n".encode())
    script.chmod(0o755)
    node.start([str(script)])
    assert node.wait_for_exits() == {0: (127, None)}
    assert node.output[0, STDERR].decode() == f"launch: can't start {script}: no interpreter {interpreter!a}\n"


def test_few_open_files_are_enough(nodes: Nodes) -> None:
    node = nodes.start(rc_file="ulimit -n 32; ")
    node.prepare()
    node.start(shell("echo fine"), shell("echo fine"))
    assert node.wait_for_exits(2) == {0: (0, None), 1: (0, None)}
    assert node.output[0, STDOUT] == node.output[1, STDOUT] == b"fine\n"


def test_a_working_folder_that_is_not_there(node: Node) -> None:
    node.start(["true"], cwd="/nonexistent/folder")
    assert node.wait_for_exits() == {0: (127, None)}
    assert (
        node.output[0, STDERR]
        == b"launch: can't start true: the directory /nonexistent/folder: No such file or directory\n"
    )


# ---- beginnings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["LANG", "LC_ALL"])
def test_nasty_arguments_arrive_in_the_c_locale(nodes: Nodes, variable: str) -> None:
    check_arguments(nodes, NASTY, env={variable: "C"})


@pytest.mark.parametrize("charset", LEGACY_CHARSETS)
def test_nasty_arguments_arrive_in_a_locale_of_8_bits(nodes: Nodes, tmp_path: Path, charset: str) -> None:
    build = ["localedef", "-f", charset, "-i", "en_US", str(tmp_path / f"en_US.{charset}")]
    subprocess.run(build, check=True, timeout=DEADLINE_S)
    check_arguments(nodes, NASTY, env={"LOCPATH": str(tmp_path), "LC_ALL": f"en_US.{charset}"})


def check_arguments(nodes: Nodes, words: list[str], env: dict[str, str] | None = None) -> None:
    node = nodes.start(env=env)
    node.prepare()
    node.start(python(ECHO, *words))
    assert node.wait_for_exits() == {0: (0, None)}
    assert node.output[0, STDOUT] == b"\0".join(map(os.fsencode, words))
    node.end()


def test_the_environment(nodes: Nodes) -> None:
    """The node's own, then the job's, then the rank's; a value is never read by a shell."""
    node = nodes.start(env={"A": "node", "B": "node", "C": "node"})
    nasty = "\n".join(NASTY)
    node.prepare(env={"B": "job", "C": "job", "NASTY": nasty})
    script = "import os; os.write(1, b'\\0'.join(os.environb[k] for k in (b'A', b'B', b'C', b'SPT_NOENV', b'NASTY')))"
    node.start(python(script), env={"C": "rank"})
    node.wait_for_exits()
    assert node.output[0, STDOUT] == b"\0".join([b"node", b"job", b"rank", b"1", os.fsencode(nasty)])


@pytest.mark.parametrize(
    ("cwd", "place"), [(None, ""), ("~", "home"), ("~/code", "home/code"), ("/", "/"), ("tmp", "tmp")]
)
def test_the_working_folder(node: Node, cwd: str | None, place: str) -> None:
    (node.home / "code").mkdir()
    node.start(["pwd"], cwd=cwd)
    node.wait_for_exits()
    assert node.output[0, STDOUT].decode() == f"{node.home.parent / place}\n"


def test_a_payload_lies_in_the_run_s_folder(node: Node) -> None:
    payload = random.Random(2).randbytes(300_000)
    start = {"payload_name": "launcher.pyz", "cwd": None}
    ranks = [{"rank": 0, "argv": ["cat", f"{node.folder}/launcher.pyz"], "env": {}}]
    node.send(messages.START, payload, processes=ranks, **start)
    node.wait_for_exits()
    assert node.output[0, STDOUT] == payload


def test_a_rank_begins_with_no_signal_blocked_caught_or_ignored(node: Node) -> None:
    node.start(["cat", "/proc/self/status"])
    node.wait_for_exits()
    lines = dict(line.split(":\t") for line in node.output[0, STDOUT].decode().splitlines())
    assert [lines["SigBlk"], lines["SigCgt"]] == ["0" * 16] * 2
    # 32 and 33 are the C library's own: whoever started the tests may ignore them, and nobody can change that.
    assert int(lines["SigIgn"], 16) & 0x7FFF_FFFF == 0


def test_a_rank_has_its_own_session_and_no_file_of_ours(node: Node) -> None:
    node.start_ready(shell(WAITS), shell(WAITS))
    for rank in (0, 1):
        pid = node.pid_of(rank)
        assert os.getsid(pid) == pid
        files = Path(f"/proc/{pid}/fd")
        wait_until(lambda files=files: len(list(files.iterdir())) == 3)  # an exec may open one of its own
        stdin, stdout, stderr = [str((files / name).readlink()) for name in ("0", "1", "2")]
        assert stdin == os.devnull
        assert stdout != stderr
