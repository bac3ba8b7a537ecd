"""Stands in for torchrun: one session per rank, looked at ten times a second, and rough at SIGTERM.

The import waits as long as there is a file that STAND_IN_GATE names, and fails where STAND_IN_BROKEN is set.
STAND_IN_SAYS is said while the ranks run: once they have ended, nobody waits for torchrun.
"""

from __future__ import annotations

import os
import signal
import string
import subprocess
import sys
import time
from pathlib import Path

while "STAND_IN_GATE" in os.environ and Path(os.environ["STAND_IN_GATE"]).exists():
    time.sleep(0.01)
if "STAND_IN_BROKEN" in os.environ:
    raise ImportError("libcudart.so.13: cannot open shared object file")


def main(argv: list[str]) -> None:
    """Start what comes after `--` --nproc-per-node times, and wait for all of them."""
    split = argv.index("--")
    options, command = argv[:split], [string.Template(word).safe_substitute() for word in argv[split + 1 :]]
    nproc = int(options[options.index("--nproc-per-node") + 1])
    ranks = [
        subprocess.Popen(
            command, env={**os.environ, "LOCAL_RANK": str(rank), "TORCHELASTIC_RUN_ID": "none"}, start_new_session=True
        )
        for rank in range(nproc)
    ]

    def end(*_: object) -> None:
        for rank in ranks:
            os.killpg(rank.pid, signal.SIGKILL)
        print("torchrun's page", file=sys.stderr, flush=True)
        os._exit(1)

    signal.signal(signal.SIGTERM, end)
    sys.stderr.write(os.environ.get("STAND_IN_SAYS", ""))
    sys.stderr.flush()
    while None in [rank.poll() for rank in ranks]:
        time.sleep(0.1)
    if any(rank.returncode for rank in ranks):
        end()


if __name__ == "__main__":
    main(sys.argv[1:])
