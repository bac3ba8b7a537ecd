"""`launcher.launch` on two SSH hosts."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import Launch
from machines.launches import write_python
from machines.processes import wait_until
from ssh_hosts import SshHosts

import launcher

SAYS = ["sh", "-c", 'echo "rank $RANK of $WORLD_SIZE"']
WAITS = ["sh", "-c", "echo ready; exec sleep 1000"]


@pytest.fixture
def options(launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Return the options that name both hosts, with two processes each, in a directory that they see as well."""
    monkeypatch.chdir(launch.folder)
    monkeypatch.setattr(sys, "executable", str(write_python(tmp_path / "python")))
    yield {
        "hosts": ["node1", "node2"], "ssh_config": launch.ssh_config, "transport": launch.transport,
        "nproc": 2, "cpu": True, "no_python": True,
    }  # fmt: skip


def test_two_hosts(options: dict[str, Any]) -> None:
    with launcher.launch(SAYS, **options) as run:
        lines = sorted((line.host, line.rank, line.text) for line in run)
        result = run.wait()
    expected = [("node1", 0), ("node1", 1), ("node2", 2), ("node2", 3)]
    assert lines == [(host, rank, f"rank {rank} of 4") for host, rank in expected]
    assert (result.hosts, result.left) == (("node1", "node2"), {"node1": (), "node2": ()})


def test_a_host_is_lost(options: dict[str, Any], hosts: SshHosts) -> None:
    """No rank is to blame then; its host is asked what is left."""
    with launcher.launch(WAITS, **options) as run:
        assert {line.rank for _, line in zip(range(4), run, strict=False)} == {0, 1, 2, 3}
        keeper = next(process for process in hosts.all_processes() if process.is_keeper)
        keeper.kill()
        with pytest.raises(launcher.RunFailed) as caught:
            run.wait()
    assert not isinstance(caught.value, launcher.RankFailed)
    assert caught.value.host in ("node1", "node2")


def test_a_detached_run_with_a_controller_on_a_host(options: dict[str, Any], hosts: SshHosts, launch: Launch) -> None:
    """Its launch travels there; what is seen of it is the same."""
    with launcher.launch(WAITS, detach=True, name="far", **options) as run:
        assert (run.logs.name, run.logs.parent.name) == (run.id, "logs")
        assert {line.rank for _, line in zip(range(4), run, strict=False)} == {0, 1, 2, 3}
    assert hosts.ranks()
    with launcher.attach("far") as again:
        assert (again.id, again.stop().exit_code) == (run.id, 130)
    assert wait_until(lambda: not hosts.ranks())
    there = ("--controller", "node1", "--ssh-config", str(launch.ssh_config))
    refused = launch.run_command("logs", "far", *there, "--since", "10m", "--rank", "99")
    assert refused.stderr == f"launch: run {run.id} has no lines of --rank 99\n"
    unknown = launch.run_command("wait", "near", *there)
    assert unknown.stderr == "launch: no run 'near'\n  fix: see launch ps --hosts node1\n"
    assert (refused.exit_code, unknown.exit_code) == (1, 2)
    shutil.rmtree(hosts.hosts[0].folder / "home" / ".local" / "state" / "launch")  # other tests list the runs there
