"""How code gets to a node: a command line that every shell understands, and archives that run there."""

from __future__ import annotations

import ast
import contextlib
import io
import marshal
import re
import shutil
import signal
import subprocess
import sys
import zipfile
import zlib
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType

import pytest

from launcher.node import messages
from launcher.session.settings import loader_pythons
from launcher.transports import bootstrap
from launcher.transports.bootstrap import (
    MARKER,
    NodeCode,
    agent_code,
    describe_end,
    drop_columns,
    find_parts,
    loader_command,
    trainer_archive,
)

ROOT = Path(__file__).parents[3]
NONCE = "0123456789abcdef"
MARKER_LINE = f"{MARKER} {NONCE} {MAGIC_NUMBER.hex()}\n".encode()
SHELLS = [shell for shell in ("sh", "dash", "bash", "zsh", "fish", "tcsh") if shutil.which(shell)]


def test_the_command_line_holds_nothing_that_a_shell_would_change():
    before, text, after = loader_command("python3", NONCE).split("'")
    assert (before, after) == ("exec python3 -X utf8 -ISc ", "")
    assert re.findall(r"\\.", text) == [r"\n"]  # fish takes \\ and \' for escapes
    assert not set(text) & set("!\n\r\t`$^#")
    assert text.isascii()
    assert len(text) < 300


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_starts_the_loader(shell):
    command = loader_command(sys.executable, NONCE)
    code = b"import sys; print('it runs', sys.flags.isolated, sys.flags.no_site)\n"
    done = subprocess.run([shell, "-c", command], input=code + b"not read\n", capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, MARKER_LINE + b"it runs 1 1\n", b"")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_python_that_is_not_there_is_told_by_the_exit_code(shell):
    done = subprocess.run([shell, "-c", loader_command("python3.none", NONCE)], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (127, b"") or shell == "tcsh"  # which says 1


def test_a_python_in_a_folder_with_a_blank(tmp_path):
    python = tmp_path / "my env" / "python3"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    command = loader_command(str(python), NONCE)
    done = subprocess.run(["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.stdout == MARKER_LINE


def test_end_of_file_instead_of_code_ends_the_loader():
    done = subprocess.run(
        ["/bin/sh", "-c", loader_command(sys.executable, NONCE)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, MARKER_LINE)


@pytest.mark.parametrize("sent", [b"", agent_code(NONCE, "")[:9000], agent_code(NONCE, "")])
def test_a_launch_host_that_falls_silent_ends_the_loader(sent):
    """Before the code, within it, and before the order of an agent: its login may last for hours."""
    command = ["/bin/sh", "-c", loader_command(sys.executable, NONCE, 0.5)]
    with subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as loader:
        with contextlib.suppress(BrokenPipeError):  # on a busy machine it ends before that
            loader.stdin.write(sent)
        assert loader.wait() == -signal.SIGALRM


PROBE = """
import sys, zlib, marshal
line, _, sent = sys.stdin.buffer.read().partition(b"\\n")
modules = marshal.loads(zlib.decompress(sent))
compile(modules.pop(""), "importer", "exec")
for name, code in sorted(modules.items()):
    print(name, type(marshal.loads(code) if isinstance(code, bytes) else code).__name__)
    compile(code, name, "exec") if isinstance(code, str) else None
print(len(line) < 400, "<%d:" % len(sent) in line.decode())
"""
NODE_PACKAGES = ("launcher", "launcher.node", "launcher.node.facts", "launcher.node.processes")
AGENT_PACKAGES = (*NODE_PACKAGES[:2], "launcher.node.agents", "launcher.node.processes", "launcher.node.relays")


def node_code(nonce: str, magic: str) -> bytes:
    return NodeCode(magic).begin(nonce)


@pytest.mark.parametrize(("magic", "kind"), [(MAGIC_NUMBER.hex(), "code"), ("610d0d0a", "str"), ("", "str")])
@pytest.mark.parametrize(
    ("make_code", "packages", "own_modules"),
    [
        (node_code, NODE_PACKAGES, bootstrap._FIRST_MODULES),
        (agent_code, AGENT_PACKAGES, bootstrap._AGENT_MODULES),
    ],
)
def test_the_code_goes_compiled_to_a_python_like_ours_and_as_text_to_others(
    make_code, packages, own_modules, magic, kind
):
    sent = make_code(NONCE, magic)
    done = subprocess.run([sys.executable, "-ISc", PROBE], input=sent, capture_output=True, check=True)
    *modules, last = done.stdout.decode().splitlines()
    names = sorted([*(f"{name} str" for name in packages), *(f"launcher.node.{name} {kind}" for name in own_modules)])
    assert modules == names
    assert last == "True True"
    assert NONCE.encode() in sent
    assert sent == make_code(NONCE, magic)


def test_every_module_of_the_node_is_sent():
    agents = {name for name in find_modules() if name.startswith("agents.")}
    parts = [name for names in bootstrap._PARTS.values() for name in names]
    sent = [*bootstrap._FIRST_MODULES, *parts]
    assert sorted(sent) == sorted(
        find_modules() - agents - {"controller_code", "file_sender", "logind"}
    )  # the relays' go by themselves
    assert {name for name in bootstrap._AGENT_MODULES if name.startswith("agents.")} == agents


def find_modules() -> set[str]:
    folder = Path(str(bootstrap.resources.files("launcher.node")))
    there = {path.relative_to(folder).with_suffix("").as_posix().replace("/", ".") for path in folder.rglob("*.py")}
    return {name for name in there if not name.endswith("__init__") and not name.startswith("relays.")}


def imported_by(name: str) -> set[str]:
    """Return what a module of the node imports at once; where it imports late, a message has asked for it."""
    found = set()
    for node in ast.parse(bootstrap._source_of(name)).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("launcher.node"):
            base = (node.module or "").removeprefix("launcher.node").removeprefix(".")
            names = {f"{base}.{alias.name}".removeprefix(".") for alias in node.names}
            found |= (names | {base}) & find_modules()
    return found


FACTS = {"type": messages.PREPARE, "facts": True}


@pytest.mark.parametrize(
    ("header", "parts"),
    [
        ({"type": messages.PREPARE}, []),
        ({"type": messages.START, "is_short": True}, []),
        ({"type": messages.STOP}, []),
        (FACTS, ["network", "facts"]),
        ({**FACTS, "setup": {"steps": []}}, ["network", "facts", "setup"]),
        ({**FACTS, "tree": {"root": "r"}}, ["network", "facts", "code"]),
        ({"type": messages.PREPARE, "tree": {"root": "r"}}, ["network", "code"]),
        ({"type": messages.PROBE}, ["network"]),
        ({"type": messages.SHARE}, ["network"]),
        ({"type": messages.ADOPT}, ["network", "facts"]),
        ({"type": messages.START}, ["network", "facts"]),
        ({"type": messages.START, "with_stacks": True}, ["network", "facts", "sitecustomize", "arming"]),
        ({"type": messages.STACKS}, ["sitecustomize", "arming", "stacks"]),
    ],
)
def test_a_message_brings_what_it_needs_with_all_that_this_imports(header, parts):
    assert find_parts(header) == parts
    there = {*bootstrap._FIRST_MODULES, *(name for part in parts for name in bootstrap._PARTS[part])}
    assert {name: imported_by(name) - there for name in there if imported_by(name) - there} == {}


def find_full(modules: dict[str, str | bytes]) -> set[str]:
    """Return the names of those that are no empty packages."""
    return {name for name, code in modules.items() if code}


def test_no_part_is_sent_twice():
    code = NodeCode(MAGIC_NUMBER.hex())
    code.begin(NONCE)
    ((header, payload),) = messages.Decoder().feed(code.add_for(FACTS))
    sent = marshal.loads(zlib.decompress(payload))
    assert header["type"] == messages.MODULES
    assert find_full(sent) == {
        f"launcher.node.{name}" for part in ("network", "facts") for name in bootstrap._PARTS[part]
    }
    assert code.add_for(FACTS) == b""
    ((_, payload),) = messages.Decoder().feed(code.add_for({**FACTS, "tree": {"root": "r"}}))
    sent = marshal.loads(zlib.decompress(payload))
    assert find_full(sent) == {f"launcher.node.{name}" for name in bootstrap._PARTS["code"]}


def test_what_a_node_gets_at_first_is_small():
    """64 hosts behind a slow uplink get all of it 64 times."""
    assert len(NodeCode(MAGIC_NUMBER.hex()).begin(NONCE)) < 100_000


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs Python 3.11: earlier ones keep no columns")
def test_code_without_columns_has_the_same_lines():
    def check(code: CodeType, bare: CodeType) -> None:
        assert list(bare.co_lines()) == list(code.co_lines())
        assert {position[2:] for position in bare.co_positions()} == {(None, None)}
        for inner, inner_bare in zip(code.co_consts, bare.co_consts, strict=True):
            if isinstance(inner, CodeType):
                check(inner, inner_bare)

    for name in ("supervisor", "processes.stop_steps", "facts.network"):
        code = compile(bootstrap._source_of(name), name, "exec")
        check(code, drop_columns(code))


def test_equal_code_gives_an_equal_archive():
    archive = zipfile.ZipFile(io.BytesIO(trainer_archive()))
    assert trainer_archive() == trainer_archive()
    assert {entry.date_time for entry in archive.infolist()} == {(2000, 1, 1, 0, 0, 0)}
    assert archive.namelist()[:6] == [
        "__main__.py",
        "launcher/__init__.py",
        "launcher/distributed.py",
        "launcher/exchange.py",
        "launcher/node/__init__.py",
        "launcher/node/nvml.py",
    ]
    packages = [ROOT / "launcher" / name for name in ("collectives", "trainer")]
    modules = {path.relative_to(ROOT).as_posix() for package in packages for path in package.rglob("*.py")}
    assert set(archive.namelist()[6:]) == modules


def test_the_archive_is_small():
    entries = zipfile.ZipFile(io.BytesIO(trainer_archive())).infolist()
    assert {entry.compress_type for entry in entries} == {zipfile.ZIP_DEFLATED}


def test_the_archive_runs_alone(tmp_path):
    """tests/train/test_installed.py runs launcher.collectives from it, which takes an import of torch."""
    path = tmp_path / "launcher.pyz"
    path.write_bytes(trainer_archive())
    argv = [sys.executable, "-I", str(path), "launcher.trainer", "--help"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, "--epochs" in done.stdout) == (0, "", True)


@pytest.mark.parametrize(
    ("code", "python", "said", "fix"),
    [
        (126, "/tmp", "bash: /tmp: Is a directory", "check that --python /tmp is a Python there, or {}"),
        (0, "/bin/true", "", "check that --python /bin/true is a Python there, or {}"),
        (1, "/opt/python", "This account is closed.", "{}"),
        (0, "python3", "", "{}"),
    ],
)
def test_a_python_that_is_none_is_named(code: int, python: str, said: str, fix: str) -> None:
    failure = describe_end("gpu1", code, loader_pythons(None if python == "python3" else python), said)
    assert failure.fix == fix.format("try by hand: ssh gpu1 true; it may take another user (USER@gpu1)")
