"""The directories of runs, each with copies of the files of one listing.

    trees/RUN-HASH/name        NAME
    trees/RUN-HASH/listing     what was put there
    trees/RUN-HASH/links       the links to directories outside, by name
    trees/RUN-HASH/lock        locked by the supervisors of the run while they live
    trees/RUN-HASH/NAME/...    the files, below the name of the directory that they come from

Only unchanged files of its listing are ever removed from it: what a run has written there stays, also where a file of
the listing was, and nothing behind a link is touched.

A directory appears by one rename, so nobody ever sees one that is half filled. One whose run has ended is pruned.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from typing import Iterable, Sequence

from launcher.node.code import listing, proof
from launcher.node.code.listing import Entry
from launcher.node.code.store import Store, unlink
from launcher.node.system import read_text

_NAME, _LISTING, _LINKS, LOCK = "name", "listing", "links", "lock"
OWN_NAMES = (_NAME, _LISTING, _LINKS, LOCK)
_MODES = {listing.FILE: 0o644, listing.PROGRAM: 0o755}


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

    def read_links(self) -> list[str]:
        """Return the names of the links."""
        names = read_text(os.path.join(self.path, _LINKS), errors="surrogateescape")
        return [name for name in names.split("\0") if name]

    def make(self) -> None:
        """Make the directory."""
        for path in (self.path, self.root):
            os.mkdir(path, 0o700)
        with open(os.path.join(self.path, _NAME), "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(self.name)

    def write_listing(self, data: bytes) -> None:
        """Note what was put there, and that it was there now; the note is whole at any time."""
        path = os.path.join(self.path, _LISTING)
        if self.read_listing() == data:
            os.utime(path)
            return
        with open(path + ".part", "wb") as file:
            file.write(data)
        try:
            os.rename(path + ".part", path)
        except FileNotFoundError:  # another host that shares the directory has just noted the same
            pass

    def find_written(self) -> list[str]:
        """Return what is there and was not sent, also beside the root, and what was written since.

        Of a directory that is its name alone.
        """
        entries = self.read_entries()
        beside = sorted(set(os.listdir(self.path)) - {self.name, *OWN_NAMES, _LISTING + ".part"})
        extras = ["../" + name for name in beside] + proof.find_extras(self.root, entries, self.read_links())
        written = [name for name in extras if not is_hollow(os.path.join(self.root, name))]
        return written + proof.find_touched(self.root, entries, os.stat(os.path.join(self.path, _LISTING)).st_mtime)

    def make_links(self, links: Sequence[tuple[str, str]]) -> None:
        """Make those of these links that are missing; what a run has put where one was stays."""
        names = [name for name, _ in links]
        if self.read_links() != names:
            with open(os.path.join(self.path, _LINKS), "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write("\0".join(names))
        for name, target in links:
            path = os.path.join(self.root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            try:
                os.symlink(target, path)
            except FileExistsError:
                pass

    def remove_links(self) -> None:
        """Remove the links; what a run has put where one was stays."""
        folders = proof.RealFolders(self.root)
        for name in self.read_links():
            path = os.path.join(self.root, name)
            if folders.has(name.rpartition("/")[0]) and os.path.islink(path):
                os.unlink(path)

    def put(self, store: Store, entries: Iterable[Entry]) -> list[Entry]:
        """Write these files, each in one step; return those whose content isn't kept here undamaged.

        Other hosts that share this directory may do so at the same time.
        """
        missing = []
        made: set[str] = {""}
        for entry in entries:
            folder = entry.path.rpartition("/")[0]
            if folder not in made:
                _make_folders(self.root, folder)
                made.add(folder)
            part, path = store.name_part(), "%s/%s" % (self.root, entry.path)
            if entry.kind == listing.LINK:
                os.symlink(entry.content, part)
            elif not store.copy(entry, part, _MODES[entry.kind]):
                missing.append(entry)
                continue
            if os.path.lexists(path) and proof.find_wrong(self.root, [entry]):
                _set_aside(path)
            os.rename(part, path)
        return missing

    def remove_files(self, entries: Iterable[Entry]) -> None:
        """Remove the files of a listing that are unchanged, and the directories that are then empty."""
        entries = list(entries)
        changed = {entry.path for entry in proof.find_wrong(self.root, entries)}
        for entry in entries:
            if entry.path not in changed:
                os.unlink(os.path.join(self.root, entry.path))
        self.remove_bytecode(entries)
        folders = proof.RealFolders(self.root)
        for folder in reversed([folder for folder in proof.list_folders(entries) if folders.has(folder)]):
            try:
                os.rmdir(os.path.join(self.root, folder))
            except OSError:
                pass

    def remove_bytecode(self, entries: Iterable[Entry]) -> None:
        """Remove all bytecode: Python takes it for that of a file with another content, but equal time and size."""
        folders = proof.RealFolders(self.root)
        for folder in ["", *proof.list_folders(entries)]:
            if folders.has(folder):
                shutil.rmtree(os.path.join(self.root, folder, proof.BYTECODE), ignore_errors=True)


def _make_folders(root: str, folder: str) -> None:
    """Make a directory and those above it; what is in the way, such as a link, gets another name."""
    path = root
    for name in folder.split("/"):
        path = os.path.join(path, name)
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            if os.path.islink(path) or not os.path.isdir(path):
                _set_aside(path)
                os.makedirs(path, 0o755, exist_ok=True)


def _set_aside(path: str) -> None:
    """Give another name to what a run has put where a file of the listing belongs."""
    try:
        os.rename(path, "%s.replaced-%s" % (path, os.urandom(4).hex()))
    except FileNotFoundError:  # another host that shares the directory was faster
        pass


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


_FRESH = ".new-"
UNFINISHED_S = 3600.0  # after which nobody works on an unfinished directory any more
_BEGUN_S = 10.0  # after which one is locked that somebody works on
KEPT = 2  # directories of ended runs that are kept for each name, for whoever looks into them


def open_folder(store: Store, run: str, tree: str, name: str) -> Folder:
    """Return the directory of a run, which may not exist yet; tree: its hash."""
    return Folder(os.path.join(store.trees, "%s-%s" % (run, tree[:7])), name)


def begin(store: Store, name: str) -> Folder:
    """Make a directory without a name, for `appear`."""
    folder = Folder(os.path.join(store.trees, _FRESH + os.urandom(8).hex()), name)
    folder.make()
    folder.lock(fcntl.LOCK_SH)
    return folder


def hold(store: Store, name: str, data: bytes) -> Folder | None:
    """Return a directory of this name and listing, if there is one, and keep `prune` out of it.

    It stays until this process has ended, or `unlock` was called.
    """
    for folder in _find_folders(store, name):
        if folder.lock(fcntl.LOCK_SH) and folder.read_listing() == data:
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


def prune(store: Store, *, kept: int = KEPT, is_dry: bool = False) -> tuple[int, int, list[str]]:
    """Remove the files of runs that have ended, but for the newest of each name; is_dry: remove nothing.

    Return how many have ended, how many bytes were sent for them, and which directories stay, because something is in
    them that was not sent, or whose listing is damaged.
    """
    sizes, left = [], []
    numbers: dict[str, int] = {}
    for folder in sorted(_find_folders(store, None), key=_changed_at, reverse=True):
        if folder.lock(fcntl.LOCK_EX):
            entries = folder.read_entries()
            if entries or is_hollow(folder.root):
                sizes.append(sum(entry.size for entry in entries))
                numbers[folder.name] = numbers.get(folder.name, 0) + 1
                is_old = numbers[folder.name] > kept and not is_dry
                left += [folder.root] if is_old and not _remove_folder(folder, entries) else []
            elif os.path.isdir(folder.root):
                left.append(folder.root)
        folder.unlock()
    if not is_dry:
        _remove_unfinished(store, UNFINISHED_S if kept else _BEGUN_S)
    return len(sizes), sum(sizes), left


def is_hollow(folder: str) -> bool:
    """Tell whether no file is in a directory or below it."""
    return os.path.isdir(folder) and not any(names for _, _, names in os.walk(folder))


def _remove_hollow(folder: str) -> None:
    if is_hollow(folder):
        for base in reversed([base for base, _, _ in os.walk(folder)]):
            try:
                os.rmdir(base)
            except OSError:  # a link to a directory is in it
                pass


def _remove_folder(folder: Folder, entries: Iterable[Entry]) -> bool:
    """Remove what was sent; return whether nothing is left."""
    folder.remove_links()
    folder.remove_files(entries)
    for path in proof.find_extras(folder.root, [], []):
        _remove_hollow(os.path.join(folder.root, path))
    try:
        os.rmdir(folder.root)
        for name in OWN_NAMES:
            unlink(os.path.join(folder.path, name))
        os.rmdir(folder.path)
    except OSError:  # what the run has written is there, or beside it
        if os.path.isdir(folder.root):
            folder.write_listing(b"[]")
        return False
    return True


def _remove_unfinished(store: Store, age_s: float) -> None:
    """Remove directories of this age that nobody finished, because a process was killed; nobody knew of them."""
    for entry in list(os.scandir(store.trees)) if os.path.isdir(store.trees) else ():
        folder = Folder(entry.path, "")
        if entry.name.startswith(_FRESH) and time.time() - _changed_at(folder) > age_s:
            if folder.lock(fcntl.LOCK_EX):
                shutil.rmtree(entry.path, ignore_errors=True)
            folder.unlock()


def _find_folders(store: Store, name: str | None) -> list[Folder]:
    """Return the directories of all runs; name: of those alone whose files come from a directory of that name."""
    try:
        paths = [each.path for each in os.scandir(store.trees) if not each.name.startswith(_FRESH)]
    except FileNotFoundError:  # nothing was ever sent
        return []
    found = [(path, read_name(path)) for path in paths]
    return [Folder(path, own) for path, own in found if own and name in (None, own)]


def _changed_at(folder: Folder) -> float:
    try:
        return os.stat(folder.path).st_mtime
    except OSError:
        return 0.0
