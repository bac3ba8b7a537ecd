"""A rank that the kernel kills for lack of memory, in a control group of its own, and one that somebody kills."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_process import Node, python, shell, wait_until

from launcher.node import messages

LIMIT_BYTES = 120_000_000
# It takes memory by the megabyte until it is stopped.
EATS = """
    taken = []
    while True:
        taken.append(bytearray(1 << 20))
"""


def make_group(name: str) -> Path | str:
    """Return a new control group with a limit of memory, or why there can be none."""
    for root, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = root / name
        try:
            if limit == "memory.max":
                (root / "cgroup.subtree_control").write_text("+memory")
            group.mkdir()
            (group / limit).write_text(str(LIMIT_BYTES))
        except OSError as error:
            reason = f"no control group of memory here ({error}): run as root, where /sys/fs/cgroup can be written"
        else:
            return group
    return reason


@pytest.fixture
def group() -> Iterator[Path]:
    made = make_group(f"launch-test-{secrets.token_hex(4)}")
    if isinstance(made, str):
        pytest.skip(made)
    yield made
    wait_until(lambda: not (made / "cgroup.procs").read_text())
    made.rmdir()


@pytest.mark.parametrize(
    ("argv", "code", "number", "is_oom"),
    [
        (python(EATS), None, signal.SIGKILL, True),
        (shell('"$@"; exit $?', *python(EATS)), 128 + signal.SIGKILL, None, True),  # as a wrapper script tells it
        (shell("kill -9 $$"), None, signal.SIGKILL, False),
        (shell("exit 3"), 3, None, False),
    ],
)
def test_the_kernel_tells_its_own_kills(
    node: Node, group: Path, argv: list[str], code: int | None, number: int | None, is_oom: bool
) -> None:
    (group / "cgroup.procs").write_text(str(node.supervisor))  # what it starts from now on is in it
    node.start(argv)
    end = node.wait_for(messages.EXIT)
    assert (end["code"], end["signal"], end["oom"] is not None) == (code, number, is_oom)
    assert node.stop() == []
