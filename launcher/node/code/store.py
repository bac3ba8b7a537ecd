"""Where the code is kept on this node: files by the hash of their content, below the user's cache directory.

A file appears there whole, in one step, so any number of processes may add and use files at once, also on several
nodes that share the directory. A file may still be damaged later; whoever copies it looks at the copy.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import Mapping

from launcher.node.code.listing import Entry
from launcher.node.own_folders import make_own
from launcher.node.system import is_remote

_READ_BYTES = 1 << 20
KEPT_S = 30 * 86400.0
_UNFINISHED_S = 86400.0
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
        return Arrival(self.name_part(), self.path_of(content), content)

    def name_part(self) -> str:
        """Return a new path for a file that gets its place once it is whole."""
        return os.path.join(self._arriving, os.urandom(8).hex())

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
        for each in list(os.scandir(self._arriving)):
            _remove_older(each.path, now - max(60.0, min(kept_s, _UNFINISHED_S)))
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

    def copy(self, entry: Entry, path: str, mode: int) -> bool:
        """Make a file of its own with this content; return whether that is here, undamaged.

        A hard link would save the copy, but root may write through it into every other tree.
        """
        try:
            fd = os.open(self.path_of(entry.content), os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        digest = hashlib.sha256()
        is_whole = False
        try:
            with open(fd, "rb", buffering=0) as source:
                os.utime(fd)  # it is in use
                target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
                with open(target, "wb", buffering=0) as file:
                    while data := source.read(_READ_BYTES):
                        digest.update(data)
                        _write_all(file.fileno(), data)
            is_whole = digest.hexdigest() == entry.content
        finally:
            if not is_whole:  # also where the disk is full
                unlink(path)
        return is_whole


def _write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def unlink(path: str) -> None:
    """Remove a file, if it is there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


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
