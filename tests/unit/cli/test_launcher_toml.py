"""Where launcher.toml is looked for, what its paths mean there, and how it is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.cli.options.launcher_toml import find_places
from launcher.cli.options.request import KEYS
from launcher.errors import EXIT_USAGE

Launch = Callable[..., tuple[int, str, str]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in exp/deep of a repository that is in the home directory."""
    project = tmp_path / "project"
    (project / "exp" / "deep").mkdir(parents=True)
    (project / ".git").mkdir()
    (project / "train.py").touch()
    monkeypatch.chdir(project / "exp" / "deep")
    monkeypatch.setattr("os.environ", {"COLUMNS": "80", "HOME": str(tmp_path)})
    return project


NO_HOSTS = (
    EXIT_USAGE,
    "",
    "launch: no hosts given\n"
    "  fix: pass --hosts a,b or --hostfile FILE; to use this machine only, run launch singlenode\n",
)


def test_the_nearest_file_counts_and_is_named(project: Path, launch: Launch) -> None:
    (project / "launcher.toml").write_text('hosts = "a"\ngpus = 8\n')
    code, out, err = launch("hosts", "--json")
    assert (code, json.loads(out)[0]["source"], err) == (
        0,
        "../../launcher.toml (hosts)",
        "launch: using ../../launcher.toml (hosts)\n",
    )
    (project / "exp" / "launcher.toml").write_text('hosts = "b;"\n')
    assert launch("hosts") == (
        EXIT_USAGE,
        "",
        "launch: using ../launcher.toml (hosts)\n"
        "launch: ../launcher.toml (hosts): host name 'b;' contains ';'\n"
        "  fix: use letters, digits, '.', '_' and '-', and begin with a letter, a digit or '_'\n",
    )


def test_the_search_ends_at_the_repository(project: Path, launch: Launch) -> None:
    (project.parent / "launcher.toml").write_text('hosts = "a"\n')
    assert launch() == NO_HOSTS
    (project / ".git").rmdir()
    assert launch() == NO_HOSTS


def test_which_directories_are_searched(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    assert find_places(deep) == [deep]
    (tmp_path / ".git").mkdir()
    assert find_places(deep) == [deep, tmp_path / "a", tmp_path]
    (tmp_path / "a" / ".git").touch()  # of a worktree it is a file
    assert find_places(deep) == [deep, tmp_path / "a"]
    (tmp_path / "a" / ".git").unlink()
    (tmp_path / "a").chmod(0o1777)  # anybody could make a repository there, and a file in it
    assert find_places(deep) == [deep]


def test_a_file_above_that_others_can_write_is_refused_as_one_here(project: Path, launch: Launch) -> None:
    file = project / "launcher.toml"
    file.write_text('hosts = "a"\n')
    file.chmod(0o666)
    assert launch() == (
        EXIT_USAGE,
        "",
        f"launch: ../../launcher.toml is not used: every user can write {file}\n"
        "  fix: pass --config ../../launcher.toml if you trust it, or --config /dev/null to use no file\n",
    )


def test_the_paths_of_a_file_above_are_those_beside_it(project: Path, launch: Launch) -> None:
    (project / "nodes").write_text("a\n")
    (project / "vars").write_text("A=1\n")
    (project / "launcher.toml").write_text(
        'hostfile = "nodes"\nenv-file = ["vars"]\nvenv = ".venv"\nscript = ["train.py", "--config", "c.yaml"]\n'
    )

    def read_command(*words: str) -> str:
        code, out, err = launch("--dry-run", "--nproc", "1", "--cpu", *words)
        assert (code, err) == (0, "launch: using ../../launcher.toml (hostfile, env-file, venv, script)\n")
        return out.splitlines()[1]

    command = read_command()
    assert command.startswith(f"cd {project} && source {project}/.venv/bin/activate && env A=1 ")
    assert command.endswith(" -- train.py --config c.yaml")
    command = read_command("./mine.py", "c.yaml")
    assert command.startswith(f"cd {project}/exp/deep && source {project}/.venv/bin/activate && env A=1 ")
    assert command.endswith(" -- ./mine.py c.yaml")
    # A file that is named is read as if it were here.
    missing = "launch: nodes: no such hostfile\n  fix: check the path given to --hostfile\n"
    code, out, err = launch("--dry-run", "--config", "../../launcher.toml")
    assert (code, out, err.partition("\n")[2]) == (EXIT_USAGE, "", missing)


def test_a_folder_in_a_file_above_is_where_its_script_is(project: Path, launch: Launch) -> None:
    (project / "launcher.toml").write_text('hosts = "a"\nworkdir = "src"\nvenv = ".venv"\nscript = "train.py"\n')
    code, out, _ = launch("--dry-run", "--nproc", "1", "--cpu")
    line = out.splitlines()[1]
    assert (code, line.partition(" && env ")[0]) == (0, f"cd {project}/src && source .venv/bin/activate")
    assert line.endswith(" -- train.py")


@pytest.mark.parametrize(
    ("typed", "folder"),
    [("proj", "{0}/proj"), ("../x", "{0}/../x"), ("/data", "/data"), ("~/p q", "~/'p q'"), ("~", "~"), ("", "{0}")],
)
def test_a_relative_workdir_is_meant_from_here(project: Path, launch: Launch, typed: str, folder: str) -> None:
    code, out, _ = launch("--dry-run", "--hosts", "a", "--nproc", "1", "--cpu", "--workdir", typed, "t.py")
    here = folder.format(project / "exp" / "deep")
    assert (code, out.splitlines()[1].startswith(f"cd {here} && ")) == (0, True), out


def test_a_table_in_the_file_is_no_option(project: Path, launch: Launch) -> None:
    (project / "launcher.toml").write_text('[run]\nhosts = "a"\n')
    code, _, err = launch("--dry-run", "--nproc", "1", "--cpu", "t.py")
    assert (code, err.splitlines()) == (
        EXIT_USAGE,
        [
            "launch: ../../launcher.toml: no option 'run'",
            "  fix: write the options at the top level, without a table",
        ],
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nproc = 'one'", "nproc: 'one' is not a valid integer range\n"),
        ("stop-timeout = 'soon'", "stop-timeout: must be a time such as "),
        ("transport = 'telnet'", "transport: "),
    ],
)
def test_a_value_that_no_option_takes_is_named_with_its_file(
    project: Path, launch: Launch, line: str, said: str
) -> None:
    (project / "launcher.toml").write_text(line + "\n")
    code, _, err = launch("--hosts", "a", "train.py")
    assert code == EXIT_USAGE
    assert f"launch: ../../launcher.toml: {said}" in err, err


# A value of each type of TOML, and the keys that take other types than strings.
VALUES = {
    "bool": "true", "int": "1", "float": "1.5", "str": '"x"', "strings": '["x"]', "ints": "[1]", "table": "{a = 1}",
    "date": "2026-11-27",
}  # fmt: skip
TYPES = {
    ("bool",): "ask-password cpu detach no-check no-numa quiet stacks",
    ("int", "str"): "gpus nproc num-nodes master-port restarts spares min-nodes",
    ("int", "float", "str"): "connect-timeout silence stop-timeout rdzv-timeout hang-timeout for sync-limit",
    ("str", "strings"): "hosts include exclude ranks env env-file link script",
    ("bool", "str"): "sync",
    ("bool", "int", "float", "str"): "queue",
}
TAKEN = {key: types for types, keys in TYPES.items() for key in keys.split()}


@pytest.mark.parametrize("key", [name.replace("_", "-") for name in KEYS])
def test_each_key_takes_its_types_and_refuses_all_others_in_one_line(project: Path, launch: Launch, key: str) -> None:
    defaults = {"hosts": '"a"', "nproc": "1", "cpu": "true"}
    for kind, value in VALUES.items():
        lines = defaults | {key: value}
        (project / "launcher.toml").write_text("".join(f"{name} = {text}\n" for name, text in lines.items()))
        code, _, err = launch("--dry-run", "train.py")
        if kind in TAKEN.get(key, ("str",)):
            assert "Traceback" not in err and f"{key} must be true" not in err, (kind, err)
        else:
            pattern = rf"launch: \.\./\.\./launcher\.toml: {key} must be [^\n]*, got [^\n]*\n"
            assert code == EXIT_USAGE and re.fullmatch(pattern, err), (kind, err)


@pytest.mark.parametrize("script", ["", " "])
def test_an_empty_script_is_none(project: Path, launch: Launch, script: str) -> None:
    (project / "launcher.toml").write_text(f'script = "{script}"\n')
    code, out, _ = launch("--dry-run", "--hosts", "a", "--nproc", "1", "--cpu")
    assert (code, out.rstrip().endswith("-m -- launcher.trainer")) == (0, True)
