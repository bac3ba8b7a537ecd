"""Ends what earlier runs left: processes with a run's mark that no supervisor looks after any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from launcher.errors import EXIT_FAILED, EXIT_UNREACHABLE, HostFailure
from launcher.job.facts import RunProcess
from launcher.node import messages
from launcher.session.node_state import Census
from launcher.session.session import Session
from launcher.session.signals import Interrupted
from launcher.wording import count

_MOST_RUNS = 100  # of one host, that are named one by one


@dataclass(frozen=True, slots=True)
class Cleaning:
    """What was found and what became of it."""

    found: Sequence[tuple[str, RunProcess]]  # with its host
    failures: Sequence[HostFailure]
    census: Census

    @property
    def left_behind(self) -> list[tuple[str, RunProcess]]:
        """What nobody looked after."""
        return [(host, process) for host, process in self.found if not process.is_owned]

    @property
    def exit_code(self) -> int:
        """A host that can't be asked, or a process that can't be ended, is no success."""
        if self.failures:
            return EXIT_UNREACHABLE
        return EXIT_FAILED if any(self.census.left.values()) else 0


async def clean(session: Session, say: Callable[[str], None], *, is_dry: bool) -> Cleaning:
    """Name what is left on all hosts, and end it unless `is_dry`.

    At a signal before that, say which hosts have failed so far, and raise Interrupted.
    """
    with session.catch_signals():
        try:
            found = await _find(session)
            for line in found_lines(found):
                say(line)
            adopted = _adopt(session) if found and not is_dry else False
        except Interrupted:
            session.say_failures()
            await session.stop_all(timeout_s=0)
            raise
        except BaseException:
            await session.stop_all(timeout_s=0)
            raise
        census = await session.stop_all(session.terms.stop_timeout_s if adopted else 0)
    return Cleaning(found, session.failures(), census)


async def _find(session: Session) -> list[tuple[str, RunProcess]]:
    session.open(facts=True, gpus=False, pythons=[], checks=True)
    await session.pump(lambda: all(state.facts or state.failure for state in session.states))
    return [
        (host.name, process)
        for host, state in zip(session.hosts, session.states, strict=True)
        if state.facts is not None and state.facts.checks is not None
        for process in state.facts.checks.runs
    ]


def _adopt(session: Session) -> bool:
    """Make the left-overs each node's own, so that its ladder ends them; return whether there are any."""
    has_any = False
    for index, state in enumerate(session.states):
        checks = state.facts.checks if state.facts is not None else None
        runs = checks.runs if checks is not None else ()
        marks = sorted({run.mark for run in runs if not run.is_owned})
        if marks:
            has_any = True
            session.send(index, messages.ADOPT, marks=marks)
    return has_any


def found_lines(found: Sequence[tuple[str, RunProcess]]) -> list[str]:
    """Return a line for each run on each host: what is left of it, or that it goes on."""
    runs: dict[tuple[str, str, bool], list[RunProcess]] = {}
    for host, process in found:
        runs.setdefault((host, process.run_id, process.is_owned), []).append(process)
    lines: list[str] = []
    named, more = Counter[str](), Counter[str]()
    for (host, run_id, is_owned), processes in runs.items():
        named[host] += 1
        if named[host] > _MOST_RUNS:
            more[host] += len(processes)
            continue
        names = ", ".join(f"{process.pid} ({process.name})" for process in processes[:4])
        rest = f" and {len(processes) - 4} more" if len(processes) > 4 else ""
        state = ", which goes on and is left alone" if is_owned else " left behind"
        lines.append(f"  {host}: {count(len(processes), 'process')} of run {run_id}{state}: {names}{rest}")
    words = "{} of {} more runs (runs in progress are left alone)"
    return lines + [f"  {host}: {words.format(count(number, 'process'), named[host] - _MOST_RUNS)}"
                    for host, number in more.items()]  # fmt: skip
