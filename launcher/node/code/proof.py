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


def find_real_folders(root: str, paths: Iterable[str]) -> set[str]:
    """Return the directories above these paths that are there and this user's; no link on the way leads elsewhere.

    The root is "".
    """
    real: set[str] = set()
    for folder in ["", *sorted({folder for path in paths for folder in listing.parents(path)})]:
        if (not folder or folder.rpartition("/")[0] in real) and _is_own_folder(os.path.join(root, folder)):
            real.add(folder)
    return real


def find_wrong(root: str, entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries whose file or link is missing below `root`, or differs."""
    entries = list(entries)
    real = find_real_folders(root, [entry.path for entry in entries])
    return [
        entry
        for entry in entries
        if entry.path.rpartition("/")[0] not in real or not _is_right("%s/%s" % (root, entry.path), entry)
    ]


def _is_own_folder(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _is_right(path: str, entry: Entry) -> bool:
    try:
        if entry.kind == listing.LINK:
            return os.readlink(path) == entry.content
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


def find_written(root: str, entries: Iterable[Entry], since: float) -> list[str]:
    """Return what is below `root` and not in the listing, or was written after this time.

    Of a directory that is its name alone, unless no file is in it. Bytecode and links to absolute paths don't count.
    """
    kinds = {entry.path: entry.kind for entry in entries}
    sent = {folder for path in kinds for folder in listing.parents(path)}
    written: list[str] = []
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        for each in _scan(os.path.join(root, folder)):
            path = folder + "/" + each.name if folder else each.name
            if each.is_dir(follow_symlinks=False):
                if path in sent:
                    waiting.append(path)
                elif each.name != BYTECODE and not is_hollow(each.path):
                    written.append(path + "/")
            elif leads_out(each.path):
                continue
            elif path not in kinds or each.is_symlink() != (kinds[path] == listing.LINK) or _is_newer(each, since):
                written.append(path)
    return sorted(written)


def leads_out(path: str) -> bool:
    """Tell whether this is a link to an absolute path, as the links of a run are; those of a listing are relative."""
    return os.path.islink(path) and os.readlink(path).startswith("/")


def _is_newer(each: os.DirEntry[str], since: float) -> bool:
    return not each.is_symlink() and each.stat().st_mtime > since


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def is_hollow(folder: str) -> bool:
    """Tell whether no file is in a directory or below it."""
    return os.path.isdir(folder) and not any(names for _, _, names in os.walk(folder))
