"""`launch` as a user id without an entry in passwd, as a container may have: it works, or says why in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from machines.launches import PROGRAM
from node_process import Nodes, shell

from launcher.errors import EXIT_UNREACHABLE
from launcher.node import messages

UID = 12345
AS_NOBODY_KNOWN = ("unshare", "--user", f"--map-user={UID}")
DEADLINE_S = 60.0

Launch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module", autouse=True)
def namespace() -> None:
    """Skip where nobody can have another user id."""
    if subprocess.run([*AS_NOBODY_KNOWN, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespace: apt-get install util-linux, and allow kernel.unprivileged_userns_clone")


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Run `launch` with a folder of its own, where its logs go."""
    unknown = {name: value for name, value in os.environ.items() if name not in ("HOME", "USER", "LOGNAME", "USERNAME")}

    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        argv = [*AS_NOBODY_KNOWN, str(PROGRAM), *words]
        return subprocess.run(
            argv, cwd=tmp_path, env={**unknown, **env}, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )

    return run


@pytest.mark.parametrize(("env", "home"), [({}, "/"), ({"HOME": "/tmp"}, "/tmp")])
def test_ranks_run_on_this_machine(launch: Launch, env: dict[str, str], home: str) -> None:
    rank = ("--no-python", "--", "sh", "-c", 'id -u; cd; pwd; echo "$LOGNAME"')
    done = launch("singlenode", "--cpu", "--nproc", "1", *rank, **env)
    assert done.returncode == 0, done.stderr
    assert [line.partition("] ")[2] for line in done.stdout.splitlines()] == [str(UID), home, f"uid{UID}"]


@pytest.mark.parametrize("transport", ["fabric", "ssh", "pdsh"])
def test_ssh_refuses_in_one_line(launch: Launch, transport: str) -> None:
    if transport == "pdsh" and shutil.which(transport) is None:
        pytest.skip("no pdsh: apt-get install pdsh")
    done = launch("exec", "--transport", transport, "--hosts", "localhost,b", "--", "true")
    fix = "give this user id an entry in /etc/passwd; ssh needs one"
    said = [f"  b,localhost: No user exists for uid {UID}", f"    fix: {fix}"]
    assert (done.returncode, done.stderr.splitlines()[1:]) == (EXIT_UNREACHABLE, said)


@pytest.mark.parametrize("words", [["--help"], ["hosts", "--hosts", "a"]])
def test_other_commands_work(launch: Launch, words: Sequence[str]) -> None:
    assert launch(*words).returncode == 0


def test_a_host_without_home_has_one(nodes: Nodes, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {" ".join(AS_NOBODY_KNOWN)} env -u HOME {sys.executable} "$@"\n')
    program.chmod(0o755)
    node = nodes.start(python=str(program))
    node.prepare(facts=True, gpus=False, pythons=[])
    assert node.wait_for(messages.FACTS)["home"] == "/"
    node.start(shell('cd; pwd; id -u; echo "ready $HOME"'), cwd="~")
    node.wait_for_output(f"/\n{UID}\nready /\n")
    assert node.stop() == []
