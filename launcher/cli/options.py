"""The click declarations of the options that several commands share; `option_groups.py` holds their values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from launcher.cli.code_folder import CodeFolder
from launcher.cli.defaults import use_defaults
from launcher.cli.option_groups import SyncOptions, Timeouts
from launcher.escapes import one_line
from launcher.hosts.ranges import shown
from launcher.job.job import OnHang
from launcher.transports.registry import TRANSPORTS

Function = TypeVar("Function", bound=Callable[..., Any])

_WAIT = Timeouts()
_SIZE_TEXT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([kKMGT]?)B?")
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh]?)")


class _Duration(click.types.FloatParamType):
    """A time such as `90`, `90s`, `10m` or `2h`, converted to seconds, on the command line or in launcher.toml."""

    name = "time"
    _words = "a time such as 90, 90s, 10m or 2h"

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = _TIME.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"must be {self._words}, got {value!r}", param, ctx)
        seconds = float(found[1]) * {"h": 3600, "m": 60}.get(found[2], 1)
        if seconds < self._least_s:
            self.fail(f"must be at least {self._least_s:g}s, got {value!r}", param, ctx)
        return seconds


class _HangTimeout(_Duration):
    """A time, `auto` (None) or `off` (infinite)."""

    _words = "auto, off or a time such as 10m or 2h"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        named = {"auto": None, "off": math.inf}
        return named[value] if value in named else super().convert(value, param, ctx)


class _File(click.Path):
    """A path that must not be empty: an unset shell variable gives an empty text, which pathlib reads as `.`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("needs a path, got ''", param, ctx)
        return super().convert(value, param, ctx)


class _Size(click.types.IntParamType):
    """A size such as `500MB` or `2GB`, converted to bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = _SIZE_TEXT.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"must be a size such as 500MB or 2GB, got {value!r}", param, ctx)
        return int(float(found[1]) * 1000 ** ("", "K", "M", "G", "T").index(found[2].upper()))


FILE = _File(path_type=Path)
AGO = _Duration(0)


def _check_name(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    """Refuse a name that would not stay one word in a line, a table or a path."""
    if name is not None and re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name) is None:
        raise click.BadParameter(f"{shown(name)}: must be 1 to 64 letters, digits, '.', '-' and '_'.", ctx, param)
    return name


def _check_note(ctx: click.Context, param: click.Parameter, note: str | None) -> str | None:
    if note is not None and one_line(note, len(note)) != note:
        raise click.BadParameter(f"{shown(note)}: must be one line of text.", ctx, param)
    return note


_HOSTS = (
    click.option("--hosts", metavar="LIST", help="Hosts in rank order, such as a,b,gpu[1-4] or user@c."),
    click.option("--hostfile", metavar="FILE", type=FILE, help="Read the hosts from FILE, one per line."),
    click.option(
        "--colon", type=click.Choice(["slots", "port"]), help="Read host:8 as slots or SSH port.  [default: error]"
    ),
    click.option("--include", metavar="LIST", help="Use only these hosts or GPUs: gpu[1-4] or a:0,1@b."),
    click.option("--exclude", metavar="LIST", help="Exclude these hosts or GPUs: gpu3 or a:0,1@b."),
    click.option(
        "--num-nodes", metavar="N", type=click.IntRange(min=1), help="Use only the first N hosts.  [default: all]"
    ),
)
_REACH = (
    click.option(
        "--transport", metavar="NAME", type=click.Choice(list(TRANSPORTS)),
        help="Reach the hosts with fabric, ssh, pdsh or srun.  [default: fabric; in a Slurm job, srun]",
    ),
    click.option(
        "--ssh-config", metavar="FILE", type=FILE, help="SSH client configuration.  [default: ~/.ssh/config]"
    ),
    click.option("--accept-new-host-keys", is_flag=True, help="Accept and record the keys of unknown hosts."),
    click.option("--ask-password", is_flag=True, help="Ask once for the password of hosts without a key."),
    click.option(
        "--connect-timeout", metavar="T", type=_Duration(0.1), default=_WAIT.connect_timeout_s,
        help="Maximum time to reach a host; if given, also wait for it to boot."
        f"  [default: {_WAIT.connect_timeout_s:g}s]",
    ),
)  # fmt: skip
_SIZE = (
    click.option(
        "--gpus", metavar="N|auto", default="auto", show_default=True, help="GPUs per host, one process each."
    ),
    click.option(
        "--nproc",
        metavar="N",
        type=click.IntRange(min=1),
        help="Processes per host.  [default: one per GPU]",
    ),
    click.option("--cpu", is_flag=True, help="Train on CPUs with gloo; set --nproc as well."),
)
_PROGRAM = (
    click.option("-m", "--module", "is_module", is_flag=True, help="Run SCRIPT as a module, as python -m does."),
    click.option("--no-python", is_flag=True, help="Run SCRIPT as a command; the hosts need no torch."),
    click.option(
        "--legacy", is_flag=True,
        help="Start the ranks without torchrun, for torch before 2.0.",
    ),
    click.option("--workdir", metavar="DIR", help="Directory on the hosts, relative to this one.  [default: .]"),
    click.option("--python", metavar="PATH", help="Python on the hosts.  [default: the first with torch]"),
    click.option(
        "--env", metavar="K[=V]", multiple=True, help="Set a variable for the ranks; without =V, forward yours."
    ),
    click.option(
        "--env-file", metavar="FILE", multiple=True, type=FILE,
        help="Set the variables of a dotenv file for the ranks.",
    ),
    click.option(
        "--master-port", metavar="PORT", type=click.IntRange(1, 65535),
        help="Port of node 0.  [default: a free port]",
    ),
    click.option(
        "--rdzv-timeout", metavar="T", type=_Duration(1), default=120,
        help="Maximum time for all hosts to join.  [default: 120s]",
    ),
)  # fmt: skip
_ACTIVATION = (
    click.option("--setup", metavar="CMD", help="Run CMD in bash on each host and use its environment."),
    click.option("--venv", metavar="DIR", help="Use this virtual environment on the hosts."),
    click.option("--conda", metavar="ENV", help="Use this conda environment, by name or path."),
)
_CHECKS = (click.option("--no-check", is_flag=True, help="Skip every check that the plan doesn't need."),)
_LIFE = (
    click.option(
        "--silence", metavar="T", type=_Duration(0.5), default=_WAIT.silence_s,
        help=f"Maximum time without a heartbeat.  [default: {_WAIT.silence_s:g}s]",
    ),
    click.option(
        "--stop-timeout", metavar="T", type=_Duration(0), default=_WAIT.stop_timeout_s,
        help=f"Time between SIGTERM and SIGKILL.  [default: {_WAIT.stop_timeout_s:g}s]",
    ),
)  # fmt: skip
_HANGS = (
    click.option(
        "--stacks/--no-stacks", default=True, show_default=True,
        help="Let Ctrl-\\ show Python stacks through faulthandler if py-spy is missing or not permitted.",
    ),
    click.option(
        "--hang-timeout", metavar="T|auto|off", type=_HangTimeout(0.1), default="auto", show_default=True,
        help="Treat a run in which no rank prints for T as hung.",
    ),
    click.option(
        "--on-hang", type=click.Choice([each.value for each in OnHang]),
        help="Show the stacks, and also end or restart the run.  [default: tell for auto, else restart]",
    ),
)  # fmt: skip
_RESTARTS = (
    click.option(
        "--restarts", metavar="N", type=click.IntRange(min=0), default=0, show_default=True,
        help="Start a failed run again, up to N times without progress.",
    ),
    click.option(
        "--progress-dir", metavar="DIR",
        help="Count new files in DIR as progress, where the script saves.  [default: 10 min of output]",
    ),
)  # fmt: skip
_SPARES = (
    click.option(
        "--spares", metavar="K", type=click.IntRange(min=0),
        help="Keep the last K hosts for those that fail.  [default: hosts marked spare]",
    ),
    click.option(
        "--min-nodes", metavar="M", type=click.IntRange(min=1),
        help="Without a spare, continue on M hosts or more.  [default: all]",
    ),
)  # fmt: skip
_LINKS = (
    click.option(
        "--sync-limit", metavar="SIZE", type=_Size(), default=SyncOptions().sync_limit,
        help="Send up to SIZE, such as 500MB.  [default: 100MB]",
    ),
    click.option("--sync-secrets", is_flag=True, help="Send also .env and private keys that git doesn't track."),
    click.option(
        "--link", metavar="NAME=PATH", multiple=True, help="Link NAME in the code to a directory of the hosts."
    ),
)  # fmt: skip
_SYNC = (
    click.option(
        "--sync", metavar="[DIR]", type=CodeFolder(),
        help="Send the code in DIR and run it there.  [default DIR: the repository]",
    ),
    click.option("--no-sync", is_flag=True, help="Run what is on the hosts, whatever launcher.toml says."),
    *_LINKS,
)  # fmt: skip
_DETACHMENT = (
    click.option("--detach", is_flag=True, help="Let the run continue without this terminal, once all its ranks run."),
    click.option("--notify", metavar="CMD", help="Run CMD in a shell when the run ends or is started again."),
)
_OUTPUT = (
    click.option("-q", "--quiet", is_flag=True, help="Hide the ranks' output; it is still in the logs."),
    click.option("--ranks", metavar="LIST", help="Show only these ranks' output, such as 0,8.  [default: all]"),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line to stdout."),
    click.option(
        "--log-dir", metavar="DIR", type=FILE, default=Path("logs"), show_default=True,
        help="Directory for the logs.",
    ),
    click.option(
        "--name", metavar="NAME", callback=_check_name, help="Name of the run, shown in messages and run.json."
    ),
    click.option("--note", metavar="TEXT", callback=_check_note, help="Write a one-line note to run.json."),
    click.option("-v", "--verbose", is_flag=True, help="Show each host's command, and where values come from."),
)  # fmt: skip


def _group(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


config_option = click.option(
    "--config", metavar="FILE", type=FILE, is_eager=True, callback=use_defaults,
    help="Read defaults from FILE instead of launcher.toml.",
)  # fmt: skip
host_options = _group(*_HOSTS)
reach_options = _group(*_REACH)
job_options = _group(*_SIZE, *_PROGRAM, *_ACTIVATION, *_LIFE)
hang_options = _group(*_HANGS)
restart_options = _group(*_RESTARTS)
spare_options = _group(*_SPARES)
sync_options = _group(*_SYNC)
link_options = _group(*_LINKS)
activation_options = _group(*_ACTIVATION)
check_options = _group(*_CHECKS)
life_options = _group(*_LIFE)
output_options = _group(*_OUTPUT)
detach_options = _group(*_DETACHMENT)
controller_option = click.option(
    "--controller", metavar="HOST|here",
    help="With --detach, let HOST control the run, or this machine.  [default: the last spare, or node 0]",
)  # fmt: skip
