"""Answer a launch on another machine: run its command about a run that this one controls, or control a run for it.

It is the same code, and runs the command as if it were typed here, with two exceptions: the runs are those that this
machine controls, and the output is made for the streams of the launch that asks, which copies it there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

import click

from launcher.cli.find_run import ASK
from launcher.concurrency import start_thread
from launcher.controller import orders
from launcher.errors import EXIT_FAILED, EXIT_SIGNAL_BASE, LauncherError
from launcher.output.output_streams import OutputStreams, describe_error, tell
from launcher.runs.run_list import ListedRun, RunList, UnknownRunError


def main(nonce: str, wait_s: int) -> NoReturn:
    """Read one order from stdin, carry it out, and exit; wait_s: for the next bytes of the order."""
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
        from launcher.commands.top import print_now

        return print_now(run)
    from launcher.commands import run_answers

    if question == "stacks":
        return run_answers.ask_for_stacks(run)
    print(json.dumps(run_answers.find_value(run, question)))
    return 0
