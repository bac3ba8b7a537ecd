"""launch clean: what earlier runs left on hosts."""

from __future__ import annotations

import json
import os
import time

import pytest
from launching import TRANSPORTS, Launch
from ssh_hosts import SshHosts

NAME = "launch-20261120-091233-ab12cd34"
NOTE = {"host": os.uname().nodename, "boot_id": "of before", "pid_namespace": "pid:[1]", "keepers": [[1, 1]]}


@pytest.mark.parametrize("transport", [*TRANSPORTS, "pdsh"])
def test_directories_of_a_run_on_hosts_that_lost_power(launch: Launch, hosts: SshHosts) -> None:
    first, second = (hosts[name].tmpdir / NAME for name in ("node1", "node2"))
    for folder in (first, second):
        (folder / "files").mkdir(parents=True)
    (first / "owner").write_text(json.dumps(NOTE))
    (first / "files" / "nccl_trace_rank_0").touch()
    (second / "order").write_text('{"env": {"WANDB_API_KEY": "hush"}}')  # of a launcher that still kept it on disk
    os.utime(second, (time.time() - 100,) * 2)
    found = [
        f"  node1: directory left behind: {hosts['node1'].tmpdir}/launch-RUN-ab12cd34 (1 file of its ranks)",
        f"  node2: directory left behind: {hosts['node2'].tmpdir}/launch-RUN-ab12cd34",
    ]
    words = ("clean", *launch.hosts_words)
    asked = launch.run_command(*words, "--dry-run")
    assert (asked.exit_code, asked.words) == (0, [*found, "launch: 2 directories would be removed"])
    assert first.exists()
    removed = [*found, "launch: removed 2 directories, 0 processes left on 2 nodes"]
    done = launch.run_command(*words)
    assert (done.exit_code, done.words) == (0, removed)
    assert not first.exists()
    assert not second.exists()
    assert launch.run_command(*words).words == ["launch: nothing is left behind on 2 hosts"]
