"""Train with DistributedDataParallel, and resume after a failure: copy this script, and insert your model and data.

Start it in one of these ways. If it is killed, start it again: it continues from its newest checkpoint.

python train_distributed_example.py
torchrun --nproc-per-node 4 train_distributed_example.py --epochs 10 --batch_size 16
srun python train_distributed_example.py --data_size 10000 --lr 0.01
launch --hosts gpu1,gpu2 --gpus 8 --restarts 10 --progress-dir checkpoints train_distributed_example.py
"""

import argparse
import os
import signal
import sys
from itertools import islice
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

sys.path.append(str(Path(__file__).resolve().parent.parent))  # the checkout; not needed if launcher is installed
from launcher import distributed  # without the checkout, copy that file to launcher/distributed.py beside this one

KEEP = 3  # checkpoints
must_stop = False


def stop_soon(*_):
    """Note that `launch`, torchrun or Slurm has sent SIGTERM; the training loop looks at it after each step."""
    global must_stop
    must_stop = True


def save(folder, step, state):
    """Write a checkpoint under another name first, so that each `step_*.pt` is whole even if this process is killed."""
    part, path = folder / "unfinished", folder / f"step_{step:08}.pt"
    with part.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
    print(f"saved {path}", flush=True)
    for old in sorted(folder.glob("step_*.pt"))[:-KEEP]:
        old.unlink()


def load(folder):
    """Return the newest checkpoint on all ranks, or an empty one; only rank 0 has to see the file."""
    newest = sorted(folder.glob("step_*.pt"))[-1:] if distributed.is_main() else []
    states = [torch.load(path, map_location="cpu", weights_only=True) for path in newest] or [{}]
    torch.distributed.broadcast_object_list(states)
    return states[0]


def main():
    """Learn y = x * w, with one part of the data per rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", "--batch-size", type=int, default=32, help="samples per rank and step")
    parser.add_argument("--data_size", "--data-size", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--save", type=Path, default=Path("checkpoints"), help="directory of the checkpoints")
    parser.add_argument("--save_every", "--save-every", type=int, default=100, help="steps between checkpoints")
    args = parser.parse_args()

    args.save.mkdir(parents=True, exist_ok=True)
    world = distributed.init()
    gpu = torch.cuda.get_device_properties(world.device) if world.device.type == "cuda" else None
    has = f", {gpu.name} with {gpu.total_memory / 2**30:.0f} GB" if gpu else ""
    print(f"{world}{has}, pid {os.getpid()}", flush=True)

    torch.manual_seed(0)  # the same data on all ranks
    inputs = torch.randn(args.data_size, 16)
    dataset = TensorDataset(inputs, inputs @ torch.randn(16, 1))
    sampler = DistributedSampler(dataset, world.world_size, world.rank)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    global_batch = args.batch_size * world.world_size
    model = nn.Linear(16, 1).to(world.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    step, epoch, samples, total = 0, 0, 0, 0.0  # samples and total loss: since this epoch began
    state = load(args.save)
    if state:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, epoch, samples, total = state["position"]
    model = DistributedDataParallel(model)

    def checkpoint():
        position = step, epoch, samples, distributed.all_reduce_mean(total)
        if world.is_main:
            parts = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "position": position}
            save(args.save, step, parts)

    if world.is_main:
        batch = f"batch size {args.batch_size} per rank, {global_batch} in all"
        print(f"{batch}, learning rate {args.lr}, epochs {args.epochs}", flush=True)
        attempt = os.environ.get("LAUNCH_ATTEMPT", "0")  # how often `launch --restarts` has restarted the run
        print(f"attempt {attempt}: {step} of {args.epochs * len(loader)} steps are in {args.save}", flush=True)

    signal.signal(signal.SIGTERM, stop_soon)  # which sets must_stop
    while epoch < args.epochs:
        sampler.set_epoch(epoch)  # without this, every epoch has the same order
        for batch, targets in islice(loader, samples // global_batch, None):  # after those before the restart
            loss = nn.functional.mse_loss(model(batch.to(world.device)), targets.to(world.device))
            optimizer.zero_grad()
            loss.backward()  # averages the gradients over the ranks
            optimizer.step()
            step, samples, total = step + 1, samples + global_batch, total + loss.item()
            stops = distributed.all_reduce_mean(float(must_stop)) > 0  # so that all ranks stop at the same step
            if stops or step % args.save_every == 0:
                checkpoint()
            if stops:
                distributed.barrier()  # until rank 0 has saved
                if world.is_main:
                    print(f"SIGTERM: stopping at step {step}", flush=True)
                distributed.leave(128 + signal.SIGTERM)
        average = distributed.all_reduce_mean(total / len(loader))
        if world.is_main:
            print(f"epoch {epoch + 1} of {args.epochs}: loss {average:.4f}", flush=True)
        epoch, samples, total = epoch + 1, 0, 0.0
        checkpoint()
    if world.is_main and gpu:
        print(f"peak GPU memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GB", flush=True)
    distributed.shutdown()
    distributed.leave(0)  # with gloo's threads, freeing the model can hang, and Python's normal exit can abort


if __name__ == "__main__":
    main()
