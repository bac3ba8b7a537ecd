"""--setup and --venv on two SSH hosts, from the command line to the ranks."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import venv
from pathlib import Path

import pytest
from launching import Launch
from machines.runs import shell
from ssh_hosts import SshHosts

STAND_IN = Path(__file__).parents[1] / "process" / "stand_in" / "torch"
HINT = "    fix: test it there: it runs in the working directory, in bash, without a terminal"


def test_the_ranks_have_the_environment_of_the_setup(launch: Launch, hosts: SshHosts) -> None:
    """Also what a login on each host makes and the setup needs, and nothing that it leaves behind."""
    profiles = [host.folder / "home" / ".bash_profile" for host in hosts]
    for profile in profiles:
        profile.write_text("echo welcome\nmodule() { export LOADED=$2; }\n")
    setup = "echo noise; sleep 300 & module load cuda; export LINES_OF_MINE=$'one\\ntwo' && export ON=${TMPDIR#*/node}"
    try:
        done = launch.run("--nproc", "1", "--setup", setup, *shell('echo "$LINES_OF_MINE, $LOADED in ${ON%/*}"'))
    finally:
        for profile in profiles:
            profile.unlink()
    assert (done.exit_code, sorted(done.lines)) == (
        0,
        ["[node1:0] one", "[node1:0] two, cuda in 1", "[node2:1] one", "[node2:1] two, cuda in 2"],
    )
    assert done.words[-1] == "launch: finished in N s, 2 ranks succeeded, 0 processes left on 2 hosts"


@pytest.mark.parametrize(
    ("setup", "finding"),
    [
        ("source nofile", "  node[1-2]: --setup failed (exit code 1): bash: line 1: nofile: No such file or directory"),
        ("sleep 300 & [ ${TMPDIR%node2*} = $TMPDIR ]", "  node2: --setup failed (exit code 1)"),
    ],
    ids=["on both", "on one"],
)  # fmt: skip
def test_a_setup_that_fails_starts_nothing(launch: Launch, setup: str, finding: str) -> None:
    done = launch.run("--setup", setup, *shell("echo started"))
    assert (done.exit_code, done.stdout) == (70, "")
    assert done.words == ["launch: nothing was started; these would break the run:", finding, HINT]


def test_the_environment_of_the_terminal_comes_first(launch: Launch) -> None:
    """One that isn't there, or is on all hosts and has torch; the stand-in is never imported here."""
    folder = launch.folder / "env"
    (launch.folder / "train.py").write_text("print('started')")
    script = hashlib.sha256(b"print('started')").hexdigest()[:6]

    def check() -> list[str]:
        words = ("check", *launch.hosts_words, "--start=plain", "--nproc", "1", "--cpu", "train.py")
        done = launch.run_command(*words, env={"VIRTUAL_ENV": str(folder)})
        assert done.exit_code == 0
        text = re.sub(r"python 3\.\d+\.\d+", "python V", re.sub(r"torch 2\.[^,]*", "torch V", done.stdout))
        return re.sub(r"\([\d.]+ s\)", "(N s)", text).splitlines()

    traits = f"data over lo, train.py {script}"
    assert check() == [
        "2 hosts responded (N s)",
        f"  on all  CPUs, python V ({sys.executable}), torch V, {traits}",
        "nothing would break a run",
    ]
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    shutil.copytree(STAND_IN, packages / "torch")
    (packages / "torch" / "version.py").write_text("__version__ = '9.0'\n")
    assert check() == [
        "2 hosts responded (N s)",
        f"  on all  CPUs, python V ({folder}/bin/python), torch 9.0, {traits}",
        "nothing would break a run",
    ]
