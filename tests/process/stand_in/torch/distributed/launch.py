"""Stands in for torch.distributed.launch of PyTorch 1.8: its options in its spelling, and the variables that it set."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys


def main() -> None:
    """Start a rank for each process of this node, and wait for one after the other."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("nnodes", "node_rank", "nproc_per_node", "master_port"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--master_addr")
    parser.add_argument("--use_env", action="store_true")
    parser.add_argument("-m", "--module", action="store_true")
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    world = {
        "MASTER_ADDR": args.master_addr,
        "MASTER_PORT": str(args.master_port),
        "WORLD_SIZE": str(args.nproc_per_node * args.nnodes),
    }
    ranks = []
    for local_rank in range(args.nproc_per_node):
        own = {"RANK": str(args.nproc_per_node * args.node_rank + local_rank), "LOCAL_RANK": str(local_rank)}
        command = [sys.executable, "-u", *(["-m"] if args.module else []), args.training_script]
        command += [] if args.use_env else [f"--local_rank={local_rank}"]
        command += args.training_script_args
        ranks.append(subprocess.Popen(command, env={**os.environ, **world, **own}))
    sys.exit(max(rank.wait() for rank in ranks))


if __name__ == "__main__":
    main()
