"""Where the code is kept on this node: files by the hash of their content, below the user's cache directory.

A file appears there whole, in one step, so any number of processes may add and use files at once, also on several
nodes that share the directory. A file may still be damaged later; whoever copies it looks at the copy.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import threading
import time
from typing import Callable, Iterator, Mapping

from launcher.node.code.listing import Entry
from launcher.node.own_folders import make_own
from launcher.node.system import is_remote

_READ_BYTES = 1 << 20
KEPT_S = 30 * 86400.0
_UNFINISHED_S = 86400.0
_MAKING = "making-"  # and the beginning of a tree's hash: the lock of who makes it
_TREE_CHARACTERS = 16
_LIFE_S = 3.0  # between two signs of life of who has the lock
STALLED_S = 20.0  # without one
_LOOK_AGAIN_S = 0.05
_LOCAL = "/var/tmp/launch-%d"  # of the user; on most systems for 30 days, which is long enough


def find_base(env: Mapping[str, str]) -> str:
    """Return the directory for code: in the cache directory, or on a local disk if that is on another machine's.

    Python would look there for each module, on all nodes at once.
    """
    chosen = env.get("XDG_CACHE_HOME", "")
    if chosen.startswith("/"):
        return os.path.join(chosen, "launch")
    base = os.path.join(os.path.expanduser("~"), ".cache", "launch")
    local = _LOCAL % os.geteuid()
    return local if is_remote(base) and not is_remote(local) and _is_made(local) else base


def _is_made(path: str) -> bool:
    try:
        make_own(path)
    except OSError:
        return False
    return True


class Store:
    """The files that are kept by their hash."""

    def __init__(self, base: str) -> None:
        """base: from `find_base`; nothing is made there before `make`."""
        self.base = base
        self.trees = os.path.join(base, "trees")
        self._content = os.path.join(base, "content")
        self._arriving = os.path.join(base, "arriving")

    def make(self) -> None:
        """Make the directories; raise OSError if that fails, or another user could put something else there."""
        for folder in (self.base, self.trees, self._content, self._arriving):
            make_own(folder)

    def path_of(self, content: str) -> str:
        """Return where the file with this hash is kept."""
        return os.path.join(self._content, content[:2], content[2:])

    def has(self, entry: Entry) -> bool:
        """Tell whether a file is here, by its size; its content is looked at when it is used."""
        try:
            return os.stat(self.path_of(entry.content)).st_size == entry.size
        except OSError:
            return False

    def drop(self, content: str) -> None:
        """Remove a file whose content is not what its name says."""
        try:
            os.unlink(self.path_of(content))
        except OSError:
            pass

    def receive(self, content: str) -> Arrival:
        """Begin a file that comes in parts; content: its hash."""
        return Arrival(os.path.join(self._arriving, os.urandom(8).hex()), self.path_of(content), content)

    def read(self, content: str, most_bytes: int) -> bytes:
        """Return a whole file; raise OSError if it isn't here, or is larger."""
        with open(self.path_of(content), "rb") as file:
            data = file.read(most_bytes + 1)
        if len(data) > most_bytes:
            raise OSError("%s has over %d bytes" % (self.path_of(content), most_bytes))
        return data

    def prune(self, kept_s: float = KEPT_S) -> None:
        """Remove what nothing was copied from for long, and what never arrived whole."""
        now = time.time() + 1  # a clock that is not this machine's may have written the times
        # Nothing younger than a minute is removed: a delivery may use it now.
        locks = [each.path for each in os.scandir(self.base) if each.name.startswith(_MAKING)]
        for path in (*locks, *(each.path for each in os.scandir(self._arriving))):
            _remove_older(path, now - max(60.0, min(kept_s, _UNFINISHED_S)))
        for folder in list(os.scandir(self._content)):
            for each in list(os.scandir(folder.path)):
                _remove_older(each.path, now - kept_s)

    def measure(self) -> int:
        """Return how many bytes the kept files have."""
        try:
            folders = [folder.path for folder in os.scandir(self._content)]
        except FileNotFoundError:  # nothing was ever sent
            return 0
        return sum(each.stat().st_size for folder in folders for each in os.scandir(folder))

    def copy(self, entry: Entry, path: str, mode: int) -> None:
        """Make a file of its own with this content; raise FileNotFoundError if it isn't here.

        A hard link would save the copy, but root may write through it into every other tree.
        """
        fd = os.open(self.path_of(entry.content), os.O_RDONLY | os.O_NOFOLLOW)
        with open(fd, "rb") as source:
            os.utime(fd)  # it is in use
            target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
            with open(target, "wb") as file:
                shutil.copyfileobj(source, file, _READ_BYTES)


def _write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _remove_older(path: str, limit: float) -> None:
    try:
        if os.stat(path).st_mtime < limit:
            os.unlink(path)
    except OSError:  # another process was faster
        pass


class Arrival:
    """A file that comes in parts, one after the other, and is kept only if its hash is the one that was announced."""

    def __init__(self, part: str, path: str, content: str) -> None:
        self._part = part
        self._path = path
        self._content = content
        self._digest = hashlib.sha256()
        self._fd, self._has_name = _open_new(part)

    def write(self, data: bytes | memoryview) -> None:
        """Write the next part."""
        self._digest.update(data)
        _write_all(self._fd, data)

    def finish(self) -> None:
        """Keep the file under its name if it has the announced hash, or remove it."""
        if self._digest.hexdigest() != self._content:
            self.abandon()
            return
        try:
            os.close(os.dup(self._fd))  # a network file system may say only now that it is full
            try:
                self._appear()
            except FileNotFoundError:  # it is the first of its directory
                make_own(os.path.dirname(self._path))
                self._appear()
        except OSError:
            self._remove()
            raise
        finally:
            os.close(self._fd)

    def _appear(self) -> None:
        """Give the file its last name, in one step if it has none: whoever is killed in between leaves nothing."""
        if not self._has_name:
            try:
                self._link(self._path)
                return
            except FileExistsError:  # it is damaged, or was written meanwhile; only a rename replaces it
                self._link(self._part)
                self._has_name = True
        os.rename(self._part, self._path)

    def _link(self, path: str) -> None:
        # With a directory, Python follows the link in /proc, which is to this very file.
        os.link("/proc/self/fd/%d" % self._fd, path, src_dir_fd=self._fd)

    def abandon(self) -> None:
        """Remove what has come."""
        os.close(self._fd)
        self._remove()

    def _remove(self) -> None:
        if self._has_name:
            os.unlink(self._part)


def _open_new(path: str) -> tuple[int, bool]:
    """Open a new file; return whether it has its name yet: without one, it is gone once nobody has it open."""
    if os.path.isdir("/proc/self/fd"):
        try:
            return os.open(os.path.dirname(path), os.O_RDWR | os.O_TMPFILE, 0o600), False
        except (AttributeError, OSError):  # not in this system or on this disk; what else is wrong comes up below
            pass
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), True


@contextlib.contextmanager
def make_alone(store: Store, tree: str, pause: Callable[[float], object]) -> Iterator[None]:
    """Let this process alone make a tree while the block runs: others wait here, then find what it has made.

    They may be on other hosts that share the directory, so a lock on a file tells. Whoever is killed loses it. The file
    also gets a new time now and then: a host that has died, or is frozen, may keep the lock on a network file system,
    and nobody waits longer for that than STALLED_S. Two that make the same do no harm, and it costs the transfer: so
    does a disk without locks, or one on which no file can be made. tree: its hash; pause: waits for some seconds.
    """
    path = os.path.join(store.base, _MAKING + tree[:_TREE_CHARACTERS])
    lock_fd = _await_lock(path, pause)
    if lock_fd is None:
        yield
        return
    is_over = threading.Event()
    threading.Thread(target=_show_life, args=(path, is_over), daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
        with contextlib.suppress(OSError):
            os.unlink(path)
        os.close(lock_fd)


def _await_lock(path: str, pause: Callable[[float], object]) -> int | None:
    """Return the locked file; None if no lock can be had, or its holder shows no life."""
    seen_ns, seen_at = -1, time.monotonic()
    while time.monotonic() - seen_at < STALLED_S:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)  # so a network file system looks again
        except OSError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(fd, path):
                return fd
            os.close(fd)  # its last holder has removed it between the two calls, and the next one has made another
            continue
        except OSError as error:
            changed_ns = os.fstat(fd).st_mtime_ns
            os.close(fd)
            if not isinstance(error, BlockingIOError):
                return None
        if changed_ns != seen_ns:
            seen_ns, seen_at = changed_ns, time.monotonic()
        pause(_LOOK_AGAIN_S)
    return None


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _show_life(path: str, is_over: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while not is_over.wait(_LIFE_S):
            os.utime(path)
