"""The request: every option that several commands or launcher.toml know, with all that is to be known of it.

A new option is a field of Request here, and its effect; help, launcher.toml, `-v`, errors and the types for Python
follow from the field, and docs/options_table.py writes it into the documentation.
"""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args

import click

from launcher.cli.options.completion import complete_files, complete_hosts, complete_runs
from launcher.errors import UsageError
from launcher.hosts.entering import parse_entering
from launcher.hosts.host import MAX_SLOTS
from launcher.hosts.ranges import MAX_HOSTS, NUMBER, shown
from launcher.job.job import OnHang, Start, Timeouts
from launcher.transports.base import TransportSettings
from launcher.transports.registry import TRANSPORTS

# The headings of --help, in their order; an option without one is a general one.
HEADINGS = (
    "Hosts", "Code", "Processes", "Environment", "Network", "Stopping and restarts", "Background", "Checks", "Test",
    "Output", "General",
)  # fmt: skip
HERE = "here"  # of --controller: this machine
# What a typo may cost. A larger number would be memory, or a time that some clock can't count.
MOST_RESTARTS = 1_000_000
MOST_MIB = 1 << 20
MOST_DAYS = 365
_WAIT = Timeouts()
# What click adds to the help of a number.
_RANGE = re.compile(r"  \[(?:\d+<=)?x[<>]=\d+\]|; (?:\d+<=)?x[<>]=\d+(?=\])|(?<=\[)(?:\d+<=)?x[<>]=\d+; ")
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
    in_file: whether it is a key of launcher.toml.
    rivals: options that it contradicts. The command line wins over launcher.toml, even if the two are different ones.
    needs: the option without which it has no effect.
    is_action: it changes what is done, not how; after the script it is refused.
    is_secret: its value is shown nowhere.
    A switch that launcher.toml may set has a second form, which turns it off: `--no-detach`. Help doesn't show it.
    known_as: its names in torchrun, DeepSpeed, mpirun, pdsh and similar programs.
    """

    name: str

    def __init__(
        self, names: Sequence[str], *, heading: str = "General",
        in_file: bool = False, place: Place | None = None,
        rivals: Sequence[str] = (), needs: str = "", is_action: bool = False, is_secret: bool = False,
        known_as: Sequence[str] = (), **attributes: Any,
    ) -> None:  # fmt: skip
        has_off = in_file and attributes.get("is_flag", False)
        super().__init__([*names[:-1], f"{names[-1]}/{_turn_off(names[-1])}"] if has_off else names, **attributes)
        self._hides_off = has_off
        self.heading = heading
        self.in_file = in_file
        self.place = place
        self.rivals = rivals
        self.needs = needs
        self.is_action = is_action
        self.is_secret = is_secret
        self.known_as = known_as

    @property
    def flag(self) -> str:
        """The option as it is typed, in its long form."""
        return max(self.opts, key=len)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return its names and its help, without the range of a number: the error for a wrong one names that."""
        shown = self.but(secondary_opts=[]) if self._hides_off else self
        record = super(Option, shown).get_help_record(ctx)
        return (record[0], _RANGE.sub("", record[1])) if record is not None else None

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

    def __init__(self, least_s: float, most_days: int = MOST_DAYS) -> None:
        self._least_s = least_s
        self._most_days = most_days

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = _TIME.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"must be {self._words}, got {value!r}", param, ctx)
        seconds = float(found[1]) * {"d": 86400, "h": 3600, "m": 60}.get(found[2], 1)
        if seconds < self._least_s:
            self.fail(f"must be at least {self._least_s:g}s, got {value!r}", param, ctx)
        if seconds > self._most_days * 86400:
            self.fail(f"must be at most {self._most_days}d, got {value!r}", param, ctx)
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
        if not NUMBER.fullmatch(text) or not 1 <= int(text) <= MAX_SLOTS:
            self.fail(f"must be auto or a number from 1 to {MAX_SLOTS}, got {text!r}", param, ctx)
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


class _Entering(click.types.StringParamType):
    """The value of --enter; "" enters nothing, whatever a file says."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return parse_entering(value) if value else ""
        except UsageError as error:
            raise UsageError(f"--enter: {error.message}", error.fix) from None


FILE = _File(path_type=Path)
_ENTERING = _Entering()
AGO = _Duration(0)
SIZE = _Size()
PROCESSES = click.IntRange(1, MAX_SLOTS)  # on each host
HOSTS_OF_RUN = click.IntRange(1, MAX_HOSTS)


def _check_name(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    """Refuse a name that would not stay one word in a line, a table or a path."""
    if name is not None and re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name) is None:
        raise click.BadParameter(f"{shown(name)}: must be 1 to 64 letters, digits, '.', '-' and '_'.", ctx, param)
    if name is not None and (name.startswith("-") or name == "latest"):  # an option, or the newest run
        raise click.BadParameter(f"{shown(name)}: means something else where a run is named.", ctx, param)
    return name


def _option(*names: str, in_file: bool = True, **attributes: Any) -> Any:
    """Declare a field, and the option whose value it has; it has the same default."""
    option, default = Option(names, in_file=in_file, **attributes), attributes.get("default")
    if default is None:
        default = () if option.multiple else False if option.is_flag else None
    return field(
        default=option.type.convert(default, None, None) if isinstance(default, str) else default,
        metadata={"option": option},
    )


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The values of a command's options, made once per command: everything below it gets that, never click's mapping.

    Each field is the option of its name, which may lack the unit; `silence_s` is --silence.

    An option that the command doesn't have has its default. What a typed option of the command line contradicts in
    launcher.toml isn't in it.
    """

    words: tuple[str, ...] = ()  # the script and its arguments

    # Which hosts, as typed; `host_choice.read_hosts` turns them into hosts, those of the Slurm job if none are named.
    hosts: str | None = _option(
        "--hosts", metavar="LIST", help="Hosts in rank order, such as a,b,gpu[1-4] or user@c.", heading="Hosts",
        rivals=["hostfile"], shell_complete=complete_hosts, known_as=["host", "H", "w", "nodelist"],
    )
    hostfile: Path | None = _option(
        "--hostfile", metavar="FILE", type=FILE, help="Read the hosts from FILE, one per line.", heading="Hosts",
        place=Place.HERE, known_as=["machinefile"],
    )
    include: str | None = _option(
        "--include", metavar="LIST", help="Use only these hosts or GPUs: gpu[1-4] or a:0,1@b.", heading="Hosts",
        rivals=["exclude"], shell_complete=complete_hosts,
    )
    exclude: str | None = _option(
        "--exclude", metavar="LIST", help="Exclude these hosts or GPUs: gpu3 or a:0,1@b.", heading="Hosts",
        shell_complete=complete_hosts,
    )
    num_nodes: int | None = _option(
        "--num-nodes", metavar="N", type=HOSTS_OF_RUN, help="Use only the first N hosts.  [default: all]",
        heading="Hosts", known_as=["nnodes", "num-machines", "nodes", "N"],
    )

    transport: str | None = _option(
        "--transport", metavar="NAME", type=click.Choice(list(TRANSPORTS)),
        help="Reach the hosts with fabric, ssh, pdsh or srun.  [default: fabric; in a Slurm job, srun]",
        heading="Hosts", known_as=["launcher", "R"],
    )
    ssh_config: Path | None = _option(
        "--ssh-config", metavar="FILE", type=FILE, help="SSH client configuration.  [default: ~/.ssh/config]",
        heading="Hosts", place=Place.HERE,
    )
    enter: str | None = _option(
        "--enter", metavar="CMD", type=_ENTERING,
        help="Run everything on each host inside CMD, such as 'docker exec -i train'.", heading="Hosts",
    )
    ask_password: bool = _option(
        "--ask-password", is_flag=True, help="Ask once for the password of hosts without a key.", heading="Hosts",
    )
    connect_timeout_s: float = _option(
        "--connect-timeout", metavar="T", type=_Duration(0.1), default=_WAIT.connect_timeout_s,
        help="Maximum time to reach a host; if given, wait for its boot too."
        f"  [default: {_WAIT.connect_timeout_s:g}s]",
        heading="Hosts",
    )
    silence_s: float = _option(
        "--silence", metavar="T", type=_Duration(0.5, most_days=1), default=_WAIT.silence_s,
        help=f"Maximum time without a heartbeat.  [default: {_WAIT.silence_s:g}s]", heading="Network",
    )
    stop_timeout_s: float = _option(
        "--stop-timeout", metavar="T", type=_Duration(0), default=_WAIT.stop_timeout_s,
        help=f"Time between SIGTERM and SIGKILL.  [default: {_WAIT.stop_timeout_s:g}s]",
        heading="Stopping and restarts", known_as=["shutdown-timeout"],
    )

    sync: str | None = _option(  # the directory; "": the repository or directory that we are in; None: it isn't sent
        "--sync", metavar="[DIR]", type=CodeFolder(),
        help="Send the code in DIR and run it there.  [default DIR: the repository]", heading="Code", place=Place.HERE,
    )
    no_sync: bool = _option(  # instead, if a file says so
        "--no-sync", is_flag=True, help="Run the code on the hosts, even if launcher.toml has sync.", heading="Code",
        rivals=["sync"], in_file=False,
    )
    sync_limit: int = _option(  # bytes
        "--sync-limit", metavar="SIZE", type=_Size(), default="100MB",
        help="Maximum size of the code, such as 500MB.  [default: 100MB]", heading="Code", needs="sync",
    )
    link: tuple[str, ...] = _option(  # each NAME=PATH
        "--link", metavar="NAME=PATH", multiple=True, help="Link NAME in the code to a directory of the hosts.",
        heading="Code", needs="sync",
    )

    # `job_request.read_job` makes a Job of these.
    gpus: int | None = _option(  # None: auto
        "--gpus", metavar="N|auto", type=_Gpus(), default="auto", show_default=True,
        help="GPUs per host, one process each.", heading="Processes", rivals=["nproc", "cpu"],
        known_as=["nproc-per-node", "num-gpus", "gpus-per-node", "ntasks-per-node", "gres"],
    )
    nproc: int | None = _option(
        "--nproc", metavar="N", type=PROCESSES, help="Processes per host.  [default: one per GPU]", heading="Processes",
    )
    cpu: bool = _option(
        "--cpu", is_flag=True, help="Train on CPUs with gloo; set --nproc as well.", heading="Processes",
    )
    is_module: bool = _option(
        "-m", "--module", "is_module", is_flag=True, help="Run SCRIPT as a module, as python -m does.",
        heading="Processes", in_file=False,
    )
    no_python: bool = _option(
        "--no-python", is_flag=True, help="Run SCRIPT as a command, which needs no torch.", heading="Processes",
        in_file=False,
    )
    start: Start = _option(
        "--start", type=click.Choice(get_args(Start)), metavar="MODE", default="torchrun",
        help="torchrun; warm: one Python imports torch, then forks the ranks; plain: no torchrun, for torch before 2.0."
        "  [default: torchrun]",
        heading="Processes",
    )
    no_numa: bool = _option(
        "--no-numa", is_flag=True, help="Let ranks use all CPUs, not only those near their GPUs.", heading="Processes",
    )
    workdir: str | None = _option(
        "--workdir", metavar="DIR", help="Directory to run in, relative to this one.  [default: .]",
        heading="Processes", place=Place.HERE, known_as=["chdir", "cwd", "wdir", "wd"],
    )
    # One Python at most, after the lines of --setup; `job_request.read_activation` refuses several.
    python: str | None = _option(
        "--python", metavar="PATH", help="Python of the ranks.  [default: the first with torch]", heading="Environment",
        place=Place.SEARCHED, rivals=["venv", "conda"],
    )
    venv: str | None = _option(
        "--venv", metavar="DIR", shell_complete=complete_files, help="Use this virtual environment.",
        heading="Environment", place=Place.HOSTS, rivals=["conda"],
    )
    conda: str | None = _option(
        "--conda", metavar="ENV", help="Use this conda environment, by name or path.", heading="Environment",
        place=Place.SEARCHED,
    )
    setup: str | None = _option(
        "--setup", metavar="CMD", help="Run CMD in bash on each host and use its environment.", heading="Environment",
    )
    env: tuple[str, ...] = _option(  # each K=V, or K for the value on the launch host
        "--env", metavar="K[=V]", multiple=True, help="Set a variable for the ranks; without =V, forward yours.",
        heading="Environment", known_as=["x", "export"],
    )
    env_file: tuple[Path, ...] = _option(
        "--env-file", metavar="FILE", multiple=True, type=FILE,
        help="Set the variables of a dotenv file for the ranks.", heading="Environment", place=Place.HERE,
    )
    master_addr: str | None = _option(
        "--master-addr", metavar="ADDR", help="Address of node 0.  [default: addr=, or the SSH address]",
        heading="Network", known_as=["main-process-ip"],
    )
    master_port: int | None = _option(
        "--master-port", metavar="PORT", type=click.IntRange(1, 65535), help="Port of node 0.  [default: a free port]",
        heading="Network", known_as=["main-process-port"],
    )
    rdzv_timeout_s: float = _option(
        "--rdzv-timeout", metavar="T", type=_Duration(1), default=120,
        help="Maximum time for all ranks to join.  [default: 120s]", heading="Network",
    )
    hang_timeout_s: float | None = _option(  # None: auto
        "--hang-timeout", metavar="T|auto|off", type=_HangTimeout(0.1), default="auto", show_default=True,
        help="Treat a run in which no rank prints for T as hung.", heading="Stopping and restarts",
    )
    on_hang: str | None = _option(
        "--on-hang", type=click.Choice([each.value for each in OnHang]),
        help="After the stacks, continue (tell), stop (end) or restart.  [default: tell for auto, else restart]",
        heading="Stopping and restarts",
    )
    stacks: bool = _option(
        "--stacks/--no-stacks", default=True, show_default=True,
        help="Let ranks write their stacks: at Ctrl-\\, and in a hang.", heading="Stopping and restarts",
    )

    restarts: int = _option(
        "--restarts", metavar="N", type=click.IntRange(0, MOST_RESTARTS), default=0, show_default=True,
        help="Restart a failed run, up to N times without progress.", heading="Stopping and restarts",
        known_as=["max-restarts"],
    )
    progress_dir: str | None = _option(
        "--progress-dir", metavar="DIR",
        help="Count new files in DIR, where the script saves, as progress.  [default: 10 min of output]",
        heading="Stopping and restarts", needs="restarts",
    )
    spares: int | None = _option(  # the last hosts; None: those that the hostfile marks
        "--spares", metavar="K", type=click.IntRange(0, MAX_HOSTS),
        help="Keep the last K hosts to replace failed ones.  [default: hosts marked spare, if any]",
        heading="Stopping and restarts", needs="restarts",
    )
    min_nodes: int | None = _option(
        "--min-nodes", metavar="M", type=HOSTS_OF_RUN,
        help="If no spare is left, continue on M hosts or more.  [default: all]", heading="Stopping and restarts",
        needs="restarts",
    )

    share: bool = _option(
        "--share", is_flag=True, help="Start even on GPUs that other runs have claimed.", heading="Checks",
        in_file=False,
    )
    queue: float | Literal[""] | None = _option(  # for how long at most; "": without end; None: not at all
        "--queue", metavar="[T]", type=_Wait(1), help="Wait, T at most, for GPUs that others have claimed.",
        heading="Checks",
    )
    no_queue: bool = _option(  # instead, if a file says so
        "--no-queue", is_flag=True, hidden=True, heading="Checks", rivals=["queue"], in_file=False,
    )
    until: str | None = _option(  # as typed: a local time
        "--until", metavar="TIME", help="Stop the run at TIME: 18:00, or '2026-11-27 18:00'.",
        heading="Stopping and restarts", rivals=["for"],
    )
    for_s: float | None = _option(
        "--for", metavar="T", type=_Duration(1), help="Stop the run once its ranks have run for T, such as 6h.",
        heading="Stopping and restarts", rivals=["until"],
    )

    dry_run: bool = _option(
        "--dry-run", is_flag=True, help="Print the command and start nothing.", heading="Checks", is_action=True,
        in_file=False,
    )
    check: bool = _option(
        "--check", is_flag=True, help="With --dry-run, ask the hosts and print exact commands.", heading="Checks",
        is_action=True, in_file=False,
    )
    no_check: bool = _option(
        "--no-check", is_flag=True, help="Skip every check that the run doesn't need.", heading="Checks",
    )

    quiet: bool = _option(
        "-q", "--quiet", is_flag=True, help="Hide the ranks' output; it is still in the logs.", heading="Output",
    )
    ranks: str | None = _option(  # whose output is shown, separated by commas; None: all
        "--ranks", metavar="LIST", help="Show only these ranks' output, such as 0,8.  [default: all]", heading="Output",
    )
    as_json: bool = _option(
        "--json", "as_json", is_flag=True, help="Print one JSON object per line to stdout.", heading="Output",
        in_file=False,
    )
    log_dir: Path = _option(
        "--log-dir", metavar="DIR", type=FILE, default=Path("logs"), show_default=True, help="Directory for the logs.",
        heading="Output", place=Place.HERE,
    )
    verbose: bool = _option(
        "-v", "--verbose", is_flag=True, help="Show each host's command.", heading="Output", in_file=False,
    )
    name: str | None = _option(
        "--name", metavar="NAME", callback=_check_name, help="Name of the run, shown in messages and run.json.",
        heading="Output", in_file=False,
    )
    detach: bool = _option(  # leave the terminal once all ranks run
        "--detach", is_flag=True, help="Let the run continue without this terminal, once all its ranks run.",
        heading="Background",
    )
    controller: str | None = _option(  # the host that controls the run; "here": this machine; None: one of its hosts
        "--controller", metavar="HOST|here", shell_complete=complete_hosts,
        help="With --detach, the controller host (here: this machine).  [default: the last spare, or node 0]",
        heading="Background", needs="detach",
    )
    notify: str | None = _option(  # a command for when the run ends or is started again
        "--notify", metavar="CMD", help="Run CMD in a shell when the run ends, restarts or waits long.",
        heading="Background", is_secret=True,
    )

    # What test-distributed tests.
    processes: int = 1  # on each host
    max_size: int | None = None  # MiB
    gpus_under_load_s: float | None = _option(
        "--gpus-under-load", metavar="T", type=_Duration(0), heading="Checks", in_file=False,
    )
    timeout_s: float | None = _option(  # of a step
        "--timeout", metavar="T", type=_Duration(1), help="Maximum time for a step; joining gets more.  [default: 20s]",
        heading="Test", in_file=False,
    )
    # fmt: on

    @property
    def timeouts(self) -> Timeouts:
        """How long to wait for hosts and ranks."""
        return Timeouts(self.connect_timeout_s, self.silence_s, self.stop_timeout_s)

    @property
    def reach(self) -> TransportSettings:
        """How the hosts are reached."""
        return TransportSettings(self.transport, self.ssh_config, self.ask_password, silence_s=self.silence_s)


_DECLARED: dict[str, Option] = {
    each.metadata["option"].name: each.metadata["option"] for each in fields(Request) if each.metadata
}


def _options(names: str) -> tuple[Option, ...]:
    return tuple(_DECLARED[name] for name in names.split())


ENTER, CPU, WORKDIR, PYTHON, ENV = _options("enter cpu workdir python env")
MASTER_ADDR, DRY_RUN, CHECK, NO_CHECK, STEP_TIMEOUT = _options("master_addr dry_run check no_check timeout")
LOAD, AS_JSON, LOG_DIR = _options("gpus_under_load as_json log_dir")
DETACH, CONTROLLER, NOTIFY = _options("detach controller notify")
HELPER_PYTHON = PYTHON.but(help="Python 3.8 or newer for launch's helper.  [default: python3]")
HOSTS = _options("hosts hostfile include exclude num_nodes")
REACH = _options("transport ssh_config enter ask_password connect_timeout")
SYNC = _options("sync no_sync sync_limit link")
# The environment that a node enters before it looks for a Python.
ACTIVATION = _options("venv conda setup")
# How long both sides wait; --connect-timeout is with the options that reach the hosts.
LIFE = _options("silence stop_timeout")
JOB = _options(
    "gpus nproc cpu is_module no_python start no_numa workdir python"
    " venv conda setup env env_file master_port rdzv_timeout silence stop_timeout"
)
HANGS = _options("hang_timeout on_hang stacks")
RESTARTS = _options("restarts progress_dir")
SPARES = _options("spares min_nodes")
CLAIMS = _options("until for queue no_queue share")
OUTPUT = _options("quiet ranks as_json log_dir name verbose")
WORDS = click.Argument(
    ["words"], metavar="[SCRIPT [ARGS]...]", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_files
)
# Of commands about a run: which one, and where it is controlled.
RUN = click.Argument(["run"], metavar="[RUN]", required=False, shell_complete=complete_runs)
RUN_PLACE = (
    Option(
        ["--controller"], metavar="HOST", shell_complete=complete_hosts,
        help="Controller host of the run.  [default: as in launch ps]", heading="Hosts",
    ),
    Option(
        ["--ssh-config"], metavar="FILE", type=FILE, help="With --controller, read FILE instead of ~/.ssh/config.",
        heading="Hosts", needs="controller",
    ),
)  # fmt: skip
# In launcher.toml, the words of a command that has none.
SCRIPT = Option(["--script"], in_file=True)

OPTIONS = {
    option.name: option
    for option in (
        SCRIPT, *HOSTS, *REACH, *SYNC, MASTER_ADDR, *JOB, *HANGS, *RESTARTS, *SPARES, DRY_RUN, CHECK, NO_CHECK,
        *CLAIMS, *OUTPUT, DETACH, CONTROLLER, NOTIFY,
    )
}  # fmt: skip
NAME_HOSTS = ("hosts", "hostfile")
KEYS = {name: option for name, option in OPTIONS.items() if option.in_file}  # of launcher.toml
