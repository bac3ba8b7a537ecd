"""launch again: start a run again as it was typed."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import click

from launcher.cli import repetition
from launcher.cli.command_table import COMMANDS, load_command
from launcher.cli.find_run import find_run, read_state
from launcher.cli.options.command import Command, gather
from launcher.cli.options.completion import complete_runs
from launcher.cli.options.request import DRY_RUN, Option
from launcher.errors import UsageError
from launcher.hosts.ranges import shown
from launcher.output.output_streams import tell
from launcher.runs.run_list import LISTING, RunList


@click.command("again", cls=Command, context_settings={"ignore_unknown_options": True}, params=[
    DRY_RUN, click.Argument(["words"], metavar="[RUN] [OPTION]...", nargs=-1, type=click.UNPROCESSED,
                            shell_complete=complete_runs),
    Option(
        ["--same-code"], is_flag=True, help="Send the code that RUN sent with --sync, not that of now.",
        heading="Code",
    ),
])  # fmt: skip
@gather
def command(*, words: tuple[str, ...], same_code: bool, dry_run: bool) -> int:
    """Start RUN again: the same command, options and hosts, in the same directory.  [default: the newest run]

    An OPTION of launch after RUN replaces that of the run, such as --restarts 10. If RUN didn't succeed, the built-in
    trainer continues from its checkpoints; a script finds RUN in the variable LAUNCH_AGAIN_OF.
    """
    from launcher.cli.main import launch

    has_run = bool(words) and not words[0].startswith("-")
    found = find_run(words[0] if has_run else None)
    runs = RunList.of_user(os.environ)
    origin = repetition.read_origin(runs, found.id)
    typed = repetition.typed_of(origin)
    if typed.command not in COMMANDS:
        raise UsageError(f"run {found.id} was a {typed.command}", f"type it again: {typed.command}")
    row = read_state(found)
    if row.may_live:
        said = f"may still run: {row.last_line}" if row.state == "unknown" else "still runs"
        anyhow = f"start another one with {repetition.command_line(origin, typed.line)}"
        raise UsageError(f"run {found.id} {said}", f"stop it with launch stop {found.id}, or {anyhow}")
    continues = row.state != "finished"
    given, others = repetition.parse_options(load_command(typed.command), words[has_run:])
    if others:
        raise UsageError(f"launch again takes a run and options, got {shown(others[0])}", "see launch again --help")
    typed = repetition.override(typed, given)
    if repetition.lacks_secret(typed):
        text = f"run {found.id} had a secret in its command line, which launch doesn't keep"
        line = repetition.command_line(origin, repetition.hide_typed(typed.line))
        raise UsageError(text, f"pass it again, as in launch again {found.id} --notify CMD, or type: {line}")
    if continues:
        typed = repetition.resume(typed, origin)
    if dry_run:
        typed = replace(typed, options={**typed.options, "dry_run": True})
    listing = _find_code(runs.read_kept(found.id, LISTING), found.id, origin) if same_code else None
    _enter(origin["directory"], found.id, origin["launch_host"])
    state = f"was {row.state}" if row.state in ("killed", "stopped") else row.state
    line = repetition.command_line(origin, repetition.hide_typed(typed.line))
    tell(f"launch: again run {found.id}, which {state}: {line}")
    first = str(origin.get("first") or found.id)
    has_version = repetition.read_version(runs, found.id) is not None
    repeated = repetition.Repetition(found.id, first, origin, continues, has_version, listing)
    sys.argv[1:] = typed.line  # run.json and the trainer name what was typed
    code: int = launch.main(typed.line, prog_name="launch", standalone_mode=False, obj=repeated)
    return code


def _find_code(listing: bytes | None, run_id: str, origin: dict[str, object]) -> bytes:
    if origin.get("tree") is None:
        text = f"--same-code: run {run_id} sent no code with --sync: its hosts ran what they had"
        raise UsageError(text, f"get the code back with launch fetch --code {run_id}, or omit --same-code")
    if listing is None:
        raise UsageError(f"--same-code: the code of run {run_id} isn't kept here", "omit it to run the code of now")
    return listing


def _enter(directory: str, run_id: str, host: str) -> None:
    """Go to the directory in which the run was typed."""
    if "/" in sys.argv[0]:
        sys.argv[0] = str(Path(sys.argv[0]).absolute())
    try:
        os.chdir(directory)
    except OSError as error:
        text = f"run {run_id} was started on {host} in {directory}, which can't be entered: {error.strerror}"
        raise UsageError(text, "run launch again where that directory is") from None
    os.environ["PWD"] = directory
