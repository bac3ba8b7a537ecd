"""scripts/ssh/: what each types for its user, in any folder and with blanks in paths, and real runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from launching import PROGRAM, TIMES, Launch
from machines.patience import DEADLINE_S
from machines.ports import free_port
from machines.runs import Running

ROOT = Path(__file__).parents[2]
TRAINER = ("-m", "launcher.trainer", "--config", "my runs/a b.json")
SMALL = {"data": "my runs/text", "epochs": 1, "steps_per_epoch": 2, "batch_size": 2, "dim": 16, "context": 8}

# What is typed for the script, and what it types for `launch`.
TYPED = {
    "launch_singlenode.sh": (("4",), ("singlenode", "--nproc", "4", *TRAINER)),
    "launch_torchrun_auto.sh": (("4", "a"), ("--hosts", "a", "--nproc", "4", *TRAINER)),
    "launch_torchrun_multinode.sh": (
        ("4", "2", "1", "10.0.0.1"),
        ("node", "--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.1", "--nproc", "4", *TRAINER),
    ),
    "launch_multinode.sh": (("4", "gpu[1-2]"), ("--start=plain", "--hosts", "gpu[1-2]", "--nproc", "4", *TRAINER)),
    "launch_pdsh_multinode.sh": (("4", "a"), ("--transport", "pdsh", "--hosts", "a", "--nproc", "4", *TRAINER)),
}
SCRIPTS = (*TYPED, "setup_keys.sh")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of this project's scripts, and as its `launch` one that tells its arguments."""
    folder = tmp_path / "a check out"
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    program = folder / ".venv" / "bin" / "launch"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    return folder


def run(script: Path, *words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script, by default in a folder that is not the project's."""
    return subprocess.run(
        [str(script), *words], cwd=cwd or script.parents[3], env={**os.environ, **env}, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=DEADLINE_S, check=False,
    )  # fmt: skip


def header(script: Path) -> str:
    """Return the comment at the top of a script, which is its usage."""
    found = re.match(r"#!/bin/bash\n((?:#.*\n)+)", script.read_text())
    assert found is not None
    return re.sub("(?m)^# ?", "", found[1])


def test_the_table_has_every_script() -> None:
    assert sorted(path.name for path in (ROOT / "scripts" / "ssh").iterdir()) == sorted([*SCRIPTS, "checkout.sh"])


@pytest.mark.parametrize("name", SCRIPTS)
def test_usage(checkout: Path, name: str) -> None:
    script = checkout / "scripts" / "ssh" / name
    usage = header(script)
    assert usage.startswith(f"Usage: scripts/ssh/{name} ")
    for words in (["-h"], ["--help"]):
        done = run(script, *words)
        assert (done.returncode, done.stdout, done.stderr) == (0, usage, "")
    arguments = ("config.json", *TYPED[name][0]) if name in TYPED else ()
    for words in (arguments[:count] for count in range(len(arguments))):
        done = run(script, *words)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", usage), words


@pytest.mark.parametrize("name", TYPED)
def test_what_a_script_types(checkout: Path, name: str) -> None:
    words, typed = TYPED[name]
    done = run(checkout / "scripts" / "ssh" / name, TRAINER[-1], *words)
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, list(typed), "")
    # Options for launch stand before the program, those of the trainer after it.
    (checkout.parent / "gpu1").touch()
    more = ("--epochs", "1", "", "$HOME")
    done = run(
        checkout / "scripts" / "ssh" / name, TRAINER[-1], *words, *more, LAUNCH_OPTS=" --cpu  --exclude gpu[1-2] "
    )
    before, after = typed[: -len(TRAINER)], typed[-len(TRAINER) :]
    assert done.stdout.splitlines() == [*before, "--cpu", "--exclude", "gpu[1-2]", *after, *more]


@pytest.mark.parametrize("name", ["launch_singlenode.sh"])  # the others do it by the same lines
def test_a_configuration_of_the_checkout_is_found_anywhere(checkout: Path, name: str) -> None:
    script = checkout / "scripts" / "ssh" / name
    shutil.copytree(ROOT / "config", checkout / "config")
    (script.parent / "my.json").touch()
    (checkout / ".venv" / "bin" / "launch").write_text('#!/bin/sh\npwd\nfor last; do :; done\necho "$last"\n')
    said = f"scripts: this run starts in {checkout}\n"
    for cwd, config, start, found, errors in (
        (script.parent, "config/local3.yaml", checkout, "config/local3.yaml", said),
        (script.parent, "my.json", checkout, f"{script.parent}/my.json", said),
        (checkout, "config/local3.yaml", checkout, "config/local3.yaml", ""),
        (checkout.parent, "config/local3.yaml", checkout.parent, f"{checkout}/config/local3.yaml", ""),
        (checkout.parent, "only/on/hosts.yaml", checkout.parent, "only/on/hosts.yaml", ""),
    ):
        done = run(script, config, *TYPED[name][0], cwd=cwd)
        assert (done.stdout, done.stderr) == (f"{start}\n{found}\n", errors)


@pytest.mark.parametrize("name", [name for name in TYPED if "--hosts" in TYPED[name][1]])
def test_hosts_are_the_words_before_the_first_option(checkout: Path, name: str) -> None:
    words = (TRAINER[-1], "4", "a", "ann@b", "gpu[1-2]", "--epochs", "1")
    done = run(checkout / "scripts" / "ssh" / name, *words)
    assert "\n--hosts\na,ann@b,gpu[1-2]\n--nproc\n4\n" in f"\n{done.stdout}"
    assert done.stdout.endswith("\n--epochs\n1\n")


def test_the_port_by_hand(checkout: Path) -> None:
    words = ("a.json", "4", "2", "1", "10.0.0.1", "29400", "--epochs", "1")
    done = run(checkout / "scripts" / "ssh" / "launch_torchrun_multinode.sh", *words, LAUNCH_OPTS="--cpu")
    assert "\n--nproc\n4\n--master-port\n29400\n--cpu\n-m\n" in done.stdout
    assert done.stdout.endswith("\na.json\n--epochs\n1\n")


@pytest.mark.parametrize("foreign", [False, True])
def test_without_a_venv_it_is_the_installed_launch(checkout: Path, foreign: bool) -> None:
    """A container of docker/ sees the .venv of its host, whose Python isn't there."""
    program = checkout / ".venv" / "bin" / "launch"
    shutil.move(program, checkout)
    if foreign:
        program.write_text("#!/nowhere/python\n")
        program.chmod(0o755)
    path = f"{checkout}:{os.environ['PATH']}"
    done = run(checkout / "scripts" / "ssh" / "launch_singlenode.sh", "a.json", "4", PATH=path)
    assert done.stdout.splitlines()[:3] == ["singlenode", "--nproc", "4"]


def test_without_gpus_the_hint_is_for_the_one_who_typed_the_script(checkout: Path) -> None:
    (checkout / ".venv" / "bin" / "launch").unlink()
    (checkout / ".venv" / "bin" / "launch").symlink_to(PROGRAM)
    tool = checkout / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'No devices were found'\n")
    tool.chmod(0o755)
    path = f"{tool.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = checkout / "scripts" / "ssh" / "launch_torchrun_multinode.sh"
    done = run(script, "a.json", "2", "1", "0", "127.0.0.1", PATH=path)
    host = os.uname().nodename.split(".")[0]
    assert (done.returncode, done.stdout, done.stderr) == (
        70,
        "",
        "launch: nothing was started; these would break the run:\n"
        f"  {host}: no GPU (No devices were found)\n"
        "    fix: look for NVRM in dmesg on that host, and for the card in lspci; "
        "if it has none, run on CPUs: LAUNCH_OPTS=--cpu\n",
    )


# ---- real runs --------------------------------------------------------------------------------------------------


@pytest.fixture
def project(launch: Launch) -> Path:
    """The folder of the runs, which the hosts see as well, with a configuration."""
    if find_spec("torch") is None:
        pytest.skip("no torch: pip install torch==2.13.0")
    (launch.folder / "my runs").mkdir()
    (launch.folder / TRAINER[-1]).write_text(json.dumps(SMALL))
    (launch.folder / SMALL["data"]).write_text("To be, or not to be, that is the question. " * 20)
    return launch.folder


def start(launch: Launch, name: str, *words: str, options: str) -> Running:
    """Start a script of this checkout, whose `launch` is the tests' own where it has no .venv."""
    env = {"PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
    env["LAUNCH_OPTS"] = f"--env OMP_NUM_THREADS=1 {' '.join(TIMES)} {options}"
    return launch.start_command(TRAINER[-1], *words, program=ROOT / "scripts" / "ssh" / name, env=env)


def test_without_gpus_they_train_on_cpus(launch: Launch, project: Path, python: Path) -> None:
    """Without an option that says so, and without torchrun, whose import would take most of the time."""
    options = f"--start plain --python {python}"
    done = start(launch, "launch_singlenode.sh", "1", "--layers", "1", options=options).finish()
    assert done.exit_code == 0, done
    assert done.words[0] == "launch: 1 host without GPUs, so the run uses CPUs"


def test_hosts_train_as_torch_distributed_launch_has_them(launch: Launch, project: Path, python: Path) -> None:
    options = f"--cpu --ssh-config {launch.ssh_config} --python {python}"
    done = start(launch, "launch_multinode.sh", "1", "node1", "node2", "--layers", "1", options=options).finish()
    assert done.exit_code == 0, done
    assert "[node1:0] ranks   2, from torchrun" in done.lines
    assert done.words[-1] == "launch: finished in N s, 2 ranks succeeded, 0 processes left on 2 hosts"
    assert [node["argv"][1] for node in done.record["plan"]["nodes"]] == ["-u", "-u"]


def test_nodes_that_are_started_by_hand_train_together(launch: Launch, project: Path, python: Path) -> None:
    """Without torchrun, whose imports on both nodes would take most of the time."""
    port, options = str(free_port()), f"--cpu -q --start plain --python {python}"
    shares = [
        start(launch, "launch_torchrun_multinode.sh", "1", "2", rank, "127.0.0.1", port, options=options)
        for rank in "01"
    ]
    for rank, share in enumerate(shares):
        done = share.finish()
        assert done.exit_code == 0, done
        first = f"launch: node rank {rank} of 2 nodes: 1 process, 2 ranks in all, run RUN"
        assert done.words[0].startswith(first), done
    (folder,) = (project / "outputs").iterdir()
    assert (folder / "model.pt").exists()
