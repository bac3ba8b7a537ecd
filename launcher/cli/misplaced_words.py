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
from itertools import dropwhile, takewhile
from pathlib import Path, PurePath

import click

from launcher.cli.command_table import COMMANDS, refuse_unknown_word
from launcher.cli.error_lines import tell
from launcher.cli.options.help import TYPED_WORDS
from launcher.cli.options.request import NAME_HOSTS, OPTIONS
from launcher.cli.options.sources import is_on_command_line, list_behind, retype
from launcher.errors import UsageError
from launcher.escapes import one_line
from launcher.job.job import TRAINER_MODULE
from launcher.job.variables import hide_secrets
from launcher.wording import listed, nearest

_PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[0-9.]*")
_STARTERS = ("torchrun", "accelerate", "deepspeed", "colossalai", "mpirun", "mpiexec", "srun")
_STARTER_MODULES = (
    "torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher", "accelerate.commands.launch",
)  # fmt: skip
_NPROC = re.compile(r"--nproc[-_]per[-_]node[= ]([0-9]+)(?= |$)")
_SHELL_SCRIPTS = (".sh", ".bash")
_FIRST_BYTES = 256
_ACTIONS = [name for name, option in OPTIONS.items() if option.is_action]
_RARE = [name for name, option in OPTIONS.items() if option.is_rare]

_TRAINER_LINE = f"\nfrom {TRAINER_MODULE}.__main__ import main\n".encode()


def refuse_first_word(words: Sequence[str]) -> None:
    """Raise UsageError for words that start no command, before the hosts are known."""
    _refuse_starters(words)
    _refuse_files(words[0])
    _refuse_hosts(words)
    refuse_unknown_word(words[0])


def refuse_script(words: Sequence[str], *, is_here: bool) -> None:
    """Raise UsageError if the words aren't a script and its arguments.

    `is_here`: whether the hosts run it in the current directory, so that its files can be checked here.
    """
    _refuse_option(words, trainer=f"; for the built-in trainer: launch ... -m {TRAINER_MODULE} {shlex.join(words)}")
    _refuse_starters(words)
    if is_here:
        _refuse_files(words[0])
        _refuse_hosts(words)
        refuse_unknown_word(words[0])
    elif words[0].endswith(_SHELL_SCRIPTS):
        raise _no_python(words[0], "a shell script", ["bash", words[0]])


def wraps_trainer(path: Path) -> bool:
    """Return whether a file here is the built-in trainer, as the checkout's train.py is; its own line tells."""
    if not os.path.isfile(path):  # noqa: PTH113 - as in _read_first_line; a pipe isn't read either
        return False
    try:
        with path.open("rb") as file:
            return _TRAINER_LINE in file.read(4 * _FIRST_BYTES)
    except OSError:
        return False


def refuse_module(words: Sequence[str]) -> None:
    """Raise UsageError for what -m can't run."""
    _refuse_option(words)
    word = words[0]
    if word in _STARTER_MODULES:
        raise _no_starter(words)
    if word.endswith(".py") and os.path.isfile(word):  # noqa: PTH113 - false where pathlib would raise
        path = os.path.normpath(word).removesuffix(".py")
        is_importable = not path.startswith("/") and "." not in path
        module = f", or launch ... -m {shlex.quote(path.replace('/', '.'))}" if is_importable else ""
        raise UsageError(f"-m takes a module, but {word} is a file", f"launch ... {shlex.quote(word)}{module}")


def refuse_command(words: Sequence[str]) -> None:
    """Raise UsageError for words that can't be a command of --no-python."""
    _refuse_option(words)


def _refuse_option(words: Sequence[str], trainer: str = "") -> None:
    """Raise UsageError for an option after `--`, where everything belongs to the script.

    trainer: the fix if the option was meant for the built-in trainer, which has only long options.
    """
    if words[0].startswith("-"):
        text = f"{words[0]!r} is taken for the script: options of launch must come before '--'"
        raise UsageError(text, f"launch ... {shlex.join(words)}{trainer if words[0].startswith('--') else ''}")


def _refuse_starters(words: Sequence[str]) -> None:
    """Raise UsageError for programs that `launch` itself starts before the script."""
    word = words[0]
    if _PYTHON.fullmatch(word):
        python = f"--python {shlex.quote(word)} " if "/" in word else ""
        at = next((index for index, each in enumerate(words) if each == "-m" or each.endswith(".py")), len(words))
        if words[at + 1 :] and words[at] == "-m" and words[at + 1] in _STARTER_MODULES:
            raise _no_starter(words[at + 1 :], python)
        fix = f"omit it: launch ... {python}{_find_script(words[1:])}"
        raise UsageError(f"{word}: launch starts Python itself", fix)
    if word in _STARTERS:
        raise _no_starter(words)


def _no_starter(words: Sequence[str], python: str = "") -> UsageError:
    size = _NPROC.search(" ".join(words))
    gpus = f"--gpus {size[1]} " if size else ""
    fix = f"omit it: launch ... {python}{gpus}{_find_script(words[1:])}"
    return UsageError(f"{words[0]}: launch starts the ranks itself, with torchrun on every host", fix)


def _find_script(words: Sequence[str]) -> str:
    """Return the script in another launcher's command line, for an error."""
    for index, word in enumerate(words):
        if word == "-m" and words[index + 1 :] and words[index + 1] not in _STARTER_MODULES:
            return shlex.join(words[index : index + 2])
        if word.endswith(".py"):
            return shlex.quote(word)
    return "SCRIPT"


def _refuse_hosts(words: Sequence[str]) -> None:
    """Raise UsageError for a list of hosts with spaces in it, the first of which was taken for all of it."""
    typed = click.get_current_context().meta.get(TYPED_WORDS, ())
    hosts = [*typed[: len(typed) - len(words)], *takewhile(lambda word: not _may_be_file(word), words)]
    at = len(typed) - len(words) - 2
    is_command = words[0] in COMMANDS or (nearest(words[0], COMMANDS) and not re.search("[0-9]", words[0]))
    if at >= 0 and typed[at] == "--hosts" and hosts[at + 2 :] and not is_command:
        text = f"--hosts takes one word, and {words[0]!r} is the next"
        raise UsageError(text, f"separate hosts with commas: --hosts {shlex.quote(','.join(hosts[at + 1 :]))}")


def _may_be_file(word: str) -> bool:
    return word.startswith("-") or "/" in word or word.endswith(".py") or os.path.exists(word)  # noqa: PTH110


def _refuse_files(word: str) -> None:
    """Raise UsageError for a file that Python can't run; the hosts are expected to have the same one."""
    # os.path is false where pathlib would raise: a directory that can't be searched, a name that is too long.
    if os.path.isdir(word) and not os.path.exists(os.path.join(word, "__main__.py")):  # noqa: PTH110, PTH112, PTH118
        raise UsageError(f"{word} is a directory, not a script", "see launch --help for the commands")
    first_line = _read_first_line(word)
    if first_line.startswith(b"\x7fELF"):
        program = word if "/" in word else f"./{word}"
        raise _no_python(word, "a program", [program])
    interpreter = _find_interpreter(first_line)
    if word.endswith(_SHELL_SCRIPTS):
        raise _no_python(word, "a shell script", [*(interpreter or ["bash"]), word])
    if interpreter and not word.endswith(".py") and not re.search(rb"python|pypy", first_line):
        program = next((each for each in interpreter[1:] if "=" not in each), interpreter[0])
        name = PurePath(program if interpreter[0] == "env" else interpreter[0]).name
        raise _no_python(word, f"a script for {name}", [*interpreter, word])


def _read_first_line(word: str) -> bytes:
    """Return the beginning of a file; empty if there is none or it can't be read here, as the hosts may be able to."""
    if not os.path.isfile(word):  # noqa: PTH113 - as above
        return b""
    try:
        with Path(word).open("rb") as file:
            return file.readline(_FIRST_BYTES)
    except OSError:
        return b""


def _find_interpreter(first_line: bytes) -> list[str]:
    """Return what `#!` names, with its arguments and without `env -S`; an empty list if there is no `#!`."""
    if not first_line.startswith(b"#!"):
        return []
    words = one_line(first_line[2:].decode("utf-8", "replace").strip(), _FIRST_BYTES).split()
    if not words or PurePath(words[0]).name != "env":
        return words
    words = list(dropwhile(lambda word: word.startswith("-"), (word.removeprefix("-S") or "-" for word in words[1:])))
    return ["env", *words] if words and "=" in words[0] else words


def _no_python(word: str, kind: str, argv: Sequence[str]) -> UsageError:
    text = f"{word} is {kind}, but launch runs SCRIPT with Python"
    return UsageError(text, f"run it as a command on every rank: launch ... --no-python {shlex.join(argv)}")


def refuse_trailing() -> None:
    """Raise UsageError for an option after the script that names hosts or prevents the start.

    Other options of `launch` that a script is unlikely to have are reported in one line. An option that was also given
    before the script is accepted after it: the user knows where it belongs.
    """
    context = click.get_current_context()
    words = context.params["words"]
    typed = context.meta[TYPED_WORDS]
    before = typed[: len(typed) - len(words)]
    if before[-1:] == ("--",):
        return
    names = [name for name in (*_ACTIONS, *_RARE) if not is_on_command_line(name)]
    names += () if any(map(is_on_command_line, NAME_HOSTS)) else NAME_HOSTS
    behind = list_behind(names, context)
    if not behind:
        return
    refused = list_behind([name for name in names if name not in _RARE], context)
    program = shlex.quote(words[0])
    if not refused:
        options = [shlex.join(words[place]) for place in behind]
        go = "goes" if len(options) == 1 else "go"
        tell(f"launch: {listed(options)} after {program} {go} to {program}; put options of launch before it")
        return
    path = context.command_path.removesuffix(" run")
    option = shlex.join(words[refused[0]])
    fix = f"to pass it to launch, type: {retype(behind, context)}\n"
    fix += f"  to pass it to {program}, type: {path} {shlex.join(hide_secrets([*before, '--', *words]))}"
    raise UsageError(f"{option} after {program} would go to {program}, not to launch", fix)


def needs_parting(words: Sequence[str]) -> bool:
    """Tell whether `launch` would refuse these words, a script and its arguments, without a `--` before them."""
    flags = {OPTIONS[name].flag for name in (*_ACTIONS, *NAME_HOSTS)}
    return any(word.partition("=")[0] in flags for word in words[1:])
