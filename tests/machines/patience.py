"""How long tests wait: wide guards against hangs, and short time-outs that grow where the machine is slow.

What a test says of the product it says by what comes, in which order, and what does not: never by how fast it comes.
How fast the product is, bench/ measures.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque

DEADLINE_S = 120.0  # a guard against hangs; the longest, imports of torch, take a few seconds on an idle machine
NEVER_S = 600.0  # a time-out of the product that is not waited for: where it is, the deadline is over long before

_START_S = 0.05  # within that a bare Python starts and ends; on a machine at rest it takes 0.01 to 0.02
_MOST = 10  # times as long, so that what is waited out fits into the deadline
_starts_s: deque[float] = deque(maxlen=6)  # load comes in bursts: the last ones count as well


def slowed(seconds: float) -> float:
    """Return a time-out of the product that a test waits out: as long as that, longer where the machine is slow now."""
    for _ in range(2):
        began_at = time.monotonic()
        subprocess.run([sys.executable, "-ISc", "pass"], check=True)
        _starts_s.append(time.monotonic() - began_at)
    return round(seconds * min(max(1.0, max(_starts_s) / _START_S), _MOST), 1)
