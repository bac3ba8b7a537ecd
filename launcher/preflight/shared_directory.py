"""Whether two hosts see the same directory, from what each of them knows about it; nothing is written there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# On these, a file has the same inode on every host, also on the server whose own disk it is.
_SHARED = {"beegfs", "ceph", "gpfs", "lustre", "nfs", "nfs4"}
_LOCAL = {
    "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs",
}  # fmt: skip


def is_shared(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool | None:
    """Tell whether two answers to SHARE are about one directory; None: nobody knows.

    If one host lacks it, the nearest directory above it that both have is compared: for some time, a network file
    system may still miss what was just made.
    """
    both = zip(one["levels"], other["levels"], strict=False)
    found = next(((here, there) for here, there in both if here and there), None)
    if found is None:
        return None
    (device, inode, kind), (other_device, other_inode, other_kind) = found
    kernels, kinds = {one["kernel"], other["kernel"]}, {kind, other_kind}
    if len(kernels) == 1 and None not in kernels and device == other_device:
        return bool(inode == other_inode)
    if inode == other_inode and kinds & _SHARED:
        return True
    return False if kinds <= _SHARED | _LOCAL and None not in kernels else None
