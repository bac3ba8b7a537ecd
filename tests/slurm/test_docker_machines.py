"""docker/entrypoint.sh makes a cluster of its machines: logins among them, Slurm over them, and an end with a word."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from docker_machines import NAMES, ROOT, make_machines, run_as
from machines.cluster import Cluster
from machines.processes import wait_until


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start head, node-1 and node-2, and wait until compose would call them healthy."""
    with make_machines(tmp_path_factory.mktemp("docker")) as running:
        for host in running:
            log = host.folder / "log"
            assert wait_until(lambda host=host: is_healthy(running, host.name)), log.read_text()
        yield running


def is_healthy(machines: Cluster, name: str) -> bool:
    return run_as("root", machines[name], str(ROOT / "docker" / "entrypoint.sh"), "healthy").returncode == 0


def test_a_step_runs_on_both_nodes_as_the_user(machines: Cluster) -> None:
    done = run_as("trainer", machines["head"], "srun", "--nodes=2", "sh", "-c", "echo $(uname -n) $(id -un)")
    assert sorted(done.stdout.splitlines()) == ["node-1 trainer", "node-2 trainer"], done


def test_a_slurm_without_gpus_takes_the_scripts(machines: Cluster) -> None:
    for script in sorted((ROOT / "scripts" / "slurm").glob("slurm_*.sh")):
        done = run_as("trainer", machines["head"], "sbatch", "--test-only", str(script))
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("source", "target"), [("head", "node-1"), ("head", "node-2"), ("node-2", "head")])
def test_the_user_may_log_in_from_each_machine_to_the_others(machines: Cluster, source: str, target: str) -> None:
    done = run_as("trainer", machines[source], "ssh", "-o", "BatchMode=yes", target, "uname", "-n")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{target}\n", "")


def test_the_keys_are_for_their_owners_alone(machines: Cluster) -> None:
    keys = ("/etc/munge/munge.key", "/etc/ssh/ssh_host_ed25519_key", "/home/trainer/.ssh/id_ed25519")
    for name in NAMES:
        done = run_as("root", machines[name], "stat", "--format=%a %U", *keys)
        assert done.stdout == "400 munge\n600 root\n600 trainer\n"


def test_a_second_start_makes_no_new_keys(machines: Cluster) -> None:
    key = machines.folder / "keys" / "made" / "munge.key"
    before = key.read_bytes()
    machines["head"].power_off()
    machines["head"].power_on()
    assert wait_until(lambda: is_healthy(machines, "head"))
    assert key.read_bytes() == before


def test_a_machine_goes_down_with_its_daemon_and_says_which(machines: Cluster) -> None:
    host = machines["node-2"]
    run_as("root", host, "sh", "-c", "kill -9 $(pgrep -x slurmd)")
    log = host.folder / "log"
    assert wait_until(lambda: "exit code 1\n" in log.read_text()), log.read_text()
    assert [line for line in log.read_text().splitlines() if line.startswith("entrypoint.sh")] == [
        "entrypoint.sh: slurmd -D -N node-2 ended with exit code 137, so this container exits",
        "entrypoint.sh: exit code 1",
    ]
