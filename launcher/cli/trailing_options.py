"""Options of `launch` after the script: they are passed to the script, which is rarely what was meant.

Options that would change what is started are refused: `launch train.py --dry-run` must not start a real run. Others
are reported in one line. A `--` before the script means that everything after it belongs to the script, and so does
a `--` before the option.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from launcher.cli.error_lines import tell
from launcher.cli.help import TYPED_WORDS
from launcher.cli.option_sources import is_on_command_line, list_behind, retype
from launcher.cli.options import OPTIONS
from launcher.errors import UsageError
from launcher.job.variables import hide_secrets
from launcher.wording import listed

NAME_HOSTS = ("hosts", "hostfile")
_ACTIONS = [name for name, option in OPTIONS.items() if option.is_action]
_RARE = [name for name, option in OPTIONS.items() if option.is_rare]


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
