"""The sessions of commands that start no ranks: their console, their names and their settings.

Apart from `runner`, whose imports take 60 ms: `launch exec` needs none of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from secrets import token_hex

import click

from launcher.errors import EXIT_SIGNAL_BASE
from launcher.hosts.host import Host
from launcher.job.job import Job, Timeouts
from launcher.output.console import Console
from launcher.output.node_output import NodeOutput
from launcher.output.output_streams import find_streams
from launcher.session.session import Session
from launcher.session.settings import Settings, loader_pythons
from launcher.session.signals import Interrupted
from launcher.transports.base import Transport


@contextmanager
def open_console(
    hosts: Sequence[Host], *, as_json: bool = False, is_folding: bool = False, if_stopped: str = ""
) -> Iterator[Console]:
    """Yield the console of a command that asks hosts; a signal ends the command, and prints `if_stopped`."""
    streams = find_streams(os.environ)
    console = Console(hosts, streams, as_json=as_json, is_folding=is_folding, is_patient=True)  # no logs are kept
    try:
        yield console
    except Interrupted as interruption:
        if if_stopped:
            console.say(if_stopped)
        raise click.exceptions.Exit(EXIT_SIGNAL_BASE + interruption.number) from None
    finally:
        console.close()


def make_settings(job: Job, purpose: str) -> Settings:
    """Return the settings of the session of a job that is only checked, or whose code is only sent."""
    return Settings(_name_session(purpose), job.env, loader_pythons(job.python), job.timeouts)


def read_settings(
    timeouts: Timeouts, purpose: str, python: str | None, env: Mapping[str, str] | None = None
) -> Settings:
    """Return the settings of the session of a command that runs no job, from its options."""
    pythons = (python,) if python else loader_pythons(None)
    return Settings(_name_session(purpose), env or {}, pythons, timeouts)


def _name_session(purpose: str) -> str:
    """Return what takes the place of a run's id, such as `check-20261120-091233-1f3a`: two may begin in one second."""
    return f"{purpose}-{datetime.now():%Y%m%d-%H%M%S}-{token_hex(2)}"


def make_session(
    settings: Settings, hosts: Sequence[Host], transport: Transport, console: Console,
    outputs: Sequence[NodeOutput] | None = None,
) -> Session:  # fmt: skip
    """Return a session with these settings; must be called in a running loop. outputs: by default they are shown."""
    outputs = outputs if outputs is not None else console.outputs(hosts, None)
    return Session(hosts, transport, outputs, settings, say=console.say, progress=console.progress)
