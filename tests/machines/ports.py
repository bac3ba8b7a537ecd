"""Ports for programs that are told theirs before they listen."""

from __future__ import annotations

import contextlib
import os
import random
import socket

FIXED_PORTS = (10_000, 32_000)  # below those that Linux gives to connections

_given: set[int] = set()


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port that nobody listens on, and that nobody else gets before it is used: neither from the kernel, nor
    from the tests of this or another worker.
    """
    low, high = FIXED_PORTS
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = random.randrange(low + own, high, workers)
        if port in _given:
            continue
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind((address, port))
            _given.add(port)
            return port
