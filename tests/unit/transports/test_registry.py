"""Every transport by its name: which one is taken, and that naming them imports none."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import weakref

import pytest

from launcher.cli.options.request import OPTIONS
from launcher.errors import UsageError
from launcher.hosts.hostfiles import parse_hosts
from launcher.job.slurm_allocation import Allocation
from launcher.transports.base import TransportSettings
from launcher.transports.registry import SRUN, TRANSPORTS, choose_transport

TWO = Allocation("7", ("n1", "n2"))


@pytest.mark.parametrize(
    ("wanted", "hosts", "allocation", "name"),
    [
        (None, TWO.hosts(), TWO, "srun"),
        (None, TWO.hosts()[:1], TWO, "srun"),
        (None, parse_hosts("n1,n2"), TWO, "fabric"),
        (None, parse_hosts("n1,n2"), None, "fabric"),
        ("fabric", TWO.hosts(), TWO, "fabric"),
        ("srun", parse_hosts("n2,n1"), TWO, "srun"),
        ("pdsh", TWO.hosts(), TWO, "pdsh"),
    ],
)
def test_the_transport_to_hosts(wanted, hosts, allocation, name):
    assert choose_transport(wanted, hosts, allocation).name == name


@pytest.mark.parametrize(
    ("hosts", "allocation", "message", "fix"),
    [
        ("n1", None, "--transport srun: not in a Slurm allocation", "start one with salloc or sbatch"),
        ("n1,n3", TWO, "--transport srun: n3 is not in Slurm job 7",
         "name its nodes, n[1-2], or use --transport fabric"),
        ("x[1-2]", TWO, "--transport srun: x[1-2] are not in Slurm job 7",
         "name its nodes, n[1-2], or use --transport fabric"),
    ],
)  # fmt: skip
def test_srun_leads_to_nodes_of_the_job_alone(hosts, allocation, message, fix):
    with pytest.raises(UsageError) as caught:
        choose_transport("srun", parse_hosts(hosts), allocation)
    assert (caught.value.message, caught.value.fix) == (message, fix)


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh: apt install openssh-client")
def test_a_transport_is_gone_once_nobody_uses_it() -> None:
    """A run opens one for each attempt."""
    transport = weakref.ref(TRANSPORTS["ssh"].open((), TransportSettings()))
    gc.collect()
    assert transport() is None


def test_the_help_of_transport_names_each():
    option = OPTIONS["transport"]
    assert list(option.type.choices) == list(TRANSPORTS)
    assert all(name in option.help for name in TRANSPORTS)


def test_the_names_are_there_without_the_transports():
    code = "import sys, launcher.transports.registry; print(*({'fabric', 'paramiko'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_process_has_one_way_to_the_nodes_of_a_job():
    """Its steps and agents last as long as the process: each attempt of a run would start more of them."""
    settings = TransportSettings(allocation=Allocation("8", ("n1", "n2", "n3")), pythons=("python3",))
    first, second, third = settings.allocation.hosts()
    transport = SRUN.open([first, second], settings)
    assert SRUN.open([second], settings) is transport
    assert SRUN.open([second, third], settings) is not transport
