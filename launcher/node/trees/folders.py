"""The directories of runs, each with copies of the files of one listing.

    trees/RUN-HASH/listing     what was put there
    trees/RUN-HASH/links       the links to directories outside, by name
    trees/RUN-HASH/lock        locked by the supervisors of the run while they live
    trees/RUN-HASH/NAME/...    the files, below the name of the directory that they come from

A directory appears by one rename. Only the files of its listing are ever removed from it: what a run has written there
stays.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import time

from launcher.node.trees import listing, proof

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Sequence

    from launcher.node.trees.listing import Entry
    from launcher.node.trees.store import Store

_FRESH = ".new-"
_LISTING, _LINKS, _LOCK = "listing", "links", "lock"
_MODES = {listing.FILE: 0o644, listing.PROGRAM: 0o755}
UNFINISHED_S = 3600.0  # after which nobody works on an unfinished directory any more
KEPT = 2  # directories of ended runs that are kept for each name, so that the next run can take one over


class Folder:
    """The directory of one run, or of one that has ended; its lock is open while this value is in use."""

    def __init__(self, path: str, name: str) -> None:
        """path: in `trees`; name: of the directory that the files come from."""
        self.path = path
        self.name = name
        self.lock_fd = -1

    @property
    def root(self) -> str:
        """Where the files are."""
        return os.path.join(self.path, self.name)

    def lock(self, operation: int) -> bool:
        """Take the lock if that needs no waiting; return False if it is taken, or this disk has no locks."""
        try:
            if self.lock_fd < 0:
                self.lock_fd = os.open(os.path.join(self.path, _LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self.lock_fd, operation | fcntl.LOCK_NB)
        except OSError:
            return False
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

    def read_links(self) -> list[str]:
        """Return the names of the links."""
        try:
            with open(os.path.join(self.path, _LINKS), encoding="utf-8", errors="surrogateescape") as file:
                return [name for name in file.read().split("\0") if name]
        except OSError:
            return []

    def write_listing(self, data: bytes) -> None:
        """Note what is to be put there."""
        with open(os.path.join(self.path, _LISTING), "wb") as file:
            file.write(data)

    def make_links(self, links: Sequence[tuple[str, str]]) -> None:
        """Make the links instead of those that were there; what a run has put where one was stays."""
        for name in self.read_links():
            _remove_link(os.path.join(self.root, name))
        with open(os.path.join(self.path, _LINKS), "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write("\0".join(name for name, _ in links))
        for name, target in links:
            path = os.path.join(self.root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if not os.path.lexists(path):
                os.symlink(target, path)

    def put(self, store: Store, entries: Iterable[Entry]) -> list[Entry]:
        """Write these files; return those whose content isn't kept here."""
        missing = []
        made: set[str] = {""}
        for entry in entries:
            folder = entry.path.rpartition("/")[0]
            if folder not in made:
                _make_folders(self.root, folder)
                made.add(folder)
            path = "%s/%s" % (self.root, entry.path)
            try:
                if not _write(store, entry, path):
                    missing.append(entry)
            except (FileExistsError, IsADirectoryError):  # a ranks' file or directory, or a file that has changed
                _remove(path)
                if not _write(store, entry, path):
                    missing.append(entry)
        return missing

    def remove_files(self, entries: Iterable[Entry]) -> None:
        """Remove the files of a listing and the directories that are then empty; bytecode goes as well."""
        entries = list(entries)
        for entry in entries:
            try:
                os.unlink(os.path.join(self.root, entry.path))
            except OSError:  # it is gone, or a directory of the ranks'
                pass
        self.remove_bytecode(entries)
        for folder in reversed(proof.list_folders(entries)):
            try:
                os.rmdir(os.path.join(self.root, folder))
            except OSError:
                pass

    def remove_bytecode(self, entries: Iterable[Entry]) -> None:
        """Remove all bytecode: Python takes it for that of a file with another content, but equal time and size."""
        for folder in ["", *proof.list_folders(entries)]:
            shutil.rmtree(os.path.join(self.root, folder, proof.BYTECODE), ignore_errors=True)


def open_folder(store: Store, run: str, tree: str, name: str) -> Folder:
    """Return the directory of a run, which may not exist yet; tree: its hash."""
    return Folder(os.path.join(store.trees, "%s-%s" % (run, tree[:7])), name)


def begin(store: Store, name: str) -> tuple[Folder, bytes]:
    """Return a directory without a name, for `appear`, and the listing of what is in it.

    It is one of a run that has ended, if there is one in which nothing was written, or else a new one.
    """
    for old in sorted(_find_folders(store, name), key=_changed_at, reverse=True):
        entries = old.read_entries()
        if not entries or not old.lock(fcntl.LOCK_EX):
            old.unlock()
            continue
        if _find_written(old, entries) or not _rename(old, _fresh_path(store)):
            old.unlock()
            continue
        return old, old.read_listing()
    folder = Folder(_fresh_path(store), name)
    os.makedirs(folder.root, 0o700)
    folder.lock(fcntl.LOCK_EX)
    return folder, b""


def find_newest(store: Store, name: str) -> Folder | None:
    """Return the directory of this name that was filled last, of any run."""
    return max(_find_folders(store, name), key=_changed_at, default=None)


def appear(folder: Folder, place: Folder) -> Folder:
    """Give a finished directory its place, unless another process was faster; return the one that is there."""
    os.utime(folder.path)
    if _rename(folder, place.path):
        return folder
    abandon(folder)
    if not os.path.isdir(place.root):
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), place.path)
    return place


def abandon(folder: Folder) -> None:
    """Remove a directory that never got its place."""
    shutil.rmtree(folder.path, ignore_errors=True)
    folder.unlock()


def find_ended(store: Store) -> list[Folder]:
    """Return the directories of runs that have ended and have something to remove, locked."""
    found = []
    for folder in _find_folders(store, None):
        if folder.lock(fcntl.LOCK_EX) and (folder.read_entries() or _is_hollow(folder.root)):
            found.append(folder)
        else:
            folder.unlock()
    return found


def prune(store: Store, *, kept: int = KEPT) -> list[str]:
    """Remove the files of runs that have ended, but for the newest of each name.

    Return the directories that are left, because something is in them that was not sent.
    """
    left = []
    by_name: dict[str, list[Folder]] = {}
    for folder in find_ended(store):
        by_name.setdefault(folder.name, []).append(folder)
    for found in by_name.values():
        for number, folder in enumerate(sorted(found, key=_changed_at, reverse=True)):
            if number >= kept and not _remove_folder(folder):
                left.append(folder.root)
            folder.unlock()
    _remove_unfinished(store)
    return left


def _find_written(folder: Folder, entries: list[Entry]) -> list[str]:
    """Return what a run has written; directories without a file, such as its working directory, are removed first."""
    links = folder.read_links()
    for path in proof.find_extras(folder.root, entries, links):
        if path.endswith("/"):
            _remove_hollow(os.path.join(folder.root, path))
    return proof.find_extras(folder.root, entries, links)


def _is_hollow(folder: str) -> bool:
    """Tell whether no file is in a directory or below it."""
    return os.path.isdir(folder) and not any(names for _, _, names in os.walk(folder))


def _remove_hollow(folder: str) -> None:
    if _is_hollow(folder):
        for base in reversed([base for base, _, _ in os.walk(folder)]):
            try:
                os.rmdir(base)
            except OSError:  # a link to a directory is in it
                pass


def _remove_folder(folder: Folder) -> bool:
    """Remove what was sent; return whether nothing is left."""
    entries = folder.read_entries()
    for name in folder.read_links():
        _remove_link(os.path.join(folder.root, name))
    folder.remove_files(entries)
    for path in proof.find_extras(folder.root, [], []):
        _remove_hollow(os.path.join(folder.root, path))
    try:
        os.rmdir(folder.root)
    except OSError:
        pass
    if os.path.lexists(folder.root):
        folder.write_listing(b"[]")
        return False
    shutil.rmtree(folder.path, ignore_errors=True)
    return True


def _remove_unfinished(store: Store) -> None:
    """Remove directories that nobody finished, because a process was killed; nobody knew of them."""
    for entry in list(os.scandir(store.trees)):
        folder = Folder(entry.path, "")
        if entry.name.startswith(_FRESH) and time.time() - _changed_at(folder) > UNFINISHED_S:
            if folder.lock(fcntl.LOCK_EX):
                shutil.rmtree(entry.path, ignore_errors=True)
            folder.unlock()


def _find_folders(store: Store, name: str | None) -> list[Folder]:
    """Return the directories of all runs; name: of those alone whose files come from a directory of that name."""
    found = []
    for each in os.scandir(store.trees):
        if each.name.startswith(_FRESH):
            continue
        try:
            inside = [inner.name for inner in os.scandir(each.path) if inner.is_dir(follow_symlinks=False)]
        except OSError:  # another process has just taken it over, or removed it
            continue
        found += [Folder(each.path, inner) for inner in inside if name in (None, inner)]
    return found


def _changed_at(folder: Folder) -> float:
    try:
        return os.stat(folder.path).st_mtime
    except OSError:
        return 0.0


def _fresh_path(store: Store) -> str:
    return os.path.join(store.trees, _FRESH + os.urandom(8).hex())


def _rename(folder: Folder, path: str) -> bool:
    try:
        os.rename(folder.path, path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            return False
        raise
    folder.path = path
    return True


def _write(store: Store, entry: Entry, path: str) -> bool:
    """Write one file or link; return False if its content isn't kept here."""
    if entry.kind == listing.LINK:
        os.symlink(entry.content, path)
        return True
    if not store.has(entry):
        return False
    store.copy(entry, path, _MODES[entry.kind])
    return True


def _make_folders(root: str, folder: str) -> None:
    """Make a directory and those above it; what is in the way, such as a link, is removed."""
    path = root
    for name in folder.split("/"):
        path = os.path.join(path, name)
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                os.unlink(path)
                os.mkdir(path, 0o755)


def _remove_link(path: str) -> None:
    if os.path.islink(path):
        os.unlink(path)


def _remove(path: str) -> None:
    """Remove a file, a link or a directory, if it is there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError):
        shutil.rmtree(path)
