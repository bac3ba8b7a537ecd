"""What a run that another process controls is asked: whether it lives, how it ended, what its hosts need.

A launch on another machine asks too: `main` runs its command about a run that this machine controls, or controls a run
for it. It is the same code, and runs the command as if it were typed here, with two exceptions: the runs are those that
this machine controls, and the output is made for the streams of the launch that asks, which copies it there.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

import click

from launcher.concurrency import start_thread
from launcher.errors import EXIT_FAILED, EXIT_SIGNAL_BASE, LauncherError, UsageError
from launcher.output.log_writer import TRANSCRIPT
from launcher.output.output_streams import OutputStreams, describe_error, tell
from launcher.runs.run_list import ListedRun, RunList, UnknownRunError

ASK = "ask"  # to a launch elsewhere, instead of a command: answer a question about a run
_FAILED = re.compile("launch: (.*FAILED after |.* could not start|its time in the queue )")
_ENDED = re.compile("launch: (finished in|stopped by) ")


def main(nonce: str, wait_s: int) -> NoReturn:
    """Read one order from stdin, carry it out, and exit; wait_s: for the next bytes of the order."""
    from launcher.controller import orders  # which a command that asks here can do without

    order, last_line = orders.take(wait_s)
    ending = ""
    try:
        if isinstance(order.action, orders.Control):
            from launcher.controller.control import control  # half of this package, which no command needs

            code, has_begun = control(order.action, order.streams, last_line, os.environ, order.silence_s)
            ending = "" if has_begun else f" {orders.REFUSED}"
        else:
            start_thread(partial(orders.end_with_the_login, order.silence_s), "login", lambda error: None)
            code = _run(order.action, order.streams)
        sys.stdout.flush()
    except UnknownRunError as error:
        code, ending = error.exit_code, f" {orders.UNKNOWN}"
    except LauncherError as error:
        tell(describe_error(error))
        code, ending = error.exit_code, f" {orders.REFUSED}"
    except KeyboardInterrupt:  # the run has not begun to listen to signals
        tell("launch: stopped by you; nothing was started")
        code, ending = EXIT_SIGNAL_BASE + signal.SIGINT, f" {orders.REFUSED}"
    except BrokenPipeError:  # the launch host has hung up
        code = EXIT_FAILED
    except Exception:  # noqa: BLE001 - whoever reads the output must learn that it ends
        traceback.print_exc()
        code = EXIT_FAILED
    last_line.write(f"{code}{ending}")
    os._exit(code)


def _run(words: Sequence[str], streams: OutputStreams) -> int:
    """Run a command, given by its words after `launch`, and return its exit code."""
    if words[0] == ASK:
        return answer(RunList.of_user(os.environ).find(words[1]), words[2], streams)
    from launcher.cli.main import launch

    try:
        code: int = launch.main([*words], prog_name="launch", standalone_mode=False, obj=streams)
    except click.ClickException as error:
        from launcher.cli.mistakes import explain

        raise explain(error, words) from None
    return code


def answer(run: ListedRun, question: str, streams: OutputStreams) -> int:
    """Do for a run that is controlled here what is no command of its own; return an exit code."""
    if question == "samples":
        from launcher.cli.top import print_now

        return print_now(run)
    if question == "stacks":
        return ask_for_stacks(run)
    print(json.dumps(find_value(run, question)))
    return 0


def find_doing(run: ListedRun) -> str:
    """Return what a run does now, in words; empty if it has ended, or doesn't tell."""
    doing = run.read_doing(time.time())
    return str(doing) if doing is not None else ""


def ask_for_stacks(run: ListedRun) -> int:
    """Let the controller of a run print the stacks of its ranks."""
    if not run.is_here:
        tell(f"launch: only {run.controller.host} can ask for the stacks")
    elif is_running(run):
        os.kill(run.controller.pid, signal.SIGQUIT)
    return 0


def find_value(run: ListedRun, question: str) -> Any:
    """Return what is asked of a run, as JSON: `record`, `agents`, the `contents` of its page, where its `logs` are."""
    if question == "record":
        return run.read_json()
    if question == "logs":
        return str(run.find_folder())
    if question == "agents":
        return _find_agents(run)
    assert question == "contents", question
    from launcher.cli.report_page.contents import tell_contents

    return tell_contents(run)


def _find_agents(run: ListedRun) -> dict[str, Any]:
    """Return whether the controller of a run lives, and which hosts it misses.

    Or the exit code, and which hosts were lost: when a run has ended, all agents have left.
    """
    is_alive, end = is_running(run), (run.look() or run).end
    if end is not None:
        result = run.read_record().result
        missing = [*result.unreachable] if result is not None else []
        return {"is_alive": is_alive, "exit_code": end.exit_code, "missing": missing}
    return {"is_alive": is_alive, "exit_code": None, "missing": [*run.read_missing()]}


def is_running(run: ListedRun) -> bool:
    """Return whether a run still lives; raise UsageError if only another machine can tell."""
    now = run.look()
    if now is not None and now.is_alive is None:
        host = now.controller.host
        raise UsageError(f"only {host} can tell whether run {now.id} still runs", f"use launch on {host}")
    return now is not None and bool(now.is_alive)


def conclude(run: ListedRun, *, prints: bool) -> int:
    """Return the exit code of a run that has ended; prints: also its last messages."""
    now = run.look()
    if now is None:
        tell(f"launch: run {run.id} was never started; its launch has said why")
        return EXIT_FAILED
    if now.end is None:
        tell(f"launch: run {now.id} has no result: {now.death}, and its hosts end it within --silence")
        tell(f"  fix: launch again {now.id} runs it again")
        return EXIT_SIGNAL_BASE + signal.SIGKILL
    if prints:
        for line in _find_end(now):
            tell(line)
    return now.end.exit_code


def _find_end(run: ListedRun) -> list[str]:
    """Return the block about the failure, or how a run ended that succeeded or was stopped, and what follows that."""
    from launcher.output.log_reader import LogFile

    lines = [line.text.decode("utf-8", "replace") for line in LogFile(run.folder / TRANSCRIPT, ()).read()]
    has_failed = run.end is not None and run.end.exit_code != 0 and not run.end.is_stopped
    begin = _FAILED if has_failed else _ENDED
    begins = [index for index, line in enumerate(lines) if begin.match(line)]
    return lines[begins[-1] :] if begins else lines[-1:]
