"""What the end of an attempt means: a row for each distinction."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launcher.diagnosis.cause import Cause, find_cause
from launcher.diagnosis.failure import Failure, FailureKind
from launcher.diagnosis.signatures import SIGNATURES
from launcher.errors import (
    ChecksFailed,
    HostFailure,
    HostFailureKind,
    HostsUnreachable,
    LauncherError,
    UsageError,
)
from launcher.runs import judge as judging
from launcher.runs.judge import PROGRESS_S, find_incidents, judge_refusal, judge_result
from launcher.runs.policy import Ending, Outcome
from launcher.runs.records import Result
from launcher.session.node_state import Census

HOSTS = ("gpu1", "gpu2")
CLEAN = Census({"gpu1": [], "gpu2": []}, {})
RANK = Failure("gpu2", 1, FailureKind.RANK, 100.0, rank=8, local_rank=0, code=1)


def raised(error: str, **values: object) -> Failure:
    text = f'Traceback (most recent call last):\n  File "/a/train.py", line 8, in step\n    x\n{error}\n'
    return replace(RANK, stderr=text, **values)


def judge(*failures: Failure, **values: object) -> Ending:
    cause = find_cause(failures)
    assert isinstance(cause, Cause)
    return judge_result(Result(1, 60.0, CLEAN, cause, **{"output_s": 50.0, **values}), HOSTS)


@pytest.mark.parametrize(
    ("failure", "outcome", "suspects"),
    [
        (raised("ValueError: NaN"), Outcome.ERROR, ("gpu2",)),
        (raised("SyntaxError: invalid syntax"), Outcome.INPUT, ("gpu2",)),
        (raised("ModuleNotFoundError: No module named 'foo'"), Outcome.IMPORT, ("gpu2",)),
        (raised("OSError: [Errno 28] No space left on device"), Outcome.DISK, ("gpu2",)),
        (raised("RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"), Outcome.DISK,
         ("gpu2",)),
        (raised("RuntimeError: Connection closed by peer [10.0.0.1]:41000"), Outcome.CONSEQUENCE, ("gpu2",)),
        (replace(RANK, code=2, stderr="usage: train.py [-h]\ntrain.py: error: bad\n"), Outcome.INPUT, ("gpu2",)),
        (replace(RANK, code=2), Outcome.ERROR, ("gpu2",)),
        (replace(RANK, code=None, signal=9), Outcome.ERROR, ("gpu2",)),
        (replace(RANK, code=0), Outcome.ERROR, ("gpu2",)),  # it left early
        (raised("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"), Outcome.HOST, ("gpu2",)),
        (replace(RANK, kind=FailureKind.CONNECTION, code=None, text="no heartbeat for 15 s"), Outcome.HOST, ("gpu2",)),
        (replace(RANK, kind=FailureKind.SUPERVISOR, text="its helper got signal 15"), Outcome.HOST, ("gpu2",)),
        (replace(RANK, kind=FailureKind.HANG, code=None, text="no output"), Outcome.HANG, ("gpu2",)),
        (replace(RANK, kind=FailureKind.HANG, code=None, rank=None, text="no output"), Outcome.HANG, ()),
        (replace(RANK, stderr="slurmstepd: error: *** STEP 7.0 ON gpu2 CANCELLED AT 2026-11-23T10:00:00 ***\n"),
         Outcome.STOPPED, ("gpu2",)),
        (replace(RANK, stderr="slurmstepd: error: *** JOB 7 ON gpu2 CANCELLED AT 2026-11-23T10:00 DUE TO TIME LIMIT\n"),
         Outcome.STOPPED, ("gpu2",)),
    ],
)  # fmt: skip
def test_what_a_failure_means(failure: Failure, outcome: Outcome, suspects: tuple[str, ...]) -> None:
    found = judge(failure)
    assert (found.outcome, found.suspects) == (outcome, suspects)


def test_the_same_error_on_all_hosts_is_everywhere() -> None:
    error = raised("ModuleNotFoundError: No module named 'foo'")
    assert judge(error, replace(error, host="gpu1", node_rank=0, rank=0)).is_everywhere
    assert not judge(error).is_everywhere


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ({"interrupted_by": 2}, Outcome.STOPPED),
        ({"is_network": True}, Outcome.NETWORK),
    ],
)
def test_what_comes_before_the_cause(values: dict[str, object], outcome: Outcome) -> None:
    assert judge(raised("ValueError: NaN"), **values).outcome is outcome


@pytest.mark.parametrize(
    ("values", "has_progress"),
    [
        ({"output_s": PROGRESS_S + 1}, True),
        ({"output_s": PROGRESS_S - 1}, False),
        ({"output_s": None}, False),
        ({"output_s": PROGRESS_S + 1, "has_saved": False}, False),
        ({"output_s": 1.0, "has_saved": True}, True),
    ],
)
def test_what_counts_as_progress(values: dict[str, object], *, has_progress: bool) -> None:
    assert judge(raised("ValueError: NaN"), **values).has_progress is has_progress


@pytest.mark.parametrize(
    ("values", "has_progress"),
    [({"output_s": PROGRESS_S + 1}, False), ({"output_s": PROGRESS_S + 1, "has_saved": True}, True)],
)
def test_a_wait_is_no_progress_by_time(values: dict[str, object], *, has_progress: bool) -> None:
    hang = replace(RANK, kind=FailureKind.HANG, code=None, text="no output")
    assert judge(hang, **values).has_progress is has_progress


def test_processes_that_are_left_forbid_another_attempt() -> None:
    cause = find_cause([RANK])
    assert judge_result(Result(1, 60.0, Census({"gpu2": [[7, "x", "D"]]}, {}), cause), HOSTS).has_left


def lost(*names: str, kind: HostFailureKind = HostFailureKind.TIMED_OUT) -> HostsUnreachable:
    return HostsUnreachable([HostFailure(name, kind, "no answer") for name in names])


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (lost("gpu2"), Ending(Outcome.HOST, ("gpu2",), is_refused=True)),
        (lost(*HOSTS), Ending(Outcome.NETWORK, is_refused=True)),
        (lost(*HOSTS, kind=HostFailureKind.LOGIN_REFUSED), Ending(Outcome.ERROR, is_refused=True)),
        (ChecksFailed("gpu2: no torch", hosts=("gpu2",)), Ending(Outcome.HOST, ("gpu2",), is_refused=True)),
        (ChecksFailed("gpu[1-2]: no train.py", hosts=HOSTS), Ending(Outcome.ERROR, is_refused=True)),
        (UsageError("--ranks 9"), Ending(Outcome.INPUT, is_refused=True)),
        (LauncherError("no thread"), Ending(Outcome.ERROR, is_refused=True)),
    ],
)
def test_what_it_means_that_a_restart_could_not_start(error: LauncherError, ending: Ending) -> None:
    assert judge_refusal(error, HOSTS) == ending


def test_the_only_host_is_not_the_network() -> None:
    assert judge_refusal(lost("gpu1"), ("gpu1",)) == Ending(Outcome.HOST, ("gpu1",), is_refused=True)


def test_a_host_that_is_this_machine_can_t_be_lost_with_the_others():
    """So all others were lost at once, and none is to blame."""
    failures = [HostFailure(name, HostFailureKind.SILENT, "no heartbeat") for name in HOSTS]
    hosts = ("gpu0", *HOSTS)
    assert judge_refusal(HostsUnreachable(failures), hosts).suspects == HOSTS
    assert judge_refusal(HostsUnreachable(failures), hosts, {"gpu0"}) == Ending(Outcome.NETWORK, is_refused=True)


@pytest.mark.parametrize(
    ("cause", "refusal", "what"),
    [
        (find_cause([replace(RANK, kind=FailureKind.CONNECTION, code=None)]), None, "lost"),
        (find_cause([replace(RANK, kind=FailureKind.SUPERVISOR, code=None)]), None, "lost"),
        (find_cause([RANK]), None, "had a broken GPU"),
        (None, lost("gpu2"), "lost"),
        (None, ChecksFailed("gpu2: no torch", hosts=("gpu2",)), "failed its checks"),
    ],
)
def test_what_a_host_is_blamed_for(cause: Cause | None, refusal: LauncherError | None, what: str) -> None:
    assert find_incidents(cause, refusal, Ending(Outcome.HOST, ("gpu2",))) == {"gpu2": what}
    assert find_incidents(cause, refusal, Ending(Outcome.ERROR, ("gpu2",))) == {}


def test_of_two_hosts_nobody_knows_whose_network_failed() -> None:
    ending = Ending(Outcome.HOST, ("gpu2",))
    cut, killed = (
        find_cause([replace(RANK, kind=kind, code=None)]) for kind in (FailureKind.CONNECTION, FailureKind.SUPERVISOR)
    )
    for cause, refusal, incidents in ((cut, None, {}), (None, lost("gpu2"), {}), (killed, None, {"gpu2": "lost"})):
        assert find_incidents(cause, refusal, ending, has_one_other=True) == incidents


def test_what_a_known_cause_means_is_said_of_causes_that_there_are() -> None:
    assert judging._KNOWN.keys() <= {signature.name for signature in SIGNATURES}
