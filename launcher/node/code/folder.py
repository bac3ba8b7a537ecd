"""The directory of one run, with copies of the files of one listing.

    trees/RUN-HASH/name        NAME
    trees/RUN-HASH/listing     what was put there
    trees/RUN-HASH/links       the links to directories outside, by name
    trees/RUN-HASH/lock        locked by the supervisors of the run while they live
    trees/RUN-HASH/NAME/...    the files, below the name of the directory that they come from

Only unchanged files of its listing are ever removed from it: what a run has written there stays, also where a file of
the listing was, and nothing behind a link is touched.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat

from launcher.node.code import listing, proof

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Sequence

    from launcher.node.code.listing import Entry
    from launcher.node.code.store import Store

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
        try:
            with open(os.path.join(self.path, _LINKS), encoding="utf-8", errors="surrogateescape") as file:
                return [name for name in file.read().split("\0") if name]
        except OSError:
            return []

    def make(self) -> None:
        """Make the directory."""
        for path in (self.path, self.root):
            os.mkdir(path, 0o700)
        with open(os.path.join(self.path, _NAME), "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(self.name)

    def write_listing(self, data: bytes) -> None:
        """Note what was put there, so that the note is whole at any time."""
        part = os.path.join(self.path, _LISTING + ".part")
        with open(part, "wb") as file:
            file.write(data)
        os.rename(part, os.path.join(self.path, _LISTING))

    def find_written(self, entries: Iterable[Entry]) -> list[str]:
        """Return what is there and was not sent, also beside the root; of a directory its name alone."""
        beside = sorted(set(os.listdir(self.path)) - {self.name, *OWN_NAMES, _LISTING + ".part"})
        return [*("../" + name for name in beside), *proof.find_extras(self.root, entries, self.read_links())]

    def find_touched(self, entries: Iterable[Entry]) -> list[str]:
        """Return the files of the listing that were written since it was."""
        try:
            since = os.stat(os.path.join(self.path, _LISTING)).st_mtime
        except OSError:
            return []
        return proof.find_touched(self.root, entries, since)

    def make_links(self, links: Sequence[tuple[str, str]]) -> None:
        """Make the links instead of those that were there; what a run has put where one was stays."""
        self.remove_links()
        with open(os.path.join(self.path, _LINKS), "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write("\0".join(name for name, _ in links))
        for name, target in links:
            path = os.path.join(self.root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if not os.path.lexists(path):
                os.symlink(target, path)

    def remove_links(self) -> None:
        """Remove the links; what a run has put where one was stays."""
        folders = proof.RealFolders(self.root)
        for name in self.read_links():
            path = os.path.join(self.root, name)
            if folders.has(name.rpartition("/")[0]) and os.path.islink(path):
                os.unlink(path)

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
            except FileExistsError:  # it has changed
                _set_aside(path)
                if not _write(store, entry, path):
                    missing.append(entry)
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


def _write(store: Store, entry: Entry, path: str) -> bool:
    """Write one file or link; return False if its content isn't kept here."""
    if entry.kind == listing.LINK:
        os.symlink(entry.content, path)
        return True
    if not store.has(entry):
        return False
    try:
        store.copy(entry, path, _MODES[entry.kind])
    except FileNotFoundError:  # another process has removed it
        return False
    return True


def _make_folders(root: str, folder: str) -> None:
    """Make a directory and those above it; what is in the way, such as a link, gets another name."""
    path = root
    for name in folder.split("/"):
        path = os.path.join(path, name)
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                _set_aside(path)
                os.mkdir(path, 0o755)


def _set_aside(path: str) -> None:
    """Give another name to what a run has put where a file of the listing belongs."""
    os.rename(path, "%s.replaced-%s" % (path, os.urandom(4).hex()))


def read_name(path: str) -> str:
    """Return the name of the directory in a run's directory; empty if there is none, or it was just taken over.

    Another user's is none: it may be there from a time when others could write here.
    """
    try:
        if os.lstat(path).st_uid != os.geteuid():
            return ""
        with open(os.path.join(path, _NAME), encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""
