"""A rank of a run that waits, or raises when the test says go: `rank.py wait 2=fail` waits but for rank 2.

One that is to `finish` ends well then, and one that is to `lose` raises once the rank that failed or finished is gone.

It tells `ready RANK pids PID` once it is set up.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

RANK = os.environ["RANK"]
LIFETIME_S = 300.0  # should a test fail to end us


def main(words: list[str]) -> None:
    chosen = dict(word.split("=") for word in words[1:])
    name = chosen.get(RANK, words[0])
    print("ready", RANK, "pids", os.getpid(), flush=True)
    deadline = time.monotonic() + LIFETIME_S
    while time.monotonic() < deadline:
        if name in ("fail", "finish") and Path("go").exists():
            print("one more line", flush=True)
            Path(f"gone.{RANK}").write_text(str(os.getpid()))
            Path(f"gone.{RANK}").replace("gone")
            if name == "finish":
                return
            raise ValueError(f"rank {RANK} met a NaN")
        if name == "lose" and Path("gone").exists() and not Path("/proc", Path("gone").read_text()).exists():
            raise RuntimeError("Connection closed by peer [::1]:4711")
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1:])
