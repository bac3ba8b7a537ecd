"""The directories of runs, each with copies of the files of one listing, below the user's cache directory.

    trees/RUN-HASH/name        NAME
    trees/RUN-HASH/listing     what was put there
    trees/RUN-HASH/lock        locked by the supervisors of the run while they live
    trees/RUN-HASH/NAME/...    the files, below the name of the directory that they come from

Only unchanged files of its listing are ever removed from it, and links to absolute paths, such as those to directories
outside: what a run has written there stays, also where a file of the listing was, and nothing behind a link is touched.
A file that an earlier run has is copied from its directory.

A directory appears by one rename, so nobody ever sees one that is half filled. One whose run has ended is pruned.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import time
from contextlib import suppress
from typing import Iterable, Mapping, Sequence

from launcher.node.code import listing
from launcher.node.code.listing import Entry
from launcher.node.own_folders import make_own
from launcher.node.system import is_remote, read_text

_NAME, _LISTING, LOCK = "name", "listing", "lock"
_OWN_NAMES = (_NAME, _LISTING, LOCK, "links")  # the last one is of earlier versions
_MODES = {listing.FILE: 0o644, listing.PROGRAM: 0o755}
_LOCAL = "/var/tmp/launch-%d"  # of the user; on most systems for 30 days, which is long enough
_FRESH = ".new-"
_BEGUN_S = 10.0  # after which an unfinished directory is locked if somebody works on it
_KEPT = 2  # directories of ended runs that are kept for each name: for the next run, and for whoever looks into them
_BY_HASH = ("content", "arriving")  # where files were kept by their hash; `launch again` still keeps the first


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


def make_base(base: str, below: str = "trees") -> None:
    """Make two directories; raise OSError if that fails, or another user could put something else there."""
    make_own(base)
    make_own(os.path.join(base, below))


def write_file(path: str, entry: Entry, pieces: Iterable[bytes | memoryview]) -> bool:
    """Write a new file; return whether it has the content of its entry: otherwise it is removed, as where it fails."""
    digest, is_right = hashlib.sha256(), False
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _MODES[entry.kind])
    try:
        with open(fd, "wb") as file:
            for data in pieces:
                digest.update(data)
                file.write(data)
        is_right = digest.hexdigest() == entry.content
    finally:
        if not is_right:
            os.unlink(path)
    return is_right


def copy_file(source: str, entry: Entry, path: str) -> bool:
    """Write a new file as a copy of another one, if that has the content of the entry; return whether it has.

    A hard link would save the copy, but root may write through it into every other tree.
    """
    try:
        fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # nothing waits for a FIFO of that name
    except OSError:
        return False
    try:
        found = os.fstat(fd)
        is_likely = stat.S_ISREG(found.st_mode) and found.st_size == entry.size
        return is_likely and write_file(path, entry, _read_readable(fd, entry.size))
    finally:
        os.close(fd)


def _read_readable(fd: int, size: int) -> Iterable[bytes]:
    """Yield the pieces of a file up to one that can't be read, as on a damaged disk: its content is then another."""
    with suppress(OSError):
        yield from listing.read_pieces(fd, size)


class Folder:
    """The directory of one run, or of one that has ended; its lock is open while this value is in use."""

    def __init__(self, path: str, name: str) -> None:
        """path: in `trees`; name: of the directory that the files come from."""
        self.path = path
        self.name = name
        self.lock_fd = -1
        self._made: set[str] = set()  # directories for its files

    @property
    def root(self) -> str:
        """Where the files are."""
        return os.path.join(self.path, self.name)

    def lock(self, operation: int) -> bool:
        """Take the lock if that needs no waiting; return False if it is taken.

        On a disk without locks nobody is ever known to be alone, but anybody may be one of several.
        """
        try:
            if self.lock_fd < 0:
                self.lock_fd = os.open(os.path.join(self.path, LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self.lock_fd, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return operation == fcntl.LOCK_SH
        return True

    def unlock(self) -> None:
        """Close the lock."""
        if self.lock_fd >= 0:
            os.close(self.lock_fd)
            self.lock_fd = -1

    def read_listing(self) -> bytes:
        """Return the listing of what was put there; empty if there is none that can be read."""
        try:
            with open(os.path.join(self.path, _LISTING), "rb") as file:
                return file.read()
        except OSError:
            return b""

    def read_entries(self) -> list[Entry]:
        """Return what was put there; nothing if its listing can't be read."""
        try:
            return listing.decode(self.read_listing())
        except ValueError:
            return []

    def write_listing(self, data: bytes) -> None:
        """Note what was put there, and that it was there now; the note is whole at any time."""
        path = os.path.join(self.path, _LISTING)
        if self.read_listing() == data:
            os.utime(path)
            return
        with open(path + ".part", "wb") as file:
            file.write(data)
        with suppress(FileNotFoundError):  # another host that shares the directory has just noted the same
            os.rename(path + ".part", path)

    def find_written(self) -> list[str]:
        """Return what is there and was not sent, also beside the root, and what was written since.

        Of a directory that is its name alone.
        """
        beside = set(os.listdir(self.path)) - {self.name, *_OWN_NAMES, _LISTING + ".part"}
        since = os.stat(os.path.join(self.path, _LISTING)).st_mtime
        written = listing.find_written(self.root, self.read_entries(), since)
        return ["../" + name for name in sorted(beside)] + written

    def make_links(self, links: Sequence[tuple[str, str]]) -> None:
        """Make those of these links that are missing; what a run has put where one was stays."""
        for name, target in links:
            path = os.path.join(self.root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with suppress(FileExistsError):
                os.symlink(target, path)

    def make_room(self, entry: Entry) -> str:
        """Return the path of a file, and make the directories above it."""
        path = "%s/%s" % (self.root, entry.path)
        above = os.path.dirname(path)
        if above not in self._made:
            os.makedirs(above, 0o755, exist_ok=True)
            self._made.add(above)
        return path

    def take_over(self, fresh: Folder, entries: Iterable[Entry]) -> None:
        """Take these files from another directory, each in one step; what is in their place gets another name.

        Other hosts that share this directory may do so at the same time.
        """
        for entry in entries:
            for above in reversed([*listing.parents(entry.path)]):
                path = os.path.join(self.root, above)
                if os.path.islink(path) or not os.path.isdir(path):
                    _set_aside(path)
                    os.makedirs(path, 0o755, exist_ok=True)
            path = os.path.join(self.root, entry.path)
            if listing.find_wrong(self.root, [entry]):
                _set_aside(path)
            os.rename(os.path.join(fresh.root, entry.path), path)

    def remove(self, entries: Iterable[Entry]) -> bool:
        """Remove the unchanged files of the listing, the links, and directories without a file; tell if that is all."""
        entries = list(entries)
        changed = {entry.path for entry in listing.find_wrong(self.root, entries)}
        for entry in entries:
            if entry.path not in changed:
                os.unlink(os.path.join(self.root, entry.path))
        self.remove_bytecode(entries)
        for folder, inner, names in os.walk(self.root, topdown=False):
            for path in (os.path.join(folder, name) for name in inner + names):
                if listing.leads_out(path):
                    os.unlink(path)
            with suppress(OSError):  # what the run has written is there
                os.rmdir(folder)
        try:
            if os.path.isdir(self.root):
                self.write_listing(b"[]")
                return False
            for name in _OWN_NAMES:
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.path, name))
            os.rmdir(self.path)
        except OSError:  # it has written beside it
            return False
        return True

    def remove_bytecode(self, entries: Iterable[Entry]) -> None:
        """Remove all bytecode: Python takes it for that of a file with another content, but equal time and size."""
        for folder in listing.find_real_folders(self.root, [entry.path for entry in entries]):
            shutil.rmtree(os.path.join(self.root, folder, listing.BYTECODE), ignore_errors=True)


def _set_aside(path: str) -> None:
    """Give another name to what a run has put where a file of the listing belongs."""
    with suppress(FileNotFoundError):  # there is nothing, or another host that shares the directory was faster
        os.rename(path, "%s.replaced-%s" % (path, os.urandom(4).hex()))


def read_name(path: str) -> str:
    """Return the name of the directory in a run's directory; empty if there is none, or it was just removed.

    Another user's is none: it may be there from a time when others could write here.
    """
    try:
        if os.lstat(path).st_uid != os.geteuid():
            return ""
    except OSError:
        return ""
    return read_text(os.path.join(path, _NAME), errors="surrogateescape")


def open_folder(base: str, run: str, tree: str, name: str) -> Folder:
    """Return the directory of a run, which may not exist yet; tree: its hash."""
    return Folder(os.path.join(base, "trees", "%s-%s" % (run, tree[:7])), name)


def begin(base: str, name: str) -> Folder:
    """Make a directory without a name, for `appear`."""
    folder = Folder(os.path.join(base, "trees", _FRESH + os.urandom(8).hex()), name)
    for path in (folder.path, folder.root):
        os.mkdir(path, 0o700)
    with open(os.path.join(folder.path, _NAME), "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(name)
    folder.lock(fcntl.LOCK_SH)
    return folder


def hold(base: str, name: str, data: bytes) -> Folder | None:
    """Return a directory of this name and listing, if there is one, and keep `prune` out of it.

    It stays until this process has ended, or `unlock` was called.
    """
    for folder in find_folders(base):
        if folder.name == name and folder.lock(fcntl.LOCK_SH) and folder.read_listing() == data:
            return folder
        folder.unlock()
    return None


def appear(folder: Folder, place: Folder) -> Folder:
    """Give a finished directory its place, unless another process was faster; return the one that is there."""
    try:
        os.rename(folder.path, place.path)
    except OSError as error:
        abandon(folder)
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if read_name(place.path) != place.name or not os.path.isdir(place.root):
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), place.path) from None
        return place
    folder.path = place.path
    return folder


def abandon(folder: Folder) -> None:
    """Remove a directory that never got its place."""
    shutil.rmtree(folder.path, ignore_errors=True)
    folder.unlock()


def prune(base: str, *, kept: int = _KEPT, is_dry: bool = False) -> tuple[int, int, list[str]]:
    """Remove the files of runs that have ended, but for the newest of each name; is_dry: remove nothing.

    Return how many have ended, how many bytes were sent for them, and which directories stay, because something is in
    them that was not sent, or whose listing is damaged.
    """
    sizes, left = [], []
    numbers: dict[str, int] = {}
    for folder in sorted(find_folders(base), key=_changed_at, reverse=True):
        if folder.lock(fcntl.LOCK_EX):
            entries = folder.read_entries()
            if entries or listing.is_hollow(folder.root):
                sizes.append(sum(entry.size for entry in entries))
                numbers[folder.name] = numbers.get(folder.name, 0) + 1
                is_old = numbers[folder.name] > kept and not is_dry
                left += [folder.root] if is_old and not folder.remove(entries) else []
            elif os.path.isdir(folder.root):
                left.append(folder.root)
        folder.unlock()
    if not is_dry:
        _remove_unfinished(base)
        for name in () if kept else _BY_HASH:
            shutil.rmtree(os.path.join(base, name), ignore_errors=True)
    return len(sizes), sum(sizes), left


def _remove_unfinished(base: str) -> None:
    """Remove directories that nobody finished, because a process was killed; nobody knew of them."""
    for path in _scan(base):
        folder = Folder(path, "")
        if os.path.basename(path).startswith(_FRESH) and time.time() - _changed_at(folder) > _BEGUN_S:
            if folder.lock(fcntl.LOCK_EX):
                shutil.rmtree(path, ignore_errors=True)
            folder.unlock()


def find_folders(base: str) -> list[Folder]:
    """Return the directories of all runs."""
    paths = [path for path in _scan(base) if not os.path.basename(path).startswith(_FRESH)]
    found = [(path, read_name(path)) for path in paths]
    return [Folder(path, name) for path, name in found if name]


def _scan(base: str) -> list[str]:
    trees = os.path.join(base, "trees")
    return [each.path for each in os.scandir(trees)] if os.path.isdir(trees) else []  # else nothing was ever sent


def _changed_at(folder: Folder) -> float:
    try:
        return os.stat(folder.path).st_mtime
    except OSError:
        return 0.0
