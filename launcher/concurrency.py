"""Threads and tasks that nobody waits for, started so that their failure is told to somebody all the same.

One that died unseen would take along what hangs on it: the heartbeats of a run, or what a node says.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from launcher.errors import LauncherError

OnFailure = Callable[[Exception], object]


def start_thread(target: Callable[[], object], name: str, on_failure: OnFailure) -> threading.Thread:
    """Run `target` in a daemon thread; `on_failure` gets, in that thread, the exception that ends it.

    Raise LauncherError where this machine has no thread left.
    """

    def run() -> None:
        try:
            target()
        except Exception as error:  # noqa: BLE001 - it becomes a value, whatever it is
            on_failure(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise LauncherError(
            f"this machine can't start another thread ({error})",
            "end other programs, or raise the limit that `ulimit -u` shows",
        ) from None
    return thread


def start_timer(delay_s: float, target: Callable[[], object], on_failure: OnFailure) -> None:
    """Run `target` after a while, in a thread of its own; where there is none left, at once."""

    def run() -> None:
        time.sleep(delay_s)
        target()

    try:
        start_thread(run, "timer", on_failure)
    except LauncherError:
        target()


def start_task(work: Coroutine[Any, Any, None], on_failure: Callable[[BaseException], object]) -> asyncio.Task[None]:
    """Run `work` beside the caller; `on_failure` gets the exception that ends it, unless it was cancelled."""

    def look(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            on_failure(error)

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(look)
    return task
