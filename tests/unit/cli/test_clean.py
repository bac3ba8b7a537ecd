"""launch clean: what it says before it ends anything, and its exit code."""

from __future__ import annotations

import pytest

from launcher.cli.clean import Cleaning, found_lines, kept_lines, verdict
from launcher.errors import HostFailure, HostFailureKind
from launcher.job.facts import RunFolder, RunProcess
from launcher.session.node_state import Census

RUN = "20261120-091233.ab12.0"


def left(pid, name="python", mark=RUN, *, is_owned=False):
    return RunProcess(pid, name, mark, is_owned)


def test_a_line_for_each_run_on_each_host():
    found = [
        ("gpu1", left(7)),
        ("gpu1", left(8, "sleep")),
        ("gpu1", left(9, "python", "20261119-200000.cd34.0", is_owned=True)),
        *[("gpu2", left(pid, mark=RUN.replace(".0", ".1"))) for pid in range(11, 17)],
    ]
    assert found_lines(found, []) == [
        "  gpu1: 2 leftover processes of run 20261120-091233: 7 (python), 8 (sleep)",
        "  gpu1: 1 process of run 20261119-200000 (in progress, left alone): 9 (python)",
        "  gpu2: 6 leftover processes of run 20261120-091233: "
        "11 (python), 12 (python), 13 (python), 14 (python) and 2 more",
    ]


def test_a_line_for_each_directory_on_each_host():
    path = "/tmp/launch-20261120-091233-ab12cd34"
    found = [("gpu1", RunFolder(path, "20261120-091233", 2)), ("gpu2", RunFolder(path, "20261120-091233"))]
    assert found_lines([], found) == [
        f"  gpu1: leftover directory: {path} (2 files of its ranks)",
        f"  gpu2: leftover directory: {path}",
    ]
    assert kept_lines([("gpu1", path, "files/dump: Permission denied")]) == [
        f"  gpu1: {path} is still there: files/dump: Permission denied"
    ]


OFF = HostFailure("gpu4", HostFailureKind.TIMED_OUT, "does not answer")


@pytest.mark.parametrize(
    ("failures", "census", "exit_code"),
    [
        ([], Census({"gpu1": []}, {}), 0),
        ([], Census({"gpu1": [[7, "python", "D"]]}, {}), 1),
        ([OFF], Census({"gpu1": []}, {}), 69),
        ([OFF], Census({"gpu1": [[7, "python", "D"]]}, {}), 69),
    ],
)
def test_exit_codes(failures, census, exit_code):
    assert Cleaning([("gpu1", left(7))], failures, census).exit_code == exit_code


def test_a_directory_that_is_still_there_is_no_success():
    kept = [("gpu1", "/tmp/launch-old-ab12cd34", "files: Permission denied")]
    assert Cleaning([], [], Census({"gpu1": []}, {}), [("gpu1", RunFolder(kept[0][1], "old"))], kept).exit_code == 1


NOTHING_LEFT = Census({"gpu1": [], "gpu2": []}, {})
FOLDERS = [("gpu1", RunFolder("/tmp/a", "a")), ("gpu2", RunFolder("/tmp/b", "b"))]
KEPT = [("gpu1", "/tmp/a", "Permission denied"), ("gpu2", "/tmp/b", "not removed")]


@pytest.mark.parametrize(
    ("done", "words"),
    [
        (Cleaning([], [], NOTHING_LEFT), "nothing is left behind on 2 hosts"),
        (Cleaning([("gpu1", left(7))], [], NOTHING_LEFT), "stopped 1 process, 0 processes left on 2 hosts"),
        (
            Cleaning([("gpu1", left(7))], [], NOTHING_LEFT, FOLDERS, KEPT[:1]),
            "stopped 1 process, removed 1 directory, 1 directory could not be removed, 0 processes left on 2 hosts",
        ),
        (
            Cleaning([("gpu1", left(7)), ("gpu1", left(8))], [], Census({"gpu1": [[7, "python", "D"]]}, {})),
            "stopped 1 process, 1 process left on 1 host",
        ),
        # gpu2 was lost after it had told what is there.
        (
            Cleaning([("gpu1", left(7)), ("gpu2", left(7))], [], Census({"gpu1": []}, {"gpu2": 0})),
            "stopped 1 process, 0 processes left on 1 host; gpu2 unreachable, anything started there may remain",
        ),
    ],
)
def test_the_verdict_counts_what_was_done(done, words):
    assert verdict(done, is_dry=False) == words


def test_the_verdict_of_a_dry_run():
    nothing = Cleaning([], [], NOTHING_LEFT)
    assert verdict(nothing, is_dry=True) == "nothing is left behind on 2 hosts"
    folders = Cleaning([], [], NOTHING_LEFT, FOLDERS)
    assert verdict(folders, is_dry=True) == "2 directories would be removed"
    both = Cleaning([("gpu1", left(7))], [], NOTHING_LEFT, FOLDERS[:1])
    assert verdict(both, is_dry=True) == "1 process would be stopped, 1 directory would be removed"


def test_what_goes_on_is_not_left_behind():
    found = [("gpu1", left(7)), ("gpu1", left(8, is_owned=True))]
    assert Cleaning(found, [], Census({}, {})).left_behind == found[:1]
