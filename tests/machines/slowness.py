"""A process that gets only a part of its time, as cpulimit does it: it is stopped and continued in turns."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

TURN_S = 0.2  # long enough for a busy machine to keep the share


@contextlib.contextmanager
def slowed_process(pid: int, share: float) -> Iterator[None]:
    """Let a process run for this share of the time until the block ends, or until it has ended."""
    is_over = threading.Event()

    def take_turns() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not is_over.wait(TURN_S * share):
                os.kill(pid, signal.SIGSTOP)
                is_over.wait(TURN_S * (1 - share))
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=take_turns)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
