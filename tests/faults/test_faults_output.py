"""The output of ranks: a secret, any bytes, in any amount, a reader that does not read, and a full disk."""

from __future__ import annotations

import re
import subprocess

import pytest
from fault_launch import AT_GO, FaultLaunch, ranks, said
from machines.logs import without_stamps
from machines.processes import read_command, wait_until
from ways import WAYS, Promise, over_ways

FLOOD_LINES = 15_000  # of each rank: 3 MB with their prefixes, so that three exceed what is queued for a reader
FLOOD = f"{AT_GO}; seq -f %0199g {FLOOD_LINES}"
# Invalid UTF-8, carriage returns, two streams, an empty line, and no newline at the end.
ODD = r"printf '\303'; sleep 0.05; printf '\251\n\377\376\n10%%\r20%%\n\n'; printf 'oops\nlast' >&2; printf end"


@over_ways(Promise.OUTPUT, also=Promise.SECRET)
def test_a_secret_bytes_of_any_kind_and_a_flood_that_nobody_reads(launch: FaultLaunch) -> None:
    """As with a pager that shows its first page: the launcher doesn't wait for it, and the logs have every line.

    The secret stands in no command line of any host while the ranks run, the launch host included.
    """
    (launch.folder / "secrets.env").write_text("WANDB_API_KEY=k-0815\n")
    odd = f'{AT_GO}; echo "is $WANDB_API_KEY"; {ODD}'
    running = launch.start("--env-file", "secrets.env", *ranks(FLOOD, r3=odd), stdout=subprocess.PIPE)
    assert wait_until(lambda: sum(log.read_text().count("] ready ") for log in launch.logs.glob("latest/node_*")) == 4)
    exposed = [process for process in launch.slurm.cluster.processes() if "k-0815" in read_command(process.pid)]
    running.go()
    launch.wait_until_nothing_runs()
    assert running.process.stdout is not None
    shown = running.process.stdout.read().splitlines()
    done = launch.finish(running)
    assert done.exit_code == 0, str(done)
    assert not exposed
    assert len(shown) < 3 * FLOOD_LINES, "it was read after all"
    assert sorted(re.sub(r"\d{4,}", "NNNN", line) for line in said(done)[2:]) == [
        "launch: NNNN lines not shown here; the logs have all of them",
        f"launch: finished in N s, 4 ranks succeeded, {launch.nothing_left}",
    ]
    logs = [(done.logs / f"node_{node}.log").read_bytes() for node in range(len(launch.hosts))]
    for rank in range(3):
        log, prefix = logs[rank // launch.nproc], f"[{launch.name(rank)}] ".encode()
        assert log.count(prefix) == FLOOD_LINES + 1
        assert prefix + b"%0199d\n" % FLOOD_LINES in log
    own = [line for line in without_stamps(logs[-1]).split(b"\n") if line.startswith(f"[{launch.name(3)}]".encode())]
    texts = [line.partition(b"]")[2] for line in own]
    assert [text for text in texts if not text.startswith(b"!")] == [
        b" ready 3", b" is k-0815", b" \xc3\xa9", b" \xff\xfe", b"~ 10%\r", b" 20%", b" ", b"~ end",
    ]  # fmt: skip
    assert [text for text in texts if text.startswith(b"!")] == [b"! oops", b"!~ last"]


@pytest.mark.parametrize("way", WAYS[:1], ids=[WAYS[0].name])
@pytest.mark.parametrize("limit", ["size=64k", "nr_inodes=1"])
def test_the_disk_of_the_logs_is_full(launch: FaultLaunch, limit: str) -> None:
    """One warning says so, and the run continues; every line is shown. Nothing of it depends on how lines come.

    In test_faults_combinations.py, the disk of another controller is full.
    """
    logs = launch.logs
    logs.mkdir(parents=True, exist_ok=True)
    launch.slurm.cluster[launch.way.controller].mount(str(logs), "-t", "tmpfs", "-o", limit, "none")
    running = launch.start(*ranks("seq 1 5000"))
    done = running.wait()
    assert done.exit_code == 0, str(done)
    (complaint,) = (line for line in said(done) if "can't write" in line)
    full = "No space left on device"
    assert re.search(rf"{full}; the run continues, but its logs will have gaps$", complaint)
    assert len(done.lines) == 4 * 5_000
    end = f"launch: finished in N s, 4 ranks succeeded, {launch.nothing_left}"
    assert re.fullmatch(rf"{end}; the logs are incomplete: {full}", said(done)[-1])
    assert not list(logs.rglob("*.new"))
