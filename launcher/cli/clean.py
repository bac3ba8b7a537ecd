"""launch clean: stop what earlier runs left behind: processes with a run's mark but without a supervisor, directories.

A run's directory is left behind if nothing could remove it: its host lost power, or all its keepers were killed. With
--code, remove the code that runs of this user have left instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from launcher.cli.host_session import act_on_hosts
from launcher.cli.options.command import Command, gather
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.request import DRY_RUN, ENV, HELPER_PYTHON, HOSTS, LIFE, REACH, Option, Request
from launcher.errors import EXIT_FAILED, EXIT_UNREACHABLE, HostFailure
from launcher.hosts.unreachable import failure_lines
from launcher.job.facts import Checks, RunFolder, RunProcess
from launcher.job.variables import parse_settings
from launcher.node import messages
from launcher.wording import count, size

if TYPE_CHECKING:
    from launcher.output.console import Console
    from launcher.session.connection import Event
    from launcher.session.node_state import Census, NodeState
    from launcher.session.session import Session


@click.command("clean", cls=Command, params=[
    CONFIG, *HOSTS, *REACH, *LIFE, HELPER_PYTHON,
    ENV.but(help="With --code, look below DIR on the hosts: XDG_CACHE_HOME=DIR.", needs="code"),
    DRY_RUN.but(help="Only list the leftovers."),
    Option(
        ["--code"], is_flag=True, heading="Checks",
        help="Instead, remove the code that --sync sent for runs that are over.",
    ),
])  # fmt: skip
@gather
def command(*, code: bool, request: Request) -> int:
    """List, stop and remove leftovers of your earlier runs on the hosts.

    Leftovers are processes of a run whose helper on the host is gone, and directories of runs that are over, for
    example on a host that lost power. An active run is named and left alone, and other users' runs are never touched.
    Jobs that a run submitted (sbatch, at) aren't part of it and are kept. In a Slurm job, its hosts are the default.
    """
    clean = clean_code if code else clean_runs

    async def act(session: Session, console: Console) -> int:
        done = await clean(session, console.say, is_dry=request.dry_run)
        for line in [*done.lines, *failure_lines(done.failures)]:
            console.say(line)
        return done.exit_code

    return act_on_hosts("clean", request, act, env=parse_settings(request.env, os.environ))


@dataclass(frozen=True, slots=True)
class Cleaning:
    """What became of what earlier runs left."""

    lines: Sequence[str]
    failures: Sequence[HostFailure]
    is_whole: bool  # nothing that should go is left, on the hosts that could be asked

    @property
    def exit_code(self) -> int:
        """The exit code: not 0 if a host can't be reached, or if a leftover can't be stopped or removed."""
        return EXIT_UNREACHABLE if self.failures else 0 if self.is_whole else EXIT_FAILED


async def clean_runs(session: Session, say: Callable[[str], None], *, is_dry: bool) -> Cleaning:
    """List what is left on all hosts, and stop it unless `is_dry`.

    At a signal before that, report which hosts have failed so far, and raise Interrupted.
    """
    from launcher.session.signals import Interrupted

    timeout_s = 0.0
    with session.catch_signals():
        try:
            session.open(facts=True, gpus=False, pythons=[], checks=True)
            await session.pump(lambda: all(state.facts or state.failure for state in session.states))
            runs = [(host, process) for host, checks in _checked(session) for process in checks.runs]
            folders = [(host, folder) for host, checks in _checked(session) for folder in checks.folders]
            for line in found_lines(runs, folders):
                say(line)
            if not is_dry and _adopt(session):
                timeout_s = session.settings.timeouts.stop_timeout_s
        except Interrupted:
            session.say_failures()
            raise
        finally:
            census = await session.stop_all(timeout_s)
    kept = [] if is_dry else describe_kept(session.states, folders)
    return conclude(census, session.failures(), runs, folders, kept, is_dry=is_dry)


def _checked(session: Session) -> Iterator[tuple[str, Checks]]:
    for host, state in zip(session.hosts, session.states, strict=True):
        if state.facts is not None and state.facts.checks is not None:
            yield host.name, state.facts.checks


def _adopt(session: Session) -> bool:
    """Assign the leftovers to each node's supervisor, which stops and removes them; return whether any is a process."""
    has_processes = False
    for index, state in enumerate(session.states):
        checks = state.facts.checks if state.facts is not None else None
        runs = checks.runs if checks is not None else ()
        marks = sorted({run.mark for run in runs if not run.is_owned})
        folders = [folder.path for folder in checks.folders] if checks is not None else []
        if marks or folders:
            has_processes = has_processes or bool(marks)
            session.send(index, messages.ADOPT, marks=marks, folders=folders)
    return has_processes


def describe_kept(states: Sequence[NodeState], folders: Sequence[tuple[str, RunFolder]]) -> list[str]:
    """Return a line for each of these directories that is still there, or whose state is unknown."""
    told, lines = {state.host: state.census for state in states}, []
    for host, folder in folders:
        census = told[host]
        reasons = {folder.path: "not removed"} if census is None else dict(census.get("folders") or [])
        if folder.path in reasons:
            lines.append(f"  {host}: {folder.path} is still there: {reasons[folder.path]}")
    return lines


def found_lines(found: Sequence[tuple[str, RunProcess]], folders: Sequence[tuple[str, RunFolder]]) -> list[str]:
    """Return a line for each run on each host: its leftover processes, or that it is in progress; and each directory.

    With a directory is the number of files that are lost with it.
    """
    runs: dict[tuple[str, str, bool], list[str]] = {}
    for host, process in found:
        names = runs.setdefault((host, process.run_id, process.is_owned), [])
        names.append(f"{process.pid} ({process.name})")
    lines = []
    for (host, run_id, is_owned), names in runs.items():
        noun, state = ("process", " (in progress, left alone)") if is_owned else ("leftover process", "")
        some = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        lines.append(f"  {host}: {count(len(names), noun)} of run {run_id}{state}: {some}")
    for host, folder in folders:
        files = f" ({count(folder.files, 'file')} of its ranks)" if folder.files else ""
        lines.append(f"  {host}: leftover directory: {folder.path}{files}")
    return lines


def conclude(
    census: Census, failures: Sequence[HostFailure], runs: Sequence[tuple[str, RunProcess]],
    folders: Sequence[tuple[str, RunFolder]], kept: Sequence[str], *, is_dry: bool,
) -> Cleaning:  # fmt: skip
    """Return what became of these processes and directories; kept: lines about directories that are still there."""
    from launcher.runs.report import left_lines

    if not folders and all(process.is_owned for _, process in runs):
        said = f"nothing is left behind on {count(len(census.left), 'host')}"
    elif is_dry:
        said = "nothing was stopped or removed, because of --dry-run"
    else:
        removed = len(folders) - len(kept)
        said = (f"removed {count(removed, 'directory')}, " if removed else "") + census.describe()
    heading = [f"launch: {said}"] if census.left else []  # otherwise no host responded, which is said anyway
    is_whole = not kept and not any(census.left.values())
    return Cleaning([*heading, *left_lines(census), *kept], failures, is_whole)


async def clean_code(session: Session, say: Callable[[str], None], *, is_dry: bool) -> Cleaning:
    """Remove the code that no living run needs, or with `is_dry` only count it; raise Interrupted for a signal."""
    answers: dict[str, Mapping[str, Any]] = {}

    def take(event: Event) -> None:
        answers[session.hosts[event.index].name] = event.fields

    with session.subscribe(messages.PRUNED, take), session.subscribe(messages.UNPLACED, take):
        async with session.asking():
            session.open(tree={"is_prune": True, "is_dry": is_dry})
            await session.pump(lambda: all(state.failure or state.host in answers for state in session.states))
    removed = [answer for answer in answers.values() if "runs" in answer]
    runs, freed = sum(answer["runs"] for answer in removed), sum(answer["bytes"] for answer in removed)
    verb, where = "would remove" if is_dry else "removed", count(len(removed), "host")
    lines = [f"launch: {verb} the code of {count(runs, 'run')} on {where}, {size(freed)}"]
    for host, answer in answers.items():
        lines += [f"  {host}: {answer['text']}"] if "text" in answer else []
        lines += [f"  {host}: kept {path}, where files are that were not sent" for path in answer.get("left", ())]
    return Cleaning(lines, session.failures(), is_whole=len(removed) == len(answers))
