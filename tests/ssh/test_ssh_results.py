"""What the ranks have written, copied from their hosts as they were reached at the start."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from launching import Launch
from machines.runs import shell


def test_results_come_from_all_hosts(launch: Launch) -> None:
    """Also from another directory, if --ssh-config is relative to that of the run."""
    (launch.folder / "config").write_text(launch.ssh_config.read_text())
    script = "mkdir -p outputs; echo $RANK >outputs/$RANK"
    done = replace(launch, ssh_config=Path("config")).run(*shell(script))
    assert done.exit_code == 0, str(done)
    run = (launch.folder / "logs/latest").readlink().name
    copies = launch.folder / f"logs/{run}-fetched"
    elsewhere = replace(launch, folder=launch.folder / "outputs")
    done = elsewhere.run_command("fetch", "--all", "--log-dir", "../logs", run, "outputs/")
    assert done.exit_code == 0, str(done)
    names = [str(path.relative_to(copies)) for path in sorted(copies.rglob("?"))]
    assert names == [f"node{node}/outputs/{rank}" for node in (1, 2) for rank in range(4)]
    (copies / "node1").rename(copies / "first")
    (copies / "node1").symlink_to("first")
    (copies / "node2/outputs/0").unlink()
    done = elsewhere.run_command("fetch", "--all", "--log-dir", "../logs", run, "outputs/")
    assert done.exit_code == 1 and "-fetched/node1: it is a link\n" in done.stderr, str(done)
    assert (copies / "node2/outputs/0").exists(), "what fails for one host is copied from the others"


def test_results_come_from_a_host_that_the_queue_chose(launch: Launch) -> None:
    """Both hosts are this machine, so their claims are the same: that it was the second is written into the record."""
    done = launch.run("--num-nodes", "1", "--queue", *shell("echo $RANK >result"))
    assert done.exit_code == 0, str(done)
    record = done.record
    record["plan"]["nodes"][0]["host"] = "node2"
    (done.logs / "run.json").write_text(json.dumps(record))
    run = done.run_id
    done = launch.run_command("fetch", run, "result")
    assert (done.exit_code, done.stderr.startswith("launch: copied 1 file (2 bytes)")) == (0, True), str(done)
    done = launch.run_command("fetch", "latest", "result")
    assert (done.exit_code, done.stderr.endswith("/node2; 1 file unchanged\n")) == (0, True), str(done)
    done = launch.run_command("fetch", "20260101-1", "result")
    assert (done.exit_code, done.stderr.partition("\n")[0]) == (2, "launch: no run '20260101-1'"), str(done)
