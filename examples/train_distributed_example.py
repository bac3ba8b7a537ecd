"""Train with DistributedDataParallel, in the shortest complete script: copy it, and insert your own model and data.

python train_distributed_example.py
torchrun --nproc-per-node 4 train_distributed_example.py --epochs 10 --batch_size 16
srun python train_distributed_example.py --data_size 10000 --lr 0.01
launch --hosts gpu1,gpu2 --gpus 8 train_distributed_example.py
"""

import argparse
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

sys.path.append(str(Path(__file__).resolve().parent.parent))  # the checkout; not needed if launcher is installed
from launcher import distributed  # without the checkout, copy that file to launcher/distributed.py beside this one


def main() -> None:
    """Learn y = x * w, with one part of the data per rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", "--batch-size", type=int, default=32, help="samples per rank and step")
    parser.add_argument("--data_size", "--data-size", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--save", type=Path, default=Path("example.pt"), help="the checkpoint that rank 0 writes")
    args = parser.parse_args()

    args.save.parent.mkdir(parents=True, exist_ok=True)
    world = distributed.init()
    gpu = torch.cuda.get_device_properties(world.device) if world.device.type == "cuda" else None
    has = f", {gpu.name} with {gpu.total_memory / 2**30:.0f} GB" if gpu else ""
    with distributed.rank_ordered():
        print(f"{world}{has}, pid {os.getpid()}", flush=True)
    if world.is_main:
        batch = f"batch size {args.batch_size} per rank, {args.batch_size * world.world_size} in all"
        print(f"{batch}, learning rate {args.lr}, epochs {args.epochs}", flush=True)

    torch.manual_seed(0)  # the same data on all ranks
    inputs = torch.randn(args.data_size, 16)
    dataset = TensorDataset(inputs, inputs @ torch.randn(16, 1))
    sampler = DistributedSampler(dataset, world.world_size, world.rank)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)

    model = DistributedDataParallel(nn.Linear(16, 1).to(world.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)  # without this, every epoch has the same order
        total = 0.0
        for batch, targets in loader:
            loss = nn.functional.mse_loss(model(batch.to(world.device)), targets.to(world.device))
            optimizer.zero_grad()
            loss.backward()  # averages the gradients over the ranks
            optimizer.step()
            total += loss.item()
        average = distributed.all_reduce_mean(total / len(loader))
        if world.is_main:
            print(f"epoch {epoch + 1} of {args.epochs}: loss {average:.4f}", flush=True)
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
            torch.save(state, args.save)
    if world.is_main:
        peak = f", peak GPU memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GB" if gpu else ""
        print(f"saved {args.save}{peak}", flush=True)
    distributed.shutdown()
    distributed.leave(0)  # with gloo's threads, freeing the model can hang, and Python's normal exit can abort


if __name__ == "__main__":
    main()
