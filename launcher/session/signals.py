"""Actions in an event loop for the signals that this process gets while sessions live."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

Action = Callable[[], object]


class Interrupted(Exception):
    """The user, or whatever started `launch`, wants it to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


_catching: list[Mapping[int, Action]] = []
_before: dict[int, Any] = {}  # the handlers that the last block restores
_LATE_S = 1.0


@contextlib.contextmanager
def catch_signals(actions: Mapping[int, Action]) -> Iterator[None]:
    """Call the action of each of these signals that comes while the block runs; must be called in a running loop.

    A loop has one handler for a signal, so blocks that run side by side share it: each of them gets the signal, and
    the last one that wants it restores what was before.
    """
    loop = asyncio.get_running_loop()
    # Whoever started `launch` under nohup, or in a script's background, means it: Ctrl-C is for other programs there.
    # SIGQUIT is ignored there as well, but it never ends `launch`: it asks where the ranks are.
    ignored = {number for number in actions if signal.getsignal(number) == signal.SIG_IGN} - {signal.SIGQUIT}
    caught = {number: act for number, act in actions.items() if number not in ignored}
    _catching.append(caught)
    for number in caught:
        _before.setdefault(number, signal.getsignal(number))
        loop.add_signal_handler(number, _act, number)
    try:
        yield
    finally:
        _catching.remove(caught)
        for number in caught:
            if not any(number in others for others in _catching):
                loop.remove_signal_handler(number)
                signal.signal(number, _before.pop(number))


def _act(number: int) -> None:
    for actions in _catching:
        if number in actions:
            actions[number]()


def outlast_signals(numbers: Collection[int], end_process: Action) -> None:
    """Let these signals change nothing once the blocks of `catch_signals` are over: the process is about to end.

    A later one ends it at once: what is left to be done, such as a last line for a terminal, may be stuck.
    """
    known_at = time.monotonic()

    def end(number: int, frame: object) -> None:
        if time.monotonic() - known_at > _LATE_S:
            end_process()

    def ignore() -> None:  # Python itself would restore the defaults, in its last milliseconds
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

    for number in numbers:
        if number in _before:
            _before[number] = end
        elif signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)
    atexit.register(ignore)
