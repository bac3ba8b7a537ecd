"""`launch check`: its facts against torch's, two hosts, and a GPU that another run uses."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.gpu.hardware import Gpu
from bench.gpu.part import NotRunError, Outcome, PartError, require
from bench.gpu.trial import RANKS, Trial
from launcher.node.nvml import list_gpus
from launcher.wording import count

# A driver and ECC keep up to 6 % for themselves: 81559 MiB are 79.2 GiB for torch, 15360 MiB of a T4 14.6 GiB.
LEAST_SHARE = 0.94
STAND_IN = """\
#!/bin/sh
case "$1" in
--query-gpu=*) echo "0, Stand-in, 81559, 580.159, GPU-1, 70000, Default, 0, 00000000:3B:00.0, Disabled, 30, Disabled";;
--query-compute-apps=*) echo "GPU-1, {pid}, 11000";;
esac
"""


@contextlib.contextmanager
def on_hosts(count: int) -> Iterator[list[str]]:
    """Yield the options that select hosts, each of which is this machine: they need no sshd, no root and no network."""
    with tempfile.TemporaryDirectory() as folder:
        config, hostfile = Path(folder, "ssh_config"), Path(folder, "hosts")
        config.write_text("Host node*\n  HostName 127.0.0.1\n  UserKnownHostsFile none\n")
        hostfile.write_text("".join(f"node{number} addr=127.0.0.1\n" for number in range(1, count + 1)))
        # In a Slurm job, the transport would be srun.
        reach = ["--ssh-config", str(config), "--transport", "fabric", "--hostfile", str(hostfile)]
        yield [*reach, "--python", sys.executable]


def compare_facts(trial: Trial) -> Outcome:
    """Compare the GPUs in `launch check --json`, which are nvidia-smi's, with those of torch and of NVML."""
    with on_hosts(1) as words:
        done = trial.launch("check", *words, "--json")
    require(done.exit_code in (0, 70), f"exit code {done.exit_code}")
    found = json.loads(done.output.splitlines()[-1])["hosts"]["node1"]["gpus"]
    if not trial.on_gpu:
        require(not found, f"nvidia-smi shows {count(len(found), 'GPU')}, torch none")
        return Outcome("0 GPUs", "neither launch nor torch finds a GPU")
    sampled = [gpu.sample(index) for index, gpu in enumerate(list_gpus())]
    require(len(sampled) == len(found), f"nvidia-smi shows {count(len(found), 'GPU')}, NVML {len(sampled)}")
    shares = match_gpus(found, trial.hardware.gpus, all_visible="CUDA_VISIBLE_DEVICES" not in os.environ)
    sizes = ", ".join(f"{gpu['memory_mib']} MiB" for gpu in found)
    return Outcome(count(len(found), "GPU"), f"{sizes}; torch sees {min(shares):.1%} of it, and the same names")


def match_gpus(found: Sequence[Mapping[str, Any]], known: Sequence[Gpu], *, all_visible: bool) -> list[float]:
    """Return the share of nvidia-smi's memory that torch sees, for each of torch's GPUs; PartError if one differs."""
    rest, shares = list(found), []
    numbers = f"nvidia-smi shows {count(len(found), 'GPU')}, torch {len(known)}"
    require(len(found) == len(known) or not all_visible, numbers)
    for gpu in known:
        for fact in rest:
            share = gpu.memory_bytes / ((fact["memory_mib"] or 0) * (1 << 20) or 1)
            if fact["name"] == gpu.name and LEAST_SHARE <= share <= 1:
                break
        else:
            raise PartError(f"nvidia-smi shows no {gpu.name} with {gpu.memory_bytes >> 20} MiB")
        rest.remove(fact)
        shares.append(share)
    return shares


def notice_busy_gpu(trial: Trial) -> Outcome:
    """Hold memory of a GPU in one run, and look for its process id in `launch check`."""
    running = trial.start_launch("singlenode", *trial.ranks(), RANKS, "hold_memory")
    pid = running.wait_for(rf"ready: rank 0 pid (\d+) on {trial.device}")[0][1]
    with contextlib.nullcontext() if trial.on_gpu else stand_in(trial.folder, pid), on_hosts(1) as words:
        done = trial.launch("check", *words)
    running.stop()
    return judge_busy(f"{done.output}\n{done.errors}", pid, trial.run_folder.name)


def judge_busy(text: str, pid: str, run_id: str) -> Outcome:
    """Return the line that names the process of that run; NotRunError if nvidia-smi can't know its pid."""
    found = re.search(r"GPU \S+(?: busy: pid|: .* in use by a process).*", text)
    if found is None:
        raise PartError("launch check didn't notice the busy GPU")
    line = found[0]
    if not re.search(rf"busy: pid (?:.*\D)?{pid} \(", line):
        # A container has process ids of its own, and nvidia-smi shows those of the machine or none.
        raise NotRunError(f"noticed, but nvidia-smi doesn't know the pid in this container: {line}")
    require(f"if run {run_id} is over, stop it with" in text, f"the remedy doesn't name the run: {line}")
    return Outcome("1 pid", line)


@contextlib.contextmanager
def stand_in(folder: Path, pid: str) -> Iterator[None]:
    """Put a script first on the hosts' PATH that prints what nvidia-smi would."""
    tool = folder / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(STAND_IN.format(pid=pid))
    tool.chmod(0o755)
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{tool.parent}:{path}"
    try:
        yield
    finally:
        os.environ["PATH"] = path
