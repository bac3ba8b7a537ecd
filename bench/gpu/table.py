"""All parts, and the command line: run the parts one after the other, and print each line as soon as it is known."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import NoReturn

from bench.gpu.checks import compare_facts, notice_busy_gpu
from bench.gpu.collectives import test_all_gpus, test_under_load
from bench.gpu.faults import bring_recorder_back, explain_full_memory, explain_shared_gpu, show_kernel_stack
from bench.gpu.hardware import Hardware, find_hardware
from bench.gpu.one_gpu import free_memory, kill_training, stop_training, train_each_way
from bench.gpu.part import NotRunError, Outcome, Part, PartError, Verdict
from bench.gpu.queries import keep_queries
from bench.gpu.speed import compare_with_plain_loop
from bench.gpu.steps import compare_starts, resume_exactly
from bench.gpu.trial import Trial

TOTAL_S = 540.0
NO_TIME_LEFT = f"the {TOTAL_S:g} s of all parts are used up"
MAX_LINE = 300  # of a failed part's output; its files have the whole lines
CLOSING_S = 12.0  # of the total: to end the processes of the part that runs out of time

HELP = """\
Usage: python -m bench gpu [PART]...

Run everything that needs a GPU, or only these parts, and print a table.
Without a GPU a part runs a form of itself on CPUs. docs/gpu.md has the latest results.

Parts, in the order in which they run:"""

# In the order of their value: if the time is used up, the last ones are missing.
PARTS = (
    Part(
        "queries",
        "keeps the output of all queries of the GPUs, and of both readers of NVML, in outputs/gpu",
        "nvidia-smi shows as many GPUs as torch; the figure is the time of the slowest query",
        keep_queries,
        limit_s=120,
    ),
    Part(
        "nccl",
        "runs `test-distributed N` on all GPUs of the machine, or its checks on four ranks that share one",
        "exit code 0 with NCCL; the figure is busbw of the largest all_reduce",
        test_all_gpus,
        limit_s=90,
    ),
    Part(
        "ways",
        "trains with each way of parallel, in bf16 and fp16, and resumes each halfway",
        "exit code 0 with NCCL; the last losses are the same to 2 %",
        train_each_way,
        limit_s=150,
    ),
    Part(
        "sigterm",
        "stops a training on two ranks",
        "both save, exit code 143, 0 processes left; the figure is the time until then",
        stop_training,
    ),
    Part(
        "dead-peer",
        "kills one of two ranks that train with SIGKILL",
        "that rank is named first, exit code 137, 0 processes left; the figure is the time until then",
        kill_training,
        limit_s=90,
    ),
    Part(
        "freed",
        "kills a rank that holds three quarters of the GPU's memory",
        "that rank is named; the figure is the time until the driver has the memory back",
        free_memory,
        has_cpu_form=False,
    ),
    Part(
        "facts",
        "compares the GPUs in `launch check --json`, which are nvidia-smi's, with torch's and NVML's",
        "same number and names; torch sees 94 to 100 % of the memory",
        compare_facts,
        limit_s=30,
    ),
    Part(
        "busy-gpu",
        "holds a tenth of a GPU's memory in one run, and runs `launch check`",
        "the check names the pid of the rank, and its run",
        notice_busy_gpu,
    ),
    Part(
        "load",
        "runs `test-distributed N --gpus-under-load 10s` on all GPUs of the machine",
        "each GPU has all speeds and sensors; the figure is the median in fp16",
        test_under_load,
        limit_s=90,
    ),
    Part(
        "memory",
        "requests more memory than the GPU has",
        "exit code 1; `why:` says that the GPU's memory is full",
        explain_full_memory,
    ),
    Part(
        "recorder",
        "lets a collective time out",
        "the flight recorder's file of each rank is in the logs, is plain data, and names the all_reduce",
        bring_recorder_back,
        limit_s=90,
    ),
    Part(
        "stacks",
        "requests the stacks while a rank waits for a long kernel, then stops the run",
        "the stack ends in the function that waits; 0 processes left",
        show_kernel_stack,
    ),
    Part(
        "shared-gpu",
        "starts two ranks on one GPU, on two hosts",
        "`why:` says that both ranks use the same GPU; 0 processes left",
        explain_shared_gpu,
    ),
    Part(
        "warm",
        "trains by torchrun and with `--start warm`, each with a restart",
        "the ranks are forked, and the loss is the same to the last digit; the figure is how long the restart took",
        compare_starts,
        limit_s=90,
    ),
    Part(
        "resume",
        "trains 40 steps with FSDP2 and dropout, and again from the checkpoint of step 20",
        "the two `model.pt` are equal to the last bit",
        resume_exactly,
        limit_s=90,
    ),
    Part(
        "ddp",
        "compares the trainer with a plain loop: bf16, compile, fused AdamW, and DDP on two GPUs",
        "at least 0.98 of the plain loop's speed",
        partial(compare_with_plain_loop, "ddp"),
        limit_s=130,
    ),
    Part(
        "fsdp",
        "does the same with FSDP2",
        "at least 0.98 of the plain loop's speed",
        partial(compare_with_plain_loop, "fsdp"),
        limit_s=130,
    ),
)


def main(words: list[str]) -> int:
    """Run the parts that were requested, or all; return 1 if one failed, and 2 for an unknown part."""
    names = [part.name for part in PARTS]
    width = max(map(len, names))
    if {"-h", "--help"} & {*words}:
        print(HELP, *(f"  {part.name:<{width}}  {part.does}" for part in PARTS), sep="\n")
        return 0
    unknown = [word for word in words if word not in names]
    if unknown:
        print(f"bench: no part {unknown[0]!r}; fix: choose from {', '.join(names)}", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, end_at_signal)
    began_at = time.monotonic()
    try:
        hardware = find_hardware()
    except RuntimeError as error:
        print(f"bench: this Python can't import torch: {error}; fix: install torch", file=sys.stderr)
        return 2
    print(f"{hardware}\n\n| part | result | figure | seen |\n|---|---|---|---|", flush=True)
    verdicts = Counter(
        report_part(part, hardware, began_at + TOTAL_S) for part in PARTS if not words or part.name in words
    )
    counts = ", ".join(f"{count} {verdict.value}" for verdict, count in verdicts.items())
    print(f"\n{counts}; {time.monotonic() - began_at:.0f} s", flush=True)
    return 1 if verdicts[Verdict.FAIL] else 0


def report_part(part: Part, hardware: Hardware, stops_at: float) -> Verdict:
    """Run a part and print its line; keep its files, and print its last lines, if it failed."""
    folder = Path(tempfile.mkdtemp(prefix=f"bench-gpu-{part.name}-"))
    gpus = len(hardware.gpus) if len(hardware.gpus) >= part.gpus else 0
    own_deadline = time.monotonic() + part.limit_s
    trial = Trial(folder, hardware, gpus, min(own_deadline, stops_at - CLOSING_S))
    verdict = None
    try:
        verdict, outcome = run_part(part, trial)
        if verdict is Verdict.FAIL and trial.left_s <= 0 and trial.deadline < own_deadline:
            verdict, outcome = Verdict.NOT_RUN, Outcome("-", NO_TIME_LEFT)
        seen = outcome.seen.replace("|", "\\|")
        print(f"| {part.name} | {verdict.value} | {outcome.figure} | {seen} |", flush=True)
        if verdict is Verdict.FAIL:
            lines = [f"{part.name}: files in {folder}; last lines:", *(f"  {line[:MAX_LINE]}" for line in trial.tail())]
            print("\n".join(lines), file=sys.stderr, flush=True)
        return verdict
    finally:
        if verdict is not Verdict.FAIL:
            shutil.rmtree(folder, ignore_errors=True)


def run_part(part: Part, trial: Trial) -> tuple[Verdict, Outcome]:
    """Return what a part found, once none of its processes runs."""
    if not (trial.on_gpu or part.has_cpu_form):
        return Verdict.NOT_RUN, Outcome("-", f"needs {'a GPU' if part.gpus == 1 else f'{part.gpus} GPUs'}")
    if trial.left_s <= 0:
        return Verdict.NOT_RUN, Outcome("-", NO_TIME_LEFT)
    left: list[int] = []
    try:
        try:
            outcome = part.run(trial)
        finally:
            left = trial.close()
    except NotRunError as error:
        return Verdict.NOT_RUN, Outcome("-", str(error))
    except PartError as error:
        return Verdict.FAIL, Outcome("-", str(error))
    except Exception as error:  # noqa: BLE001  # whatever is wrong with one part, the next one runs
        return Verdict.FAIL, Outcome("-", f"{type(error).__name__}: {error}")
    if left:
        return Verdict.FAIL, Outcome(outcome.figure, f"left after the end: pid {', '.join(map(str, left))}")
    return (Verdict.PASS if trial.on_gpu else Verdict.ON_CPUS), outcome


def end_at_signal(number: int, frame: object) -> NoReturn:
    """Exit through the `finally` that ends a part's processes."""
    sys.exit(128 + number)
