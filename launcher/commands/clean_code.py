"""`launch clean --code`: remove the code that runs of this user have left on the hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.errors import EXIT_FAILED, EXIT_UNREACHABLE, HostFailure
from launcher.node import messages
from launcher.session.connection import Event
from launcher.session.session import Session
from launcher.session.signals import Interrupted
from launcher.wording import count, size


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

    with (
        session.catch_signals(),
        session.subscribe(messages.PRUNED, take),
        session.subscribe(messages.UNPLACED, take),
    ):
        try:
            session.open(tree={"is_prune": True, "is_dry": is_dry})
            await session.pump(lambda: all(state.failure or state.host in answers for state in session.states))
        except Interrupted:
            session.say_failures()
            raise
        finally:
            await session.stop_all(timeout_s=0)
    return CodeCleaning(answers, session.failures())


def cleaning_lines(done: CodeCleaning, *, is_dry: bool) -> list[str]:
    """Return what was removed, and what was not."""
    removed = [answer for answer in done.answers.values() if "runs" in answer]
    runs, freed = sum(answer["runs"] for answer in removed), sum(answer["bytes"] for answer in removed)
    verb = "would remove" if is_dry else "removed"
    where = count(len(removed), "host")
    lines = [f"launch: {verb} the code of {count(runs, 'run')} on {where}, {size(freed)} with what is kept by hash"]
    for host, answer in done.answers.items():
        lines += [f"  {host}: {answer['text']}"] if "text" in answer else []
        lines += [f"  {host}: kept {path}, where files are that were not sent" for path in answer.get("left", ())]
    return lines
