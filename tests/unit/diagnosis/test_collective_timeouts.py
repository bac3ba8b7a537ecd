"""Which rank the others waited for, from what their watchdogs say."""

from __future__ import annotations

import pytest

from launcher.diagnosis.collective_timeouts import explain_wait


def watchdog(rank, number, group="", operation="ALLREDUCE"):
    return (
        f"[rank{rank}]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [{group}Rank {rank}] Watchdog caught "
        f"collective operation timeout: WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn=1, Timeout(ms)=600000) "
        "ran for 600020 milliseconds before timing out.\n"
    )


GLOO = "RuntimeError: [unbound_buffer.cc:84] Timed out waiting 3000ms for recv operation to complete\n"
LOST = "RuntimeError: [pair.cc:534] Connection closed by peer [127.0.0.1]:10895\n"
DEFAULT = "PG ID 0 PG GUID 0(default_pg) "
PART = "PG ID 1 PG GUID 3(tp) "


def words(stderr_of, ranks=()):
    found = explain_wait(stderr_of, ranks)
    return None if found is None else (found.cause, found.fix)


def suspicion(who):
    return f"check whether the last lines of {who} show a hang or another branch of the script"


@pytest.mark.parametrize("group", ["", DEFAULT])
def test_the_silent_rank_is_named(group):
    stderr_of = {rank: watchdog(rank, 808, group) for rank in (0, 2, 3)} | {1: "step 41\n"}
    cause = "ranks 0, 2-3 waited in ALLREDUCE number 808, and rank 1 never joined"
    assert words(stderr_of, range(4)) == (cause, suspicion("rank 1"))


def test_the_rank_with_the_lowest_number_is_named():
    stderr_of = {0: watchdog(0, 96125) + watchdog(0, 96120), 1: watchdog(1, 96120), 7: watchdog(7, 64088)}
    cause = "rank 7 was still in ALLREDUCE number 64088 while others waited in ALLREDUCE number 96120"
    assert words(stderr_of, range(8)) == (cause, suspicion("rank 7"))


def test_where_all_waited_nobody_is_named():
    assert words({rank: watchdog(rank, 808) for rank in range(4)}, range(4)) == (
        "all ranks waited in ALLREDUCE number 808: the network between them fails, or one step takes longer "
        "than the timeout",
        "test the network with launch check; allow more time with init_process_group(timeout=...)",
    )


def test_where_the_other_ranks_are_not_known_nobody_is_named():
    cause = "ranks 0-1 waited in ALLREDUCE number 808, and another never joined"
    assert words({0: watchdog(0, 808), 1: watchdog(1, 808)}) == (cause, suspicion("the one that printed nothing"))


def test_numbers_count_per_process_group():
    cause = "rank 0 waited in ALLREDUCE number 5, and another never joined"
    assert words({0: watchdog(0, 5, PART)}, range(4)) == (cause, suspicion("the one that printed nothing"))
    cause = "ranks 0-1 waited for others, in several process groups"
    found = words({0: watchdog(0, 5, PART), 1: watchdog(1, 900, DEFAULT)}, range(4))
    assert found == (cause, suspicion("the ranks that printed nothing"))


def test_with_gloo_the_rank_that_says_nothing_at_all_is_named():
    cause = "rank 0 waited for the others, and rank 1 never joined"
    assert words({0: GLOO, 1: "step 41\n", 2: LOST}, range(3)) == (cause, suspicion("rank 1"))
    assert words({0: GLOO, 1: LOST, 2: LOST}, range(3)) is None


def test_nobody_waited():
    assert words({0: "ValueError: no\n", 1: LOST}, range(3)) is None
    assert words({}, range(3)) is None
