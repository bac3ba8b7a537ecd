"""Each command line of the documents, and others, gives the request, the plan and the help that command_lines.txt has.

That file is written by

    RECORD=yes make test PYTEST_ARGS=tests/unit/cli/test_command_lines.py PYTEST_WORKERS=0

and what it changes is read in the diff. Its lines of the documents and of --help are found; the others, below
`# others`, are kept: a new one is written there, and then recorded.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import fields, replace
from inspect import get_annotations
from pathlib import Path
from typing import Any

import click
import pytest

from launcher.cli import main as cli
from launcher.cli.command_table import COMMANDS, DEFAULT_COMMAND, EXAMPLES
from launcher.cli.host_choice import read_hosts
from launcher.cli.job_request import read_job
from launcher.cli.options.command import make_request, settle
from launcher.cli.options.request import OPTIONS, Request
from launcher.cli.runner import read_run_options
from launcher.cli.test_distributed import command as test_distributed
from launcher.errors import LauncherError
from launcher.hosts.host import Host
from launcher.job.job import DEFAULT_PROGRAM, Job
from launcher.runs.run_request import RunOptions

ROOT = Path(__file__).parents[3]
RECORDED = Path(__file__).with_name("command_lines.txt")
COMMANDED = ["README.md", "LAUNCH_GUIDE.md", *(f"docs/{path.name}" for path in sorted(ROOT.glob("docs/*.md")))]
PLANNED = ("run", "singlenode", "node")  # these have --dry-run
PRINTED = ("hosts",)  # it contacts nobody
OTHERS = "# others"
_COMMAND = r"(?:launch|test-distributed) "
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
ENVIRONMENT = {
    "COLUMNS": "80", "MY_TOKEN": "abc", "PATH": os.defpath, "SLURM_JOB_ID": "41", "SLURM_JOB_NODELIST": "node[1-2]",
    "USER": "ann",
}  # fmt: skip


def find_documented() -> list[str]:
    """Return the command lines of README, the guide and docs/, and the examples of help."""
    lines = [line for examples in EXAMPLES.values() for line in examples]
    for name in COMMANDED:
        text = (ROOT / name).read_text("utf-8")
        blocks = re.findall(rf"^    {_COMMAND}.*$", text, re.MULTILINE)
        fenced = "\n".join(_FENCED.findall(text))
        blocks += re.findall(rf"^(?:\$ )?({_COMMAND}.*)$", fenced, re.MULTILINE)
        cells = re.findall(rf"\| `({_COMMAND}[^`]+)`", text)  # which begin with one
        lines += [*blocks, *cells]
    # Up to a comment, a redirection or what sends it to the background.
    return sorted({re.split(r"  #| >| &$", line)[0].strip() for line in lines})


def find_help() -> list[str]:
    """Return the lines for all help."""
    return ["launch --help", *(f"launch {name} --help" for name in COMMANDS), "test-distributed --help"]


def read_recorded() -> dict[str, str]:
    """Return what was recorded of each line, in the order of the file."""
    text = re.sub(r"^# .*\n", "", RECORDED.read_text("utf-8"), flags=re.MULTILINE)
    parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)
    return {line: part.rstrip("\n") + "\n" for line, part in zip(parts[1::2], parts[2::2], strict=True)}


def read_others() -> list[str]:
    return re.findall(r"^\$ (.*)\n", RECORDED.read_text("utf-8").partition(f"\n{OTHERS}\n")[2], re.MULTILINE)


@contextmanager
def project() -> Iterator[Path]:
    """Enter a directory as a user has it, in a Slurm allocation: a script, sample hostfiles and configurations."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name).resolve() / "project"
        folder.mkdir()
        (folder / "exp").mkdir()
        for each in ("train.py", "exp/train.py"):
            (folder / each).touch()
        (folder / "a.env").write_text("B=2\n")
        (folder / "defaults.toml").write_text('hosts = ["gpu1", "gpu2"]\ngpus = 8\ndetach = true\nenv = ["A=1"]\n')
        for each in ("hostfiles", "config"):
            (folder / each).symlink_to(ROOT / each)
        patch.chdir(folder)
        patch.setattr("sys.platform", "linux")  # a Mac refuses to run ranks
        patch.setattr("socket.gethostname", lambda: "laptop")
        patch.setattr("sys.argv", ["/opt/bin/launch"])
        patch.setattr("os.environ", {**ENVIRONMENT, "HOME": name, "PWD": str(folder)})
        yield folder


def split(line: str) -> tuple[str, list[str]]:
    program, *words = shlex.split(line)
    if program == "test-distributed":
        return program, words
    return (words[0], words[1:]) if words and words[0] in COMMANDS else (DEFAULT_COMMAND, words)


def load(name: str) -> tuple[click.Command, click.Context | None]:
    if name == "test-distributed":
        return test_distributed, None
    parent = click.Context(cli.launch, info_name="launch", **cli.launch.context_settings)
    command = cli.launch.get_command(parent, name)
    assert command is not None
    return command, parent


def describe(line: str) -> str:
    """Return what is made of a command line: its request, what follows from that, and what a dry run prints.

    The plan is shown if a line asks for it: it names all hosts, and has the command of the first one.
    """
    with project() as folder:
        program, *words = shlex.split(line)
        name, rest = split(line)
        said = []
        if "--help" in words:
            said = call(program, words)
        else:
            said = [*ask(name, rest)]
            if name in PLANNED:
                dry = [] if "--dry-run" in rest and "--check" not in rest else ["--dry-run"]
                plan = call(program, [name, *dry, *(word for word in rest if word != "--check")])
                first = next((line for line in plan if line.startswith("  cd ")), "")
                shown = [line for line in plan if line == first or not line.startswith("  cd ")]  # of one host
                said += [line for line in shown if "--dry-run" in rest or not line.startswith("  ")]
            elif name in PRINTED:
                said += call(program, [name, *rest])
    text = "".join(f"{each.rstrip()}\n" for each in said if each not in ("job: ", "run: "))
    text = re.sub(r'"time": "[^"]*"', '"time": "..."', text)
    for found, shown in ((folder.parent, "/home/ann"), (ROOT, "/src"), (sys.executable, "/usr/bin/python3")):
        text = text.replace(str(found), shown)
    return text.rstrip("\n") + "\n"


def ask(name: str, words: list[str]) -> Iterator[str]:
    """Yield the request of a command, and of one that starts a run the job and the options of the run."""
    command, parent = load(name)
    taken = get_annotations(command.callback) if command.callback else {}
    try:
        with command.make_context(name, [*words], parent) as context, redirect_stderr(make_stream()):
            settled = settle(context.params)
            own = {str(param.name): param.get_default(context) for param in command.params if param.name in taken}
            changes = [
                f"{name}={settled[name]!r}" for name, default in own.items() if settled[name] not in (default, None, ())
            ]
            request = make_request(settled)
            yield f"request: {' '.join([*changes, *(find_changes(request, Request()) if 'request' in taken else ())])}"
            if name in PLANNED:
                hosts = read_hosts(request) if name == "run" else [Host("laptop", source="this machine")]
                job, run = read_job(request, hosts), read_run_options(request)
                job, run = replace(job, program=DEFAULT_PROGRAM, workdir=None), replace(run, until_at=None)
                yield f"job: {' '.join(find_changes(job, Job(DEFAULT_PROGRAM)))}"
                yield f"run: {' '.join(find_changes(run, RunOptions()))}"
    except (click.ClickException, LauncherError) as error:
        yield f"refused: {error.message}"


def make_stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), write_through=True)


def find_changes(value: Any, default: Any) -> Iterator[str]:
    for field in fields(value):
        found = getattr(value, field.name)
        if found != getattr(default, field.name):
            shown = sorted(found) if isinstance(found, frozenset) else str(found) if isinstance(found, Path) else found
            yield f"{field.name}={shown!r}"


def call(program: str, words: list[str]) -> list[str]:
    """Return what a command prints: on stderr after `! `, and its exit code if that isn't 0."""
    out, err = make_stream(), make_stream()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
        (cli.main if program == "launch" else cli.main_test_distributed)(words)
    lines = []
    for mark, stream in (("  ", out), ("! ", err)):
        assert isinstance(stream.buffer, io.BytesIO)
        lines += [f"{mark}{line}".rstrip() for line in stream.buffer.getvalue().decode().splitlines()]
    return lines + ([f"exit code {end.value.code}"] if end.value.code else [])


def test_record() -> None:
    if not os.environ.get("RECORD"):
        assert read_recorded().keys() == {*find_help(), *find_documented(), *read_others()}, "record them: see above"
        return
    documented = find_documented()
    others = [line for line in dict.fromkeys(read_others()) if line not in documented]
    parts = {"# help": find_help(), "# documents and examples": documented, OTHERS: others}
    text = [f"{head}\n" + "".join(f"\n$ {line}\n{describe(line)}" for line in lines) for head, lines in parts.items()]
    RECORDED.write_text("\n".join(text), "utf-8")


@pytest.mark.parametrize("line", [*read_recorded()])
def test_a_command_line_gives_what_was_recorded(line: str) -> None:
    found = describe(line)
    assert found == read_recorded()[line]
    assert line in read_others() or not re.search("^(refused|exit code)", found, re.MULTILINE), (
        "documented, and refused"
    )


def test_every_option_is_typed_in_some_line() -> None:
    typed = {word.partition("=")[0] for line in read_recorded() for word in shlex.split(line)}
    forms = {name: {*option.opts, *option.secondary_opts} for name, option in OPTIONS.items()}
    del forms["script"], forms["until"]  # of launcher.toml alone; a time that passes
    assert [name for name, words in forms.items() if not words & typed] == []
