"""Words that are wrong or in the wrong place, each told in one line and its fix, before any host is contacted.

What follows the options must be a script. It need not exist on the launch host, so a missing one is looked for on the
hosts. A file that is here and isn't a script, or a word that can't be one anywhere, is refused.

Options of `launch` after the script are passed to the script, which is rarely what was meant. Those that would change
what is started are refused: `launch train.py --dry-run` must not start a real run. A `--` before the script means that
everything after it belongs to the script, and so does a `--` before the option.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

import click
from click.core import ParameterSource

from launcher.cli.command_table import COMMANDS, DEFAULT_COMMAND
from launcher.cli.options.command import TYPED_WORDS
from launcher.cli.options.launcher_toml import find_source
from launcher.cli.options.request import NAME_HOSTS, OPTIONS
from launcher.errors import UsageError
from launcher.job.job import TRAINER_MODULE
from launcher.wording import nearest

_PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[0-9.]*")
_STARTERS = (
    "torchrun", "accelerate", "deepspeed", "colossalai", "mpirun", "mpiexec", "srun", "torch.distributed.run",
    "torch.distributed.launch", "torch.distributed.launcher", "accelerate.commands.launch",
)  # fmt: skip
_SHELL_SCRIPTS = (".sh", ".bash")
_ACTIONS = {option.flag for option in OPTIONS.values() if option.is_action}
_HOSTS = {OPTIONS[name].flag for name in NAME_HOSTS}
_EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)", re.DOTALL)
_COMMANDS = "see launch --help for the commands"
_SYNONYMS = {
    "status": "ps", "list": "ps", "ls": "ps", "kill": "stop", "cancel": "stop", "resume": "again", "restart": "again",
    "tail": "logs -f", "sync": "check --sync",
}  # fmt: skip
# What is gone: a command, an option, or after the name of a command an option that only that had -> what to do instead.
GONE = {
    "rejoin": "launch stop RUN, and launch again RUN once all hosts are back",
    "sbatch": "a batch script in which launch finds its nodes, as in docs/slurm.md",
    "--note": "--name NAME",
    "--sync-secrets": "git add for what may be sent",
    "--accept-new-host-keys": "StrictHostKeyChecking accept-new in ssh_config",
    "check --gpus-under-load": "test-distributed N --hosts LIST --gpus-under-load SECONDS",
    "test-distributed --plot": "results.json among the logs, with all pairs of hosts",
    "check --packages": "launch check --json, which has the packages of each host",
    "check --verbose": "launch check, whose first line names what launcher.toml sets",
    "hosts --to": "--json",
    "hosts --forget": "launch ps --forget RUN",
    "ps --all-users": "launch free --hosts LIST",
    "stop --ask": "launch free, which names the owner",
    "--claim-cpus": "a run on GPUs, which claims them",
    "--colon": "host:8 for slots, host:2222 for a port",
    "--legacy": "--start plain",
    "--no-samples": "leave it out: a sample takes no time of the ranks",
    "top --controller": "launch top --hosts LIST",
    "--fetch": "launch fetch RUN PATH, after the run or during it",
    "--queue-timeout": "--queue 2h",
    "--survive-reboots": "launch again RUN, after a reboot of its controller host",
}


# ---- the first word, and the script -------------------------------------------------------------------------------


def refuse_first_word(words: Sequence[str]) -> None:
    """Raise UsageError for words that start no command, before the hosts are known."""
    _refuse_starters(words[0])
    _refuse_files(words[0])
    _refuse_unknown_word(words[0])


def refuse_script(words: Sequence[str], *, is_here: bool) -> None:
    """Raise UsageError if the words aren't a script and its arguments.

    `is_here`: whether the hosts run it in the current directory, so that its files can be checked here.
    """
    refuse_option(words, trainer=f"; for the built-in trainer: launch ... -m {TRAINER_MODULE} {shlex.join(words)}")
    _refuse_starters(words[0])
    if is_here or words[0].endswith(_SHELL_SCRIPTS):
        _refuse_files(words[0])
    if is_here:
        _refuse_unknown_word(words[0])


def refuse_module(words: Sequence[str]) -> None:
    """Raise UsageError for what -m can't run."""
    refuse_option(words)
    _refuse_starters(words[0])


def refuse_option(words: Sequence[str], trainer: str = "") -> None:
    """Raise UsageError for an option after `--`, where everything belongs to the script.

    trainer: the fix if the option was meant for the built-in trainer, which has only long options.
    """
    if words[0].startswith("-"):
        text = f"{words[0]!r} is taken for the script: options of launch must come before '--'"
        raise UsageError(text, f"launch ... {shlex.join(words)}{trainer if words[0].startswith('--') else ''}")


def _refuse_starters(word: str) -> None:
    """Raise UsageError for programs that `launch` itself starts before the script."""
    if _PYTHON.fullmatch(word):
        other = f"; to run it with this one, pass --python {shlex.quote(word)}" if "/" in word else ""
        raise UsageError(f"{word}: launch starts Python itself", f"omit it: launch ... SCRIPT{other}")
    if word in _STARTERS:
        text = f"{word}: launch starts the ranks itself, with torchrun on every host"
        raise UsageError(text, "omit it and its options: launch --gpus N ... SCRIPT")


def _refuse_files(word: str) -> None:
    """Raise UsageError for a file that Python can't run; the hosts are expected to have the same one."""
    # os.path is false where pathlib would raise: a directory that can't be searched, a name that is too long.
    if os.path.isdir(word) and not os.path.exists(os.path.join(word, "__main__.py")):  # noqa: PTH110, PTH112, PTH118
        raise UsageError(f"{word} is a directory, not a script", _COMMANDS)
    if word.endswith(_SHELL_SCRIPTS):
        fix = f"run it as a command on every rank: launch ... --no-python bash {shlex.quote(word)}"
        raise UsageError(f"{word} is no Python script", fix)


def _refuse_unknown_word(word: str) -> None:
    """Raise UsageError if a word is neither a command nor a file."""
    if word in COMMANDS:
        raise UsageError(f"{word!r} is a command", f"write it first: launch {word} ...")
    if "/" in word or word.endswith(".py") or os.path.exists(word):  # noqa: PTH110 - false where pathlib would raise
        return
    if word in GONE:
        raise UsageError(f"no command {word!r} any more; instead: {GONE[word]}", _COMMANDS)
    near = _SYNONYMS.get(word) or nearest(word, COMMANDS)
    guess = f"; did you mean {near!r}?" if near else ""
    raise UsageError(
        f"no file or command {word!r}{guess}", _COMMANDS + ("" if near else "; hosts are one word: --hosts a,b")
    )


# ---- options after the script -------------------------------------------------------------------------------------


def refuse_trailing(context: click.Context) -> None:
    """Raise UsageError for an option after the script that names hosts or prevents the start.

    One that was also given before the script is accepted after it: the user knows where it belongs.
    """
    words, typed = context.params["words"], context.meta[TYPED_WORDS]
    before = [word.partition("=")[0] for word in typed[: len(typed) - len(words)]]
    if not words or before[-1:] == ["--"]:
        return
    known = {flag for param in context.command.params for flag in (*param.opts, *param.secondary_opts)}
    known -= {*before, *(_HOSTS if _HOSTS.intersection(before) else ())}
    behind = [flag for flag in _list_flags(words) if flag in known & (_ACTIONS | _HOSTS)]
    if not behind:
        return
    if words[0] in COMMANDS and context.command.name == DEFAULT_COMMAND:
        _refuse_unknown_word(words[0])
    program = shlex.quote(words[0])
    fix = f"put it before {program}, or put -- before {program} to pass it to {program}"
    raise UsageError(f"{behind[0]} after {program} would go to {program}, not to launch", fix)


def part_words(words: Sequence[str]) -> list[str]:
    """Return a script and its arguments with a `--` before them if `launch` would read or refuse them otherwise."""
    needs = words and (words[0].startswith("-") or words[0] in COMMANDS)
    return ["--", *words] if needs or not {*_list_flags(words)}.isdisjoint(_ACTIONS | _HOSTS) else [*words]


def _list_flags(words: Sequence[str]) -> list[str]:
    """Return the words after the script that may be options, without values, up to a `--`."""
    behind = words[1 : words.index("--") if "--" in words else None]
    return [word.partition("=")[0] for word in behind if word.startswith("-")]


# ---- what click refuses -------------------------------------------------------------------------------------------


def explain(error: click.ClickException, words: Sequence[str]) -> UsageError:
    """Return an error of click as one line and a fix, as `launch` words its own; `words` is what was typed."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    fix = f"see {context.command_path} --help for the options" if context is not None else ""
    if isinstance(error, click.NoSuchOption):
        return _explain_option(error, words, fix)
    if isinstance(error, click.MissingParameter):
        return UsageError(f"{_name(error)} is missing", fix)
    if isinstance(error, click.BadParameter):
        source = _find_file(error, context)
        if source is not None and error.param is not None:
            return UsageError(f"{source}: {str(error.param.name).replace('_', '-')}: {error.message.rstrip('.')}")
        return UsageError(f"{_name(error)}: {error.message.rstrip('.')}", fix)
    if isinstance(error, click.BadOptionUsage):
        needs = "needs a value" if "requires" in error.message else "takes no value"
        return UsageError(f"{error.option_name} {needs}", fix)
    extra = _EXTRA.match(error.message)
    if extra is None or context is None:
        return UsageError(error.format_message().rstrip("."), fix)
    if any(option.name == "hosts" for option in context.command.params):
        fix = f"name hosts with --hosts a,b: {context.command_path} --hosts LIST"
    return UsageError(f"{context.command_path} takes no argument, got {extra[1]!r}", fix)


def _find_file(error: click.BadParameter, context: click.Context | None) -> str | None:
    """Return the file that a wrong value comes from; None if it was typed."""
    name = str(error.param.name) if error.param is not None else ""
    if context is None or context.get_parameter_source(name) is not ParameterSource.DEFAULT_MAP:
        return None
    with context:
        defaults = find_source(name)
    return defaults.source if defaults is not None else None


def _explain_option(error: click.NoSuchOption, words: Sequence[str], fix: str) -> UsageError:
    known = [name for option in error.ctx.command.params for name in option.opts] if error.ctx is not None else []
    names = {name.lstrip("-"): name for name in known if name.startswith("--")}
    starts_ranks = error.ctx is not None and any(param.name == "is_module" for param in error.ctx.command.params)
    name = error.option_name
    if not name.startswith("--"):  # click reads -hosts as the letters h, o, s, t and s
        whole = [word.partition("=")[0] for word in words if re.match(r"-[A-Za-z]{2}", word) and name[1] in word]
        name = whole[0] if whole else name
    if gone := find_replacement(error.ctx.info_name if error.ctx is not None else None, name):
        return UsageError(f"no option {name!r} any more; instead: {gone}", fix)
    meant = name.lstrip("-").replace("_", "-")
    meant = next((option.flag[2:] for option in OPTIONS.values() if meant in option.known_as), meant)
    guess = meant if meant in names else nearest(meant, names)
    if guess is None and starts_ranks:
        fix += f"; put options of the built-in trainer after -m {TRAINER_MODULE}"
    return UsageError(f"no option {name!r}" + (f"; did you mean {names[guess]!r}?" if guess else ""), fix)


def find_replacement(command: str | None, flag: str) -> str | None:
    """Return what takes the place of an option that is gone, in words; None for any other."""
    return GONE.get(f"{command} {flag}") or GONE.get(flag)


def _name(error: click.BadParameter) -> str:
    if error.param is None:
        return str(error.param_hint or "an option")
    return max(error.param.opts, key=len) if isinstance(error.param, click.Option) else str(error.param.metavar)
