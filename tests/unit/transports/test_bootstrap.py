"""How code gets to a node: a command line that every shell understands, and archives that run there."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest
from machines.probe_code import make_probe

from launcher.hosts.host import Host
from launcher.session.settings import loader_pythons
from launcher.transports.archives import pack_launcher, pack_node, trainer_archive
from launcher.transports.bootstrap import (
    AGENT,
    MARKER,
    SUPERVISOR,
    describe_end,
    describe_silence,
    lacks_python,
    loader_command,
    start_code,
)

ROOT = Path(__file__).parents[3]
NONCE = "0123456789abcdef"
MARKER_LINE = re.compile(rb"%s %s missing 3\.[0-9]+\n" % (MARKER.encode(), NONCE.encode()))
PROBE = make_probe("print(nonce, wait_s, sys.flags.isolated, sys.flags.no_site, flush=True)")
SHELLS = [shell for shell in ("sh", "dash", "bash", "zsh", "fish", "tcsh") if shutil.which(shell)]


def test_the_command_line_holds_nothing_that_a_shell_would_change():
    before, text, after = loader_command("python3", NONCE, pack_node()).split("'")
    assert (before, after) == ("exec python3 -X utf8 -ISc ", "")
    assert not set(text) & set("!\n\r\t`$^#\\")
    assert text.isascii()
    assert text.startswith(f'"{MARKER} {NONCE}";')


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_starts_the_loader(shell):
    command = loader_command(sys.executable, NONCE, PROBE)
    sent = start_code("probe", PROBE, is_kept=False) + b"not read\n"
    done = subprocess.run([shell, "-c", command], input=sent, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    marker = MARKER_LINE.match(done.stdout)
    assert done.stdout[marker.end() :] == f"{NONCE} 60 1 1\n".encode()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_python_that_is_not_there_is_told_by_the_exit_code(shell):
    done = subprocess.run([shell, "-c", loader_command("python3.none", NONCE, PROBE)], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (127, b"") or shell == "tcsh"  # which says 1


def test_a_python_in_a_folder_with_a_blank(tmp_path):
    python = tmp_path / "my env" / "python3"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    command = loader_command(str(python), NONCE, PROBE)
    done = subprocess.run(["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert MARKER_LINE.fullmatch(done.stdout)


def test_end_of_file_instead_of_code_ends_the_loader():
    done = subprocess.run(
        ["/bin/sh", "-c", loader_command(sys.executable, NONCE, PROBE)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert MARKER_LINE.fullmatch(done.stdout)


AGENT_CODE = start_code(AGENT, pack_node(), is_kept=False)


@pytest.mark.parametrize("sent", [b"", AGENT_CODE[:9000], AGENT_CODE])
def test_a_launch_host_that_falls_silent_ends_the_loader(sent):
    """Before the code, within it, and before the order of an agent: its login may last for hours."""
    command = ["/bin/sh", "-c", loader_command(sys.executable, NONCE, pack_node(), 0.5)]
    with subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as loader:
        with contextlib.suppress(BrokenPipeError):  # on a busy machine it ends before that
            loader.stdin.write(sent)
        assert loader.wait() == -signal.SIGALRM


def test_a_start_sends_little_where_the_code_is_kept():
    size = len(loader_command("python3", NONCE, pack_node())) + len(start_code(SUPERVISOR, pack_node(), is_kept=True))
    assert size < 4700, "with the first message it shall be under 5,000"


def test_equal_code_gives_an_equal_archive():
    archive = zipfile.ZipFile(io.BytesIO(trainer_archive()))
    assert trainer_archive() == trainer_archive()
    assert {entry.date_time for entry in archive.infolist()} == {(2000, 1, 1, 0, 0, 0)}
    packages = [ROOT / "launcher" / name for name in ("collectives", "trainer")]
    modules = {path.relative_to(ROOT).as_posix() for package in packages for path in package.rglob("*.py")}
    of_node = [f"node/{name}.py" for name in ("__init__", "nvml", "processes/__init__", "processes/numa", "system")]
    alone = ["__init__.py", "distributed.py", "exchange.py", *of_node]
    assert set(archive.namelist()) == {"__main__.py", *(f"launcher/{name}" for name in alone), *modules}


def test_archives_name_their_content():
    for packed in (pack_node(), pack_launcher()):
        assert sha256(packed.content).hexdigest() == packed.name
    node, whole = (zipfile.ZipFile(io.BytesIO(packed.content)) for packed in (pack_node(), pack_launcher()))
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "launcher" / "node").rglob("*.py")}
    assert set(node.namelist()) == {"launcher/__init__.py", *modules}
    others = {"launcher/runs/run.py", "launcher/cli/logs.py", "ClusterShell/NodeSet.py", "click/core.py"}
    assert {*node.namelist(), *others} <= set(whole.namelist())
    assert not [name for name in whole.namelist() if name.startswith("launcher/api/")]


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
    failure = describe_end(Host("gpu1"), code, loader_pythons(None if python == "python3" else python), said.encode())
    assert failure.fix == fix.format("try by hand: ssh gpu1 true; it may take another user (USER@gpu1)")


def test_what_enters_a_container_stands_before_the_python() -> None:
    command = loader_command("python3", NONCE, PROBE, enter="docker exec -i 'my train'")
    before = """exec docker exec -i 'my train' env SSH_CONNECTION="$SSH_CONNECTION" python3 -X utf8 -ISc '"""
    assert command.startswith(before)
    assert command[len(before) :] == loader_command("python3", NONCE, PROBE).partition(" -ISc '")[2]


@pytest.mark.parametrize(
    ("code", "said"), [(1, "Error: No such container: train"), (127, "sh: 1: exec: docker: not found")]
)
def test_why_nothing_starts_in_a_container(code: int, said: str) -> None:
    host = Host("gpu1", enter="docker exec -i train")
    failure = describe_end(host, code, ["python3"], said.encode())
    assert failure.text == f"docker exec -i train has ended (exit code {code}): {said}"
    assert failure.fix == "try it by hand there: docker exec -i train true"


def test_a_container_without_that_python() -> None:
    """GNU's env says so, and busybox's, perhaps beside others; one that is too old says nothing."""
    host = Host("gpu1", enter="docker exec -i train")
    for said in (
        "env: ‘python3’: No such file or directory", "env: can't execute 'python3': No such file", "",
        "WARNING: underlay is used", "env: ‘python3’: No such file or directory\nINFO: Cleaning up image",
    ):  # fmt: skip
        assert lacks_python(host, 127, said.encode()), said
    for said in ("sh: 1: exec: docker: not found\n", "bash: line 1: docker: No such file or directory\nx"):
        assert not lacks_python(host, 127, said.encode()), said
    assert lacks_python(Host("gpu1"), 127, b"sh: 1: exec: python3: not found")


def test_a_command_that_starts_nothing_is_named_instead_of_the_shell() -> None:
    assert "login shell" in describe_silence(Host("gpu1"), 10).text
    failure = describe_silence(Host("gpu1", enter="nsenter -t 1"), 10)
    assert failure.text == "nsenter -t 1 has not started Python in 10 s"
    assert failure.fix.startswith("try it by hand there: nsenter -t 1 true")
