"""launch clean: what earlier runs left on hosts."""

from __future__ import annotations

import json

from launching import Launch
from ssh_hosts import SshHosts

from launcher.node.processes import run_owner

NAME = "launch-20261120-091233-ab12cd34"


def test_directories_of_a_run_on_hosts_that_lost_power(launch: Launch, hosts: SshHosts) -> None:
    first, second = (hosts[name].tmpdir / NAME for name in ("node1", "node2"))
    for folder in (first, second):
        (folder / "files").mkdir(parents=True)
        folder.chmod(0o700)
        run_owner.sign(str(folder), [])
        note = json.loads((folder / "owner").read_text())
        (folder / "owner").write_text(json.dumps({**note, "boot_id": "of before"}))
    (first / "files" / "nccl_trace_rank_0").touch()
    found = [
        f"  node1: leftover directory: {hosts['node1'].tmpdir}/launch-RUN-ab12cd34 (1 file of its ranks)",
        f"  node2: leftover directory: {hosts['node2'].tmpdir}/launch-RUN-ab12cd34",
    ]
    words = ("clean", *launch.hosts_words)
    asked = launch.run_command(*words, "--dry-run")
    assert (asked.exit_code, asked.words) == (0, [*found, "launch: 2 directories would be removed"])
    assert first.exists()
    removed = [*found, "launch: removed 2 directories, 0 processes left on 2 hosts"]
    done = launch.run_command(*words)
    assert (done.exit_code, done.words) == (0, removed)
    assert not first.exists()
    assert not second.exists()
    assert launch.run_command(*words).words == ["launch: nothing is left behind on 2 hosts"]
