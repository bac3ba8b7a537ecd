"""The program that is timed: join the process group, reduce one number, print a line.

With an argument, it then lives for another second, in which its memory is read.
"""

import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
number = torch.ones(1)
dist.all_reduce(number)
assert number.item() == dist.get_world_size()
if dist.get_rank() == 0:
    print("first all-reduce done", flush=True)
if sys.argv[1:]:
    time.sleep(1)
dist.destroy_process_group()
