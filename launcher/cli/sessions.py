"""The sessions that start no ranks: those of check, sync, clean and exec, and the one that sends code to a controller.

Apart from `runner`, whose imports take 60 ms: `launch exec` needs none of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from secrets import token_hex
from typing import TypeVar

from launcher.errors import EXIT_SIGNAL_BASE
from launcher.hosts.host import Host
from launcher.job.job import Timeouts
from launcher.output.console import Console
from launcher.runs.run_request import Opener
from launcher.session.session import Session
from launcher.session.settings import Settings, loader_pythons
from launcher.session.signals import Interrupted

DoneT = TypeVar("DoneT")


def make_settings(purpose: str, timeouts: Timeouts, env: Mapping[str, str], pythons: Sequence[str]) -> Settings:
    """Return the settings of a session; pythons: those that may run the helper, in the order of trying.

    Its name takes the place of a run's id, such as `check-20261120-091233-1f3a`: two may begin in one second.
    """
    name = f"{purpose}-{datetime.now():%Y%m%d-%H%M%S}-{token_hex(2)}"
    return Settings(name, env, pythons, timeouts)


def find_pythons(python: str | None) -> tuple[str, ...]:
    """Return those that may run the helper of a command: --python alone, or else the usual ones."""
    return (python,) if python else loader_pythons(None)


def hold_session(
    hosts: Sequence[Host], open_transport: Opener, settings: Settings, console: Console,
    act: Callable[[Session], Awaitable[DoneT]], report: Callable[[DoneT], int], *,
    has_ranks: bool = True, farewell: str = "",
) -> int:  # fmt: skip
    """Act in a session with these hosts, report what was done once all output is shown, and close the console.

    Return the exit code of `report`, or that of a signal. farewell: what is said after a signal.
    """

    async def execute() -> DoneT:
        outputs = console.outputs(hosts, None, has_ranks=has_ranks)
        transport = open_transport(hosts, console.say)
        session = Session(hosts, transport, outputs, settings, say=console.say, progress=console.progress)
        try:
            return await act(session)
        finally:
            for output in outputs:
                output.finish()  # a last line may have no newline

    try:
        return report(asyncio.run(execute()))
    except Interrupted as interruption:
        if farewell:
            console.say(farewell)
        return EXIT_SIGNAL_BASE + interruption.number
    finally:
        console.close()
