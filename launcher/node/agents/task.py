"""An agent that is a task of srun, for a `launch` in the same Slurm job.

All tasks get the same order, since srun sends its input to each; what differs is in a task's environment.
"""

from __future__ import annotations

import os
from typing import NoReturn

from launcher.node.agents.agent import Agent, read_plant
from launcher.node.processes import proc

# Variables that would make a rank look like a task of this step, and those of the login that allocated the job.
_DROPPED = (
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_TASK_PID", "SLURM_STEP", "SLURM_NTASKS",
    "SLURM_NPROCS", "SLURM_TASKS_PER_NODE", "SLURM_SRUN_COMM", "PMI_", "PMI2_", "PMIX_", "SSH_CONNECTION",
    "SSH_CLIENT", "SSH_TTY",
)  # fmt: skip


def main(nonce: str, wait_s: int) -> NoReturn:
    """Serve the `launch` that the first message on stdin names; wait_s: for that message. Never returns.

    srun's own connections go to the address of its machine that Slurm has put into the environment.
    """
    proc.name_process("launch-agent")
    plant = read_plant(wait_s)
    if plant is None:
        os._exit(1)
    address, task = os.environ["SLURM_LAUNCH_NODE_IPADDR"], int(os.environ["SLURM_PROCID"])
    for name in [name for name in os.environ if name.startswith(_DROPPED)]:
        del os.environ[name]
    own = {"index": plant["indexes"][task], "addresses": [[address, plant["port"]]]}
    plant = {**plant, **own, "redial_s": 0.0, "is_after_go": False}
    os._exit(Agent(nonce, plant, is_task=True).run())
