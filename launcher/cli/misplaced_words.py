"""Refuse words in the wrong place, before any host is contacted.

What follows the options must be a script. It need not exist on the launch host, so a missing one is looked for on the
hosts. A file that is here and isn't a script, or a word that can't be one anywhere, is refused.

Options of `launch` after the script are passed to the script, which is rarely what was meant. Those that would change
what is started are refused: `launch train.py --dry-run` must not start a real run. Others are reported in one line. A
`--` before the script means that everything after it belongs to the script, and so does a `--` before the option.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from launcher.cli.command_table import COMMANDS, DEFAULT_COMMAND, refuse_unknown_word
from launcher.cli.error_lines import tell
from launcher.cli.options.help import TYPED_WORDS
from launcher.cli.options.request import NAME_HOSTS, OPTIONS
from launcher.errors import UsageError
from launcher.job.job import TRAINER_MODULE
from launcher.wording import listed

_PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[0-9.]*")
_STARTERS = (
    "torchrun", "accelerate", "deepspeed", "colossalai", "mpirun", "mpiexec", "srun", "torch.distributed.run",
    "torch.distributed.launch", "torch.distributed.launcher", "accelerate.commands.launch",
)  # fmt: skip
_SHELL_SCRIPTS = (".sh", ".bash")
_FIRST_BYTES = 256
_ACTIONS = {option.flag for option in OPTIONS.values() if option.is_action}
_RARE = {flag for option in OPTIONS.values() if option.is_rare for flag in (*option.opts, *option.secondary_opts)}
_HOSTS = {OPTIONS[name].flag for name in NAME_HOSTS}

_TRAINER_LINE = f"\nfrom {TRAINER_MODULE}.__main__ import main\n".encode()


def refuse_first_word(words: Sequence[str]) -> None:
    """Raise UsageError for words that start no command, before the hosts are known."""
    _refuse_starters(words[0])
    _refuse_files(words[0])
    refuse_unknown_word(words[0])


def refuse_script(words: Sequence[str], *, is_here: bool) -> None:
    """Raise UsageError if the words aren't a script and its arguments.

    `is_here`: whether the hosts run it in the current directory, so that its files can be checked here.
    """
    refuse_option(words, trainer=f"; for the built-in trainer: launch ... -m {TRAINER_MODULE} {shlex.join(words)}")
    _refuse_starters(words[0])
    if is_here or words[0].endswith(_SHELL_SCRIPTS):
        _refuse_files(words[0])
    if is_here:
        refuse_unknown_word(words[0])


def wraps_trainer(path: Path) -> bool:
    """Return whether a file here is the built-in trainer, as the checkout's train.py is; its own line tells."""
    return _TRAINER_LINE in _read_beginning(str(path), 4 * _FIRST_BYTES)


def refuse_module(words: Sequence[str]) -> None:
    """Raise UsageError for what -m can't run."""
    refuse_option(words)
    _refuse_starters(words[0])
    if words[0].endswith(".py") and os.path.isfile(words[0]):  # noqa: PTH113 - false where pathlib would raise
        raise UsageError(f"-m takes a module, but {words[0]} is a file", f"launch ... {shlex.quote(words[0])}")


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
        raise UsageError(f"{word} is a directory, not a script", "see launch --help for the commands")
    first_line = _read_beginning(word, _FIRST_BYTES).partition(b"\n")[0]
    is_other = first_line.startswith(b"#!") and not re.search(rb"python|pypy", first_line) and first_line != b"#!"
    if word.endswith(_SHELL_SCRIPTS):
        argv = ["bash", word]
    elif first_line.startswith(b"\x7fELF") or (is_other and not word.endswith(".py")):
        argv = [word if "/" in word else f"./{word}"]
    else:
        return
    fix = f"run it as a command on every rank: launch ... --no-python {shlex.join(argv)}"
    raise UsageError(f"{word} is no Python script", fix)


def _read_beginning(path: str, most_bytes: int) -> bytes:
    """Return the beginning of a file; empty if there is none or it can't be read here, as the hosts may be able to."""
    if not os.path.isfile(path):  # noqa: PTH113 - as above; a pipe isn't read either
        return b""
    try:
        with Path(path).open("rb") as file:
            return file.read(most_bytes)
    except OSError:
        return b""


def refuse_trailing(context: click.Context) -> None:
    """Raise UsageError for an option after the script that names hosts or prevents the start.

    Other options of `launch` that a script is unlikely to have are reported in one line. An option that was also given
    before the script is accepted after it: the user knows where it belongs.
    """
    words, typed = context.params["words"], context.meta[TYPED_WORDS]
    before = [word.partition("=")[0] for word in typed[: len(typed) - len(words)]]
    if not words or before[-1:] == ["--"]:
        return
    known = {flag for param in context.command.params for flag in (*param.opts, *param.secondary_opts)}
    known -= {*before, *(_HOSTS if _HOSTS.intersection(before) else ())}
    behind = [flag for flag in _list_flags(words) if flag in known]
    program = shlex.quote(words[0])
    for flag in behind:
        if flag in _ACTIONS or flag in _HOSTS:
            if words[0] in COMMANDS and context.command.name == DEFAULT_COMMAND:
                refuse_unknown_word(words[0])
            fix = f"put it before {program}, or put -- before {program} to pass it to {program}"
            raise UsageError(f"{flag} after {program} would go to {program}, not to launch", fix)
    if rare := [flag for flag in behind if flag in _RARE]:
        go = "goes" if len(rare) == 1 else "go"
        tell(f"launch: {listed(rare)} after {program} {go} to {program}; put options of launch before it")


def part_words(words: Sequence[str]) -> list[str]:
    """Return a script and its arguments with a `--` before them if `launch` would read or refuse them otherwise."""
    needs = words and (words[0].startswith("-") or words[0] in COMMANDS)
    return ["--", *words] if needs or not {*_list_flags(words)}.isdisjoint(_ACTIONS | _HOSTS) else [*words]


def _list_flags(words: Sequence[str]) -> list[str]:
    """Return the words after the script that may be options, without values, up to a `--`."""
    behind = words[1 : words.index("--") if "--" in words else None]
    return [word.partition("=")[0] for word in behind if word.startswith("-")]
