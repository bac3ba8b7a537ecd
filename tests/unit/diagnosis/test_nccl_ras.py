"""What is read from an answer of NCCL's RAS."""

from __future__ import annotations

import pytest
from machines import recorded_ras

from launcher.diagnosis.nccl_ras import find_complaints, is_answer


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (recorded_ras.HEALTHY, []),
        (
            recorded_ras.MISMATCH,
            [
                "#0-0 (27a079b828ff1a75) MISMATCH",
                "  Communicator ranks have different collective operation counts",
                "  26 ranks have launched up to operation 6650",
                "  6 ranks have launched up to operation 6649",
                "  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210",
                "  Rank 2 -- GPU 2 managed by process 483074 on node 172.16.64.210",
            ],
        ),
        (
            recorded_ras.INCOMPLETE,
            [
                "INCOMPLETE",
                "  Missing communicator data from 1 job process",
                "  Process 3487984 on node 172.16.64.213 managing GPU 5",
                "#0-0 (cf264af53edbe986) INCOMPLETE",
                "  Missing communicator data from 1 rank",
                "  The missing rank: 21",
                "TIMEOUT",
                "  Encountered 2 communication timeouts while gathering communicator data",
            ],
        ),
    ],
)
def test_the_complaints_of_an_answer(text: str, lines: list[str]) -> None:
    assert is_answer(text)
    assert find_complaints(text) == lines


def test_a_long_line_takes_no_time() -> None:
    """Whoever listens on the port may answer anything, and the event loop reads it."""
    assert not is_answer("x" * 1_000_000)


def test_of_many_complaints_the_first_are_shown() -> None:
    lines = find_complaints(recorded_ras.MISMATCH + "".join(f"  Rank {rank} -- GPU 1\n" for rank in range(20)))
    assert lines[14:] == ["  Rank 8 -- GPU 1", "... 11 more lines"]


@pytest.mark.parametrize("text", ["", "HTTP/1.0 400 Bad Request\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n", "====\n", "\0\n"])
def test_another_program_on_the_port_is_no_answer(text: str) -> None:
    assert not is_answer(text)
    assert find_complaints(text) == []
