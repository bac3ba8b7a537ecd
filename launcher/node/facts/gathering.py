"""The facts about this node, gathered in a child process so that a hung disk or driver can't block the supervisor.

What Slurm gives a run here is read from the environment of the step or batch script that started it: where Slurm runs
without cgroups, nvidia-smi and the kernel also show the GPUs and CPUs of other jobs.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from launcher.node.facts import gpus, leftovers, machine, network
from launcher.node.processes import run_folders


def gather_facts(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the facts as JSON values, or `error`; `wanted` is the launcher's PREPARE.

    If it has `checks`, those that only the preflight checks need are among them.
    """
    try:
        return _gather_facts(wanted)
    except Exception as error:  # noqa: BLE001 - whatever it is, the launcher waits for an answer
        return {"error": "the checks of this host failed: %r" % (error,)}


def _gather_facts(wanted: dict[str, Any]) -> dict[str, Any]:
    folder, script = os.path.expanduser(wanted.get("workdir") or "~"), wanted.get("script")
    venv = find_venv(wanted)
    facts: dict[str, Any] = {
        "hostname": socket.gethostname(),
        "machine": machine.find_identity(),
        "cpu_count": share_cpus(machine.count_cpus()),
        "home": os.path.expanduser("~"),
        **_launcher_ends(),
        "addresses": network.list_addresses(),
        "workdir_found": os.path.isdir(folder),
        "script_found": script is None or os.path.isfile(os.path.join(folder, script)),
        "venv_found": venv is None or os.access(os.path.join(venv, "bin", "python"), os.X_OK),
    }
    if wanted.get("checks"):
        facts["checks"] = _gather_checks(wanted, folder)
    return facts


def find_gpus() -> dict[str, Any]:
    """Return this node's GPUs, or those of its Slurm job, with the reason why there are none."""
    found = gpus.query_gpus()
    found["gpus"] = choose_gpus(found["gpus"])
    return found


def _gather_checks(wanted: dict[str, Any], folder: str) -> dict[str, Any]:
    script = wanted.get("script")
    runs = leftovers.find_runs(wanted["mark"])
    return {
        **machine.describe_machine(folder),
        "script_hash": machine.hash_file(os.path.join(folder, script)) if script else None,
        "networks": network.list_networks(),
        "infiniband": network.list_infiniband(),
        "runs": runs,
        "folders": run_folders.find_folders(runs),
    }


def _launcher_ends() -> dict[str, str | None]:
    """Return both ends of the connection from the launcher, as this node sees them.

    Behind a jump host or NAT, `ssh_address` is still one of this node's own addresses; `ssh_client` is the jump host's.
    """
    words = os.environ.get("SSH_CONNECTION", "").split()
    client, server = (words[0], words[2]) if len(words) == 4 else find_ends()
    ends = {"ssh_client": client, "ssh_address": server}  # sshd says UNKNOWN if a client has no address
    return {name: end if end and network.is_address(end.partition("%")[0]) else None for name, end in ends.items()}


def find_venv(wanted: dict[str, Any]) -> str | None:
    """Return the path of --venv on this node; a relative one is below the working directory."""
    venv = (wanted.get("setup") or {}).get("venv")
    if not venv:
        return None
    workdir = os.path.abspath(os.path.expanduser(wanted.get("workdir") or "~"))
    return os.path.normpath(os.path.join(workdir, os.path.expanduser(venv)))


# ---- in a Slurm job --------------------------------------------------------------------------------------------------


def _is_in_job() -> bool:
    """Tell whether Slurm has started this process; an SSH login to a job's node has none of these variables."""
    return "SLURMD_NODENAME" in os.environ and "SLURM_JOB_ID" in os.environ


def share_cpus(allowed: int) -> int:
    """Return how many of the CPUs that the kernel allows are the job's."""
    given = os.environ.get("SLURM_CPUS_ON_NODE", "")
    return min(allowed, int(given)) if _is_in_job() and given.isdigit() else allowed


def choose_gpus(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return those of the found GPUs that are the job's; all of them if Slurm doesn't manage GPUs here."""
    if not _is_in_job():
        return found
    # Not HIP's variable: it numbers only the GPUs that Slurm has left visible.
    names = [name for name in (gpus.CUDA, gpus.ROCR) if name in os.environ]
    given = gpus.find_visible(found, {name: os.environ[name] for name in names})
    if given is None or gpus.UNKNOWN in given:
        return found
    return [gpu for gpu in found if gpu["index"] in given]


def find_ends() -> tuple[str | None, str | None]:
    """Return the launcher's address, and this node's address on the route to it; None for both outside a step."""
    launcher = os.environ.get("SLURM_LAUNCH_NODE_IPADDR") if _is_in_job() else None
    if launcher is None:
        return None, None
    return launcher, network.find_route(launcher).get("address")
