"""Actions in an event loop for the signals that this process gets while sessions live."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping

Action = Callable[[], object]


class Interrupted(Exception):
    """The user, or whatever started `launch`, wants it to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


_catching: list[Mapping[int, Action]] = []
_ignored: set[int] = set()  # of these signals, those that were ignored before and will be again


@contextlib.contextmanager
def catch_signals(actions: Mapping[int, Action]) -> Iterator[None]:
    """Call the action of each of these signals that comes while the block runs; must be called in a running loop.

    A loop has one handler for a signal, so blocks that run side by side share it: each of them gets the signal, and
    the last one that wants it restores what was before.
    """
    loop = asyncio.get_running_loop()
    ignored = {number for number in actions if signal.getsignal(number) == signal.SIG_IGN}
    # Whoever started `launch` under nohup, or in a script's background, means it: Ctrl-C is for other programs there.
    # SIGQUIT is ignored there as well, but it never ends `launch`: it asks where the ranks are.
    caught = {number: act for number, act in actions.items() if number not in ignored - {signal.SIGQUIT}}
    _ignored.update(ignored & caught.keys())
    _catching.append(caught)
    for number in caught:
        loop.add_signal_handler(number, _act, number)
    try:
        yield
    finally:
        _catching.remove(caught)
        for number in caught:
            if not any(number in others for others in _catching):
                loop.remove_signal_handler(number)
                if number in _ignored:
                    signal.signal(number, signal.SIG_IGN)
                    _ignored.discard(number)


def _act(number: int) -> None:
    for actions in _catching:
        if number in actions:
            actions[number]()
