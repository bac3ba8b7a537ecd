"""Run a plain command on every host and stream its output; each host runs it to its end, with a run's clean-up."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from launcher.errors import EXIT_FAILED, EXIT_SIGNAL_BASE, EXIT_UNREACHABLE, HostFailure
from launcher.node import messages
from launcher.session.node_state import Census
from launcher.session.session import Session
from launcher.session.signals import Interrupted
from launcher.wording import count


@dataclass(frozen=True, slots=True)
class Execution:
    """How a command ended on all hosts."""

    exit_codes: Mapping[str, int]  # of the hosts where it ran
    failures: Sequence[HostFailure]  # of the hosts where it could not
    census: Census
    interrupted_by: int | None = None
    own_codes: Mapping[str, int] = field(default_factory=dict)  # of the hosts where it had exited before any signal

    @property
    def exit_code(self) -> int:
        """The first code that is not 0, in host order; a signal to `launch` comes first, an unreachable host last."""
        if self.interrupted_by is not None:
            return EXIT_SIGNAL_BASE + self.interrupted_by
        bad = [code for code in self.exit_codes.values() if code]
        return bad[0] if bad else EXIT_UNREACHABLE if self.failures else 0


@dataclass(frozen=True, slots=True)
class ExecResult:
    """The event `result` of `launch exec --json`."""

    exit_code: int  # the exit code of `launch`
    exit_codes: Mapping[str, int]  # the command's exit codes, by host
    failures: Mapping[str, str]  # why the command couldn't run, by host


def command_argv(words: Sequence[str]) -> list[str]:
    """Return what is executed: one word is a shell command line, as with ssh; several are an argv as they are."""
    return ["/bin/sh", "-c", words[0]] if len(words) == 1 else list(words)


async def execute(session: Session, argv: Sequence[str], workdir: str | None, say: Callable[[str], None]) -> Execution:
    """Run `argv` on every host at once, and wait for all of them."""
    start = messages.encode(
        messages.START,
        processes=[{"rank": 0, "argv": list(argv), "env": {}}],
        cwd=workdir,
        is_short=True,
    )
    interrupted_by, timeout_s = None, 0.0
    with session.catch_signals():
        session.open(start)
        try:
            await session.pump(lambda: all(state.census or state.failure for state in session.states))
        except Interrupted as interruption:
            interrupted_by = interruption.number
            timeout_s = session.settings.timeouts.stop_timeout_s
            if interrupted_by != signal.SIGPIPE:
                say(f"launch: stopping the command on {count(len(session.hosts), 'host')} (Ctrl-C again: kill now)")
        finally:
            own_codes = _exit_codes(session)
            census = await session.stop_all(timeout_s)
    if interrupted_by not in (None, signal.SIGPIPE):
        say(f"launch: stopped, {census.describe() or 'nothing was started'}")
    return Execution(_exit_codes(session), session.failures(), census, interrupted_by, own_codes)


def _exit_codes(session: Session) -> dict[str, int]:
    codes = {}
    for host, state in zip(session.hosts, session.states, strict=True):
        event = state.exits.get(0)
        if event is not None:
            number, code = event.fields["signal"], event.fields["code"]
            if number is None and code is None:  # unknown, which must not pass for success
                code = EXIT_FAILED
            codes[host.name] = EXIT_SIGNAL_BASE + number if number else code
    return codes
