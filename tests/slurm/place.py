"""What each rank of these tests runs: join, and say in rank order where it stands.

With a second file rank 0 writes there how many threads torch uses on it.
"""

import sys
from pathlib import Path

import torch

from launcher import distributed

world = distributed.init("gloo", timeout_s=120)
mean = distributed.all_reduce_mean(float(world.rank))
for rank in range(world.world_size):
    if rank == world.rank:
        with Path(sys.argv[1]).open("a") as file:
            print(f"{world}, node {world.node_rank} of {world.node_count}, mean {mean}", file=file)
    distributed.barrier()
if world.is_main and len(sys.argv) > 2:
    Path(sys.argv[2]).write_text(str(torch.get_num_threads()))
distributed.barrier()
distributed.leave(0)
