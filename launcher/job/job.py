"""The job that the user asked for: one frozen value, made from the command line before any host is contacted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal

from launcher.job.tree import Tree

TRAINER_MODULE = "launcher.trainer"
COLLECTIVES_MODULE = "launcher.collectives"


class ProgramKind(Enum):
    """What a rank executes."""

    SCRIPT = "script"  # PYTHON -u SCRIPT ARGS
    MODULE = "module"  # PYTHON -u -m MODULE ARGS
    COMMAND = "command"  # CMD ARGS, without a Python
    BUILTIN = "builtin"  # a module of this package, which travels with the supervisor


@dataclass(frozen=True, slots=True)
class Program:
    """The program that every rank runs; its arguments stay a list until exec, and are never quoted for a shell."""

    kind: ProgramKind
    target: str
    args: tuple[str, ...] = ()
    wraps_trainer: bool = False  # a script that is the built-in trainer, as the checkout's train.py

    @property
    def is_trainer(self) -> bool:
        """Whether each rank is the built-in trainer, as this package's module or by a script."""
        return self.wraps_trainer or (self.kind is ProgramKind.BUILTIN and self.target == TRAINER_MODULE)

    @property
    def needs_torch(self) -> bool:
        """Whether ranks run in a Python with torch; a plain command needs none, as the shim starts it."""
        return self.kind is not ProgramKind.COMMAND


def collectives_program(names: Sequence[str], *words: str) -> Program:
    """Return what the ranks of test-distributed run on hosts of these names; `words` are passed to each rank."""
    return Program(ProgramKind.BUILTIN, COLLECTIVES_MODULE, ("--names", ",".join(names), *words))


DEFAULT_PROGRAM = Program(ProgramKind.BUILTIN, TRAINER_MODULE)


@dataclass(frozen=True, slots=True)
class Activation:
    """The environment that a node enters before it looks for a Python: first the setup, then venv or conda."""

    setup: str | None = None  # lines for a bash
    venv: str | None = None  # a directory
    conda: str | None = None  # an environment's name or path

    @property
    def has_python(self) -> bool:
        """Whether it names the environment whose Python is to run."""
        return bool(self.venv or self.conda)


class OnHang(Enum):
    """What follows when no rank has printed for too long."""

    TELL = "tell"  # the stacks are taken, and the run continues
    END = "end"  # the stacks are taken, and the run ends
    RESTART = "restart"  # the same, and with --restarts it is started again


# What starts the ranks: torchrun, a Python that has imported torch and forks them, or nothing of torch.
Start = Literal["torchrun", "warm", "plain"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait for a connection to a host, for its heartbeat, and for ranks to stop."""

    connect_timeout_s: float = 10.0
    silence_s: float = 15.0  # without a heartbeat for this long, either side considers the other one dead
    stop_timeout_s: float = 15.0  # between SIGTERM and SIGKILL


@dataclass(frozen=True, slots=True)
class Job:
    """A training job: the program, its size on every node, and how it is watched."""

    program: Program
    nproc: int | None = None  # per node; None: slots= of the host, else the GPUs that it has
    cpu: bool = False
    may_use_cpus: bool = False  # if no host has GPUs; False: that is an error
    gpus: int | None = None  # the value of --gpus, if it was a number
    workdir: str | None = None  # on the nodes; None: their home
    tree: Tree | None = None  # the code that is sent; its directory on a node is then the working directory
    python: str | None = None
    activation: Activation = field(default_factory=Activation)
    own_python: str | None = None  # that runs `launch` where it was typed; None: the one that runs this process
    active_env: str | None = None  # the directory of the environment that is active where `launch` was typed
    env: Mapping[str, str] = field(default_factory=dict)
    named_env: frozenset[str] = frozenset()  # those of `env` that the user named; a setup can't change them
    master_addr: str | None = None
    master_port: int | None = None
    rendezvous_timeout_s: int = 120
    timeouts: Timeouts = field(default_factory=Timeouts)
    start: Start = "torchrun"
    binds_cpus: bool = True  # each rank to those beside its GPU
    with_stacks: bool = (
        True  # ranks are ready to write their stack, by a sitecustomize that `launch` puts on their path
    )
    hang_timeout_s: float | None = None  # without output; None: learned from the run, infinite: no limit
    on_hang: OnHang = OnHang.TELL
    in_script: bool = False  # started by scripts/ssh/, where users pass options in LAUNCH_OPTS

    def testing(self, names: Sequence[str], *words: str) -> Job:
        """Return the job of test-distributed that starts its ranks as this one does, but for a warm start."""
        return replace(
            self, program=collectives_program(names, *words), workdir=None, hang_timeout_s=math.inf,
            on_hang=OnHang.TELL, start="torchrun" if self.start == "warm" else self.start,
        )  # fmt: skip

    @property
    def uses_torchrun(self) -> bool:
        """Whether torchrun starts the ranks, rather than the shim."""
        return self.program.needs_torch and self.start == "torchrun"

    @property
    def starts_warm(self) -> bool:
        """Whether a Python that has imported torch starts the ranks, where nothing speaks against it."""
        return self.program.needs_torch and self.start == "warm"

    @property
    def wants_gpus(self) -> bool:
        """Whether each process needs a GPU; a plain command with --nproc does not."""
        if self.cpu:
            return False
        return self.program.needs_torch or self.gpus is not None or self.nproc is None
