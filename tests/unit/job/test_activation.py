"""Environments: what a node is told to enter, and the same as words for a person's own bash."""

from __future__ import annotations

import subprocess

import pytest

from launcher.job.activation import SETUP_TIMEOUT_S, candidate_pythons, find_active_env, setup_by_hand, setup_order
from launcher.job.facts import NodeFacts
from launcher.job.job import Activation, Job, Program, ProgramKind
from launcher.node import messages

SCRIPT = Program(ProgramKind.SCRIPT, "train.py")
COMMAND = Program(ProgramKind.COMMAND, "id")


def job(program=SCRIPT, python=None, named_env=(), active_env=None, **activation):
    named = frozenset(named_env)
    return Job(program, python=python, named_env=named, active_env=active_env, activation=Activation(**activation))


def by_hand(program=None, **activation):
    return setup_by_hand(job(**activation), NodeFacts("/tmp/run", hostname="gpu1", conda=program))


def test_without_options_nothing_is_asked_for():
    assert setup_order(job()) is None
    assert by_hand() == []


def test_what_a_node_is_told():
    order = setup_order(job(setup="module load x", conda="train", named_env=["B", "A"]))
    assert [step["name"] for step in order["steps"]] == ["--setup", "--conda train"]
    assert order["steps"][0]["command"] == "module load x"
    assert (order["named"], order["venv"], order["timeout_s"]) == (["A", "B"], None, SETUP_TIMEOUT_S)
    assert setup_order(job(venv="~/env"))["steps"] == []


@pytest.mark.parametrize("name", ["train", "/opt/my env", "it's", "$(id)", "{x}"])
def test_the_lines_for_conda_are_bash(name):
    script = setup_order(job(conda=name))["steps"][0]["command"]
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("how", "pythons"),
    [
        ({}, ["/own/bin/python3", "python3", messages.LOGIN_SHELL]),
        ({"active_env": "/env"}, ["/env/bin/python", "/own/bin/python3", "python3", messages.LOGIN_SHELL]),
        ({"active_env": "/own"}, ["/own/bin/python", "python3", messages.LOGIN_SHELL]),
        ({"setup": "x"}, ["python", "python3", "/own/bin/python3", messages.LOGIN_SHELL]),
        (
            {"setup": "x", "active_env": "/env"},
            ["python", "python3", "/env/bin/python", "/own/bin/python3", messages.LOGIN_SHELL],
        ),
        ({"python": "/p", "active_env": "/env"}, ["/p"]),
        ({"venv": "d", "active_env": "/env"}, [messages.ENVIRONMENT]),
        ({"conda": "x"}, [messages.ENVIRONMENT]),
        ({"conda": "x", "program": COMMAND}, []),
    ],
)
def test_which_pythons_are_tried(how, pythons):
    assert candidate_pythons(job(**how), "/own/bin/python3") == pythons


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({}, None),
        ({"VIRTUAL_ENV": "", "CONDA_PREFIX": "relative"}, None),
        ({"CONDA_PREFIX": "/conda", "PATH": "/bin"}, "/conda"),
        ({"VIRTUAL_ENV": "/env", "CONDA_PREFIX": "/conda"}, "/env"),
        ({"VIRTUAL_ENV": "/env", "CONDA_PREFIX": "/conda", "PATH": "/env/bin:/conda/bin:/bin"}, "/env"),
        ({"VIRTUAL_ENV": "/env", "CONDA_PREFIX": "/conda", "PATH": "/conda/bin/:/env/bin:/bin"}, "/conda"),
    ],
)
def test_which_environment_is_active(environ, folder):
    assert find_active_env(environ) == folder


def test_a_setup_with_a_secret_by_hand():
    assert by_hand(setup="export HF_TOKEN=hunter2; a") == ['eval "${SETUP:?must be the value of --setup}"']


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"venv": ".venv"}, "source .venv/bin/activate"),
        ({"venv": "~/my env"}, "source ~/'my env/bin/activate'"),
        ({"venv": "~ann/env"}, "source ~ann/env/bin/activate"),
        ({"venv": "/a b"}, "source '/a b/bin/activate'"),
        ({"conda": "x"}, "source '<conda directory on gpu1>/activate' x"),
        ({"conda": "my env", "program": "/opt/conda/bin/conda"}, "source /opt/conda/bin/activate 'my env'"),
        ({"conda": "x", "program": "/m m/micromamba"}, "eval \"$('/m m/micromamba' shell activate x --shell bash)\""),
    ],
)
def test_an_environment_by_hand(how, words):
    assert by_hand(**how) == [words]


def test_the_setup_comes_first_by_hand():
    assert by_hand("/c/conda", setup="module load conda", conda="x") == [
        "eval 'module load conda'",
        "source /c/activate x",
    ]


COMMANDS = [
    "export A=1; export B=2", "export A=\"it's\" # B=2", "false || export A=1", "export A=1 &",
    "f() { export A=$1; }; f 3",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_a_setup_by_hand_does_what_it_does_on_a_node(command, tmp_path):
    """Behind `cd` and before the rest: also where it holds what has another meaning in a list."""

    def run(text):
        return subprocess.run(["bash", "-c", text], env={"PATH": "/usr/bin:/bin"}, stdout=subprocess.PIPE, check=False)

    on_node = run(f"cd {tmp_path}\n{command}\n[ $? = 0 ] && env | grep -E ^[AB]=").stdout
    for words in by_hand(setup=command):
        assert run(f"cd {tmp_path} && {words} && env | grep -E ^[AB]=").stdout == on_node
        assert run(f"cd {tmp_path}/nowhere 2>/dev/null && {words} && env").stdout == b""
