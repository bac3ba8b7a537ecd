"""The session in which a command asks hosts for something, or does something there, without a run."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from secrets import token_hex
from typing import TYPE_CHECKING

from launcher.cli.host_choice import choose_opener, read_hosts
from launcher.cli.options.request import Request
from launcher.errors import EXIT_SIGNAL_BASE
from launcher.hosts.host import Host
from launcher.job.job import Timeouts

if TYPE_CHECKING:
    from launcher.output.console import Console
    from launcher.runs.run_request import Opener
    from launcher.session.session import Session


def act_on_hosts(
    purpose: str, request: Request, act: Callable[[Session, Console], Awaitable[int]], *,
    hosts: Sequence[Host] = (), env: Mapping[str, str] | None = None, pythons: Sequence[str] = (),
    is_folding: bool = False, has_ranks: bool = True,
) -> int:  # fmt: skip
    """Act in a session with the hosts of the request; return the exit code, which is that of a signal if one came.

    env: of what is started there; pythons: those that may run the helper. By default that is --python alone, or else
    the usual ones.
    """
    from launcher.output.console import Console
    from launcher.output.output_streams import find_streams
    from launcher.session.settings import loader_pythons

    hosts = hosts or read_hosts(request)
    open_transport = choose_opener(request.reach, hosts, python=request.python)
    pythons = pythons or ((request.python,) if request.python else loader_pythons(None))
    streams = find_streams(os.environ)
    console = Console(hosts, streams, as_json=request.as_json, is_folding=is_folding, is_patient=True)
    return hold_session(
        purpose, hosts, open_transport, console, lambda session: act(session, console),
        timeouts=request.timeouts, env=env or {}, pythons=pythons, has_ranks=has_ranks,
    )  # fmt: skip


def hold_session(
    purpose: str, hosts: Sequence[Host], open_transport: Opener, console: Console,
    act: Callable[[Session], Awaitable[int]], *,
    timeouts: Timeouts, env: Mapping[str, str], pythons: Sequence[str], has_ranks: bool = True, farewell: str = "",
) -> int:  # fmt: skip
    """Act in a session with these hosts, close the console, and return the exit code, or that of a signal.

    farewell: what is said after a signal.
    """
    import asyncio  # a Tab and --help can do without a session

    from launcher.session.session import Session
    from launcher.session.settings import Settings
    from launcher.session.signals import Interrupted

    # Such as `check-20261120-091233-1f3a`, in place of a run's id: two may begin in one second.
    name = f"{purpose}-{datetime.now():%Y%m%d-%H%M%S}-{token_hex(2)}"

    async def execute() -> int:
        outputs = console.outputs(hosts, None, has_ranks=has_ranks)
        transport = open_transport(hosts, console.say)
        settings = Settings(name, env, pythons, timeouts)
        return await act(Session(hosts, transport, outputs, settings, say=console.say, progress=console.progress))

    try:
        return asyncio.run(execute())
    except Interrupted as interruption:
        if farewell:
            console.say(farewell)
        return EXIT_SIGNAL_BASE + interruption.number
    finally:
        console.close()
