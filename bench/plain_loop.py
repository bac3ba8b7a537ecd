"""The loop that the trainer is compared with: as a user would write it, with the same model, data and optimizer.

python bench/plain_loop.py OPTIONS METRICS: OPTIONS are JSON, and METRICS gets lines as the trainer writes them.
"""

import contextlib
import json
import sys
import time
from pathlib import Path

import torch

from launcher.trainer.config import TrainConfig
from launcher.trainer.weights import build_model

options = json.loads(sys.argv[1])
batch_size, context, log_every = options["batch_size"], options["context"], options["log_every"]
on_gpu = torch.cuda.is_available()
device = torch.device("cuda" if on_gpu else "cpu")

shape = {name: options[name] for name in ("layers", "heads", "dim", "context")}
torch.manual_seed(1)
text = torch.frombuffer(bytearray(Path(options["data"]).read_bytes()), dtype=torch.uint8)
model = build_model(TrainConfig(**shape)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.1, fused=on_gpu or None)
stepped = torch.compile(model) if options["compile"] else model
amp = torch.autocast(device.type, torch.bfloat16) if options["bf16"] else contextlib.nullcontext()

order = torch.randperm((len(text) - 1) // context)
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
        speed = log_every * batch_size * context / (now - last)
        metrics.write(json.dumps({"step": step, "loss": value, "tokens_per_s": speed}) + "\n")
        last = now
metrics.close()
