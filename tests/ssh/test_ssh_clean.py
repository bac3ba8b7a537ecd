"""launch clean: what earlier runs left on hosts."""

from __future__ import annotations

from launching import Launch
from machines.lost_runs import lose_run
from ssh_hosts import SshHosts


def test_directories_of_a_run_on_hosts_that_lost_power(launch: Launch, hosts: SshHosts) -> None:
    first, second = (lose_run(hosts[name].tmpdir, "lost-power") for name in ("node1", "node2"))
    (first / "files" / "nccl_trace_rank_0").touch()
    found = [
        f"  node1: leftover directory: {first} (1 file of its ranks)",
        f"  node2: leftover directory: {second}",
    ]
    words = ("clean", *launch.hosts_words)
    asked = launch.run_command(*words, "--dry-run")
    assert (asked.exit_code, asked.words) == (
        0,
        [*found, "launch: nothing was stopped or removed, because of --dry-run"],
    )
    assert first.exists()
    removed = [*found, "launch: removed 2 directories, 0 processes left on 2 hosts"]
    done = launch.run_command(*words)
    assert (done.exit_code, done.words) == (0, removed)
    assert not first.exists()
    assert not second.exists()
    assert launch.run_command(*words).words == ["launch: nothing is left behind on 2 hosts"]
