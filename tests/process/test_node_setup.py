"""What --setup, --venv and --conda make of a node's environment, with the bash and the venv of this machine.

conda itself is not at hand: scripts that answer as it does (conda/activate.py, `shell.posix activate`) stand in.
"""

from __future__ import annotations

import os
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from machines.patience import DEADLINE_S, NEVER_S, slowed
from node_process import STAND_IN, STDOUT, Message, Node, Nodes, find_marked, python, wait_until

from launcher.job.activation import setup_order
from launcher.job.job import Activation, Job, Program, ProgramKind
from launcher.node import messages

SHOW_ENVIRONMENT = python("import os; os.write(1, b'\\0'.join(b'='.join(item) for item in os.environb.items()))")
LOGIN = {"SSH_CONNECTION": "10.0.0.9 50000 10.0.0.1 22"}
SCRIPT = Program(ProgramKind.SCRIPT, "train.py")
DONE = {"has_venv": False, "failure": None, "names": [], "python": None, "conda": None}


def ask(node: Node, *commands: str, env: Mapping[str, str] | None = None, **order: Any) -> Message:
    """Run the steps on a node and return its facts."""
    fields = {name: order.pop(name) for name in ("pythons", "workdir") if name in order}
    steps = [{"name": "--setup", "command": command} for command in commands]
    setup = {"steps": steps, "named": [], "venv": None, "timeout_s": DEADLINE_S, **order}
    node.prepare(facts=True, gpus=False, env=dict(env or {}), setup=setup, **{"pythons": [], **fields})
    return node.wait_for(messages.FACTS)


def ask_for(node: Node, **activation: str) -> Message:
    """Do what the launcher would ask for; return the node's facts."""
    order = setup_order(Job(SCRIPT, activation=Activation(**activation)))
    node.prepare(facts=True, gpus=False, pythons=[messages.ENVIRONMENT], setup=order)
    return node.wait_for(messages.FACTS)


def find_files(folder: Path) -> list[Path]:
    """Return the regular files below a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


def read_environment(node: Node) -> dict[bytes, bytes]:
    """Return the environment that a rank gets."""
    node.start(SHOW_ENVIRONMENT)
    assert node.wait_for_exits() == {0: (0, None)}
    return dict(entry.split(b"=", 1) for entry in bytes(node.output[0, STDOUT]).split(b"\0"))  # type: ignore[misc]


@pytest.fixture
def fresh(nodes: Nodes) -> Node:
    """Return a node that waits for its first message."""
    return nodes.start()


# ---- what comes through ---------------------------------------------------------------------------------------------

VALUES = {
    b"NASTY_LINES": b"one\ntwo\n\n",
    b"NASTY_QUOTES": b'it\'s "$HOME" `id` \\ !!',
    b"NASTY_EQUALS": b"a=b==c",
    b"NASTY_BYTES": b"\xff\xc3 \x01",
    b"NASTY_EMPTY": b"",
    b"NASTY_LONG": b"x" * 100_000,
}


def test_values_come_through_as_they_are(nodes: Nodes, any_python: str) -> None:
    node = nodes.start(python=any_python)
    quoted = (
        name.decode() + "=" + "$'" + "".join(f"\\x{byte:02x}" for byte in value) + "'" for name, value in VALUES.items()
    )
    facts = ask(node, "\n".join(f"export {setting}" for setting in quoted))
    assert sorted(facts["setup"]["names"]) == sorted(name.decode() for name in VALUES)
    env = read_environment(node)
    assert {name: env[name] for name in VALUES} == VALUES
    assert node.stop() == []


def test_nothing_else_changes(fresh: Node) -> None:
    """Neither bash's own variables, nor those of the run."""
    facts = ask(fresh, "cd /; unset LAUNCH_MARK SPT_NOENV LAUNCH_FILES HOME; export OLDPWD SHLVL=7")
    assert facts["setup"] == DONE
    env = read_environment(fresh)
    assert env[b"LAUNCH_MARK"] == fresh.mark.encode()
    assert env[b"SPT_NOENV"] == b"1"
    assert env[b"LAUNCH_FILES"] == os.fsencode(fresh.folder / "files")
    assert b"HOME" not in env
    for name in (b"PWD", b"OLDPWD", b"SHLVL", b"_"):
        assert name == b"PWD" or name == b"_" or env.get(name) == os.environb.get(name)


def test_each_step_goes_on_from_the_one_before(fresh: Node) -> None:
    ask(fresh, "export FIRST=1", "export SECOND=$FIRST$FIRST", "unset FIRST")
    env = read_environment(fresh)
    assert env[b"SECOND"] == b"11"
    assert b"FIRST" not in env


def test_what_the_user_has_named_stays(fresh: Node) -> None:
    given = {"NAMED": "user", "PASSED_ON": "user"}
    ask(fresh, "export SEEN=$NAMED NAMED=setup PASSED_ON=setup:$PASSED_ON", env=given, named=["NAMED"])
    env = read_environment(fresh)
    assert (env[b"NAMED"], env[b"SEEN"], env[b"PASSED_ON"]) == (b"user", b"user", b"setup:user")


def test_every_form_of_command(fresh: Node) -> None:
    forms = [
        "export A=1 # a comment",
        "export A=1 # a comment\n",
        "set -eu; set -C; set -x; export A=1",
        "cat <<END\nwords\nEND\nexport A=1",
        "export A=1; cat <<END\nno end",
        "export A=1; IFS=01; set -- 5 6; set -f",
        "exec 3>&- >/dev/null 2>&1 </dev/null; export A=1",
        "false; export A=1",
        "trap 'exit 9' EXIT; export A=1",
        "seq 100000; printf 'A=2\\0'; export A=1",
        'export A=1; [ -z "$1$2" ]',
        "export A=1; read answer || true",
        "export A=1 PATH=",  # the last one: the others need PATH
    ]
    steps = [form.replace("A=", f"A{number}=") for number, form in enumerate(forms)]
    assert ask(fresh, *steps)["setup"]["failure"] is None
    env = read_environment(fresh)
    assert {number: env.get(b"A%d" % number) for number in range(len(forms))} == dict.fromkeys(range(len(forms)), b"1")


def test_a_step_may_change_the_slurm_job(nodes: Nodes) -> None:
    """Else all that runs after it would count as another job's, which has only inherited the mark."""
    node = nodes.start(env={"SLURM_JOB_ID": "77"})
    ask(node, "export SLURM_JOB_ID=78")
    assert read_environment(node)[b"LAUNCH_SLURM_JOB"] == b"78"


def test_it_runs_in_the_working_folder(fresh: Node, tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a folder" / "here.sh").write_text("export A=1")
    assert ask(fresh, "source ./here.sh", workdir=str(tmp_path / "a folder"))["setup"]["failure"] is None


def test_it_runs_without_the_working_folder(fresh: Node, tmp_path: Path) -> None:
    facts = ask(fresh, "true", workdir=str(tmp_path / "nowhere"))
    assert (facts["setup"], facts["workdir_found"]) == (DONE, False)


# ---- what fails -----------------------------------------------------------------------------------------------------

NO_ENVIRONMENT = "it exited before its environment could be read; remove exit and exec from it"


@pytest.mark.parametrize(
    ("command", "reason", "lines"),
    [
        ("exit 3", "exit code 3", []),
        ("exit 0", NO_ENVIRONMENT, []),
        ("nosuchprogram x", "exit code 127", ["bash: line 1: nosuchprogram: command not found"]),
        ("kill -9 $$", "killed by signal 9", []),
        ("seq 20; (exit 4)", "exit code 4", ["16", "17", "18", "19", "20"]),
    ],
)
def test_a_failure_says_how_and_with_which_last_lines(fresh: Node, command: str, reason: str, lines: list[str]) -> None:
    facts = ask(fresh, command, pythons=[sys.executable])
    assert facts["setup"] == {"failure": {"step": "--setup", "reason": reason, "lines": lines}}
    assert facts["search"] == {}  # no Python was looked for


def test_a_step_after_a_failure_is_not_run(fresh: Node, tmp_path: Path) -> None:
    ask(fresh, "false", f"touch {tmp_path}/second")
    assert not (tmp_path / "second").exists()


def test_a_setup_that_hangs_is_ended_and_named(nodes: Nodes) -> None:
    """With what it has said, if it had the time for that: on a busy machine it needs more."""
    for timeout_s in (slowed(0.3), slowed(1.0), slowed(4.0)):
        node = nodes.start()
        failure = ask(node, "echo what now; sleep 300", timeout_s=timeout_s)["setup"]["failure"]
        assert node.stop() == []
        if failure["lines"]:
            break
    assert failure == {"step": "--setup", "reason": f"it did not finish in {timeout_s:g} s", "lines": ["what now"]}


def test_a_node_without_bash(fresh: Node, tmp_path: Path) -> None:
    failure = ask(fresh, "true", env={"PATH": str(tmp_path)})["setup"]["failure"]
    lines = ["launch: can't start bash: No such file or directory"]
    assert failure == {"step": "--setup", "reason": "exit code 127", "lines": lines}


# ---- what stays behind ----------------------------------------------------------------------------------------------


def test_what_it_leaves_in_the_background_lives_as_long_as_the_run(fresh: Node, tmp_path: Path) -> None:
    """Though it holds the stdout of the setup and goes on writing to it."""
    loop = f"until [ -e {tmp_path}/go ]; do echo words; sleep 0.01; done; touch {tmp_path}/went"
    ask(fresh, f"sleep 300 & setsid sleep 300 & ({loop}) & export A=1")
    wait_until(lambda: len(find_marked(fresh.mark)) >= 3)  # none is seen in the moment of its exec
    (tmp_path / "go").touch()
    wait_until((tmp_path / "went").exists)
    assert read_environment(fresh)[b"A"] == b"1"
    assert fresh.stop() == []


def test_the_run_is_ended_while_it_runs(fresh: Node, tmp_path: Path) -> None:
    setup = {"steps": [{"name": "--setup", "command": f"touch {tmp_path}/ready; sleep 300 & wait"}] * 2, "named": []}
    fresh.prepare(facts=True, gpus=False, pythons=[], setup={**setup, "venv": None, "timeout_s": NEVER_S})
    wait_until((tmp_path / "ready").exists)
    assert fresh.stop() == []
    assert not fresh.find(messages.FACTS)


# Each is executed by a shell: by bash before the lines of the setup (the value itself too), by bash that traces them,
# and by the login shell that is asked for a Python. Interactive shells alone execute the others.
CODE = ["BASH_ENV", "ENV", "PS4", "PROMPT_COMMAND", "ZDOTDIR"]


@pytest.mark.parametrize("ssh", [{}, LOGIN], ids=["at the machine", "over SSH"])
def test_no_value_is_executed(nodes: Nodes, tmp_path: Path, ssh: Mapping[str, str]) -> None:
    """The ranks get each as it is; the node's own is obeyed, as the module command of some sites needs it."""
    own, canary = tmp_path / "own.sh", tmp_path / "executed"
    own.write_text("export OF_THE_NODE=1")
    node = nodes.start(env={"BASH_ENV": str(own), "SHELL": "/bin/bash", **ssh})
    given = dict.fromkeys(CODE, f"$(touch {canary})")
    command = "set -x; bash -c :; export SEEN=$OF_THE_NODE"
    facts = ask(node, command, command, env=given, named=CODE, pythons=["/nowhere/python", messages.LOGIN_SHELL])
    assert facts["setup"]["failure"] is None
    assert not canary.exists()
    env = read_environment(node)
    assert (env[b"SEEN"], {name: env[name.encode()].decode() for name in CODE}) == (b"1", given)


def test_no_file_holds_a_secret(fresh: Node, tmp_path: Path) -> None:
    """Neither the command of the setup nor the environment: a machine that loses power would keep it."""
    find = f"cp -r '{fresh.tmpdir}' {tmp_path}/seen"
    ask(fresh, f"export SECRET=$(echo hush); {find}", env={"NAMED": "hush"}, named=["NAMED"])
    seen = [path for path in (tmp_path / "seen").rglob("*") if path.is_file()]
    assert [path for path in (*seen, *find_files(fresh.folder)) if b"hush" in path.read_bytes()] == []


def test_the_command_stands_in_no_argv(fresh: Node) -> None:
    ask(fresh, "secret=hush; export SEEN=$(tr '\\0' ' ' </proc/$$/cmdline)")
    assert b"hush" not in read_environment(fresh)[b"SEEN"]


# ---- login files ----------------------------------------------------------------------------------------------------

PROFILE = """\
echo welcome
sleep 300 &
module() { export LOADED=$2; }
"""


def test_a_command_over_ssh_sees_what_a_login_makes(nodes: Nodes) -> None:
    node = nodes.start(env=LOGIN)
    (node.home / ".bash_profile").write_text(PROFILE)
    assert ask(node, "module load cuda", "[ $LOADED = cuda ]")["setup"]["failure"] is None
    assert read_environment(node)[b"LOADED"] == b"cuda"


@pytest.mark.parametrize("env", [{}, {**LOGIN, "SSH_TTY": "/dev/pts/0"}], ids=["at the machine", "logged in"])
def test_who_has_logged_in_keeps_his_environment(nodes: Nodes, env: Mapping[str, str]) -> None:
    """/etc/profile would set PATH anew, without what a .bashrc has added."""
    node = nodes.start(env={"SSH_CONNECTION": "", **env} if env else {})
    (node.home / ".bash_profile").write_text("PATH=/nowhere")
    assert ask(node, "true")["setup"] == DONE


# ---- Python ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def made_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a virtual environment that sees the stand-in for torch."""
    folder = tmp_path_factory.mktemp("venv") / "my env"
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "torch.pth").write_text(f"{STAND_IN}\n")
    return folder


def test_the_python_of_the_setup_s_path_comes_first(fresh: Node, made_venv: Path) -> None:
    facts = ask(fresh, f"source '{made_venv}/bin/activate'", pythons=["python", sys.executable])
    assert facts["search"]["candidate"] == "python"
    assert facts["search"]["python"] == str(made_venv / "bin" / "python")
    assert facts["search"]["torch"] == "2.13.0+stand.in"


@pytest.mark.parametrize("place", ["home", "workdir"])
def test_a_virtual_environment(nodes: Nodes, made_venv: Path, place: str, tmp_path: Path) -> None:
    node = nodes.start()
    (node.home / "work").mkdir()
    (node.home / "env").symlink_to(made_venv)
    path, found = {"home": "~/env", "workdir": "../env"}[place], node.home / "env"
    order = {"steps": [], "named": [], "venv": path, "timeout_s": 1}
    env = {"PYTHONHOME": "/nowhere"}
    node.prepare(facts=True, gpus=False, pythons=[messages.ENVIRONMENT], setup=order, env=env, workdir="~/work")
    facts = node.wait_for(messages.FACTS)
    assert facts["venv_found"]
    assert facts["search"]["python"] == str(found / "bin" / "python")
    (tmp_path / "train.py").write_text(
        "import os, sys, torch; print('ready', sys.prefix, os.environ['VIRTUAL_ENV'], os.environ['PATH'])"
    )
    node.start_torchrun([str(tmp_path / "train.py")], 1)
    node.wait_for_output(f"ready {found} {found} {found}/bin:")
    assert node.wait_for(messages.ENDED)["code"] == 0


def test_a_virtual_environment_that_is_missing(fresh: Node) -> None:
    facts = ask_for(fresh, venv="~/nowhere")
    assert not facts["venv_found"]
    assert facts["search"] == {"python": None, "tried": [[f"{fresh.home}/nowhere/bin/python", "not found"]]}


# ---- conda ----------------------------------------------------------------------------------------------------------

CONDA = """\
#!/bin/sh
# Stands in for conda: answers `shell.posix activate NAME` as it does.
root=$(dirname "$(dirname "$(readlink -f "$0")")")
[ "$1 $2 $#" = "shell.posix activate 3" ] || exit 2
case $3 in */*) prefix=$3 ;; *) prefix=$root/envs/$3 ;; esac
if [ ! -d "$prefix/conda-meta" ]; then
  echo >&2
  echo "EnvironmentNameNotFound: Could not find conda environment: $3" >&2
  exit 1
fi
echo "PS1='($3) '"
echo "export PATH='$prefix/bin:$PATH'"
echo "export CONDA_PREFIX='$prefix'"
echo "export CONDA_EXE='$root/bin/conda'"
for script in "$prefix"/etc/conda/activate.d/*.sh; do echo ". \\"$script\\""; done
"""
MICROMAMBA = """\
#!/bin/sh
# Stands in for micromamba.
[ "$1 $2 $4 $5" = "shell activate --shell bash" ] || exit 2
echo "export PATH='$MAMBA_ROOT_PREFIX/envs/$3/bin:$PATH'"
echo "export CONDA_PREFIX='$MAMBA_ROOT_PREFIX/envs/$3'"
"""
ACTIVATE_D = 'export LD_LIBRARY_PATH="$CONDA_PREFIX/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"\nfalse\n'


def make_conda(root: Path, made_venv: Path, program: str = "conda", *names: str) -> Path:
    """Make the tree of an installation with these environments, whose Python sees the stand-in for torch."""
    (root / "bin").mkdir(parents=True)
    path = root / "bin" / program
    path.write_text(CONDA if program == "conda" else MICROMAMBA)
    path.chmod(0o755)
    for name in names or ("train",):
        prefix = root / "envs" / name
        (prefix / "conda-meta").mkdir(parents=True)
        (prefix / "etc" / "conda" / "activate.d").mkdir(parents=True)
        (prefix / "etc" / "conda" / "activate.d" / "libraries.sh").write_text(ACTIVATE_D)
        (prefix / "bin").symlink_to(made_venv / "bin")
        (prefix / "pyvenv.cfg").symlink_to(made_venv / "pyvenv.cfg")
        (prefix / "lib").symlink_to(made_venv / "lib")
    return path


@pytest.mark.parametrize("place", ["PATH", "home", "the setup's PATH"])
def test_conda_is_found_and_entered(nodes: Nodes, made_venv: Path, tmp_path: Path, place: str) -> None:
    root = tmp_path / "a conda"
    env = {"PATH": f"{root}/bin:{os.environ['PATH']}"} if place == "PATH" else {}
    node = nodes.start(env=env)
    if place == "home":
        root = node.home / "miniconda3"
    make_conda(root, made_venv)
    setup = {"setup": f"PATH='{root}/bin':$PATH"} if place == "the setup's PATH" else {}
    facts = ask_for(node, conda="train", **setup)
    assert facts["setup"]["failure"] is None
    assert facts["setup"]["conda"] == f"{root}/bin/conda"
    assert facts["search"]["python"] == f"{root}/envs/train/bin/python"
    env_of_rank = read_environment(node)
    assert env_of_rank[b"LD_LIBRARY_PATH"].startswith(os.fsencode(root / "envs" / "train" / "lib"))
    assert env_of_rank[b"PATH"].startswith(os.fsencode(root / "envs" / "train" / "bin:"))
    assert b"LAUNCH_CONDA" not in env_of_rank


def test_the_name_of_an_environment_is_no_shell_s(nodes: Nodes, made_venv: Path) -> None:
    node = nodes.start()
    make_conda(node.home / "miniforge3", made_venv, "conda", "$(touch pwned)")
    assert ask_for(node, conda="$(touch pwned)")["setup"]["failure"] is None


def test_an_environment_that_is_missing(nodes: Nodes, made_venv: Path) -> None:
    node = nodes.start()
    make_conda(node.home / "miniconda3", made_venv)
    assert ask_for(node, conda="nosuch")["setup"]["failure"] == {
        "step": "--conda nosuch",
        "reason": "exit code 1",
        "lines": ["EnvironmentNameNotFound: Could not find conda environment: nosuch"],
    }


def test_a_node_without_conda(fresh: Node) -> None:
    assert ask_for(fresh, conda="train")["setup"]["failure"] == {
        "step": "--conda train",
        "reason": "exit code 127",
        "lines": ["no conda on PATH, nor in ~, /opt or /usr/local; and no micromamba"],
    }


def test_micromamba(nodes: Nodes, made_venv: Path, tmp_path: Path) -> None:
    program = make_conda(tmp_path / "micromamba", made_venv, "micromamba")
    node = nodes.start(env={"MAMBA_EXE": str(program), "MAMBA_ROOT_PREFIX": str(tmp_path / "micromamba")})
    facts = ask_for(node, conda="train")
    assert facts["setup"]["conda"] == str(program)
    assert facts["search"]["python"] == f"{tmp_path}/micromamba/envs/train/bin/python"


def test_an_environment_that_the_setup_makes_counts_as_found(nodes: Nodes) -> None:
    node = nodes.start()
    facts = ask(node, "mkdir -p env/bin && ln -s /bin/sh env/bin/python", venv="env", workdir=str(node.home))
    assert (facts["venv_found"], facts["setup"]["has_venv"]) == (True, True)
