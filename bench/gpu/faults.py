"""What a user sees when something goes wrong on a GPU."""

from __future__ import annotations

import signal
import time

from bench.gpu.checks import on_hosts
from bench.gpu.part import Outcome, require
from bench.gpu.trial import RANKS, Trial
from launcher.wording import count

# As launcher/diagnosis/signatures.py explains the lines of torch and NCCL.
GPU_FULL, HOST_FULL = "the GPU's memory is full", "the host's main memory is full"
SHARED = "two ranks use the same GPU"
NONE_LEFT = r"0 processes left on \d+ hosts?"
KILLED = 128 + signal.SIGKILL
STOPPED = 128 + signal.SIGTERM
# torch waits up to four times as long for the files of all ranks before it ends its own (ProcessGroupNCCL.cpp).
DUMP_WAIT = ("--env", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC=5000")


def explain_full_memory(trial: Trial) -> Outcome:
    """Request more memory than the GPU has, or than the host has."""
    done = trial.launch("singlenode", *trial.ranks(), RANKS, "fill_memory")
    why = done.require(rf"why: ({GPU_FULL if trial.on_gpu else HOST_FULL}.*)", 1)[1]
    done.find(NONE_LEFT)
    return Outcome("exit code 1", why)


def bring_recorder_back(trial: Trial) -> Outcome:
    """Let a collective time out, and look for NCCL's flight recorder in the logs."""
    ranks = min(trial.gpus, 2) or 2
    running = trial.start_launch("singlenode", *trial.ranks(ranks), *DUMP_WAIT, RANKS, "miss_collective")
    done = running.finish()
    require(done.exit_code, "exit code 0, though a collective timed out")
    done.find(rf"NCCL's flight recorder of {ranks} ranks?: ")
    done.find(r"torchfrtrace --prefix \S+ \S+$")  # printed only if the files are plain data
    files = sorted((trial.run_folder / "files").rglob("nccl_trace_rank_*"))
    content = b"".join(path.read_bytes() for path in files)
    require(b"all_reduce" in content or not trial.on_gpu, f"{len(content)} bytes that name no all_reduce")
    place = "GPU" if trial.on_gpu else "a stand-in for each file"
    return Outcome(count(len(files), "file"), f"{len(content)} bytes from {place}, exit code {done.exit_code}")


def show_kernel_stack(trial: Trial) -> Outcome:
    """Request the stacks as Ctrl-\\ does while a rank waits for a long kernel, or in a C function with the GIL."""
    running = trial.start_launch("singlenode", *trial.ranks(), RANKS, "run_kernel")
    running.wait_for(rf"ready: rank 0 pid \d+ on {trial.device}")
    began_at = time.monotonic()
    running.process.send_signal(signal.SIGQUIT)
    running.wait_for(r"^launch: full text in ")
    seconds = time.monotonic() - began_at
    done = running.stop()
    line = done.require(r"^ +(.*ranks\.py:\d+ in wait_for_kernel)", STOPPED)[1].rpartition("/")[2]
    return Outcome(f"{seconds:.1f} s", f"{line}; {done.find(NONE_LEFT)[0]}")


def explain_shared_gpu(trial: Trial) -> Outcome:
    """Start two ranks on one GPU, as two hosts that are one machine; on CPUs, print NCCL's line."""
    action = "all_reduce" if trial.on_gpu else "print_duplicate"
    with on_hosts(2) as words:
        done = trial.launch(*words, *trial.ranks(), RANKS, action)
    require(done.exit_code == 1 or trial.on_gpu, f"exit code {done.exit_code} instead of 1")
    require(done.exit_code, "exit code 0: NCCL accepted two ranks on one GPU")
    why = done.find(rf"why: ({SHARED}.*)")[1]
    done.find(NONE_LEFT)
    return Outcome(f"exit code {done.exit_code}", why)
