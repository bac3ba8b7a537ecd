"""The loop that the trainer is compared with: as a user would write it, with the same model, data and optimizer.

python bench/plain_loop.py OPTIONS METRICS, under torchrun: OPTIONS are JSON, and METRICS gets lines as the trainer
writes them. A lone process uses DDP no more than the trainer does.
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from launcher.trainer.config import TrainConfig
from launcher.trainer.model import build_model, init_weights

options = json.loads(sys.argv[1])
batch_size, context, log_every = options["batch_size"], options["context"], options["log_every"]
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
on_gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
if options["kind"] == "fsdp" or ranks > 1:
    dist.init_process_group("nccl" if on_gpu else "gloo")

shape = {name: options[name] for name in ("layers", "heads", "dim", "context")}
torch.manual_seed(1)
text = torch.frombuffer(bytearray(Path(options["data"]).read_bytes()), dtype=torch.uint8)
model = init_weights(build_model(TrainConfig(**shape)), 1, device)
stepped = model
if options["kind"] == "fsdp":
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    param_dtype = torch.bfloat16 if options["short"] else None
    policy = MixedPrecisionPolicy(param_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in model.blocks:
        if options["short"]:
            block.compile()
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False))  # fp32, as in the trainer
else:
    if options["short"]:
        model.compile()
    if ranks > 1:
        stepped = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.1, fused=on_gpu or None)
amp = torch.autocast(device.type, torch.bfloat16) if options["short"] else contextlib.nullcontext()

order = torch.randperm((len(text) - 1) // context)[rank::ranks]
metrics = Path(sys.argv[2]).open("w")  # noqa: SIM115  # it stays open as long as the loop runs
last = time.perf_counter()
for step in range(1, options["steps"] + 1):
    starts = order[(step - 1) * batch_size : step * batch_size] * context
    pieces = torch.stack([text[start : start + context + 1] for start in starts.tolist()]).long()
    if on_gpu:
        pieces = pieces.pin_memory().to(device, non_blocking=True)
    with amp:
        loss = stepped(pieces[:, :-1], pieces[:, 1:])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step % log_every == 0:
        value, now = loss.item(), time.perf_counter()
        speed = log_every * batch_size * context * ranks / (now - last)
        if rank == 0:
            metrics.write(json.dumps({"step": step, "loss": value, "tokens_per_s": speed}) + "\n")
        last = now
metrics.close()
if dist.is_initialized():
    dist.destroy_process_group()
