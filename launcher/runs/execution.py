"""Run a job to its end, whoever drives it: a terminal's `launch`, one that has left its terminal, or a controller."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from launcher.concurrency import start_thread
from launcher.errors import LauncherError, UsageError
from launcher.job.job import DEFAULT_PROGRAM, Job
from launcher.node import system
from launcher.node.agents.notice import run_notice
from launcher.output.run_folder import RunRecord
from launcher.output.write_queue import STALLED_S
from launcher.runs.culprits import find_between_attempts
from launcher.runs.records import Result
from launcher.runs.run import Run, ignore
from launcher.runs.run_list import RunList, RunListEntry
from launcher.runs.run_request import RunRequest
from launcher.session.session import SIGNALS
from launcher.session.signals import catch_signals, outlast_signals
from launcher.sync.contents import Contents

_LOGIND = "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager"
_LINGERING = Path("/var/lib/systemd/linger")
_SYSTEM_UID = 1000  # RemoveIPC spares users below (logind.conf(5))
_ANSWER_S = 2.0
_PLAIN_WORD = re.compile(r"\s*([\w./+-]+)(?=\s|$)")


async def execute_job(
    request: RunRequest, entry: RunListEntry, *, variables: Mapping[str, str], notify: str | None = None,
    end_process: Callable[[int], object] | None = None,
) -> Result:  # fmt: skip
    """Run a job to its end, and write down how it ended; raise LauncherError if it can't start.

    variables: the environment of this process; notify: the command of --notify. end_process: ends this process, which
    has nothing else to do, with an exit code; with it, no signal that comes after the result changes that.
    """
    job, record, options, say = request.job, request.record, request.options, request.console.say
    is_requeued = variables.get("SLURM_RESTART_COUNT", "0") != "0"
    if job.program == DEFAULT_PROGRAM:
        knows_place = not is_requeued and not (options.share and options.share[1])
        place = f"outputs/{record.run_id}" if knows_place else "outputs"
        say(f"launch: no script given; the built-in trainer writes to {place}")
    if request.leave is not None:
        for line in warn_of_logout(variables, options.restarts, has_agents=request.can_reach is not None):
            say(line)
    if options.progress_dir is None and not is_requeued:
        options = replace(options, progress_dir=find_checkpoints(job, record.run_id))
    notifier = Notifier(notify, record.run_id, record.name, variables, say) if notify else None
    if notifier is not None:
        await asyncio.to_thread(notifier.warn)
    may_search = job.program.needs_torch and options.share is None
    request = replace(
        request,
        options=options,
        find_culprits=partial(find_between_attempts, request) if may_search else None,
        notify=notifier,
        note_state=entry.note_state,
        is_listed=entry.error is None,
        contents=Contents(job.tree, {**variables, **job.env}) if job.tree is not None else None,
    )
    with catch_signals(dict.fromkeys(SIGNALS, ignore)):  # also after the run has stopped listening
        result = await Run(request).execute()
        entry.end(result)
        if end_process is not None:
            outlast_signals(SIGNALS, partial(end_process, result.exit_code))
        return result


def warn_of_logout(variables: Mapping[str, str], restarts: int, *, has_agents: bool) -> list[str]:
    """Return a line, with the remedy, for each thing that a logout takes from a run without a terminal.

    has_agents: it logs in to no host again, and its ranks may run here.
    """
    lines, uid = [], os.geteuid()
    if has_agents:
        if uid >= _SYSTEM_UID and not (_LINGERING / system.user_name(uid)).exists() and _is_set("RemoveIPC"):
            text = f"{socket.gethostname()} removes your shared memory when you log out (RemoveIPC)"
            lines.append(f"launch: {text}; fix: loginctl enable-linger there")
        return lines
    if uid != 0 and _is_set("KillUserProcesses"):  # logind spares root
        lines.append(
            "launch: this system ends your processes when you log out (KillUserProcesses); "
            "fix: loginctl enable-linger, and systemd-run --user --scope launch ..."
        )
    if restarts and "SSH_CONNECTION" in variables and "SSH_AUTH_SOCK" in variables:
        lines.append(
            "launch: a restart after you log out can't use the SSH agent of this login; "
            "fix: let this machine log in to the hosts with a key file"
        )
    return lines


def _is_set(name: str) -> bool:
    """Tell whether a property of logind is true."""
    argv = ("busctl", "get-property", *_LOGIND, name)
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_ANSWER_S)
        return done.stdout.strip() == b"b true"
    return False


@contextlib.contextmanager
def listed(runs: RunList, record: RunRecord, *, is_needed: bool) -> Iterator[RunListEntry]:
    """List a run while the block runs, and afterwards if it has started; raise UsageError if it must be and can't."""
    entry = runs.begin(record.run_id, record.name, record.folder)
    try:
        if is_needed and entry.error is not None:
            record.discard()
            text = f"--detach: can't list the run in {runs.base} on {socket.gethostname()}: {entry.error.strerror}"
            raise UsageError(text, "free space there, or choose another directory there with XDG_STATE_HOME")
        yield entry
    finally:
        record.disk.wait(STALLED_S)  # for the last message, before others can see that the run has ended
        entry.close(is_kept=record.has_begun)


def find_checkpoints(job: Job, run_id: str) -> str | None:
    """Return the directory in which the built-in trainer saves; None for other programs, and if a file names it."""
    if not job.program.is_trainer:
        return None
    args = job.program.args
    for word, following in zip(args, [*args[1:], ""], strict=False):
        option, equals, value = word.partition("=")
        if option.replace("_", "-") == "--save-dir":
            return f"{value if equals else following}/checkpoints"
        if option == "--config":
            return None
    return f"outputs/{run_id}/checkpoints"


class Notifier:
    """Runs the command in a shell, with the event in its environment: LAUNCH_EVENT is `end`, `restart` or `wait`."""

    def __init__(
        self, command: str, run_id: str, name: str | None, env: Mapping[str, str], say: Callable[[str], object]
    ) -> None:
        """name: of the run; env: the environment of the command; say: gets why it failed, never the command itself."""
        self._command = command
        self._env = {**env, "LAUNCH_RUN": run_id, "LAUNCH_NAME": name or ""}
        self._say = say

    def __call__(self, event: str, result: Result) -> None:
        """Run it; at the end of the run, wait until it has ended."""
        env = {
            **self._env, "LAUNCH_EVENT": event, "LAUNCH_EXIT_CODE": str(result.exit_code),
            "LAUNCH_CAUSE": result.describe().reason.replace("\0", ""),
        }  # fmt: skip
        if event == "end":
            self._run(env)
            return
        try:
            start_thread(lambda: self._run(env), "notify", lambda error: None)
        except LauncherError as error:
            self._say(f"launch: can't run --notify: {error.message}")

    def warn(self) -> None:
        """Say if the shell doesn't find the program with which the command begins."""
        first = _PLAIN_WORD.match(self._command)
        if first is not None and run_notice(f"command -v {first[1]}".encode(), self._env):  # else the shell makes it
            self._say(f"launch: --notify won't run: {first[1]} isn't found on {socket.gethostname()}")
            self._say("  fix: name it with its absolute path on the controller host")

    def _run(self, env: Mapping[str, str]) -> None:
        """Run it for a minute at most, with the processes that it starts."""
        if failed := run_notice(os.fsencode(self._command), env):
            self._say(f"launch: {failed}")
