"""Every option that several commands or launcher.toml know, with all that is to be known of it, for click.

A new option is a declaration here, a field of that name in `request`, and its effect; help,
launcher.toml, `-v` and errors follow from the declaration, and docs/options_table.py writes it into the documentation.
"""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from launcher.cli.options.completion import complete_files, complete_hosts
from launcher.hosts.ranges import shown
from launcher.job.job import OnHang, Start, Timeouts
from launcher.transports.registry import TRANSPORTS

Function = TypeVar("Function", bound=Callable[..., Any])

# The headings of --help, in their order; an option without one is a general one.
HEADINGS = (
    "Slurm", "Hosts", "Code", "Processes", "Environment", "Network", "Stopping and restarts", "Background", "Checks",
    "Test", "Output", "General",
)  # fmt: skip
HERE = "here"  # of --controller: this machine
_WAIT = Timeouts()
_SIZE_TEXT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([kKMGT]?)B?")
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd]?)")


class Place(Enum):
    """Where the path is that an option names; in a launcher.toml above the current directory, it is relative to it."""

    HERE = "on the launch host"
    HOSTS = "on the hosts, relative to --workdir"
    SEARCHED = "the same, but a name without a slash is looked up there"


class Option(click.Option):
    """An option with what other parts of the command line must know of it.

    heading: where --help shows it, in the order in which the command declares its options.
    is_common: whether -h of a command with many options shows it.
    in_file: whether it is a key of launcher.toml.
    rivals: options that it contradicts. The command line wins over launcher.toml, even if the two are different ones.
    needs: the option without which it has no effect.
    is_action: it changes what is done, not how; after the script it is refused.
    is_rare: a script is unlikely to have an option of this name; after the script it is reported.
    is_secret: its value is shown nowhere.
    A switch that launcher.toml may set has a second form, which turns it off: `--no-detach`. Help doesn't show it.
    known_as: its names in torchrun, DeepSpeed, mpirun, pdsh and similar programs.
    """

    name: str

    def __init__(
        self, names: Sequence[str], *, heading: str = "General", is_common: bool = False,
        in_file: bool = False, place: Place | None = None,
        rivals: Sequence[str] = (), needs: str = "", is_action: bool = False, is_rare: bool = False,
        is_secret: bool = False, known_as: Sequence[str] = (), **attributes: Any,
    ) -> None:  # fmt: skip
        has_off = in_file and attributes.get("is_flag", False)
        super().__init__([*names[:-1], f"{names[-1]}/{_turn_off(names[-1])}"] if has_off else names, **attributes)
        self._hides_off = has_off
        self.heading = heading
        self.is_common = is_common
        self.in_file = in_file
        self.place = place
        self.rivals = rivals
        self.needs = needs
        self.is_action = is_action
        self.is_rare = is_rare
        self.is_secret = is_secret
        self.known_as = known_as

    @property
    def flag(self) -> str:
        """The option as it is typed, in its long form."""
        return max(self.opts, key=len)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        shown = self.but(secondary_opts=[]) if self._hides_off else self
        return super(Option, shown).get_help_record(ctx)

    @property
    def may_stand_alone(self) -> bool:
        """Whether its value may be omitted, and is then empty."""
        return isinstance(self.type, CodeFolder | _Wait)

    def accepts(self, word: str) -> bool:
        """Tell whether the word after the option is its value, if that may be omitted."""
        return isinstance(self.type, CodeFolder | _Wait) and self.type.accepts(word)

    @property
    def unset(self) -> Any:
        """The value that it has if nobody sets it, for one that may have rivals."""
        return False if self.is_flag else None

    def but(self, **changes: Any) -> Option:
        """Return the same option with another help text, or another attribute."""
        twin = copy.copy(self)
        for name, value in changes.items():
            setattr(twin, name, value)
        return twin


def _turn_off(flag: str) -> str:
    """Return the form of a switch that turns it off; `--check` is another option, and a script may have --samples."""
    return f"--with-{flag[5:]}" if flag.startswith("--no-") else f"--no-{flag[2:]}"


def option(*names: str, **attributes: Any) -> Callable[[Function], Function]:
    """Declare an option that only one command has."""
    return click.option(*names, cls=Option, **attributes)


class CodeFolder(click.types.StringParamType):
    """The value of --sync: a directory, or nothing, which means the default one; a file may say true."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, bool) or value is None:
            return "" if value else None
        return os.path.expanduser(str(value))  # noqa: PTH111 - no error for an unknown user: there is no such directory

    def accepts(self, word: str) -> bool:
        """Tell whether the word after the option is its value."""
        return Path(word).is_dir()


def settle_words(args: Sequence[str], options: Sequence[click.Option]) -> list[str]:
    """Return the words with a value that may be omitted as part of its option: `--sync lib` becomes `--sync=lib`.

    A word that is no directory is the script, so `--sync train.py` becomes `--sync= train.py`.
    """
    flags = {flag: option for option in options for flag in option.opts}
    settled = list(args)
    index = 0
    while index < len(settled) and settled[index].startswith("-") and settled[index] != "--":
        option = flags.get(settled[index])
        if isinstance(option, Option) and option.may_stand_alone:
            value = settled[index + 1 : index + 2]
            has_value = bool(value) and option.accepts(value[0])
            settled[index : index + 1 + has_value] = [f"{settled[index]}={value[0] if has_value else ''}"]
        elif option is not None and not option.is_flag:
            index += 1
        index += 1
    return settled


class _Duration(click.types.FloatParamType):
    """A time such as `90`, `10m`, `2h` or `2d`, converted to seconds, on the command line or in launcher.toml."""

    name = "time"
    _words = "a time such as 90, 90s, 10m, 2h or 2d"

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = _TIME.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"must be {self._words}, got {value!r}", param, ctx)
        seconds = float(found[1]) * {"d": 86400, "h": 3600, "m": 60}.get(found[2], 1)
        if seconds < self._least_s:
            self.fail(f"must be at least {self._least_s:g}s, got {value!r}", param, ctx)
        return seconds


class _HangTimeout(_Duration):
    """A time, `auto` (None) or `off` (infinite)."""

    _words = "auto, off or a time such as 10m or 2h"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        named = {"auto": None, "off": math.inf}
        return named[value] if value in named else super().convert(value, param, ctx)


class _Wait(_Duration):
    """The value of --queue: a time, or nothing, which means without end; a file may say true."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, bool) or value == "":
            return None if value is False else ""
        return super().convert(value, param, ctx)

    def accepts(self, word: str) -> bool:
        """Tell whether the word after the option is its value."""
        return _TIME.fullmatch(word) is not None


class _Gpus(click.types.IntParamType):
    """A number of GPUs, or `auto` (None)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value)
        if text == "auto":
            return None
        if not text.isascii() or not text.isdigit() or int(text) < 1:
            self.fail(f"must be auto or a number of at least 1, got {text!r}", param, ctx)
        return int(text)


class _File(click.Path):
    """A path that must not be empty: an unset shell variable gives an empty text, which pathlib reads as `.`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("needs a path, got ''", param, ctx)
        return super().convert(value, param, ctx)


class _Size(click.types.FloatParamType):
    """A size such as `500MB` or `2GB`, converted to bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = _SIZE_TEXT.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"must be a size such as 500MB or 2GB, got {value!r}", param, ctx)
        return int(float(found[1]) * 1000 ** ("", "K", "M", "G", "T").index(found[2].upper()))


FILE = _File(path_type=Path)
AGO = _Duration(0)
SIZE = _Size()


def _check_name(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    """Refuse a name that would not stay one word in a line, a table or a path."""
    if name is not None and re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name) is None:
        raise click.BadParameter(f"{shown(name)}: must be 1 to 64 letters, digits, '.', '-' and '_'.", ctx, param)
    return name


HOSTS = (
    Option(
        ["--hosts"], metavar="LIST", help="Hosts in rank order, such as a,b,gpu[1-4] or user@c.",
        heading="Hosts", is_common=True, in_file=True, rivals=["hostfile"], shell_complete=complete_hosts,
        known_as=["host", "H", "w", "nodelist"],
    ),
    Option(
        ["--hostfile"], metavar="FILE", type=FILE, help="Read the hosts from FILE, one per line.",
        heading="Hosts", is_common=True, in_file=True, place=Place.HERE, known_as=["machinefile"],
    ),
    Option(
        ["--include"], metavar="LIST", help="Use only these hosts or GPUs: gpu[1-4] or a:0,1@b.",
        heading="Hosts", in_file=True, rivals=["exclude"], shell_complete=complete_hosts,
    ),
    Option(
        ["--exclude"], metavar="LIST", help="Exclude these hosts or GPUs: gpu3 or a:0,1@b.",
        heading="Hosts", is_common=True, in_file=True, shell_complete=complete_hosts,
    ),
    Option(
        ["--num-nodes"], metavar="N", type=click.IntRange(min=1), help="Use only the first N hosts.  [default: all]",
        heading="Hosts", in_file=True, known_as=["nnodes", "num-machines", "nodes", "N"],
    ),
)  # fmt: skip
SSH_CONFIG = Option(
    ["--ssh-config"], metavar="FILE", type=FILE, help="SSH client configuration.  [default: ~/.ssh/config]",
    heading="Hosts", in_file=True, place=Place.HERE,
    is_rare=True,
)  # fmt: skip
# What has no effect on a transport without SSH.
SSH = (
    SSH_CONFIG,
    Option(
        ["--ask-password"], is_flag=True, help="Ask once for the password of hosts without a key.",
        heading="Hosts", in_file=True, is_rare=True,
    ),
)  # fmt: skip
REACH = (
    Option(
        ["--transport"], metavar="NAME", type=click.Choice(list(TRANSPORTS)),
        help="Reach the hosts with fabric, ssh, pdsh or srun.  [default: fabric; in a Slurm job, srun]",
        heading="Hosts", in_file=True, is_rare=True, known_as=["launcher", "R"],
    ),
    *SSH,
    Option(
        ["--connect-timeout"], metavar="T", type=_Duration(0.1), default=_WAIT.connect_timeout_s,
        help="Maximum time to reach a host; if given, wait for its boot too."
        f"  [default: {_WAIT.connect_timeout_s:g}s]",
        heading="Hosts", in_file=True, is_rare=True,
    ),
)  # fmt: skip
LINKS = (
    Option(
        ["--sync-limit"], metavar="SIZE", type=_Size(), default="100MB",
        help="Maximum size of the code, such as 500MB.  [default: 100MB]",
        heading="Code", in_file=True, needs="sync", is_rare=True,
    ),
    Option(
        ["--link"], metavar="NAME=PATH", multiple=True, help="Link NAME in the code to a directory of the hosts.",
        heading="Code", in_file=True, needs="sync",
    ),
)  # fmt: skip
SYNC = (
    Option(
        ["--sync"], metavar="[DIR]", type=CodeFolder(),
        help="Send the code in DIR and run it there.  [default DIR: the repository]",
        heading="Code", is_common=True, is_rare=True,
        in_file=True, place=Place.HERE,
    ),
    Option(
        ["--no-sync"], is_flag=True, help="Run the code on the hosts, even if launcher.toml has sync.",
        heading="Code", rivals=["sync"], is_rare=True,
    ),
    *LINKS,
)  # fmt: skip
CPU = Option(
    ["--cpu"], is_flag=True, help="Train on CPUs with gloo; set --nproc as well.",
    heading="Processes", is_common=True, in_file=True,
)  # fmt: skip
WORKDIR = Option(
    ["--workdir"], metavar="DIR", help="Directory on the hosts, relative to this one.  [default: .]",
    heading="Processes", is_common=True, in_file=True,
    place=Place.HERE, known_as=["chdir", "cwd", "wdir", "wd"],
)  # fmt: skip
PYTHON = Option(
    ["--python"], metavar="PATH", help="Python on the hosts.  [default: the first with torch]",
    heading="Environment", in_file=True, place=Place.SEARCHED, rivals=["venv", "conda"],
)  # fmt: skip
HELPER_PYTHON = PYTHON.but(help="Python 3.8 or newer for launch's helper.  [default: python3]")
# The environment that a node enters before it looks for a Python.
ACTIVATION = (
    Option(
        ["--venv"], metavar="DIR", shell_complete=complete_files, help="Use this virtual environment on the hosts.",
        heading="Environment", is_common=True, in_file=True, place=Place.HOSTS, rivals=["conda"], is_rare=True,
    ),
    Option(
        ["--conda"], metavar="ENV", help="Use this conda environment, by name or path.",
        heading="Environment", is_common=True, in_file=True, place=Place.SEARCHED, is_rare=True,
    ),
    Option(
        ["--setup"], metavar="CMD", help="Run CMD in bash on each host and use its environment.",
        heading="Environment", is_common=True, in_file=True,
    ),
)  # fmt: skip
ENV = Option(
    ["--env"], metavar="K[=V]", multiple=True, help="Set a variable for the ranks; without =V, forward yours.",
    heading="Environment", is_common=True,
    in_file=True, known_as=["x", "export"],
)  # fmt: skip
MASTER_ADDR = Option(
    ["--master-addr"], metavar="ADDR", help="Address of node 0.  [default: addr=, or the SSH address]",
    heading="Network", in_file=True, known_as=["main-process-ip"],
)  # fmt: skip
# How long both sides wait; --connect-timeout is with the options that reach the hosts.
LIFE = (
    Option(
        ["--silence"], metavar="T", type=_Duration(0.5), default=_WAIT.silence_s,
        help=f"Maximum time without a heartbeat.  [default: {_WAIT.silence_s:g}s]",
        heading="Network", in_file=True, is_rare=True,
    ),
    Option(
        ["--stop-timeout"], metavar="T", type=_Duration(0), default=_WAIT.stop_timeout_s,
        help=f"Time between SIGTERM and SIGKILL.  [default: {_WAIT.stop_timeout_s:g}s]",
        heading="Stopping and restarts", in_file=True, is_rare=True, known_as=["shutdown-timeout"],
    ),
)  # fmt: skip
JOB = (
    Option(
        ["--gpus"], metavar="N|auto", type=_Gpus(), default="auto", show_default=True,
        help="GPUs per host, one process each.",
        heading="Processes", is_common=True, in_file=True, rivals=["nproc", "cpu"],
        known_as=["nproc-per-node", "num-gpus", "gpus-per-node", "ntasks-per-node", "gres"],
    ),
    Option(
        ["--nproc"], metavar="N", type=click.IntRange(min=1), help="Processes per host.  [default: one per GPU]",
        heading="Processes", is_common=True, in_file=True, is_rare=True,
    ),
    CPU,
    Option(
        ["-m", "--module", "is_module"], is_flag=True, help="Run SCRIPT as a module, as python -m does.",
        heading="Processes", is_common=True,
    ),
    Option(
        ["--no-python"], is_flag=True, help="Run SCRIPT as a command; the hosts need no torch.",
        heading="Processes", is_rare=True,
    ),
    Option(
        ["--start"], type=click.Choice(get_args(Start)), metavar="MODE", default="torchrun",
        help="torchrun; warm: one Python imports torch, then forks the ranks; plain: no torchrun, for torch before 2.0."
        "  [default: torchrun]",
        heading="Processes", in_file=True,
    ),
    Option(
        ["--no-numa"], is_flag=True, help="Let ranks use all CPUs, not only those near their GPUs.",
        heading="Processes", in_file=True, is_rare=True,
    ),
    WORKDIR,
    PYTHON,
    *ACTIVATION,
    ENV,
    Option(
        ["--env-file"], metavar="FILE", multiple=True, type=FILE,
        help="Set the variables of a dotenv file for the ranks.",
        heading="Environment", in_file=True, place=Place.HERE, is_rare=True,
    ),
    Option(
        ["--master-port"], metavar="PORT", type=click.IntRange(1, 65535),
        help="Port of node 0.  [default: a free port]",
        heading="Network", in_file=True, known_as=["main-process-port"],
    ),
    Option(
        ["--rdzv-timeout"], metavar="T", type=_Duration(1), default=120,
        help="Maximum time for all hosts to join.  [default: 120s]",
        heading="Network", in_file=True, is_rare=True,
    ),
    *LIFE,
)  # fmt: skip
HANGS = (
    Option(
        ["--hang-timeout"], metavar="T|auto|off", type=_HangTimeout(0.1), default="auto", show_default=True,
        help="Treat a run in which no rank prints for T as hung.",
        heading="Stopping and restarts", in_file=True, is_rare=True,
    ),
    Option(
        ["--on-hang"], type=click.Choice([each.value for each in OnHang]),
        help="After the stacks, continue (tell), stop (end) or restart.  [default: tell for auto, else restart]",
        heading="Stopping and restarts", in_file=True, is_rare=True,
    ),
    Option(
        ["--stacks/--no-stacks"], default=True, show_default=True,
        help="Let Ctrl-\\ use faulthandler where py-spy is missing or not permitted.",
        heading="Stopping and restarts", in_file=True, is_rare=True,
    ),
)  # fmt: skip
RESTARTS = (
    Option(
        ["--restarts"], metavar="N", type=click.IntRange(min=0), default=0, show_default=True,
        help="Restart a failed run, up to N times without progress.",
        heading="Stopping and restarts", is_common=True, in_file=True, is_rare=True, known_as=["max-restarts"],
    ),
    Option(
        ["--progress-dir"], metavar="DIR",
        help="Count new files in DIR, where the script saves, as progress.  [default: 10 min of output]",
        heading="Stopping and restarts", is_common=True, needs="restarts", is_rare=True,
        in_file=True,
    ),
)  # fmt: skip
SPARES = (
    Option(
        ["--spares"], metavar="K", type=click.IntRange(min=0),
        help="Keep the last K hosts to replace failed ones.  [default: hosts marked spare]",
        heading="Stopping and restarts", is_common=True, in_file=True, needs="restarts", is_rare=True,
    ),
    Option(
        ["--min-nodes"], metavar="M", type=click.IntRange(min=1),
        help="If no spare is left, continue on M hosts or more.  [default: all]",
        heading="Stopping and restarts", in_file=True, needs="restarts", is_rare=True,
    ),
)  # fmt: skip
DRY_RUN = Option(
    ["--dry-run"], is_flag=True, help="Print the command and start nothing.",
    heading="Checks", is_common=True, is_action=True,
)  # fmt: skip
CHECK = Option(
    ["--check"], is_flag=True, help="With --dry-run, ask the hosts and print exact commands.",
    heading="Checks", is_action=True,
)  # fmt: skip
NO_CHECK = Option(
    ["--no-check"], is_flag=True, help="Skip every check that the run doesn't need.",
    heading="Checks", in_file=True, is_rare=True,
)  # fmt: skip
STEP_TIMEOUT = Option(
    ["--timeout"], metavar="T", type=_Duration(1),
    help="Maximum time for a step; joining gets more.  [default: 20s]", heading="Test", is_rare=True,
)  # fmt: skip
LOAD = Option(["--gpus-under-load"], metavar="T", type=_Duration(0), heading="Checks", is_rare=True)
CLAIMS = (
    Option(
        ["--until"], metavar="TIME", help="Stop the run at TIME: 18:00, or '2026-11-27 18:00'.",
        heading="Stopping and restarts", in_file=True, rivals=["for"], is_rare=True,
    ),
    Option(
        ["--for"], metavar="T", type=_Duration(1), help="Stop the run once its ranks have run for T, such as 6h.",
        heading="Stopping and restarts", in_file=True, rivals=["until"], is_rare=True,
    ),
    Option(
        ["--queue"], metavar="[T]", type=_Wait(1), help="Wait, T at most, for GPUs that others have claimed.",
        heading="Checks", is_common=True, in_file=True, is_rare=True,
    ),
    Option(["--no-queue"], is_flag=True, hidden=True, heading="Checks", rivals=["queue"], is_rare=True),
    Option(
        ["--share"], is_flag=True, help="Start even on GPUs that other runs have claimed.",
        heading="Checks", is_rare=True,
    ),
    Option(
        ["--claim-cpus"], is_flag=True, help="Claim all CPUs and GPUs, even for a run on CPUs.",
        heading="Checks", in_file=True, is_rare=True,
    ),
)  # fmt: skip
AS_JSON = Option(
    ["--json", "as_json"], is_flag=True, help="Print one JSON object per line to stdout.", heading="Output",
)  # fmt: skip
VERBOSE = Option(
    ["-v", "--verbose"], is_flag=True, help="Show each host's command, and where values come from.", heading="Output",
)  # fmt: skip
OUTPUT = (
    Option(
        ["-q", "--quiet"], is_flag=True, help="Hide the ranks' output; it is still in the logs.",
        heading="Output", in_file=True,
    ),
    Option(
        ["--ranks"], metavar="LIST", help="Show only these ranks' output, such as 0,8.  [default: all]",
        heading="Output", is_common=True, in_file=True,
    ),
    AS_JSON,
    Option(
        ["--log-dir"], metavar="DIR", type=FILE, default=Path("logs"), show_default=True,
        help="Directory for the logs.",
        heading="Output", in_file=True, place=Place.HERE,
    ),
    Option(
        ["--name"], metavar="NAME", callback=_check_name, help="Name of the run, shown in messages and run.json.",
        heading="Output", is_common=True,
    ),
    Option(
        ["--no-samples"], is_flag=True, help="Don't watch the GPUs for one that stands out.",
        heading="Output", in_file=True, is_rare=True,
    ),
    VERBOSE,
)  # fmt: skip
DETACH = Option(
    ["--detach"], is_flag=True, help="Let the run continue without this terminal, once all its ranks run.",
    heading="Background", is_common=True, is_rare=True,
    in_file=True,
)  # fmt: skip
CONTROLLER = Option(
    ["--controller"], metavar="HOST|here", shell_complete=complete_hosts,
    help="With --detach, the controller host (here: this machine).  [default: the last spare, or node 0]",
    heading="Background", in_file=True, needs="detach", is_rare=True,
)  # fmt: skip
SURVIVE_REBOOTS = Option(
    ["--survive-reboots"], is_flag=True,
    help="With --detach and --restarts, let each host rejoin the run by itself after a reboot.",
    heading="Background", in_file=True, needs="detach",
    is_rare=True,
)  # fmt: skip
NOTIFY = Option(
    ["--notify"], metavar="CMD", help="Run CMD in a shell when the run ends, restarts or waits long.",
    heading="Background", in_file=True, is_secret=True, is_rare=True,
)  # fmt: skip
FETCH = Option(
    ["--fetch"], metavar="PATH", multiple=True,
    help="After the run, copy PATH (outputs/) from node 0 to logs/RUN-fetched.",
    heading="Output", in_file=True,
)  # fmt: skip
BATCH = (
    Option(
        ["--nodes"], metavar="N", type=int, default=1, show_default=True, help="Number of nodes.",
        heading="Slurm", is_common=True, in_file=True,
    ),
    Option(
        ["--time"], metavar="TIME", help="Time limit: minutes, H:M:S or D-H.  [default: Slurm's]",
        heading="Slurm", is_common=True, in_file=True,
    ),
    Option(
        ["--partition"], metavar="NAME", help="Partition to run in.  [default: Slurm's]",
        heading="Slurm", is_common=True, in_file=True,
    ),
    Option(
        ["--mem"], metavar="SIZE", help="Memory per node: 64G; 0 is all.  [default: Slurm's]",
        heading="Slurm", is_common=True, in_file=True,
    ),
    Option(
        ["--cpus-per-task"], metavar="N", type=int, help="CPUs per node, shared by its ranks.  [default: Slurm's]",
        heading="Slurm", is_common=True, in_file=True,
    ),
    Option(
        ["--account"], metavar="NAME", help="Account to charge.  [default: Slurm's]",
        heading="Slurm", is_common=True, in_file=True,
    ),
    Option(
        ["--qos"], metavar="NAME", help="Quality of service.  [default: Slurm's]", heading="Slurm", in_file=True,
    ),
    Option(
        ["--constraint"], metavar="LIST", help="Features that the nodes must have.",
        heading="Slurm", is_common=True, in_file=True,
    ),
    Option(["--job-name"], metavar="NAME", help="Name of the job.  [default: the script's name]", heading="Slurm"),
    Option(
        ["--directive"], metavar="OPTION", multiple=True, help="Add an #SBATCH line, as in --directive=--exclusive.",
        heading="Slurm", is_common=True,
    ),
    Option(
        ["--requeue"], is_flag=True, help="Requeue the job at its time limit or if a node fails.",
        heading="Slurm", is_common=True, in_file=True,
    ),
    Option(
        ["--output"], metavar="FILE", type=FILE, help="Write the script to FILE.  [default: stdout]",
        heading="Slurm", is_common=True,
    ),
    Option(
        ["--submit"], is_flag=True, help="Submit the script and print how to watch the job.",
        heading="Slurm", is_common=True,
    ),
)  # fmt: skip
WORDS = click.Argument(
    ["words"], metavar="[SCRIPT [ARGS]...]", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_files
)
# In launcher.toml, the words of a command that has none.
SCRIPT = Option(["--script"], in_file=True)

OPTIONS = {
    option.name: option
    for option in (
        SCRIPT, *HOSTS, *REACH, *SYNC, MASTER_ADDR, *JOB, *HANGS, *RESTARTS, *SPARES, DRY_RUN, CHECK, NO_CHECK,
        *CLAIMS, *OUTPUT, DETACH, CONTROLLER, SURVIVE_REBOOTS, NOTIFY, FETCH, *BATCH,
    )
}  # fmt: skip
NAME_HOSTS = ("hosts", "hostfile")
KEYS = {name: option for name, option in OPTIONS.items() if option.in_file}  # of launcher.toml


def name_all(options: Sequence[Option]) -> list[str]:
    """Return the names of the options, as click and launcher.toml know them."""
    return [option.name for option in options]


def reword(options: Sequence[Option], **texts: str) -> tuple[Option, ...]:
    """Return the options, those that are named with another help text, for a command in which they mean less."""
    return tuple(option.but(help=texts[option.name]) if option.name in texts else option for option in options)


# Of a command that starts ranks on this machine only.
JOB_HERE = reword(
    JOB,
    gpus="GPUs of this machine, one process each.",
    nproc="Processes on this machine.  [default: one per GPU]",
    no_python="Run SCRIPT as a command, which needs no torch.",
    workdir="Directory to run in.  [default: .]",
    python="Python to run.  [default: the first with torch]",
    venv="Use this virtual environment.",
    setup="Run CMD in bash first and use its environment.",
    master_port="Port at which the ranks meet.  [default: a free port]",
    rdzv_timeout="Maximum time for all ranks to join.  [default: 120s]",
)
OUTPUT_HERE = reword(OUTPUT, verbose="Show the command, and where values come from.")
