"""A rank that fails on one of two SSH hosts: what is said of it, on the screen and in the record."""

from __future__ import annotations

import re

from launching import RANK_FILE, Launch, rank, shell

NOTHING_LEFT = "0 processes left on 2 hosts"


def test_a_rank_raises(launch: Launch) -> None:
    running = launch.start(*rank("wait", "3=fail"))
    running.wait_for_ranks()
    running.go()
    done = running.finish()
    assert done.exit_code == 1
    pid = running.pid_of(3)
    assert done.words[2:] == [
        "launch: node2 rank 3 failed first (exit code 1), stopping the run on 2 hosts",
        "launch: FAILED after N s",
        "  node2 rank 3 (local rank 1) at HH:MM:SS:",
        f'    File "{RANK_FILE}", line {line_of("raise ValueError")}, in main',
        '      raise ValueError(f"rank {RANK} met a NaN")',
        "    ValueError: rank 3 met a NaN",
        "  its last lines:",
        f"    ready 3 pids {pid}",
        "    one more line",
        "  3 others stopped by launch: 2 on node1, 1 on node2",
        "  full log: logs/RUN/node_1.log",
        "launch: 0 processes left on 2 hosts, exit code 1 (launch report RUN)",
    ]
    cause = done.record["result"]["cause"]
    assert (cause["host"], cause["rank"], cause["local_rank"], cause["exit_code"]) == ("node2", 3, 1, 1)


def test_all_ranks_raise_at_once(launch: Launch) -> None:
    running = launch.start(*rank("fail"))
    running.wait_for_ranks()
    running.go()
    done = running.finish()
    (told,) = re.findall(r"^launch: node(\d) rank (\d) failed first", done.stderr, re.MULTILINE)
    name = f"node{told[0]} rank {told[1]}"
    assert done.words[2:] == [
        f"launch: {name} failed first (exit code 1), stopping the run on 2 hosts",
        "launch: FAILED after N s",
        f"  {name} (local rank {int(told[1]) % 2}) at HH:MM:SS:",
        f'    File "{RANK_FILE}", line {line_of("raise ValueError")}, in main',
        '      raise ValueError(f"rank {RANK} met a NaN")',
        f"    ValueError: rank {told[1]} met a NaN",
        "  same error on all 4 ranks: 2 each on node[1-2]",
        "  its last lines:",
        f"    ready {told[1]} pids {running.pid_of(int(told[1]))}",
        "    one more line",
        f"  full log: logs/RUN/node_{int(told[0]) - 1}.log",
        "launch: 0 processes left on 2 hosts, exit code 1 (launch report RUN)",
    ]


def test_one_rank_raises_and_the_others_lose_it(launch: Launch) -> None:
    running = launch.start(*rank("lose", "3=fail"))
    running.wait_for_ranks()
    running.go()
    done = running.finish()
    shown = re.findall(r"^\[(.*)\] Traceback", done.stderr, re.MULTILINE)
    assert "node2:3" in shown
    assert len(shown) <= 2  # one of the others may be heard before
    assert done.words[2:] == [
        "launch: node2 rank 3 failed first (exit code 1), stopping the run on 2 hosts",
        "launch: FAILED after N s",
        "  node2 rank 3 (local rank 1) at HH:MM:SS:",
        f'    File "{RANK_FILE}", line {line_of("raise ValueError")}, in main',
        '      raise ValueError(f"rank {RANK} met a NaN")',
        "    ValueError: rank 3 met a NaN",
        "  its last lines:",
        f"    ready 3 pids {running.pid_of(3)}",
        "    one more line",
        "  3 others failed because of it: 2 on node1, 1 on node2",
        f"  {4 - len(shown)} others' tracebacks are in the logs",
        "  full log: logs/RUN/node_1.log",
        "launch: 0 processes left on 2 hosts, exit code 1 (launch report RUN)",
    ]
    assert sorted(re.findall(r"^\[(.*)\]! Traceback", done.log(0), re.MULTILINE)) == ["node1:0", "node1:1"]


def test_a_rank_ends_early_and_the_others_lose_it(launch: Launch) -> None:
    running = launch.start(*rank("lose", "1=finish"))
    running.wait_for_ranks()
    running.go()
    done = running.finish()
    assert done.exit_code == 1
    assert done.words[2:] == [
        "launch: node1 rank 1 finished before the others (exit code 0), stopping the run on 2 hosts",
        "launch: FAILED after N s",
        "  node1 rank 1 (local rank 1) at HH:MM:SS:",
        "    finished before the others (exit code 0)",
        "  why: it exited while other ranks still needed it, and they lost their connection to it",
        "  fix: let all ranks do the same steps (equal shares of the data, the same checkpoint), and none return early",
        "  its last lines:",
        f"    ready 1 pids {running.pid_of(1)}",
        "    one more line",
        "  3 others failed because of it: 1 on node1, 2 on node2",
        "  2 others' tracebacks are in the logs",  # the first one was shown when nobody knew of a failure
        "  full log: logs/RUN/node_0.log",
        "launch: 0 processes left on 2 hosts, exit code 1 (launch report RUN)",
    ]


def line_of(text: str) -> int:
    """Return the number of the first line of rank.py that holds `text`."""
    lines = RANK_FILE.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_the_exit_code_is_the_first_failure_s(launch: Launch) -> None:
    first = 'if [ "$RANK" = 1 ]; then echo $$ >new; mv new first; exit 42; fi'
    beside = "until [ -e first ] && ! kill -0 $(cat first) 2>/dev/null; do sleep 0.02; done; exit 43"
    later = "trap 'exit 43' TERM; while :; do sleep 0.02; done"
    done = launch.run(*shell(f'{first}; if [ "$RANK" = 0 ]; then {beside}; fi; {later}'))
    assert done.exit_code == 42
    assert "launch: node1 rank 1 failed first (exit code 42), stopping the run on 2 hosts" in done.words


def test_a_known_line_is_explained_on_the_screen_and_in_the_record(launch: Launch) -> None:
    line = "RuntimeError: No CUDA GPUs are available"
    done = launch.run(*shell(f'[ "$RANK" = 1 ] || exec sleep 300; echo "{line}" >&2; exit 3'))
    cause = "this rank sees no GPU: the host has none, CUDA_VISIBLE_DEVICES hides them, or the container got none"
    fix = "check with launch exec --hosts HOST -- nvidia-smi; on CPUs, pass --cpu (launch also needs --nproc N)"
    assert done.words[6:10] == [f"  why: {cause}", f"  fix: {fix}", "  its last lines:", f"    {line}"]
    record = done.record["result"]["cause"]
    assert record["explanation"] == {"name": "no-gpu", "cause": cause, "fix": fix}
    assert record["oom"] is None


def test_a_command_that_is_not_there(launch: Launch) -> None:
    done = launch.run("--no-python", "/nonexistent/train")
    assert done.exit_code == 127
    assert "launch: can't start /nonexistent/train: No such file or directory" in done.stderr
    assert NOTHING_LEFT in done.stderr
