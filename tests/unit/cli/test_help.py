"""Help as it is seen at 80 columns, and its examples."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from launcher.cli import command_group
from launcher.cli import main as cli
from launcher.cli.command_table import COMMANDS, DEFAULT_COMMAND, EXAMPLES
from launcher.cli.test_distributed import command as collectives_command
from launcher.errors import EXIT_USAGE

Launch = Callable[..., tuple[int, str, str]]

TOP = """\
Usage: launch [OPTIONS] SCRIPT [ARGS]...  or  launch COMMAND [OPTIONS] ...
  Start PyTorch training on several machines over SSH, without a scheduler.
Run:     run         Run SCRIPT on every host under torchrun (the default).
         singlenode  Run SCRIPT on this machine only, without SSH.
         again       Start an earlier run again, as it was typed.
Follow:  ps          List the runs that were started on this machine.
         top         Show what the GPUs of all hosts do now.
         attach      Show the output of a run until it ends.
         logs        Print the logs of a run.
         wait        Wait until a run ends, and exit with its exit code.
         stop        Stop a run, as Ctrl-C in its terminal does.
         fetch       Copy the logs of a run from its controller host.
         report      Make a page of a run: its cause, attempts and plots.
Hosts:   check       Compare the hosts and find what would break a run.
         free        Show which GPUs are free, and who uses the others.
         sync        Send the code to every host and verify it, or compare it.
         clean       Stop and remove leftovers of your earlier runs.
         exec        Run a plain command on every host.
Try:     demo        Train on loopback SSH hosts of this machine.
Also:    node, sbatch, rejoin, hosts, completion
Examples (options: launch COMMAND --help; version: launch --version):
  launch --hosts gpu1,gpu2 --gpus 8 train.py --lr 3e-4
  launch --hosts 'gpu[1-4]' --sync --restarts 10 --detach train.py
"""

# launcher.toml has no defaults for them
WITHOUT_DEFAULTS = ("again", "ps", "attach", "logs", "wait", "stop", "rejoin", "fetch", "report", "completion")
LONG = ("run", "singlenode", "node", "sbatch", "check")  # -h shows the common options

EXEC = """\
Usage: launch exec [OPTIONS] -- CMD...

  Run a plain command on every host; output lines begin with the host's name.

  A single word is a shell command line (`-- 'nvidia-smi | head'`); several
  words run without a shell. Stdin is not sent to the hosts. The exit code is
  the first nonzero one in host order, or 69 if a host can't be reached or is
  lost and no command failed. In a Slurm job, its hosts are the default.

Examples:
  launch exec --hosts gpu1,gpu2 -- nvidia-smi -L
  launch exec --hosts 'gpu[1-4]' --fold -- 'df -h / | tail -1'

Hosts:
  --hosts LIST         Hosts in rank order, such as a,b,gpu[1-4] or user@c.
  --hostfile FILE      Read the hosts from FILE, one per line.
  --include LIST       Use only these hosts or GPUs: gpu[1-4] or a:0,1@b.
  --exclude LIST       Exclude these hosts or GPUs: gpu3 or a:0,1@b.
  --num-nodes N        Use only the first N hosts.  [default: all]
  --transport NAME     Reach the hosts with fabric, ssh, pdsh or srun.
                       [default: fabric; in a Slurm job, srun]
  --ssh-config FILE    SSH client configuration.  [default: ~/.ssh/config]
  --ask-password       Ask once for the password of hosts without a key.
  --connect-timeout T  Maximum time to reach a host; if given, wait for its
                       boot too.  [default: 10s]

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

T is a time: 90, 90s, 10m, 2h or 2d.
"""

RUN_COMMON = """\
Usage: launch run [OPTIONS] [SCRIPT [ARGS]...]

  Run SCRIPT on every host under torchrun, one process per GPU.

Examples:
  launch --hosts gpu1,gpu2 --gpus 8 train.py --lr 3e-4
  launch --hosts 'gpu[1-4]' --sync --restarts 10 --detach train.py

Common options:
  --hosts LIST        Hosts in rank order, such as a,b,gpu[1-4] or user@c.
  --hostfile FILE     Read the hosts from FILE, one per line.
  --exclude LIST      Exclude these hosts or GPUs: gpu3 or a:0,1@b.
  --sync [DIR]        Send the code in DIR and run it there.  [default DIR:
                      the repository]
  --gpus N|auto       GPUs per host, one process each.  [default: auto]
  --nproc N           Processes per host.  [default: one per GPU]
  --cpu               Train on CPUs with gloo; set --nproc as well.
  -m, --module        Run SCRIPT as a module, as python -m does.
  --workdir DIR       Directory on the hosts, relative to this one.
                      [default: .]
  --venv DIR          Use this virtual environment on the hosts.
  --conda ENV         Use this conda environment, by name or path.
  --setup CMD         Run CMD in bash on each host and use its environment.
  --env K[=V]         Set a variable for the ranks; without =V, forward yours.
  --restarts N        Restart a failed run, up to N times without progress.
                      [default: 0]
  --progress-dir DIR  Count new files in DIR, where the script saves, as
                      progress.  [default: 10 min of output]
  --spares K          Keep the last K hosts to replace failed ones.
                      [default: hosts marked spare]
  --detach            Let the run continue without this terminal, once all its
                      ranks run.
  --dry-run           Print each host's command; contact no host.
  --queue [T]         Wait, T at most, for GPUs that others have claimed.
  --ranks LIST        Show only these ranks' output, such as 0,8.
                      [default: all]
  --name NAME         Name of the run, shown in messages and run.json.

All options: launch run --help
"""

SBATCH_COMMON = """\
Usage: launch sbatch [OPTIONS] [SCRIPT [ARGS]...]

  Print a Slurm batch script that runs SCRIPT on every node of the job.

Examples:
  launch sbatch --nodes 2 --gpus 8 --time 4:00:00 train.py
  launch sbatch --nodes 2 --gpus 8 --cpus-per-task 32 --submit train.py

Common options:
  --nodes N           Number of nodes.  [default: 1]
  --time TIME         Time limit: minutes, H:M:S or D-H.  [default: Slurm's]
  --partition NAME    Partition to run in.  [default: Slurm's]
  --mem SIZE          Memory per node: 64G; 0 is all.  [default: Slurm's]
  --cpus-per-task N   CPUs per node, shared by its ranks.  [default: Slurm's]
  --account NAME      Account to charge.  [default: Slurm's]
  --constraint LIST   Features that the nodes must have.
  --directive OPTION  Add an #SBATCH line, as in --directive=--exclusive.
  --requeue           Requeue the job at its time limit or if a node fails.
  --output FILE       Write the script to FILE.  [default: stdout]
  --submit            Submit the script and print how to watch the job.
  --gpus N|auto       GPUs per node, one process each.  [default: auto]
  --nproc N           Processes per node.  [default: one per GPU]
  --cpu               Train on CPUs with gloo; set --nproc as well.
  -m, --module        Run SCRIPT as a module, as python -m does.
  --workdir DIR       Directory on the nodes, relative to this one.
                      [default: .]
  --venv DIR          Use this virtual environment on the nodes.
  --conda ENV         Use this conda environment, by name or path.
  --setup CMD         Run CMD in bash on each node and use its environment.
  --env K[=V]         Set a variable for the ranks; without =V, forward yours.
  --restarts N        Restart a failed run, up to N times without progress.
                      [default: 0]
  --progress-dir DIR  Count new files in DIR, where the script saves, as
                      progress.  [default: 10 min of output]
  --spares K          Keep the last K nodes to replace failed ones.
                      [default: 0]

All options: launch sbatch --help
"""

SINGLENODE = """\
Usage: launch singlenode [OPTIONS] [SCRIPT [ARGS]...]

  Run SCRIPT on this machine only, without SSH.

  Logs, exit codes and the way to stop it are the same as on several hosts.
  Without SCRIPT, the built-in trainer runs.

Examples:
  launch singlenode --gpus 4 train.py
  launch singlenode --nproc 2 --cpu train.py

Processes:
  --gpus N|auto  GPUs of this machine, one process each.  [default: auto]
  --nproc N      Processes on this machine.  [default: one per GPU]
  --cpu          Train on CPUs with gloo; set --nproc as well.
  -m, --module   Run SCRIPT as a module, as python -m does.
  --no-python    Run SCRIPT as a command, which needs no torch.
  --start MODE   torchrun; warm: one Python imports torch, then forks the
                 ranks; plain: no torchrun, for torch before 2.0.
                 [default: torchrun]
  --no-numa      Let ranks use all CPUs, not only those near their GPUs.
  --workdir DIR  Directory to run in.  [default: .]

Environment:
  --python PATH    Python to run.  [default: the first with torch]
  --venv DIR       Use this virtual environment.
  --conda ENV      Use this conda environment, by name or path.
  --setup CMD      Run CMD in bash first and use its environment.
  --env K[=V]      Set a variable for the ranks; without =V, forward yours.
  --env-file FILE  Set the variables of a dotenv file for the ranks.

Network:
  --master-port PORT  Port at which the ranks meet.  [default: a free port]
  --rdzv-timeout T    Maximum time for all ranks to join.  [default: 120s]
  --silence T         Maximum time without a heartbeat.  [default: 15s]

Stopping and restarts:
  --stop-timeout T              Time between SIGTERM and SIGKILL.
                                [default: 15s]
  --hang-timeout T|auto|off     Treat a run in which no rank prints for T as
                                hung.  [default: auto]
  --on-hang [tell|end|restart]  After the stacks, continue (tell), stop (end)
                                or restart.  [default: tell for auto, else
                                restart]
  --stacks / --no-stacks        Let Ctrl-\\ use faulthandler where py-spy is
                                missing or not permitted.  [default: stacks]
  --restarts N                  Restart a failed run, up to N times without
                                progress.  [default: 0]
  --progress-dir DIR            Count new files in DIR, where the script
                                saves, as progress.  [default: 10 min of
                                output]
  --until TIME                  Stop the run at TIME: 18:00, or '2026-11-27
                                18:00'.
  --for T                       Stop the run once its ranks have run for T,
                                such as 6h.

Background:
  --detach      Let the run continue without this terminal, once all its ranks
                run.
  --notify CMD  Run CMD in a shell when the run ends, restarts or waits long.

Checks:
  --dry-run     Print the command and start nothing.
  --no-check    Skip every check that the run doesn't need.
  --queue [T]   Wait, T at most, for GPUs that others have claimed.
  --share       Start even on GPUs that other runs have claimed.
  --claim-cpus  Claim all CPUs and GPUs, even for a run on CPUs.

Output:
  -q, --quiet    Hide the ranks' output; it is still in the logs.
  --ranks LIST   Show only these ranks' output, such as 0,8.  [default: all]
  --json         Print one JSON object per line to stdout.
  --log-dir DIR  Directory for the logs.  [default: logs]
  --name NAME    Name of the run, shown in messages and run.json.
  --no-samples   Don't watch the GPUs for one that stands out.
  -v, --verbose  Show the command, and where values come from.
  --fetch PATH   After the run, copy PATH to logs/RUN-fetched.

General:
  --config FILE  Read defaults from FILE instead of launcher.toml.
  -h             Show the common options and exit.
  --help         Show this message and exit.

T is a time: 90, 90s, 10m, 2h or 2d.
"""

STOP = """\
Usage: launch stop [OPTIONS] [RUN]

  Stop RUN as Ctrl-C in its terminal does, and wait for its end.  [default:
  the only active run]

  The ranks get SIGTERM, so that they can save, and are killed after the run's
  stop timeout.

Examples:
  launch stop
  launch stop 20261120-091233 --now

Hosts:
  --controller HOST  Controller host of the run.  [default: as in launch ps]
  --ssh-config FILE  With --controller, read FILE instead of ~/.ssh/config.

Stopping and restarts:
  --now  Kill the ranks at once, as a second Ctrl-C does: they can't save.

General:
  -h, --help  Show this message and exit.
"""

NODE_PROCESSES = """\
Processes:
  --nnodes N     Number of hosts of the run.  [required]
  --node-rank R  Number of this host, counted from 0.  [required]
  --gpus N|auto  GPUs of this machine, one process each.  [default: auto]
"""

NODE_PORT = """\
  --master-port PORT  Port of node 0, the same on every host.
                      [default: 29500]
"""

BACKGROUND = """\
Background:
  --detach                Let the run continue without this terminal, once all
                          its ranks run.
  --controller HOST|here  With --detach, the controller host (here: this
                          machine).  [default: the last spare, or node 0]
  --survive-reboots       With --detach and --restarts, let each host rejoin
                          the run by itself after a reboot.
  --notify CMD            Run CMD in a shell when the run ends, restarts or
                          waits long.

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


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("exec --help", EXEC),
        ("exec -h", EXEC),
        ("help exec", EXEC),
        ("stop -h", STOP),
        ("singlenode --help", SINGLENODE),
        ("help singlenode", SINGLENODE),
        ("run -h", RUN_COMMON),
        ("--hosts a -h", RUN_COMMON),
        ("sbatch -h", SBATCH_COMMON),
    ],
)
def test_a_command(launch: Launch, words: str, text: str) -> None:
    assert launch(*words.split()) == (0, text, "")


def test_help_after_the_script_is_the_scripts(launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    code, out, err = launch("--hosts", "gpu1", "--gpus", "1", "--dry-run", "train.py", "-h")
    assert (code, out.rstrip().endswith("train.py -h"), err) == (0, True, "")


def test_a_share_of_a_run_has_the_ports_of_all(launch: Launch) -> None:
    assert NODE_PROCESSES in launch("help", "node")[1]
    assert NODE_PORT in launch("help", "node")[1]


def test_options_of_the_background_are_together(launch: Launch) -> None:
    assert BACKGROUND in launch("run", "--help")[1]


@pytest.mark.parametrize("name", ["attach", "logs", "wait", "stop", "rejoin", "fetch"])
def test_where_a_run_is_controlled_is_one_group(launch: Launch, name: str) -> None:
    group = STOP[STOP.index("\nHosts:") : STOP.index("\n\nStopping")]
    assert group in launch(name, "--help")[1]


@pytest.mark.parametrize("name", ["singlenode", "sbatch"])
def test_help_without_hosts_names_none(launch: Launch, name: str) -> None:
    options = launch(name, "--help")[1].partition("Examples:")[2]
    assert re.findall(r"\bhosts?\b", options) == []


def test_numbers_show_no_range_of_click_s(launch: Launch) -> None:
    assert "  --nodes N  Number of SSH hosts.  [default: 2]\n" in launch("help", "demo")[1]


@pytest.mark.parametrize("name", [*COMMANDS, "test-distributed"])
def test_every_line_fits_and_every_option_is_in_a_group(launch: Launch, name: str) -> None:
    entry = cli.main_test_distributed if name == "test-distributed" else cli.main
    code, out, err = launch(*([] if name == "test-distributed" else [name]), "--help", entry=entry)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    general = out.partition("\nGeneral:\n")[2].splitlines()
    options = [line.split()[0].rstrip(",") for line in general if re.match("  +-", line)]
    config = [] if name in WITHOUT_DEFAULTS else ["--config"]
    assert options == [*config, "-h", *(["--help"] if name in LONG else [])], "give the others a heading"
    assert _examples(name) in out


@pytest.mark.parametrize("name", LONG)
def test_the_common_options_fit_on_a_screen(launch: Launch, name: str) -> None:
    """They are worded as among all options, and those without which a command does nothing are among them."""
    code, out, err = launch(name, "-h")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert (len(lines) <= 44, max(map(len, lines)) <= 80) == (True, True)
    assert _examples(name) in out
    whole = launch(name, "--help")[1]
    common, every = _options(out), _options(whole)
    assert common.items() <= every.items()
    assert {option for option, text in every.items() if "[required]" in text} <= {*common}
    assert 15 <= len(common) <= 24


def _examples(name: str) -> str:
    return "\n\nExamples:\n" + "".join(f"  {line}\n" for line in EXAMPLES[name]) + "\n"


def _options(text: str) -> dict[str, str]:
    """Return the help of each option, on one line."""
    described = re.findall(r"^  (-\S+(?: \S+)*)  +(.*(?:\n   +.*)*)", text, re.MULTILINE)
    return {names: " ".join(lines.split()) for names, lines in described}


def test_help_for_what_is_no_command(launch: Launch) -> None:
    said = "launch: no command 'chekc'\n  fix: see launch --help for the commands\n"
    assert launch("help", "chekc") == (EXIT_USAGE, "", said)


def test_the_top_fits_on_a_small_terminal(launch: Launch) -> None:
    lines = launch("--help")[1].splitlines()
    assert len(lines) <= 23 and max(map(len, lines)) <= 80


def _split(line: str) -> tuple[str, list[str]]:
    program, *words = shlex.split(line)
    if program == "test-distributed":
        return program, words
    return (words[0], words[1:]) if words[0] in COMMANDS else (DEFAULT_COMMAND, words)


def test_every_command_has_two_examples_of_itself() -> None:
    assert {*EXAMPLES} == {"launch", *COMMANDS, "test-distributed"}
    assert {len(lines) for name, lines in EXAMPLES.items() if name != "launch"} == {2}
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
        parent = click.Context(command_group.launch, **command_group.launch.context_settings)
        command = collectives_command if name == "test-distributed" else command_group.launch.get_command(parent, name)
        assert command is not None
        with command.make_context(name, words, parent) as context:
            assert context.command is command
