"""What each rank of these tests runs: join, and say in rank order where it stands."""

import sys
from pathlib import Path

from launcher import distributed

world = distributed.init("gloo", timeout_s=120)
mean = distributed.all_reduce_mean(float(world.rank))
with distributed.rank_ordered(), Path(sys.argv[1]).open("a") as file:
    print(f"{world}, node {world.node_rank} of {world.node_count}, mean {mean}", file=file)
distributed.barrier()
distributed.leave(0)
