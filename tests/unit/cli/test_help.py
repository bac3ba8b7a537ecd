"""Help as it is seen at 80 columns."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from launcher.cli import main as cli
from launcher.errors import EXIT_USAGE

Launch = Callable[..., tuple[int, str, str]]

TOP = """\
Usage: launch [OPTIONS] SCRIPT [ARGS]...
       launch COMMAND [OPTIONS] ...

  Start PyTorch training on several machines over SSH, without a scheduler.

  Without a command, launch runs SCRIPT on every host: `launch help run` shows
  its options.

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Commands:
  run         Run SCRIPT on every host under torchrun (the default).
  singlenode  Run SCRIPT on this machine only, without SSH.
  node        Run this machine's share of a run started by hand.
  check       Compare the hosts; find what would break a run.
  clean       End what earlier runs of yours left on the hosts.
  exec        Run a plain command on every host.
  hosts       Show how the hosts were read.
  sbatch      Print or submit the same job as a Slurm batch script.
  demo        Train on loopback SSH hosts of this machine, to see it work.

  launch --hosts node1,node2 --gpus 8 train.py --lr 3e-4
  launch --hostfile hostfiles/two-nodes --nproc 2 --cpu train.py
  launch singlenode --gpus 4 train.py
"""

EXEC = """\
Usage: launch exec [OPTIONS] -- CMD...

  Run a plain command on every host; its lines come with the host's name.

  One word is a line for a shell (`-- 'nvidia-smi | head'`); several are run
  as they are. Stdin is not sent to the hosts. The exit code is the first one
  in host order that is not 0, or 69 where only hosts were missing.

Hosts:
  --hosts LIST            Hosts in rank order: a,b,gpu[1-4] or user@host.
  --hostfile FILE         Read the hosts from FILE, one per line.
  --colon [slots|port]    Read host:8 as slots or as an SSH port.
  --include LIST          Use only these: names, ranges, host:0,1@host2.
  --exclude LIST          Exclude these hosts.
  --num-nodes N           Use the first N hosts.
  --transport NAME        fabric (default), ssh, pdsh; srun in a Slurm job.
  --ssh-config FILE       Use FILE instead of your own ssh_config.
  --accept-new-host-keys  Trust and record the key of a new host.
  --ask-password          Ask once for the password of hosts without a key.
  --connect-timeout T     Time to reach a host (10s); if set, also to boot.

Processes:
  --workdir DIR  Directory on the hosts, relative to this one; default: home.

Environment:
  --python PATH  Python 3.8 or newer for launch's helper there.

Network:
  --silence T  Time without a heartbeat until a host is lost (15s).

Stopping and hangs:
  --stop-timeout T  Time for ranks to save after SIGTERM (15s).

Output:
  --json      Print one JSON object per line to stdout.
  -b, --fold  Show equal output of several hosts once, at the end.

General:
  --config FILE  Read defaults from FILE, not from launcher.toml.
  -h, --help     Show this message and exit.

T is a time: 90, 90s, 10m or 2h.
"""

NODE_PROCESSES = """\
Processes:
  --nnodes N     Number of nodes in all.  [required]
  --node-rank R  Number of this node, from 0.  [required]
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


@pytest.mark.parametrize("name", [*cli.COMMANDS, "test-distributed"])
def test_every_line_fits_and_every_option_is_in_a_group(launch: Launch, name: str) -> None:
    entry = cli.main_test_distributed if name == "test-distributed" else cli.main
    code, out, err = launch(*([] if name == "test-distributed" else [name]), "-h", entry=entry)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    general = out.partition("\nGeneral:\n")[2].splitlines()
    options = [line.split()[0].rstrip(",") for line in general if re.match("  +-", line)]
    assert options == ["--config", "-h"], "name the others in launcher/cli/help.py"


def test_help_for_what_is_no_command(launch: Launch) -> None:
    said = "launch: no command 'chekc'\n  fix: launch --help lists the commands\n"
    assert launch("help", "chekc") == (EXIT_USAGE, "", said)
