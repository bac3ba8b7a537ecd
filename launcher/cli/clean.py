"""launch clean: stop what earlier runs left behind: processes with a run's mark but without a supervisor, directories.

A run's directory is left behind if nothing could remove it: its host lost power, or all its keepers were killed. With
--code, remove the code that runs of this user have left instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from launcher.output.console import Console
from launcher.runs.report import left_lines
from launcher.session.connection import Event
from launcher.session.node_state import Census
from launcher.session.session import Session
from launcher.session.signals import Interrupted
from launcher.wording import count, size


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
    is_dry = request.dry_run

    async def act(session: Session, console: Console) -> int:
        if code:
            removed = await clean_code(session, is_dry=is_dry)
            lines, failures, exit_code = cleaning_lines(removed, is_dry=is_dry), removed.failures, removed.exit_code
        else:
            done = await clean(session, console.say, is_dry=is_dry)
            lines = [*left_lines(done.census), *kept_lines(done.kept)]
            if done.census.left:  # otherwise no host responded, which is said below
                lines.insert(0, f"launch: {verdict(done, is_dry=is_dry)}")
            failures, exit_code = done.failures, done.exit_code
        for line in [*lines, *failure_lines(failures)]:
            console.say(line)
        return exit_code

    return act_on_hosts("clean", request, act, env=parse_settings(request.env, os.environ))


@dataclass(frozen=True, slots=True)
class Cleaning:
    """What was found and what became of it."""

    found: Sequence[tuple[str, RunProcess]]  # with its host
    failures: Sequence[HostFailure]
    census: Census
    folders: Sequence[tuple[str, RunFolder]] = ()  # with its host
    kept: Sequence[tuple[str, str, str]] = ()  # host, path and reason of each that could not be removed

    @property
    def left_behind(self) -> list[tuple[str, RunProcess]]:
        """The processes that have no supervisor any more."""
        return [(host, process) for host, process in self.found if not process.is_owned]

    @property
    def ended(self) -> int:
        """How many leftover processes are certainly gone; a host that could not be asked again counts none."""
        left = {(host, process[0]) for host, processes in self.census.left.items() for process in processes}
        asked = [(host, process.pid) for host, process in self.left_behind if host in self.census.left]
        return len(set(asked) - left)

    @property
    def exit_code(self) -> int:
        """The exit code: not 0 if a host can't be reached, or if a leftover can't be stopped or removed."""
        if self.failures:
            return EXIT_UNREACHABLE
        return EXIT_FAILED if self.kept or any(self.census.left.values()) else 0


async def clean(session: Session, say: Callable[[str], None], *, is_dry: bool) -> Cleaning:
    """List what is left on all hosts, and stop it unless `is_dry`.

    At a signal before that, report which hosts have failed so far, and raise Interrupted.
    """
    timeout_s = 0.0
    with session.catch_signals():
        try:
            session.open(facts=True, gpus=False, pythons=[], checks=True)
            await session.pump(lambda: all(state.facts or state.failure for state in session.states))
            found = [(host, process) for host, checks in _checked(session) for process in checks.runs]
            folders = [(host, folder) for host, checks in _checked(session) for folder in checks.folders]
            for line in found_lines(found, folders):
                say(line)
            if not is_dry and _adopt(session):
                timeout_s = session.settings.timeouts.stop_timeout_s
        except Interrupted:
            session.say_failures()
            raise
        finally:
            census = await session.stop_all(timeout_s)
    kept = () if is_dry else _kept(session, [(host, folder.path) for host, folder in folders])
    return Cleaning(found, session.failures(), census, folders, kept)


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


def _kept(session: Session, removed: Sequence[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """Return host, path and reason of each of these that is still there, or whose state is unknown."""
    reasons = {
        host.name: dict(state.census.get("folders") or []) if state.census is not None else None
        for host, state in zip(session.hosts, session.states, strict=True)
    }
    kept = []
    for host, name in removed:
        told = reasons[host]
        if told is None or name in told:
            kept.append((host, name, "not removed" if told is None else told[name]))
    return kept


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


def verdict(done: Cleaning, *, is_dry: bool) -> str:
    """Return what became of everything found, in one line; of the counts that are 0, only what is left now."""
    processes, folders = len(done.left_behind), len(done.folders)
    if not processes and not folders:
        return f"nothing is left behind on {count(len(done.census.left), 'host')}"
    if is_dry:
        return _listed(
            (processes, "process", "{} would be stopped"),
            (folders, "directory", "{} would be removed"),
        )
    kept = len(done.kept)
    ends = _listed(
        (done.ended, "process", "stopped {}"),
        (folders - kept, "directory", "removed {}"),
        (kept, "directory", "{} could not be removed"),
    )
    return ", ".join(filter(None, [ends, done.census.describe()]))


def _listed(*parts: tuple[int, str, str]) -> str:
    return ", ".join(words.format(count(number, noun)) for number, noun, words in parts if number)


def kept_lines(kept: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return a line for each directory that could not be removed."""
    return [f"  {host}: {path} is still there: {reason}" for host, path, reason in kept]


@dataclass(frozen=True, slots=True)
class CodeCleaning:
    """What each host has answered, and which failed."""

    answers: Mapping[str, Mapping[str, Any]]  # by host: PRUNED or UNPLACED
    failures: Sequence[HostFailure]

    @property
    def exit_code(self) -> int:
        """The exit code: not 0 if a host can't be reached, or can't remove its code."""
        if self.failures:
            return EXIT_UNREACHABLE
        return EXIT_FAILED if any("text" in answer for answer in self.answers.values()) else 0


async def clean_code(session: Session, *, is_dry: bool) -> CodeCleaning:
    """Remove the code that no living run needs, or with `is_dry` only count it; raise Interrupted for a signal."""
    answers: dict[str, Mapping[str, Any]] = {}

    def take(event: Event) -> None:
        answers[session.hosts[event.index].name] = event.fields

    with session.subscribe(messages.PRUNED, take), session.subscribe(messages.UNPLACED, take):
        async with session.asking():
            session.open(tree={"is_prune": True, "is_dry": is_dry})
            await session.pump(lambda: all(state.failure or state.host in answers for state in session.states))
    return CodeCleaning(answers, session.failures())


def cleaning_lines(done: CodeCleaning, *, is_dry: bool) -> list[str]:
    """Return what was removed, and what was not."""
    removed = [answer for answer in done.answers.values() if "runs" in answer]
    runs, freed = sum(answer["runs"] for answer in removed), sum(answer["bytes"] for answer in removed)
    verb = "would remove" if is_dry else "removed"
    where = count(len(removed), "host")
    lines = [f"launch: {verb} the code of {count(runs, 'run')} on {where}, {size(freed)}"]
    for host, answer in done.answers.items():
        lines += [f"  {host}: {answer['text']}"] if "text" in answer else []
        lines += [f"  {host}: kept {path}, where files are that were not sent" for path in answer.get("left", ())]
    return lines
