"""Runs that go well on two SSH hosts: order, logs, prefixes, much output, and files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from launching import Launch, every_transport
from machines.runs import shell

BURST_LINE = "0123456789" * 39 + "012345678"  # 400 bytes with its newline
BURST_LINES = 100_000
BURST_MEMORY_KIB = 85 << 10  # a launcher has up to 55 MiB by itself, and queues of some MiB


@every_transport
def test_a_run_from_its_plan_to_its_record(launch: Launch) -> None:
    done = launch.run(*shell('echo "rank $RANK of $WORLD_SIZE, $LOCAL_RANK here"; echo oops >&2'))
    assert done.exit_code == 0
    assert done.words == [
        "launch: 2 hosts x 2 processes = 4 ranks, run RUN, logs in logs/RUN",
        "launch: checked in N s: CPUs, data over lo",
        "launch: finished in N s, 4 ranks succeeded, 0 processes left on 2 hosts",
    ]
    assert sorted(done.lines) == [
        "[node1:0] rank 0 of 4, 0 here",
        "[node1:1] rank 1 of 4, 1 here",
        "[node2:2] rank 2 of 4, 0 here",
        "[node2:3] rank 3 of 4, 1 here",
    ]
    assert done.stderr.count("] oops\n") == 4
    assert sorted(done.log(1)) == [
        "[node2:2] rank 2 of 4, 0 here",
        "[node2:2]! oops",
        "[node2:3] rank 3 of 4, 1 here",
        "[node2:3]! oops",
    ]
    logs = launch.folder / "logs"
    names = [".gitignore", done.run_id, "latest", "node_0.log", "node_1.log"]
    assert sorted(path.name for path in logs.iterdir()) == names
    assert (logs / "latest").readlink() == Path(done.run_id)
    for name in ("node_0.log", "node_1.log"):
        assert (logs / name).samefile(logs / done.run_id / name)
    record = done.record
    assert record["run_id"] == done.run_id
    assert record["ended_at"] > record["started_at"]
    assert [(node["host"], node["first_rank"], node["nproc"]) for node in record["plan"]["nodes"]] == [
        ("node1", 0, 2),
        ("node2", 2, 2),
    ]
    assert record["result"]["exit_code"] == 0
    assert record["result"]["left"] == {"node1": [], "node2": []}
    assert record["result"]["cause"] is None


def test_ranks_follow_the_order_of_a_hostfile_and_its_slots(launch: Launch) -> None:
    (launch.folder / "hosts").write_text("node2 slots=3\nnode1 slots=1  # the small one\n")
    words = ("--hostfile", "hosts", "--ssh-config", str(launch.ssh_config), "--cpu")
    done = launch.run_command("run", *words, *shell("echo $RANK $GROUP_RANK of $WORLD_SIZE"))
    assert sorted(done.lines) == [
        "[node1:3] 3 1 of 4", "[node2:0] 0 0 of 4", "[node2:1] 1 0 of 4", "[node2:2] 2 0 of 4"
    ]  # fmt: skip


@every_transport
def test_40_mb_in_one_burst(launch: Launch) -> None:
    script = f'[ "$RANK" = 2 ] || exit 0; yes {BURST_LINE} | head -n {BURST_LINES}'
    done = launch.run(*shell(script))
    expected = f"[node2:2] {BURST_LINE}\n" * BURST_LINES
    is_whole = [
        done.stdout == expected,
        done.log(1) == expected.splitlines(),
    ]  # pytest would compare 44 MB line by line
    for path in launch.folder.rglob("*"):
        if path.is_file():
            os.truncate(path, 0)  # pytest keeps the folders of three sessions
    assert is_whole == [True, True]
    assert done.exit_code == 0
    assert done.peak_kib < BURST_MEMORY_KIB


def test_what_ranks_leave_for_us_comes_home(launch: Launch) -> None:
    """Also of a run that fails, and more than a pipe or a window holds; what stays is named."""
    leave = 'cd "$LAUNCH_FILES"; head -c 3000000 /dev/zero >trace_$RANK; echo x >ab_$RANK; mkdir -p folder; cd -'
    fail = "[ $RANK != 3 ] || { until [ -e 0 -a -e 1 -a -e 2 ]; do sleep 0.02; done; exit 1; }"
    done = launch.run(*shell(f"{leave}; >$RANK; {fail}"))
    assert done.exit_code == 1
    sizes = {
        str(path.relative_to(done.logs / "files")): path.stat().st_size
        for path in (done.logs / "files").rglob("*")
        if path.is_file()
    }
    assert sizes == {
        f"node_{node}/{name}_{rank}": size
        for node in (0, 1)
        for rank in (2 * node, 2 * node + 1)
        for name, size in (("trace", 3_000_000), ("ab", 2))
    }
    assert "  node[1-2]: not copied from LAUNCH_FILES: folder (a directory)" in done.stderr.splitlines()


ODD_NAMES = ["my file", "-x", "a:b", "a+b", "é☃", "n" * 249]


def test_an_odd_name_loses_no_file(launch: Launch) -> None:
    """Such a name once made the whole connection malformed, so that no file of the host came."""
    code = (
        "import os; os.chdir(os.environ['LAUNCH_FILES'])\n"
        f"for name in [*{ODD_NAMES!r}, 'ok', 'm' * 250, '.x', b'\\xff']: open(name, 'w').close()\n"
        "open('large', 'w').truncate(40 << 20); os.mkfifo('pipe')"
    )
    done = launch.run("--hosts", "node1", "--nproc", "1", "--no-python", sys.executable, "-c", code)
    names = {path.name for path in (done.logs / "files/node_0").iterdir()}
    assert names == {*ODD_NAMES, "ok"}
    begin = "  node1: not copied from LAUNCH_FILES: "
    (line,) = (line for line in done.stderr.splitlines() if line.startswith(begin))
    assert line == (
        f"{begin}.x (unusable name), large (40 MiB, over 32 in all), {'m' * 200}... (unusable name), "
        "pipe (no file) and '\\udcff' (unusable name)"
    )
