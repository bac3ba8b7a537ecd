"""How long tests wait: long deadlines against hangs, and short timeouts that grow on a slow machine.

A test checks what `launch` does and in which order, never how fast; bench/ measures the speed.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import pytest

from launcher.transports.base import TransportError

Value = TypeVar("Value")

DEADLINE_S = 120.0  # a guard against hangs; the longest wait, an import of torch, takes seconds on an idle machine
NEVER_S = 600.0  # a timeout of launch that must never expire in a test: the deadline ends the test long before

_START_S = 0.05  # a bare Python starts and exits within that; on an idle machine it takes 0.01 to 0.02
_MOST = 10  # the largest factor, so that a timeout that a test waits for fits into the deadline
_starts_s: deque[float] = deque(maxlen=6)  # load comes in bursts, so the last few measurements count


def long_enough(attempt: Callable[[float], Value], seconds: float) -> Value:
    """Return what `attempt` does with a timeout of launch, or with a longer one if something took longer than that.

    For what must be done within a timeout whose end the test waits for, or whose renewal it tests. However slow this
    machine was before, a process may have to wait for its turn for a second at any moment.
    """
    for factor in (1, 5):
        with contextlib.suppress(AssertionError, pytest.fail.Exception, OSError, TransportError):
            return attempt(slowed(factor * seconds))
    return attempt(slowed(20 * seconds))


def slowed(seconds: float) -> float:
    """Return a timeout for launch that the test waits for: `seconds`, or longer if the machine is slow now."""
    for _ in range(2):
        began_at = time.monotonic()
        subprocess.run([sys.executable, "-ISc", "pass"], check=True)
        _starts_s.append(time.monotonic() - began_at)
    return round(seconds * min(max(1.0, max(_starts_s) / _START_S), _MOST), 1)
