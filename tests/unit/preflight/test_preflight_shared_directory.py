"""Whether two hosts see the same directory: what file systems of all kinds have shown of it."""

from __future__ import annotations

import pytest

from launcher.preflight.checks import is_shared

ROOT = (64, 2, "ext4")


def on(kernel: str | None, *levels: tuple[int, int, str] | None) -> dict[str, object]:
    return {"kernel": kernel, "levels": [*levels, ROOT]}


CASES = {
    "one directory of one machine": (on("a", (64, 7, "ext4")), on("a", (64, 7, "ext4")), True),
    "another directory there": (on("a", (64, 7, "ext4")), on("a", (64, 8, "ext4")), False),
    "another disk there, with the same inode": (on("a", (64, 7, "ext4")), on("a", (65, 7, "ext4")), False),
    "a directory mounted in two containers": (on("a", (64, 7, "fuse.x")), on("a", (64, 7, "fuse.x")), True),
    "NFS mounted twice on one machine": (on("a", (50, 7, "nfs4")), on("a", (51, 7, "nfs4")), True),
    "the disks of two machines": (on("a", (64, 7, "xfs")), on("b", (64, 7, "xfs")), False),
    "kernels that nobody can tell apart": (on(None, (64, 7, "ext4")), on(None, (64, 7, "ext4")), None),
    "NFS on two machines": (on("a", (50, 7, "nfs")), on("b", (49, 7, "nfs4")), True),
    "two directories of NFS": (on("a", (50, 7, "nfs4")), on("b", (50, 8, "nfs4")), False),
    "NFS, and the server's own disk": (on("a", (50, 7, "nfs4")), on("b", (64, 7, "ext4")), True),
    "NFS that isn't mounted on one": (on("a", (50, 7, "nfs4")), on("b", (64, 9, "ext4")), False),
    "made a moment ago on NFS": (on("a", (50, 9, "nfs4"), (50, 7, "nfs4")), on("b", None, (49, 7, "nfs4")), True),
    "made on one of two disks": (on("a", (64, 9, "ext4")), on("b", None), False),
    "a file system that nobody knows": (on("a", (50, 7, "fuse.x")), on("b", (50, 8, "fuse.x")), None),
    "one that is unknown on one side": (on("a", (50, 7, "ocfs2")), on("b", (64, 7, "ext4")), None),
    "no answer": (on("a", (64, 7, "ext4")), {"kernel": None, "levels": []}, None),
}


@pytest.mark.parametrize(("one", "other", "answer"), CASES.values(), ids=CASES)
def test_whether_two_hosts_share_a_directory(
    one: dict[str, object], other: dict[str, object], answer: bool | None
) -> None:
    assert [is_shared(one, other), is_shared(other, one)] == [answer, answer]
