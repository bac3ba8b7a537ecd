"""Which tracebacks the screen gets when ranks fail one after the other; whoever is quicker, none is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from machines.patience import NEVER_S

from launcher.hosts.host import Host
from launcher.output import traceback_filter
from launcher.output.console import Console
from launcher.output.lines import STDERR, STDOUT
from launcher.output.output_streams import find_streams
from launcher.output.run_folder import RunRecord
from launcher.output.traceback_filter import TracebackFilter

HEAD = b"Traceback (most recent call last):\n"
PAGE = HEAD + b'  File "train.py", line 1, in f\nRuntimeError: Connection closed by peer\n'
PAGES = [
    PAGE,
    b"".join(b"[rank3]: " + line for line in PAGE.splitlines(keepends=True)),
    b"  + Exception Group " + PAGE,
    b"  1%|\xe2\x96\x8f | 1/100 [00:00<00:00]" + PAGE,
    b'  File "train.py", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax\n',
    b"[rank3]:[E1120 09:16:31 ProcessGroupNCCL.cpp:616] Watchdog caught collective operation timeout\nframe #0: x\n",
    b"terminate called after throwing an instance of 'c10::Error'\n  what(): x\n",
    b"Fatal Python error: Aborted\n\nCurrent thread 0x1:\n",
]


@pytest.fixture(autouse=True)
def holds_long(monkeypatch):
    monkeypatch.setattr(traceback_filter, "HOLD_S", NEVER_S)


class Shown:
    """What came through, by rank: the order between ranks may be any."""

    def __init__(self):
        self.by_rank = {}
        self.filter = TracebackFilter(self.show)

    def show(self, host, rank, stream, lines, at):
        self.by_rank[rank] = self.by_rank.get(rank, b"") + lines

    def feed(self, *blocks):
        for rank, lines in blocks:
            self.filter.take(f"gpu{rank}", rank, STDERR, lines, 0.0)


def sources(*ranks):
    return {(f"gpu{rank}", rank) for rank in ranks}


@pytest.fixture
def shown():
    return Shown()


@pytest.mark.parametrize("page", PAGES)
def test_the_first_traceback_is_shown_and_those_of_others_wait(shown, page):
    shown.feed((3, b"step 1\n" + PAGE), (1, b"a warning\n" + page), (1, b"more\n"), (2, b"step 1\n"), (3, b"bye\n"))
    shown.filter.take("gpu1", 1, STDOUT, b"saved\n", 0.0)
    assert shown.by_rank == {3: b"step 1\n" + PAGE + b"bye\n", 1: b"a warning\nsaved\n", 2: b"step 1\n"}
    shown.filter.withhold()
    assert shown.filter.release(sources(3)) == sources(1)
    assert shown.by_rank[1] == b"a warning\nsaved\n"


def test_an_error_that_several_have_is_shown_once(shown):
    shown.feed((3, PAGE), (0, PAGE), (1, PAGE))
    shown.filter.withhold()
    assert shown.filter.release(sources(0), alike=sources(0, 1, 3)) == sources(0, 1)
    assert shown.by_rank == {3: PAGE}
    assert shown.filter.release(sources(0), alike=sources(0, 1)) == sources(
        1
    )  # the one that was shown is another error
    assert shown.by_rank == {3: PAGE, 0: PAGE}


def test_torchruns_of_two_hosts_are_two_sources(shown):
    shown.filter.take("gpu1", None, STDERR, PAGE, 0.0)
    shown.filter.take("gpu2", None, STDERR, PAGE, 0.0)
    shown.filter.withhold()
    assert shown.by_rank == {None: PAGE}
    assert shown.filter.release([("gpu2", None)], alike=[("gpu2", None)]) == frozenset()
    assert shown.by_rank == {None: PAGE * 2}


def test_a_rank_that_is_not_shown_takes_no_place_of_one_that_is(tmp_path, capfd):
    """Rank 1 raises first, and the screen shows rank 0 alone."""
    console = Console([Host("n1")], find_streams(os.environ), ranks={0})
    (output,) = console.outputs([Host("n1")], RunRecord(tmp_path, "r", console.complain))
    for local_rank in (1, 0):
        output.feed(local_rank, STDERR, PAGE)
    output.finish()
    console.close()
    assert [line.partition("]")[0] for line in capfd.readouterr().err.splitlines()] == ["[n1:0"] * 3


def test_after_the_first_failure_all_tracebacks_wait_and_other_lines_do_not(shown):
    shown.filter.withhold()
    shown.feed((0, b"saving\n"), (0, PAGE), (1, PAGE), (None, PAGE), (1, b"and more\n"), (2, b"saved\n"))
    assert shown.by_rank == {0: b"saving\n", 2: b"saved\n"}
    assert shown.filter.release(sources(1)) == sources(0, None)
    assert shown.by_rank == {0: b"saving\n", 2: b"saved\n", 1: PAGE + b"and more\n"}


def test_a_traceback_that_has_begun_is_shown_to_its_end(shown):
    shown.feed((0, HEAD))
    shown.filter.withhold()
    shown.feed((0, PAGE[len(HEAD) :]), (0, PAGE))
    assert shown.by_rank == {0: PAGE + PAGE}


def test_what_the_run_survives_is_shown_with_its_next_lines(shown, monkeypatch):
    """Then the next traceback is the first one again."""
    shown.feed((0, PAGE), (1, PAGE), (1, b"retrying\n"))
    assert shown.by_rank == {0: PAGE}
    monkeypatch.setattr(traceback_filter, "HOLD_S", 0.0)
    shown.filter.take("gpu2", 2, STDOUT, b"step 2\n", 0.0)
    assert shown.by_rank == {0: PAGE, 1: PAGE + b"retrying\n", 2: b"step 2\n"}
    monkeypatch.setattr(traceback_filter, "HOLD_S", NEVER_S)
    shown.feed((1, PAGE), (0, PAGE))
    assert (shown.by_rank[0], shown.by_rank[1]) == (PAGE, PAGE + b"retrying\n" + PAGE)
    assert shown.filter.release() == frozenset()
    assert shown.by_rank[0] == PAGE * 2


def test_a_run_that_fails_is_not_survived(shown, monkeypatch):
    shown.feed((0, PAGE), (1, PAGE))
    shown.filter.withhold()
    monkeypatch.setattr(traceback_filter, "HOLD_S", 0.0)
    shown.feed((2, PAGE), (0, b"bye\n"))
    assert shown.by_rank == {0: PAGE + b"bye\n"}


def test_what_is_held_is_bounded_and_what_is_missing_is_told(shown, monkeypatch):
    monkeypatch.setattr(traceback_filter, "HELD_BYTES", len(PAGE) + 1)
    shown.filter.withhold()
    shown.feed((0, PAGE), (0, b"end\n"), (0, b"lost\n"), (1, PAGE))
    assert shown.filter.release() == frozenset()
    assert shown.by_rank == {0: PAGE + b"end\nlaunch: its further lines are only in the logs\n", 1: PAGE}


# By torch 2.13, where the last torchrun reached its barrier and node 0's had gone, and by older ones.
EXIT_PAGE = Path(__file__).with_name("seen_exit_race.txt").read_bytes()
OLDER = (
    b"ERROR:torch.distributed.elastic.agent.server.api:Error waiting on exit barrier. Elapsed: 0.01 seconds\n" + PAGE
)


@pytest.mark.parametrize("page", [EXIT_PAGE, OLDER])
@pytest.mark.parametrize("ended_well", [True, False])
def test_torchruns_page_about_its_exit_barrier_is_for_runs_that_fail(shown, page, ended_well):
    """A rank's own words are its own, and what torchrun said before is shown at once."""
    shown.feed((0, EXIT_PAGE), (None, b"a warning\n" + page[:-1] + b"\n"), (None, b"more\n"))
    assert shown.by_rank == {0: EXIT_PAGE, None: b"a warning\n"}
    shown.filter.release(ended_well=ended_well)
    assert shown.by_rank[None] == b"a warning\n" + (b"" if ended_well else page + b"more\n")


def feed_console(tmp_path, *, disk_is_full=False, **options):
    """Let two ranks fail one after the other, with logs; return whose tracebacks are there alone."""
    console = Console([Host("n1")], find_streams(os.environ), **options)
    (output,) = console.outputs([Host("n1")], RunRecord(tmp_path, "r", console.complain))
    if disk_is_full:
        console.complain(tmp_path, OSError(28, "No space left on device"))
    console.withhold()
    for local_rank in (0, 1):
        output.feed(local_rank, STDERR, PAGE)
    output.finish()
    withheld = console.release([("n1", 0)])
    console.close()
    return {rank for _, rank in withheld}


@pytest.mark.parametrize(
    ("options", "withheld", "lines"),
    [
        ({}, {1}, 3),
        ({"ranks": {1}}, {1}, 0),
        ({"is_quiet": True}, set(), 0),
        ({"as_json": True}, set(), 6),  # for a program
        ({"disk_is_full": True}, set(), 7),  # it is nowhere else; one line says so
    ],
)
def test_a_console_withholds_only_what_is_in_the_logs(tmp_path, capfd, options, withheld, lines):
    assert feed_console(tmp_path, **options) == withheld
    captured = capfd.readouterr()
    assert len((captured.out + captured.err).splitlines()) == lines


def test_without_logs_nothing_is_withheld(capfd):
    console = Console([Host("n1")], find_streams(os.environ))
    (output,) = console.outputs([Host("n1")], None)
    console.withhold()
    output.feed(0, STDERR, PAGE)
    assert console.release([]) == frozenset()
    console.close()
    assert len(capfd.readouterr().err.splitlines()) == 3
