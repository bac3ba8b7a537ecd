"""A real Slurm on test hosts: slurmctld on `login`, a slurmd on node1 and node2, munge and sshd on all three.

Each host has its own /run, and sees the test's directory as /etc/slurm. So programs on it find this Slurm without any
settings, and never that of this machine or of another test run.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from machines import cluster as hosts
from machines.cluster import TOOL_PATH, Cluster
from machines.processes import wait_until

LOGIN = "login"
NODES = ("node1", "node2")
CPUS = 8  # however many this machine has
ASK_POLL_S = 0.1  # for polls that start a program of Slurm, which takes 20 ms of CPU
GPUS = 2
PROGRAMS = {
    "slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge",
}  # fmt: skip

SERVICES = """\
mount --bind {folder}/slurm /etc/slurm
mount --bind {folder}/$(uname -n)/bin {folder}/bin
mount --bind {folder}/$(uname -n)/tmp {folder}/tmp
mkdir -m 755 /run/munge
export PATH={path} TMPDIR={folder}/tmp
munged --force --key-file={folder}/munge.key --seed-file=/run/munge/seed --log-file=/run/munge/log
case $(uname -n) in
login) slurmctld ;;
*)
    slurmd
    ln -s "$(command -v unshare)" /run/container-init
    ln -s "$(command -v sleep)" /run/container
    ln -s "$(command -v sh)" /run/enter-client
    /run/container-init --mount --pid --fork --kill-child --mount-proc /run/container infinity &
    ;;
esac
"""
# What --enter names: as docker's and podman's exec, it has a client, and that one's end ends nothing in the container.
ENTER = """\
#!/bin/sh
words='"$@"; exit $?'
exec nsenter --target "$(pgrep -x container)" --mount --pid --no-fork /run/enter-client -c "$words" enter "$@"
"""
SLURM_CONF = """\
ClusterName=tests
SlurmctldHost=login
SlurmUser=root
SlurmdUser=root
StateSaveLocation=/run/slurmctld
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/etc/slurm/slurmctld.log
SlurmdLogFile=/etc/slurm/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
SchedulerParameters=batch_sched_delay=0
KillWait=30
SlurmdTimeout=60
MailProg=/bin/true
NodeName=node[1-2] CPUs={cpus} RealMemory=4000 Gres=gpu:{gpus}
PartitionName=tests Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
# slurmd needs a device file for each GPU, and numbers the GPUs by its name.
GRES_CONF = "AutoDetect=off\nName=gpu File=/etc/slurm/nvidia[0-{last}]\n"


def find_obstacle() -> str | None:
    """Return what Slurm on test hosts needs and this machine lacks, with the remedy, or None."""
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program, path=TOOL_PATH) is None]
    if missing:
        return f"Slurm is missing: apt-get install --no-install-recommends {' '.join(missing)}"
    return hosts.find_obstacle()


class Slurm:
    """A cluster that runs Slurm; users' commands run on `login`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / LOGIN / "home"
        self.cluster = Cluster(folder, (LOGIN, *NODES), SERVICES.format(folder=folder, path=TOOL_PATH))
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def enter_program(self) -> Path:
        """Return what --enter takes for the containers of the nodes."""
        return self.folder / "enter"

    def __enter__(self) -> Slurm:
        self._write_files()
        with contextlib.ExitStack() as undo:
            undo.enter_context(self.cluster)
            self.wait_until_idle()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.__exit__()

    def start(self, *argv: str, host: str = LOGIN, cwd: Path | None = None, **options: Any) -> subprocess.Popen[bytes]:
        """Start a program on a host, as after a login; it dies with the returned process."""
        process = subprocess.Popen(self._type(host, cwd, *argv), env=self.env(), **options)
        self._started.append(process)
        return process

    def run(
        self, *argv: str, host: str = LOGIN, cwd: Path | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on a host, and wait until it exits."""
        words = self._type(host, cwd, *argv)
        return subprocess.run(words, env=self.env(), text=True, capture_output=True, check=False, **options)

    def _type(self, host: str, cwd: Path | None, *argv: str) -> list[str]:
        return [*self.cluster[host].enter(cwd or self.home), *argv]

    def submit(self, *words: str) -> str:
        """Run sbatch with these arguments; return the job's id."""
        done = self.run("sbatch", "--parsable", *words)
        assert done.returncode == 0, done
        return done.stdout.strip()

    def wait_for_job(self, job_id: str) -> None:
        """Wait until a job has ended; `sbatch --wait` would check only every ten seconds."""
        asked = ("squeue", "--noheader", "--states=all", "--jobs", job_id, "--format=%T")
        running = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}
        state = ""

        def has_ended() -> bool:
            nonlocal state
            state = self.run(*asked).stdout.strip()
            return state not in running

        assert wait_until(has_ended, poll_s=ASK_POLL_S), f"job {job_id} is {state}{self._logs()}"

    def end_started(self) -> None:
        """Kill the processes that a test has started and left."""
        for process in self._started:
            process.kill()
            process.wait()
        self._started.clear()

    def look_for_left_overs(self, kept: str = "") -> None:
        """After a test: fail if it left something; in any case remove it, and cancel all jobs."""
        self.end_started()
        self.cluster.look_for_left_overs(self.heal, kept)

    def heal(self) -> None:
        """Cancel all jobs, undo every fault, and wait until both nodes accept new jobs."""
        self.run("scancel", "--user=root", "--quiet")
        self.cluster.heal()
        self.wait_until_idle()

    def env(self) -> dict[str, str]:
        """Return the environment of a login, without the variables of an allocation that the tests may run in."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "PYTHONPATH"))}
        home = {"HOME": str(self.home), "TMPDIR": str(self.folder / "tmp")}
        return {**ours, **home, "PATH": f"{self.folder}/bin:{Path(sys.executable).parent}:{TOOL_PATH}"}

    def wait_until_idle(self) -> None:
        """Wait until no job is left and every node accepts new ones."""
        states = ""

        def is_idle() -> bool:
            nonlocal states
            states = self.run("sinfo", "--noheader", "--Node", "--format=%t").stdout
            return states.split() == ["idle"] * len(NODES)

        assert wait_until(is_idle, poll_s=ASK_POLL_S), f"{states}{self._logs()}"

    def _logs(self) -> str:
        logs = sorted((self.folder / "slurm").glob("*.log"))
        return "".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in logs)

    def _write_files(self) -> None:
        for name in ("slurm", "bin", "tmp"):
            (self.folder / name).mkdir()
        (self.folder / "slurm" / "slurm.conf").write_text(SLURM_CONF.format(cpus=CPUS, gpus=GPUS))
        (self.folder / "slurm" / "gres.conf").write_text(GRES_CONF.format(last=GPUS - 1))
        for gpu in range(GPUS):
            (self.folder / "slurm" / f"nvidia{gpu}").symlink_to("/dev/null")
        self.enter_program.write_text(ENTER)
        self.enter_program.chmod(0o755)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
