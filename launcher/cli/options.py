"""The options that several commands share, as click declares them; `option_groups.py` makes frozen values of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from launcher.cli.defaults import use_defaults
from launcher.cli.option_groups import Timeouts
from launcher.transports.registry import TRANSPORTS

Function = TypeVar("Function", bound=Callable[..., Any])

_WAIT = Timeouts()
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh]?)")


class _Duration(click.types.FloatParamType):
    """A time as `90`, `90s`, `10m` or `2h`, in seconds; on the command line and in launcher.toml alike."""

    name = "time"

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = _TIME.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"want a time such as 90, 90s, 10m or 2h, got {value!r}", param, ctx)
        seconds = float(found[1]) * {"h": 3600, "m": 60}.get(found[2], 1)
        if seconds < self._least_s:
            self.fail(f"want at least {self._least_s:g}s, got {value!r}", param, ctx)
        return seconds


class _File(click.Path):
    """A path, and not an empty text, which an unset variable of a shell leaves and pathlib takes for `.`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("needs a path, got ''", param, ctx)
        return super().convert(value, param, ctx)


FILE = _File(path_type=Path)

_HOSTS = (
    click.option("--hosts", metavar="LIST", help="Hosts in rank order: a,b,gpu[1-4] or user@host."),
    click.option("--hostfile", metavar="FILE", type=FILE, help="A file with a host per line."),
    click.option("--colon", type=click.Choice(["slots", "port"]), help="What the 8 of host:8 is; nobody guesses."),
    click.option("--include", metavar="LIST", help="Of those only these: names, ranges, or host:0,1@host2."),
    click.option("--exclude", metavar="LIST", help="Of those not these."),
    click.option("--num-nodes", metavar="N", type=click.IntRange(min=1), help="Of those the first N."),
)
_REACH = (
    click.option(
        "--transport", metavar="NAME", type=click.Choice(list(TRANSPORTS)),
        help="fabric (SSH, built in), ssh (OpenSSH), pdsh, or srun; default: srun in a Slurm job, else fabric.",
    ),
    click.option(
        "--ssh-config", metavar="FILE", type=FILE, help="Instead of your own ssh_config."
    ),
    click.option("--accept-new-host-keys", is_flag=True, help="Trust and record the key of a host met first."),
    click.option("--ask-password", is_flag=True, help="Ask once for the password of all hosts that take no key."),
    click.option(
        "--connect-timeout", metavar="T", type=_Duration(0.1), default=_WAIT.connect_timeout_s, show_default="10s",
        help="Seconds until a host counts as unreachable; given, it also waits for one that is booting.",
    ),
)  # fmt: skip
_SIZE = (
    click.option("--gpus", metavar="N|auto", default="auto", show_default=True, help="GPUs, so processes, per host."),
    click.option(
        "--nproc",
        metavar="N",
        type=click.IntRange(min=1),
        help="Processes per host, for --cpu or --no-python.",
    ),
    click.option("--cpu", is_flag=True, help="Train on CPUs (gloo); needs --nproc or slots=."),
)
_PROGRAM = (
    click.option("-m", "--module", "is_module", is_flag=True, help="SCRIPT is a module, as in python -m."),
    click.option("--no-python", is_flag=True, help="SCRIPT is a command; needs no torch on the hosts."),
    click.option(
        "--legacy", is_flag=True,
        help="Without torchrun, as torch.distributed.launch --use_env does it: for torch before 2.0.",
    ),
    click.option("--workdir", metavar="DIR", help="Folder on the hosts; default: the same path as here."),
    click.option("--python", metavar="PATH", help="Python on the hosts; default: the first that has torch."),
    click.option("--env", "env", metavar="K[=V]", multiple=True, help="Set a variable for the ranks, or pass on ours."),
    click.option(
        "--env-file", metavar="FILE", multiple=True, type=FILE,
        help="Variables from a dotenv file.",
    ),
    click.option("--master-port", metavar="PORT", type=click.IntRange(1, 65535), help="Default: a free one of node 0."),
    click.option(
        "--rdzv-timeout", metavar="T", type=_Duration(1), default=120, show_default="120s",
        help="Seconds for all nodes to meet.",
    ),
)  # fmt: skip
_ACTIVATION = (
    click.option("--setup", metavar="CMD", help="Lines for bash on each host first; their environment is the run's."),
    click.option("--venv", metavar="DIR", help="A virtual environment on the hosts."),
    click.option("--conda", metavar="ENV", help="A conda environment on the hosts, by name or path."),
)
_CHECKS = (
    click.option(
        "--no-check", is_flag=True, help="Look only at what the plan needs; compare nothing, warn of nothing."
    ),
)
_LIFE = (
    click.option(
        "--silence", metavar="T", type=_Duration(0.5), default=_WAIT.silence_s, show_default="15s",
        help="Seconds without a sign of life until the other side counts as dead.",
    ),
    click.option(
        "--stop-timeout", metavar="T", type=_Duration(0), default=_WAIT.stop_timeout_s, show_default="15s",
        help="Seconds for the trainer to save after SIGTERM.",
    ),
)  # fmt: skip
_HANGS = (
    click.option(
        "--stacks", is_flag=True,
        help="Let Ctrl-\\ show the ranks' Python stacks where py-spy is missing or denied (faulthandler).",
    ),
    click.option(
        "--hang-timeout", metavar="T", type=_Duration(0.1),
        help="Without output of any rank for T (90, 10m, 1h; from the start on) show all stacks and end the run.",
    ),
)  # fmt: skip
_OUTPUT = (
    click.option("-q", "--quiet", is_flag=True, help="Show no output of the ranks; the logs have it."),
    click.option("--ranks", metavar="LIST", help="Show the output of these ranks only: 0,8."),
    click.option("--json", "as_json", is_flag=True, help="One JSON object per line on stdout."),
    click.option(
        "--log-dir", metavar="DIR", type=FILE, default=Path("logs"), show_default=True,
        help="Where the logs go.",
    ),
    click.option("-v", "--verbose", is_flag=True, help="Show what was sent, and where each value came from."),
)  # fmt: skip


def _group(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


config_option = click.option(
    "--config", metavar="FILE", type=FILE, is_eager=True, callback=use_defaults,
    help="Read option defaults from FILE instead of ./launcher.toml and ./pyproject.toml.",
)  # fmt: skip
host_options = _group(*_HOSTS)
reach_options = _group(*_REACH)
job_options = _group(*_SIZE, *_PROGRAM, *_ACTIVATION, *_LIFE)
hang_options = _group(*_HANGS)
activation_options = _group(*_ACTIVATION)
check_options = _group(*_CHECKS)
life_options = _group(*_LIFE)
output_options = _group(*_OUTPUT)
