"""A rank of a run: behaves well or badly, as its words say: `rank.py wait 2=fail` is well but for rank 2.

It tells `ready RANK pids PID...` once it is set up, with all processes that it made.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

RANK = os.environ["RANK"]
LIFETIME_S = "300"  # should a test fail to end us


def wait() -> list[int]:
    """Obey SIGTERM."""
    return []


def ignore() -> list[int]:
    """Survive all but SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return []


def fork() -> list[int]:
    """Have a child in a session of its own, one without environment too, and an orphan that ignores SIGTERM."""
    sleep = ["sleep", LIFETIME_S]
    child = subprocess.Popen(sleep, start_new_session=True)
    stranger = subprocess.Popen(sleep, start_new_session=True, env={})
    script = f"trap '' TERM; setsid sleep {LIFETIME_S} >/dev/null & echo $!"
    orphan = subprocess.run(["sh", "-c", script], env={"PATH": os.defpath}, stdout=subprocess.PIPE, check=True)
    return [child.pid, stranger.pid, int(orphan.stdout)]


def rename() -> list[int]:
    """Overwrite argv and environment, and go to a session of our own."""
    import setproctitle

    setproctitle.setproctitle("trainer: " + "x" * 4000)
    child = subprocess.Popen(["sleep", LIFETIME_S], start_new_session=True)
    return [child.pid]


def fail() -> list[int]:
    """Raise when the test says go."""
    return []


BEHAVIOURS = {function.__name__: function for function in (wait, ignore, fork, rename, fail)}


def main(words: list[str]) -> None:
    chosen = dict(word.split("=") for word in words[1:])
    name = chosen.get(RANK, words[0])
    pids = [os.getpid(), *BEHAVIOURS[name]()]
    print("ready", RANK, "pids", *pids, flush=True)
    deadline = time.monotonic() + float(LIFETIME_S)
    while time.monotonic() < deadline:
        if name == "fail" and Path("go").exists():
            print("one more line", flush=True)
            raise ValueError(f"rank {RANK} met a NaN")
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1:])
