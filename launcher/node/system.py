"""What the kernel and the system say of this machine: its clock, ids, namespaces, mounts and locks."""

from __future__ import annotations

import fcntl
import os
import pwd
import time
from contextlib import suppress

# File systems of other machines.
_REMOTE = {
    "9p", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "orangefs",
    "panfs", "pvfs2", "smb3", "smbfs", "wekafs",
}  # fmt: skip
_REMOTE_FUSE = ("fuse.ceph", "fuse.gluster", "fuse.juicefs", "fuse.s3fs", "fuse.sshfs", "fuse.gcsfuse", "fuse.weka")
MACHINE_ID = "/etc/machine-id"
MOUNTS = "/proc/self/mountinfo"
FIRST_PID_NAMESPACE = "pid:[4026531836]"  # include/linux/proc_ns.h; in others, processes have other numbers
_MOST_BYTES = 4 << 20
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MOST_ID_BYTES = 100  # the kernel refuses to read files below /proc/sys in pieces of megabytes
# time.monotonic() stops in suspend. On Linux only CLOCK_BOOTTIME counts it (clock_gettime(2)). macOS has no
# such name: time.monotonic() is mach_absolute_time() there, and CLOCK_MONOTONIC is what "will continue to increment
# while the system is asleep" (its clock_gettime(3)).
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Return seconds that never step back and include the time in suspend."""
    return time.clock_gettime(_CLOCK)


def boot_id() -> str | None:
    """Return the id of this kernel's boot, the same in its containers: they are suspended together. None: unknown."""
    return read_text(_BOOT_ID, _MOST_ID_BYTES).strip() or None


def read_text(path: str, most_bytes: int = _MOST_BYTES, errors: str = "replace") -> str:
    """Return the beginning of a file; "" if it can't be read, or is a FIFO, whose opening would wait for a writer."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):  # a path with a null byte in it is a ValueError
        return ""
    content = b""
    try:
        while len(content) < most_bytes:
            piece = os.read(fd, most_bytes - len(content))
            if not piece:
                break
            content += piece
    except OSError:  # such as a directory
        return ""
    finally:
        os.close(fd)
    return content.decode("utf-8", errors)


def read_rows(path: str) -> list[list[str]]:
    """Return the words of each line of a file that isn't empty; nothing if it can't be read."""
    return [line.split() for line in read_text(path).split("\n") if line.strip()]


def machine_id() -> str | None:
    """Return the id of this machine (machine-id(5)), which clones may share; most containers have none."""
    return read_text(MACHINE_ID).strip() or None


def user_name(uid: int) -> str:
    """Return a user's name, for which a directory service in the network may be asked; without one the number."""
    try:
        return pwd.getpwuid(uid).pw_name[:100].encode("utf-8", "replace").decode()
    except KeyError:
        return str(uid)


def pid_namespace(pid: int | str = "self") -> str | None:
    """Return in which namespace a process has its id; None: nobody may know."""
    try:
        return os.readlink("/proc/%s/ns/pid" % pid)
    except OSError:
        return None


def is_in_container() -> bool:
    """Tell whether the kernel and its drivers number processes differently than /proc does here."""
    return pid_namespace() != FIRST_PID_NAMESPACE


def hold_lock(path: str, kind: int) -> None:
    """Hold the lock of a file or directory as long as this process lives; what it starts doesn't hold it.

    kind: `fcntl.LOCK_SH` where several hold it, else `fcntl.LOCK_EX`. systemd-tmpfiles passes over a directory that is
    locked (https://systemd.io/TEMPORARY_DIRECTORIES); from /tmp it would remove one that is ten days old.
    """
    with suppress(OSError):  # a file system without locks
        fcntl.flock(os.open(path, os.O_RDONLY), kind | fcntl.LOCK_NB)  # never closed


def is_locked(path: str) -> bool | None:
    """Tell whether a process holds the lock of a file or directory alone; None: that is unknown, as without locks.

    This asks with a shared one, so that several may ask at once.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(fd)
    return False


def is_remote(path: str) -> bool:
    """Tell whether a path is on a file system of another machine."""
    kind = find_kind(path)
    return kind in _REMOTE or kind.startswith(_REMOTE_FUSE)


def find_kind(path: str) -> str:
    """Return the kind of the file system that a path is on, such as `nfs4`; "" if nobody knows."""
    path, found, kind = os.path.realpath(path) + "/", "", ""
    for point, each in _read_mounts():
        if len(point) >= len(found) and path.startswith(point.rstrip("/") + "/"):
            found, kind = point, each
    return kind


def find_mount(folder: str) -> str | None:
    """Return the path of a mount below a directory, relative to it, or None."""
    start = os.path.realpath(folder) + "/"
    return next((point[len(start) :] for point, _ in _read_mounts() if point.startswith(start)), None)


def _read_mounts() -> list[tuple[str, str]]:
    """Return where something is mounted, and the kind of its file system, the oldest first."""
    found = []
    for line in read_text(MOUNTS, errors="surrogateescape").split("\n")[:-1]:
        words = line.split(" ")
        point = words[4]
        for character in " \t\n\\":  # the kernel escapes these: proc(5)
            point = point.replace("\\%03o" % ord(character), character)
        found.append((point, words[words.index("-", 6) + 1]))
    return found
