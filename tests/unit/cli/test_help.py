"""Help as it is seen at 80 columns, and its examples."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from launcher.cli import main as cli
from launcher.cli.command_table import COMMANDS, DEFAULT_COMMAND, EXAMPLES
from launcher.cli.test_distributed import command as collectives_command
from launcher.errors import EXIT_USAGE

Launch = Callable[..., tuple[int, str, str]]

TOP = """\
Usage: launch [OPTIONS] SCRIPT [ARGS]...  or  launch COMMAND [OPTIONS] ...

  Start PyTorch training on several machines over SSH, without a scheduler.

Commands (options: launch help COMMAND; version: launch --version):
  run         Run SCRIPT on every host under torchrun (the default).
  singlenode  Run SCRIPT on this machine only, without SSH.
  node        Run this machine's share of a run started by hand.
  ps          List the runs that were started on this machine.
  attach      Watch a run that was started in another terminal.
  logs        Print what a run has written.
  wait        Wait until a run has ended, and end like it.
  stop        End a run as Ctrl-C in its terminal would.
  fetch       Copy the logs of a run from the host that controls it.
  check       Compare the hosts and find what would break a run.
  sync        Send the code to every host, with proof, or compare it.
  clean       Stop and remove what your earlier runs left on the hosts.
  exec        Run a plain command on every host.
  hosts       Show the hosts as launch reads them.
  sbatch      Print or submit a Slurm batch script that runs SCRIPT.
  demo        Try launch: train on loopback SSH hosts of this machine.

Examples:
  launch --hosts node1,node2 --gpus 8 train.py --lr 3e-4
"""

WITHOUT_DEFAULTS = ("ps", "attach", "logs", "wait", "stop", "fetch")  # launcher.toml has no defaults for them

EXEC = """\
Usage: launch exec [OPTIONS] -- CMD...

  Run a plain command on every host; output lines begin with the host's name.

  A single word is a shell command line (`-- 'nvidia-smi | head'`); several
  words run without a shell. Stdin is not sent to the hosts. The exit code is
  the first nonzero one in host order, or 69 if no command failed but a host
  was unreachable or lost. In a Slurm job, its hosts are the default.

Hosts:
  --hosts LIST            Hosts in rank order, such as a,b,gpu[1-4] or user@c.
  --hostfile FILE         Read the hosts from FILE, one per line.
  --colon [slots|port]    Read host:8 as slots or SSH port.  [default: error]
  --include LIST          Use only these hosts or GPUs: gpu[1-4] or a:0,1@b.
  --exclude LIST          Exclude these hosts or GPUs: gpu3 or a:0,1@b.
  --num-nodes N           Use only the first N hosts.  [default: all]
  --transport NAME        Reach the hosts with fabric, ssh, pdsh or srun.
                          [default: fabric; in a Slurm job, srun]
  --ssh-config FILE       SSH client configuration.  [default: ~/.ssh/config]
  --accept-new-host-keys  Accept and record the keys of unknown hosts.
  --ask-password          Ask once for the password of hosts without a key.
  --connect-timeout T     Maximum time to reach a host; if given, also wait
                          for it to boot.  [default: 10s]

Processes:
  --workdir DIR  Directory on the hosts, relative to this one.  [default: ~]

Environment:
  --python PATH  Python 3.8 or newer for launch's helper.  [default: python3]

Network:
  --silence T  Maximum time without a heartbeat.  [default: 15s]

Stopping and restarts:
  --stop-timeout T  Time between SIGTERM and SIGKILL.  [default: 15s]

Output:
  --json      Print one JSON object per line to stdout.
  -b, --fold  Show identical output of several hosts once, at the end.

General:
  --config FILE  Read defaults from FILE instead of launcher.toml.
  -h, --help     Show this message and exit.

T is a time: 90, 90s, 10m or 2h.

Examples:
  launch exec --hosts node1,node2 -- nvidia-smi -L
  launch exec --hosts 'gpu[1-4]' --fold -- 'df -h / | tail -1'
"""

NODE_PROCESSES = """\
Processes:
  --nnodes N     Number of nodes of the run.  [required]
  --node-rank R  Number of this node, counted from 0.  [required]
  --gpus N|auto  GPUs per host, one process each.  [default: auto]
"""


@pytest.fixture
def launch(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Launch:
    """Return a function that calls a command at 80 columns and gives (exit code, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words: str, entry: Callable[[list[str]], None] = cli.main) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            entry([*words])
        out, err = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, out, err

    return call


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]])
def test_the_top(launch: Launch, words: list[str]) -> None:
    assert launch(*words) == (0, TOP, "")


@pytest.mark.parametrize("words", [["exec", "--help"], ["exec", "-h"], ["help", "exec"], ["--hosts", "a", "-h"]])
def test_a_command(launch: Launch, words: list[str]) -> None:
    code, out, err = launch(*words)
    assert (code, err) == (0, "")
    assert out == EXEC if "exec" in words else out.startswith("Usage: launch run ")


def test_numbers_show_no_range_of_click_s(launch: Launch) -> None:
    assert NODE_PROCESSES in launch("help", "node")[1]
    assert "  --nodes N  Number of SSH hosts.  [default: 2]\n" in launch("help", "demo")[1]


@pytest.mark.parametrize("name", [*COMMANDS, "test-distributed"])
def test_every_line_fits_and_every_option_is_in_a_group(launch: Launch, name: str) -> None:
    entry = cli.main_test_distributed if name == "test-distributed" else cli.main
    code, out, err = launch(*([] if name == "test-distributed" else [name]), "-h", entry=entry)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    general = out.partition("\nGeneral:\n")[2].splitlines()
    options = [line.split()[0].rstrip(",") for line in general if re.match("  +-", line)]
    config = [] if name in WITHOUT_DEFAULTS else ["--config"]
    assert options == [*config, "-h"], "name the others in launcher/cli/options/help.py"
    assert out.endswith("\nExamples:\n" + "".join(f"  {line}\n" for line in EXAMPLES[name]))


def test_help_for_what_is_no_command(launch: Launch) -> None:
    said = "launch: no command 'chekc'\n  fix: see launch --help for the commands\n"
    assert launch("help", "chekc") == (EXIT_USAGE, "", said)


def test_the_top_fits_on_a_small_terminal(launch: Launch) -> None:
    lines = launch("--help")[1].splitlines()
    assert (len(lines) <= 24, max(map(len, lines)) <= 80) == (True, True)


def _split(line: str) -> tuple[str, list[str]]:
    program, *words = shlex.split(line)
    if program == "test-distributed":
        return program, words
    return (words[0], words[1:]) if words[0] in COMMANDS else (DEFAULT_COMMAND, words)


def test_every_command_has_two_examples_of_itself() -> None:
    assert {*EXAMPLES} == {"launch", *COMMANDS, "test-distributed"}
    assert {len(lines) for name, lines in EXAMPLES.items() if name != "launch"} == {2}, "the top has room for one"
    for name in (*COMMANDS, "test-distributed"):
        assert {_split(line)[0] for line in EXAMPLES[name]} == {name}


@pytest.mark.parametrize("line", sorted({line for lines in EXAMPLES.values() for line in lines}))
def test_an_example(line: str, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What starts no run is called, a run is planned, and the words of all other commands are parsed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    name, words = _split(line)
    if name in ("run", "singlenode", "node"):
        assert launch(name, "--dry-run", *words)[0] == 0
    elif name in ("hosts", "sbatch"):
        assert launch(name, *(word for word in words if word != "--submit"))[0] == 0
    elif name == "ps":
        assert launch(name, *words)[0] == 0
    else:
        parent = click.Context(cli.launch, **cli.launch.context_settings)
        command = collectives_command if name == "test-distributed" else cli.launch.get_command(parent, name)
        assert command is not None
        with command.make_context(name, words, parent) as context:
            assert context.command is command
