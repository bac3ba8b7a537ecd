"""Options that several commands share, and the frozen values that are made of them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from launcher.cli.command_table import refuse_unknown_word
from launcher.cli.defaults import use_defaults
from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.job.job import COLLECTIVES_MODULE, DEFAULT_PROGRAM, TRAINER_MODULE, Activation, Job, Program, ProgramKind
from launcher.job.slurm_allocation import read_allocation, refuse_gpus
from launcher.job.variables import VISIBLE_DEVICES, forwarded, parse_settings, read_env_file
from launcher.transports.registry import TRANSPORTS

Function = TypeVar("Function", bound=Callable[..., Any])


class _Seconds(click.FloatRange):
    """A number of seconds, and not nan or inf, which pass every comparison or last for ever."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is no time.", param, ctx)
        return seconds


_HOSTS = (
    click.option("--hosts", metavar="LIST", help="Hosts in rank order: a,b,gpu[1-4] or user@host."),
    click.option("--hostfile", metavar="FILE", type=click.Path(path_type=Path), help="A file with a host per line."),
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
        "--ssh-config", metavar="FILE", type=click.Path(path_type=Path), help="Instead of your own ssh_config."
    ),
    click.option("--accept-new-host-keys", is_flag=True, help="Trust and record the key of a host met first."),
    click.option("--ask-password", is_flag=True, help="Ask once for the password of all hosts that take no key."),
    click.option(
        "--connect-timeout", metavar="S", type=_Seconds(min=0.1), default=10.0, show_default=True,
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
        "--env-file", metavar="FILE", multiple=True, type=click.Path(path_type=Path),
        help="Variables from a dotenv file.",
    ),
    click.option("--master-port", metavar="PORT", type=click.IntRange(1, 65535), help="Default: a free one of node 0."),
    click.option(
        "--rdzv-timeout", metavar="S", type=click.IntRange(min=1), default=120, show_default=True,
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
        "--silence", metavar="S", type=_Seconds(min=0.5), default=15.0, show_default=True,
        help="Seconds without a sign of life until the other side counts as dead.",
    ),
    click.option(
        "--stop-timeout", metavar="S", type=_Seconds(min=0), default=15.0, show_default=True,
        help="Seconds for the trainer to save after SIGTERM.",
    ),
)  # fmt: skip
_HANGS = (
    click.option(
        "--stacks", is_flag=True,
        help="Let Ctrl-\\ show the ranks' Python stacks where py-spy is missing or denied (faulthandler).",
    ),
    click.option(
        "--hang-timeout", metavar="T",
        help="Without output of any rank for T (90, 10m, 1h; from the start on) show all stacks and end the run.",
    ),
)  # fmt: skip
_OUTPUT = (
    click.option("-q", "--quiet", is_flag=True, help="Show no output of the ranks; the logs have it."),
    click.option("--ranks", metavar="LIST", help="Show the output of these ranks only: 0,8."),
    click.option("--json", "as_json", is_flag=True, help="One JSON object per line on stdout."),
    click.option(
        "--log-dir", metavar="DIR", type=click.Path(path_type=Path), default=Path("logs"), show_default=True,
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
    "--config", metavar="FILE", type=click.Path(path_type=Path), is_eager=True, callback=use_defaults,
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


# What is said on the command line wins over launcher.toml, also where the two are different options.
_PYTHONS = (("python", "venv"), ("python", "conda"), ("venv", "conda"))  # each says which one is to run
_RIVALS = (
    ("hosts", "hostfile"), ("include", "exclude"), ("gpus", "nproc"), ("gpus", "cpu"), ("legacy", "no_python"),
    *_PYTHONS,
)  # fmt: skip
_UNSAID = {"gpus": "auto", "cpu": False, "legacy": False}
CHOICE_OF_HOSTS = ("hosts", "hostfile", "include", "exclude", "num_nodes")  # those of --transport srun are the job's
_SPAN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh]?)")


def is_on_command_line(name: str) -> bool:
    """Tell whether an option was typed, and is no default of the project's."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def is_chosen(name: str) -> bool:
    """Tell whether an option was typed or stands in launcher.toml, and is no default of ours."""
    chosen = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
    return click.get_current_context().get_parameter_source(name) in chosen


def settle_rivals(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without the project's defaults that a typed option contradicts."""
    settled = dict(options)
    context = click.get_current_context()
    for pair in _RIVALS:
        for name, rival in (pair, pair[::-1]):
            is_default = context.get_parameter_source(rival) is ParameterSource.DEFAULT_MAP
            if is_default and is_on_command_line(name):
                settled[rival] = _UNSAID.get(rival)
    transport = TRANSPORTS.get(settled.get("transport", ""))
    if transport is not None and transport.needs_allocation and is_on_command_line("transport"):
        for name in CHOICE_OF_HOSTS:
            if context.get_parameter_source(name) is ParameterSource.DEFAULT_MAP:
                settled[name] = None
    return settled


def read_job(options: Mapping[str, Any], words: Sequence[str], hosts: Sequence[Host]) -> Job:
    """Return the job that the options and the words after them describe."""
    options = settle_rivals(options)
    named_env = read_named_env(options)
    refuse_second_choice(named_env, hosts)
    return Job(
        program=read_program(options, words),
        nproc=read_size(options, hosts),
        cpu=options["cpu"],
        gpus=None if options["gpus"] == "auto" else int(options["gpus"]),
        workdir=options["workdir"] or str(Path.cwd()),
        python=options["python"],
        activation=read_activation(options),
        env=forwarded(os.environ) | named_env,
        named_env=frozenset(named_env),
        master_addr=options.get("master_addr"),
        master_port=options["master_port"],
        rendezvous_timeout_s=options["rdzv_timeout"],
        silence_s=options["silence"],
        stop_timeout_s=options["stop_timeout"],
        connect_timeout_s=options.get("connect_timeout", 10.0),
        legacy=options["legacy"],
        with_stacks=options.get("stacks", False),
        hang_timeout_s=read_span("--hang-timeout", options.get("hang_timeout")),
    )


def refuse_second_choice(env: Mapping[str, str], hosts: Sequence[Host]) -> None:
    """Raise UsageError where GPUs are chosen twice: the ranks would run on others than those that are checked."""
    for name in (name for name in VISIBLE_DEVICES if name in env):
        for host in hosts:
            if host.gpus is not None:
                chosen = ",".join(map(str, host.gpus))
                text = f"{name}={env[name]} and {host.name}:{chosen} (--include or --exclude) both choose GPUs"
                raise UsageError(text, "choose them in one way")


def read_program(options: Mapping[str, Any], words: Sequence[str]) -> Program:
    """Return what every rank runs: the words as they were typed, or the built-in trainer."""
    is_module, no_python = options["is_module"], options["no_python"]
    if is_module and no_python:
        raise UsageError("-m and --no-python are both given", "a module needs Python")
    if options["legacy"] and no_python:
        raise UsageError("--legacy and --no-python are both given", "a command is started without torchrun anyway")
    words = list(words)
    default = click.get_current_context().lookup_default("script")
    if not words and default:
        words = [str(default)]
    if not words:
        if is_module or no_python:
            raise UsageError("-m and --no-python need a name after them")
        return DEFAULT_PROGRAM
    if is_module and words[0] in (TRAINER_MODULE, COLLECTIVES_MODULE):  # they travel, and need not be installed there
        return Program(ProgramKind.BUILTIN, words[0], tuple(words[1:]))
    if not is_module and not no_python and options["workdir"] is None:
        refuse_unknown_word(words[0])
    kind = ProgramKind.MODULE if is_module else ProgramKind.COMMAND if no_python else ProgramKind.SCRIPT
    return Program(kind, words[0], tuple(words[1:]))


def read_size(options: Mapping[str, Any], hosts: Sequence[Host]) -> int | None:
    """Return the processes per host; raise UsageError where options and slots= contradict each other."""
    gpus, nproc = options["gpus"], options["nproc"]
    if gpus != "auto" and (not gpus.isascii() or not gpus.isdigit() or int(gpus) < 1):
        raise UsageError(f"--gpus: want a number from 1 on, or auto; got {gpus!r}")
    if gpus != "auto" and options["cpu"]:
        raise UsageError("--gpus and --cpu are both given", "on CPUs: --nproc N --cpu")
    if gpus != "auto" and nproc is not None and nproc != int(gpus):
        raise UsageError(f"--gpus {gpus} and --nproc {nproc} differ", "one process a GPU: give one of them")
    size = nproc if nproc is not None else None if gpus == "auto" else int(gpus)
    allocation = read_allocation(os.environ)
    if gpus != "auto" and allocation is not None:
        refuse_gpus(int(gpus), hosts, allocation)
    for host in hosts:
        if size is not None and host.slots is not None and host.slots != size:
            name = "--nproc" if nproc is not None else "--gpus"
            raise UsageError(
                f"{host.source}: {host.name} has {host.slots} slots, {name} says {size}",
                f"leave {name} or slots= away",
            )
        if size is None and options["cpu"] and host.slots is None:
            raise UsageError("--cpu needs a number of processes", "--nproc N, or slots=N in the hostfile")
    return size


def read_activation(options: Mapping[str, Any]) -> Activation:
    """Return what makes the environment of the run; raise UsageError where two Pythons are named."""
    options = settle_rivals(options)
    for name, rival in _PYTHONS:
        if options[name] and options[rival]:
            raise UsageError(f"--{name} and --{rival} are both given", "name the Python in one way")
    return Activation(options["setup"] or None, _read_venv(options), options["conda"] or None)


def _read_venv(options: Mapping[str, Any]) -> str | None:
    """Return the path on the hosts: in --workdir, as SCRIPT is, else in the folder where we are."""
    if not options["venv"]:
        return None
    venv = PurePosixPath(options["venv"])
    is_whole = str(venv).startswith("~") or options.get("workdir")
    return str(venv if is_whole else Path.cwd() / venv)


def read_span(name: str, text: str | None) -> float | None:
    """Return the seconds of `90`, `90s`, `10m` or `1h`."""
    if text is None:
        return None
    found = _SPAN.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise UsageError(f"{name}: want a time, got {text!r}", "90, 90s, 10m or 1h")
    return float(found[1]) * {"h": 3600, "m": 60}.get(found[2], 1)


def read_env(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the ranks' variables: the allow-list, then --env-file, then --env."""
    return forwarded(os.environ) | read_named_env(options)


def read_named_env(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that the user has named: --env-file, then --env."""
    env: dict[str, str] = {}
    for path in options["env_file"]:
        env |= read_env_file(path)
    return env | parse_settings(options["env"], os.environ)


def read_ranks(text: str | None) -> frozenset[int] | None:
    """Return the ranks of --ranks."""
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise UsageError(f"--ranks: want numbers with commas, got {text!r}", "--ranks 0,8")
    return frozenset(map(int, words))
