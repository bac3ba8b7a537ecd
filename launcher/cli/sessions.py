"""The sessions of commands that start no ranks: their names, their settings and what they print.

Apart from `runner`, whose imports take 60 ms: `launch exec` needs none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from secrets import token_hex

from launcher.hosts.host import Host
from launcher.job.job import Job, Timeouts
from launcher.output.console import Console
from launcher.output.node_output import NodeOutput
from launcher.session.session import Session
from launcher.session.settings import Settings, loader_pythons
from launcher.transports.base import Transport


def make_settings(job: Job, purpose: str) -> Settings:
    """Return the settings of the session of a job that is only checked, or whose code is only sent."""
    pythons = loader_pythons(job.python)
    return Settings(
        _name_session(purpose), job.env, pythons, job.timeouts,
    )  # fmt: skip


def read_settings(timeouts: Timeouts, purpose: str, python: str | None) -> Settings:
    """Return the settings of the session of a command that runs no job, from its options."""
    pythons = (python,) if python else loader_pythons(None)
    return Settings(
        _name_session(purpose), {}, pythons, timeouts,
    )  # fmt: skip


def _name_session(purpose: str) -> str:
    """Return what takes the place of a run's id, such as `check-20261120-091233-1f3a`: two may begin in one second."""
    return f"{purpose}-{datetime.now():%Y%m%d-%H%M%S}-{token_hex(2)}"


def make_session(
    settings: Settings, hosts: Sequence[Host], transport: Transport, outputs: Sequence[NodeOutput], console: Console
) -> Session:
    """Return a session with these settings; must be called in a running loop."""
    return Session(hosts, transport, outputs, settings, say=console.say, progress=console.progress)
