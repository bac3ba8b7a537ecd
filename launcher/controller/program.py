"""The remote launcher's side: do what the launch host asks, on this host.

Its output is what `launch` would print here; the launch host copies it to its own streams.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import sys
import tarfile
import time
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NoReturn

from launcher.commands.attach import attach
from launcher.commands.logs import print_logs
from launcher.commands.ps import as_row
from launcher.commands.stop import find_living, stop
from launcher.commands.wait import wait
from launcher.concurrency import start_thread
from launcher.controller import requests
from launcher.controller.requests import LastLine, Order, read_in_time
from launcher.errors import EXIT_FAILED, EXIT_SIGNAL_BASE, LauncherError, UsageError
from launcher.output.plain_messages import describe_error, tell
from launcher.runs.run_end import is_running
from launcher.runs.run_list import ListedRun, RunList, UnknownRunError
from launcher.runs.state_directory import find_state

_READ_BYTES = 4096


def main(variables: Mapping[str, str], wait_s: int) -> NoReturn:
    """Read one order from stdin, carry it out, and exit.

    variables: the environment of this process; wait_s: for the next bytes of the order.
    """
    order = requests.decode(_take(int.from_bytes(_take(requests.LENGTH_BYTES, wait_s), "big"), wait_s))
    last_line, ending = LastLine(order.mark), ""
    try:
        if isinstance(order.request, requests.Control):
            from launcher.controller.control import control  # half of this package, which no other request needs

            code, has_begun = control(order.request, order.streams, last_line, variables, order.silence_s)
            ending = "" if has_begun else f" {requests.REFUSED}"
        else:
            start_thread(partial(_end_with_the_login, order.silence_s), "login", lambda error: None)
            code = _answer(order, RunList(find_state(variables) / "runs"))
        sys.stdout.flush()
    except UnknownRunError as error:
        if not isinstance(order.request, requests.OfRun):
            tell(describe_error(error), order.streams)
        code, ending = error.exit_code, f" {requests.UNKNOWN}"
    except LauncherError as error:
        tell(describe_error(error), order.streams)
        code, ending = error.exit_code, f" {requests.REFUSED}"
    except KeyboardInterrupt:  # the run has not begun to listen to signals
        tell("launch: stopped by you; nothing was started", order.streams)
        code, ending = EXIT_SIGNAL_BASE + signal.SIGINT, f" {requests.REFUSED}"
    except BrokenPipeError:  # the launch host has hung up
        code = EXIT_FAILED
    except Exception:  # noqa: BLE001 - whoever reads the output must learn that it ends
        traceback.print_exc()
        code = EXIT_FAILED
    last_line.write(f"{code}{ending}")
    os._exit(code)


def _take(size: int, wait_s: float) -> bytes:
    """Read so many bytes, and none of those behind them; exit if the launch host is silent for `wait_s`."""
    data = b""
    while len(data) < size:
        piece = read_in_time(size - len(data), wait_s)
        if not piece:
            os._exit(EXIT_FAILED)
        data += piece
    return data


def _end_with_the_login(silence_s: float) -> None:
    while read_in_time(_READ_BYTES, silence_s):
        pass
    os._exit(requests.HUNG_UP)


def _answer(order: Order, runs: RunList) -> int:
    request, streams = order.request, order.streams
    say = partial(tell, streams=streams)
    match request:
        case requests.List():
            print(json.dumps([as_row(run, time.time()) for run in runs.read()]))
        case requests.Find():
            print(runs.find(request.word).id)
        case requests.Attach():
            return attach(runs.find(request.run), streams, say)
        case requests.Logs():
            return print_logs(runs.find(request.run), request.which, streams)
        case requests.Wait():
            return wait(runs.find(request.run), say)
        case requests.End():
            return stop(find_living(runs, request.run, or_stopped=True), say, is_now=request.is_now)
        case requests.Stacks():
            found = find_living(runs, request.run)
            os.kill(found.controller.pid, signal.SIGQUIT)
        case requests.Fetch():
            _send_logs(runs.find(request.run))
        case requests.Look():
            found = runs.find(request.run)
            print(json.dumps({"is_alive": is_running(found), "missing": found.read_missing()}))
    return 0


def _send_logs(run: ListedRun) -> None:
    if not Path(run.folder).is_dir():
        raise UsageError(f"the logs in {run.folder} were removed", "see launch ps for other runs")
    with (
        gzip.GzipFile(fileobj=sys.stdout.buffer, mode="wb", compresslevel=1) as stream,
        tarfile.open(fileobj=stream, mode="w|") as archive,
    ):
        gone = () if run.is_alive is False else (FileNotFoundError,)  # a run that is still writing replaces files
        for path in [run.folder, *sorted(run.folder.rglob("*"))]:
            if path.suffix != ".new" and not path.is_symlink():
                with contextlib.suppress(*gone):
                    name = Path(run.id, path.relative_to(run.folder))
                    archive.add(path, arcname=name, recursive=False)
