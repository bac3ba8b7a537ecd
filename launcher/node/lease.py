"""The lease on which a run lives on this node, and the heartbeats in both directions."""

from __future__ import annotations

import time
from typing import Any, Callable

from launcher.node import messages, system
from launcher.node.loop import Loop, Timer
from launcher.node.send_queue import SendQueue


class Lease:
    """The time for which a run continues without anything from the launcher; all that arrives renews it.

    `on_expired` is called once, with the number of seconds since the end of the lease: this machine may have been
    suspended. `clock` counts such times unless the launcher is suspended with it, on the same machine.
    """

    def __init__(self, loop: Loop, send_queue: SendQueue, on_expired: Callable[[float], object]) -> None:
        """Begin the lease of a launcher that has not said yet how long it is."""
        self.clock = system.boottime  # the launcher keeps running while this machine is suspended
        self.silence_s = 15.0
        self._loop = loop
        self._send_queue = send_queue
        self._on_expired = on_expired
        self._heard_at = self.clock()
        self._timer: Timer | None = None
        self._check()

    def renew(self) -> None:
        """Note that something has come."""
        self._heard_at = self.clock()

    def grant(self, header: dict[str, Any]) -> bool:
        """Take what PREPARE says of the lease, and begin to send beats; tell whether both machines sleep as one."""
        self.silence_s = header["silence_s"]
        sleeps_along = header.get("boot_id") is not None and header["boot_id"] == system.boot_id()
        if sleeps_along:  # time in which both are suspended is not silence
            self.clock = time.monotonic
            self.renew()
        self._loop.cancel(self._timer)
        self._check()
        self._beat()
        return sleeps_along

    def _check(self) -> None:
        left = self._heard_at + self.silence_s - self.clock()
        if left <= 0:
            self._on_expired(-left)
        else:
            # The loop's timers stop while this machine is suspended, so check more than once per lease.
            pause = min(left, self.silence_s / messages.BEATS_PER_SILENCE)
            self._timer = self._loop.call_later(pause, self._check)

    def _beat(self) -> None:
        period = self.silence_s / messages.BEATS_PER_SILENCE
        if time.monotonic() - self._send_queue.sent_at >= period * 0.9:
            self._send_queue.send(messages.BEAT)
        self._loop.call_later(period, self._beat)
