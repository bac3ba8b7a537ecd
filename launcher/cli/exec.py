"""launch exec: run a plain command on every host and stream its output, with a run's clean-up."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import click

from launcher.cli.host_session import act_on_hosts
from launcher.cli.job_request import resolve_workdir
from launcher.cli.options.command import Command, gather
from launcher.cli.options.completion import complete_files
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.request import AS_JSON, HELPER_PYTHON, HOSTS, LIFE, REACH, WORKDIR, Option, Request
from launcher.errors import EXIT_FAILED, EXIT_SIGNAL_BASE, EXIT_UNREACHABLE, HostFailure, UsageError
from launcher.hosts.ranges import fold_names
from launcher.hosts.unreachable import failure_lines
from launcher.node import messages
from launcher.wording import count

if TYPE_CHECKING:
    from launcher.output.console import Console
    from launcher.session.node_state import Census
    from launcher.session.session import Session


@click.command("exec", cls=Command, context_settings={"allow_interspersed_args": False}, params=[
    CONFIG, *HOSTS, *REACH, *LIFE,
    WORKDIR.but(help="Directory on the hosts, relative to this one.  [default: ~]"),
    HELPER_PYTHON, AS_JSON,
    Option(
        ["-b", "--fold"], is_flag=True, help="Show identical output of several hosts once, at the end.",
        heading="Output",
    ),
    click.Argument(["words"], metavar="-- CMD...", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_files),
])  # fmt: skip
@gather
def command(*, fold: bool, request: Request) -> int:
    """Run a plain command on every host; output lines begin with the host's name.

    A single word is a shell command line (`-- 'nvidia-smi | head'`); several words run without a shell.
    Stdin is not sent to the hosts. The exit code is the first nonzero one in host order, or 69 if a host can't be
    reached or is lost and no command failed. In a Slurm job, its hosts are the default.
    """
    from launcher.session.session import SIGNALS  # a Tab and --help can do without a session
    from launcher.session.signals import catch_signals, outlast_signals

    if not request.words:
        raise UsageError("no command given", "write it after --: launch exec --hosts a,b -- uptime")
    if fold and request.as_json:
        raise UsageError("--fold and --json are both given", "pass only one of them")

    async def run(session: Session, console: Console) -> int:
        console.end_with_reader(partial(session.interrupt, signal.SIGPIPE))
        with catch_signals(dict.fromkeys(SIGNALS, lambda: None)):  # also after the session has stopped listening
            done = await execute(session, command_argv(request.words), resolve_workdir(request.workdir), console.say)
            outlast_signals(SIGNALS, partial(os._exit, done.exit_code))
        _report(done, console)
        return done.exit_code

    return act_on_hosts("exec", request, run, is_folding=fold, has_ranks=False)


def _report(done: Execution, console: Console) -> None:
    console.show_folded()
    failures = {failure.host: failure.text for failure in done.failures}
    console.emit("result", **asdict(ExecResult(done.exit_code, done.exit_codes, failures)))
    by_code: dict[int, list[str]] = {}
    for host, code in done.own_codes.items():  # later ones come from the signal that launch sent
        by_code.setdefault(code, []).append(host)
    for code, names in by_code.items():
        if code:
            console.say(f"launch: {fold_names(names)}: exit code {code}")
    for line in failure_lines(done.failures):
        console.say(line)
    if not done.census.is_clean:
        console.say(f"launch: {done.census.describe()}")


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
    from launcher.session.signals import Interrupted

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
            for output in session.outputs:
                output.finish()  # a last line may have no newline
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
