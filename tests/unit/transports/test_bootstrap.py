"""How code gets to a node: a command line that every shell understands, and archives that run there."""

from __future__ import annotations

import io
import re
import secrets
import shutil
import signal
import subprocess
import sys
import zipfile
from binascii import b2a_base64
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import pytest

from launcher.transports import bootstrap
from launcher.transports.bootstrap import (
    MARKER,
    agent_code,
    input_line,
    loader_command,
    node_code,
    relay_line,
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


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_starts_a_relay_and_brings_it_input(shell):
    """As tasks of pdsh, from a command line that is nearly as long as one may be."""
    nonce = secrets.token_hex(4)
    pythons = ["python3.none", sys.executable]
    relay = subprocess.Popen(
        [shell, "-c", relay_line(pythons, nonce, "0", 15.0)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with relay:
        assert relay.stdout.readline().startswith(f"~{nonce} here 0 - ".encode())
        lines = [(b"open 1 0", 0), (b"data 1", 1)]
        texts = [b"head -c 80000 | wc -c", secrets.token_bytes(80_000)]
        line = input_line(pythons, nonce, "1", texts, [(7, []), (0, lines)])
        assert 100_000 < len(line) < 128 << 10
        done = subprocess.run([shell, "-c", line], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (0, f"~{nonce} got 0\n".encode())
        assert relay.stdout.readline() == f"~{nonce} out 1 ".encode() + b2a_base64(b"80000\n")


def test_input_for_nobody_is_told():
    line = input_line([sys.executable], "nobody", "0", [], [(0, [(b"shut 1", None)])])
    done = subprocess.run(["/bin/sh", "-c", line], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (1, b"its relay does not respond: Connection refused\n")


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
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as loader:
        loader.stdin.write(sent)
        loader.stdin.flush()
        assert loader.wait() == -signal.SIGALRM


PROBE = f"""
import sys, zlib, marshal
line, _, modules = sys.stdin.buffer.read().partition(b"\\n")
head = line.decode().partition("modules = ")[0]
for name, code in sorted(marshal.loads(zlib.decompress(modules)).items()):
    print(name, type(code).__name__)
    compile(code, name, "exec") if isinstance(code, str) else None
print({NONCE!r} in line.decode(), str(len(modules)) in head)
"""


@pytest.mark.parametrize(("magic", "kind"), [(MAGIC_NUMBER.hex(), "code"), ("610d0d0a", "str"), ("", "str")])
@pytest.mark.parametrize(
    ("make_code", "packages", "own_modules"),
    [
        (node_code, bootstrap._PACKAGES, bootstrap._NODE_MODULES),
        (agent_code, bootstrap._AGENT_PACKAGES, bootstrap._AGENT_MODULES),
    ],
)
def test_the_code_goes_compiled_to_a_python_like_ours_and_as_text_to_others(
    make_code, packages, own_modules, magic, kind
):
    sent = make_code(NONCE, magic)
    done = subprocess.run([sys.executable, "-ISc", PROBE], input=sent, capture_output=True, check=True)
    *modules, last = done.stdout.decode().splitlines()
    names = sorted([*packages, *(f"launcher.node.{name}" for name in own_modules)])
    assert modules == [f"{name} {kind}" for name in names]
    assert last == "True True"
    assert sent == make_code(NONCE, magic)


def test_every_module_of_the_node_is_sent():
    folder = Path(str(bootstrap.resources.files("launcher.node")))
    there = {path.relative_to(folder).with_suffix("").as_posix().replace("/", ".") for path in folder.rglob("*.py")}
    there = {name for name in there if not name.endswith("__init__") and not name.startswith("relays.")}
    agents = {name for name in there if name.startswith("agents.")}
    assert set(bootstrap._NODE_MODULES) == there - agents - {"arrival"}  # the relays' go by themselves
    assert {name for name in bootstrap._AGENT_MODULES if name.startswith("agents.")} == agents


def test_equal_code_gives_an_equal_archive():
    archive = zipfile.ZipFile(io.BytesIO(trainer_archive()))
    assert trainer_archive() == trainer_archive()
    assert {entry.date_time for entry in archive.infolist()} == {(2000, 1, 1, 0, 0, 0)}
    assert archive.namelist()[:4] == [
        "__main__.py",
        "launcher/__init__.py",
        "launcher/distributed.py",
        "launcher/collectives/__init__.py",
    ]
    packages = [ROOT / "launcher" / name for name in ("collectives", "trainer")]
    modules = {path.relative_to(ROOT).as_posix() for package in packages for path in package.rglob("*.py")}
    assert set(archive.namelist()[3:]) == modules


def test_the_archive_is_small():
    entries = zipfile.ZipFile(io.BytesIO(trainer_archive())).infolist()
    assert {entry.compress_type for entry in entries} == {zipfile.ZIP_DEFLATED}


@pytest.mark.parametrize(("module", "option"), [("launcher.trainer", "--epochs"), ("launcher.collectives", "--names")])
def test_the_archive_runs_alone(tmp_path, module, option):
    path = tmp_path / "launcher.pyz"
    path.write_bytes(trainer_archive())
    argv = [sys.executable, "-I", str(path), module, "--help"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, option in done.stdout) == (0, "", True)
