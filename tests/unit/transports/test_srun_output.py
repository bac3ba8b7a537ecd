"""What srun 22.05 printed, and what is made of it."""

from __future__ import annotations

import pytest

from launcher.errors import HostFailure, HostFailureKind
from launcher.transports.srun_output import SrunOutput

HOSTS = ("node1", "node2", "node3")
PYTHONS = ("python3", "/opt/python")
ABORTED = "srun: Job step aborted: Waiting up to 5 seconds for job step to finish."
IDLE = ["srun: cluster configuration lacks support for cpu binding", "", "srun: Force Terminated StepId=3.0"]


def make_words(*lines: str) -> SrunOutput:
    words = SrunOutput(HOSTS, PYTHONS)
    for line in lines:
        words.take(line)
    return words


@pytest.mark.parametrize(
    ("line", "gone", "text"),
    [
        ("srun: error: node2: task 1: Killed", ("node2",), "launch's task there ended: Killed"),
        ("srun: error: node[1,3]: tasks 0,2: Segmentation fault", ("node1", "node3"),
         "launch's task there ended: Segmentation fault"),
        ("srun: error: node9: task 8: Killed", (), ""),
        ("srun: error: node[1-: task 8: Killed", (), ""),
        ("srun: error: Node failure on node2", ("node2",), "launch's task there ended: Node failure"),
        ("srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)", (), ""),
    ],
)  # fmt: skip
def test_lines_that_say_which_node_is_gone(line: str, gone: tuple[str, ...], text: str) -> None:
    words = SrunOutput(HOSTS, PYTHONS)
    words.take(line)
    failures = [words.gone(host) for host in HOSTS]
    assert failures == [HostFailure(host, HostFailureKind.SLURM, text) if host in gone else None for host in HOSTS]


def test_a_node_that_does_not_answer_is_not_said_to_be_cancelled() -> None:
    """As srun tells it when a node is off; the other node's task is cancelled for that."""
    words = SrunOutput(HOSTS, PYTHONS)
    line = "srun: error: Task launch for StepId=1.0 failed on node node2: Communication connection failure"
    words.take(line)
    assert list(words.never_started) == ["node2"]
    for line in (
        "srun: error: Application launch failed: Communication connection failure",
        ABORTED,
        "slurmstepd-node1: error: *** STEP 1.0 ON node1 CANCELLED AT 2026-11-27T14:37:30 ***",
        "srun: error: node1: task 0: Killed",
    ):
        words.take(line)
    assert words.gone("node2") == HostFailure(
        "node2",
        HostFailureKind.SLURM,
        "Slurm can't start launch's step there: Communication connection failure",
        "look up the node's state with sinfo -N",
    )
    assert words.gone("node1") == HostFailure("node1", HostFailureKind.SLURM, "Slurm has cancelled step 1.0")


def test_no_python() -> None:
    assert make_words("srun: error: node2: task 1: Exited with exit code 127").gone("node2") == HostFailure(
        "node2",
        HostFailureKind.NO_PYTHON,
        "no Python 3.8 or newer there (tried python3, /opt/python)",
        "name a newer one with --python PATH",
    )


@pytest.mark.parametrize(
    ("lines", "exit_code", "text", "fix"),
    [
        ([], -9, "srun was killed by signal 9", ""),
        (IDLE, 1, "srun exited (exit code 1)", ""),
        (["srun: error: Unable to create step for job 7: Requested node configuration is not available", *IDLE], 1,
         "srun exited (exit code 1): Unable to create step for job 7: Requested node configuration is not available",
         ""),
        (["srun: unrecognized option '--overlap'", 'Try "srun --help" for more information'], 255,
         "srun exited (exit code 255): unrecognized option '--overlap'",
         "use Slurm 20.11 or newer, or --transport fabric"),
        (["srun: error: Unable to create step for job 2: Invalid generic resource (gres) specification"], 1,
         "srun exited (exit code 1): Unable to create step for job 2: Invalid generic resource (gres) specification",
         "ask Slurm for equally many GPUs on each node: --gpus-per-node=N or --gres=gpu:N"),
        (["slurmstepd-node1: error: *** STEP 12.0 ON node1 CANCELLED AT 2026-11-20T19:21:13 ***",
          "srun: error: node1: task 0: Killed"], 137, "Slurm has cancelled step 12.0", ""),
        ([ABORTED, "srun: error: node1: task 0: Killed"], 137, "Slurm has cancelled launch's step", ""),
        (["srun: error: Node failure on node1", ABORTED], 137, "launch's task there ended: Node failure", ""),
        (["slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-20T19:21:13 DUE TO TIME LIMIT ***"], 1,
         "Slurm has cancelled job 12 due to time limit", ""),
        (["slurmstepd: error: *** STEP 12.0 ON node1 CANCELLED AT 2026-11-20T19:21:13 DUE TO NODE FAILURE, SEE "
          "SLURMCTLD LOG FOR DETAILS ***"], 1, "Slurm has cancelled step 12.0 due to node failure", ""),
    ],
)  # fmt: skip
def test_why_srun_is_gone(lines: list[str], exit_code: int, text: str, fix: str) -> None:
    assert make_words(*lines).gone("node1", exit_code) == HostFailure("node1", HostFailureKind.SLURM, text, fix)


def test_a_step_that_does_not_begin() -> None:
    words = make_words("srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)", *IDLE)
    assert words.not_started("node1", 10) == HostFailure(
        "node1",
        HostFailureKind.SLURM,
        "Slurm has not started launch's step there in 10 s: "
        "Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)",
        "look up the node's state with sinfo -N; if the cluster is slow, raise --connect-timeout",
    )


def test_what_srun_always_says_is_not_kept() -> None:
    killed = "srun: error: node2: task 1: Killed"
    words = make_words(*IDLE, "a word", killed, "another")
    assert words.lines("node2") == ("a word", killed, "another")
    assert words.lines("node1") == ("a word", "another"), "it is about another host"
