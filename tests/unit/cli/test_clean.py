"""launch clean: what it says before it ends anything, and its exit code."""

from __future__ import annotations

import pytest

from launcher.cli.clean import conclude, describe_kept, found_lines
from launcher.errors import HostFailure, HostFailureKind
from launcher.job.facts import RunFolder, RunProcess
from launcher.session.node_state import Census, NodeState

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


def test_directories_that_are_still_there():
    """A host that wasn't heard of again may have it, too."""
    states = [NodeState(name) for name in ("gpu1", "gpu2", "gpu3")]
    states[0].census, states[1].census = {"folders": [["/tmp/a", "files/dump: Permission denied"]]}, {"folders": []}
    assert describe_kept(states, [(state.host, RunFolder("/tmp/a", "a")) for state in states]) == [
        "  gpu1: /tmp/a is still there: files/dump: Permission denied",
        "  gpu3: /tmp/a is still there: not removed",
    ]


NOTHING_LEFT = Census({"gpu1": [], "gpu2": []}, {})
ONE_LEFT = Census({"gpu1": [[7, "python", "D"]]}, {})
STUCK = "  gpu1: pid 7 (python) is in state D, which no signal can end"
RUNS = [("gpu1", left(7)), ("gpu1", left(8))]
GOES_ON = [("gpu1", left(8, is_owned=True))]
FOLDERS = [("gpu1", RunFolder("/tmp/a", "a")), ("gpu2", RunFolder("/tmp/b", "b"))]
OFF = HostFailure("gpu4", HostFailureKind.TIMED_OUT, "does not answer")


@pytest.mark.parametrize(
    ("census", "failures", "runs", "folders", "kept", "is_dry", "words", "exit_code"),
    [
        (NOTHING_LEFT, [], [], [], [], False, ["nothing is left behind on 2 hosts"], 0),
        (NOTHING_LEFT, [], GOES_ON, [], [], True, ["nothing is left behind on 2 hosts"], 0),
        (NOTHING_LEFT, [], RUNS, FOLDERS, [], True, ["nothing was stopped or removed, because of --dry-run"], 0),
        (NOTHING_LEFT, [], RUNS, FOLDERS, [], False, ["removed 2 directories, 0 processes left on 2 hosts"], 0),
        (NOTHING_LEFT, [], [], FOLDERS, ["b"], False, ["removed 1 directory, 0 processes left on 2 hosts", "b"], 1),
        (ONE_LEFT, [], RUNS, [], [], False, ["1 process left on 1 host", STUCK], 1),
        # gpu2 was lost after it had told what is there.
        (Census({"gpu1": []}, {"gpu2": 0}), [OFF], [("gpu2", left(7))], [], [], False,
         ["0 processes left on 1 host; gpu2 unreachable, anything started there may remain"], 69),
        (Census({}, {}), [OFF], [], [], [], False, [], 69),
    ],
)  # fmt: skip
def test_what_became_of_it(census, failures, runs, folders, kept, is_dry, words, exit_code):
    done = conclude(census, failures, runs, folders, kept, is_dry=is_dry)
    assert [line.removeprefix("launch: ") for line in done.lines] == words
    assert (done.exit_code, done.failures) == (exit_code, failures)
