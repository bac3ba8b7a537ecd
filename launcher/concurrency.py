"""Start threads and tasks that no code waits for, so that their failures are still reported.

If one died unnoticed, what depends on it would stop: the heartbeats of a run, or the messages of a node.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from launcher.errors import LauncherError

if TYPE_CHECKING:
    import asyncio  # takes 15 ms, and most commands have no tasks

OnFailure = Callable[[Exception], object]
_Result = TypeVar("_Result")


def start_thread(target: Callable[[], object], name: str, on_failure: OnFailure) -> threading.Thread:
    """Run `target` in a daemon thread; `on_failure` gets, in that thread, the exception that ends it.

    Raise LauncherError if this machine can't start another thread.
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
            "stop other programs, or raise the limit that `ulimit -u` shows",
        ) from None
    return thread


async def call_in_thread(work: Callable[[], _Result], timeout_s: float | None = None) -> _Result:
    """Return what `work` returns in a thread of its own, or raise what it raises; TimeoutError after any `timeout_s`.

    The thread may hang on: unlike those of asyncio.to_thread, it doesn't delay the end of this process.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    done: asyncio.Future[_Result] = loop.create_future()

    def settle(set_value: Callable[[Any], None], value: Any) -> None:
        if not done.done():
            set_value(value)

    def post(set_value: Callable[[Any], None], value: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, set_value, value)

    start_thread(lambda: post(done.set_result, work()), "call", partial(post, done.set_exception))
    return await asyncio.wait_for(done, timeout_s)


def start_timer(delay_s: float, target: Callable[[], object], on_failure: OnFailure) -> None:
    """Run `target` after `delay_s` in its own thread; if no thread can be started, run it at once."""

    def run() -> None:
        time.sleep(delay_s)
        target()

    try:
        start_thread(run, "timer", on_failure)
    except LauncherError:
        target()


def start_task(work: Coroutine[Any, Any, None], on_failure: Callable[[BaseException], object]) -> asyncio.Task[None]:
    """Run `work` concurrently; `on_failure` gets the exception that ends it, unless it was cancelled."""
    import asyncio

    def look(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            on_failure(error)

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(look)
    return task
