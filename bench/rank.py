"""The program of the ranks that are measured: `rank.py reduce`, or `rank.py loop FILE`, under any launcher.

`reduce` joins the process group, reduces one number and ends. `loop` reduces one every tenth of a second, and the last
rank raises an error as soon as FILE exists.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

NAME = "bench-rank"  # of the process, by which it is found
FAULT = "this rank fails on purpose"


def main(words: list[str]) -> None:
    """Join, reduce, and go on if that was asked for."""
    import torch  # not above: bench/faults.py needs the names alone
    import torch.distributed as dist

    Path("/proc/self/comm").write_text(NAME)
    # Open MPI sets no variables of torch.
    os.environ.setdefault("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", ""))
    os.environ.setdefault("WORLD_SIZE", os.environ.get("OMPI_COMM_WORLD_SIZE", ""))
    joined_before = dist.is_initialized()
    if not joined_before:
        dist.init_process_group("gloo")
    is_last = dist.get_rank() == dist.get_world_size() - 1
    number = torch.ones(1)
    dist.all_reduce(number)
    assert number.item() == dist.get_world_size()
    if dist.get_rank() == 0:
        print("first all-reduce done", flush=True)
    while words[0] == "loop":
        dist.all_reduce(number)
        if is_last and Path(words[1]).exists():
            raise RuntimeError(FAULT)
        time.sleep(0.1)
    if not joined_before:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
