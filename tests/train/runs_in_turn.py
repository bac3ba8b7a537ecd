"""Run under the trainer's tests: one rank of several runs, one after another, in one process.

An import of torch costs more than such a run. Each run is [ranks, port, folder, arguments]; `{rank}` in the folder
gives each rank a file system of its own. A rank that a run has no place for waits for the next one.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from torch import nn

from launcher.distributed import leave
from launcher.trainer.__main__ import main

compile_module = nn.Module.compile
# Inductor's C++ takes a minute, and it is torch's to test; what is traced and computed stays the same.
nn.Module.compile = lambda self: compile_module(self, backend="eager")  # type: ignore[method-assign,misc,assignment]
rank, base = int(sys.argv[1]), Path.cwd()
for world_size, port, folder, argv in json.loads(sys.argv[2]):
    if rank < world_size:
        place = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world_size}
        os.environ.update({name: str(value) for name, value in place.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        os.chdir(base / folder.format(rank=rank))
        if (exit_code := main(argv)) != 0:
            leave(exit_code)
        print(f"run {argv[1]} is over", flush=True)  # argv begins with --save-dir
leave(0)
