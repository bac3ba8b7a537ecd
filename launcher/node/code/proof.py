"""Whether the directory of a run holds exactly the files of its listing: each is opened and hashed again.

What belongs to another user is none of them, since that user could change it after the proof.
"""

from __future__ import annotations

import os
import stat
from typing import Iterable

from launcher.node.code import listing
from launcher.node.code.listing import Entry

BYTECODE = "__pycache__"


class RealFolders:
    """Tells which directories below a root are really there and this user's: no link on the way leads elsewhere."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._known = {"": _is_folder(root)}

    def has(self, path: str) -> bool:
        """Tell whether a directory is there; path: below the root, empty for the root itself."""
        if path not in self._known:
            self._known[path] = self.has(path.rpartition("/")[0]) and _is_folder(os.path.join(self._root, path))
        return self._known[path]


def find_wrong(root: str, entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries whose file or link is missing below `root`, or differs."""
    folders = RealFolders(root)
    wrong = []
    for entry in entries:
        path = "%s/%s" % (root, entry.path)
        if not folders.has(entry.path.rpartition("/")[0]):
            wrong.append(entry)
        elif entry.kind == listing.LINK:
            if not _is_link(path, entry.content):
                wrong.append(entry)
        elif not _is_file(path, entry):
            wrong.append(entry)
    return wrong


def find_touched(root: str, entries: Iterable[Entry], since: float) -> list[str]:
    """Return the files that were written after this time, or are no files any more."""
    found = []
    for entry in entries:
        try:
            there = os.lstat("%s/%s" % (root, entry.path))
        except OSError:
            continue
        is_link = entry.kind == listing.LINK
        if (stat.S_ISLNK if is_link else stat.S_ISREG)(there.st_mode) and there.st_mtime <= since:
            continue
        found.append(entry.path + "/" * stat.S_ISDIR(there.st_mode))
    return found


def _is_folder(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _is_link(path: str, target: str) -> bool:
    try:
        return os.readlink(path) == target
    except OSError:
        return False


def _is_file(path: str, entry: Entry) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # nothing waits for a FIFO of that name
    except OSError:
        return False
    try:
        found = os.fstat(fd)
        is_program = bool(found.st_mode & stat.S_IXUSR)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_size != entry.size:
            return False
        if is_program != (entry.kind == listing.PROGRAM):
            return False
        return listing.hash_file(fd, entry.size) == entry.content
    except OSError:  # a damaged disk
        return False
    finally:
        os.close(fd)


def find_extras(root: str, entries: Iterable[Entry], links: Iterable[str]) -> list[str]:
    """Return what is below `root` and neither in the listing nor a link of the run; of a directory its name alone.

    What has taken the place of a link counts, and directories of bytecode don't.
    """
    links = set(links)
    known = {entry.path for entry in entries}.union(links)
    folders = {folder for path in known for folder in listing.parents(path)}
    extras: list[str] = []
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(os.path.join(root, folder)) as found:
                names = [(folder + "/" + each.name if folder else each.name, each) for each in found]
        except OSError:
            continue
        for path, each in names:
            if path in known:
                if path in links and not each.is_symlink():
                    extras.append(path + "/")
                continue
            if not each.is_dir(follow_symlinks=False):
                extras.append(path)
            elif path in folders:
                waiting.append(path)
            elif each.name != BYTECODE:
                extras.append(path + "/")
    return sorted(extras)


def list_folders(entries: Iterable[Entry]) -> list[str]:
    """Return the directories of a listing, each after the one above it."""
    return sorted({folder for entry in entries for folder in listing.parents(entry.path)})
