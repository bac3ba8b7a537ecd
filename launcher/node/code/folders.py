"""The directories of all runs: one that has ended is taken over by the next run, or pruned.

A directory appears by one rename, so nobody ever sees one that is half filled.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time

from launcher.node.code import proof
from launcher.node.code.folder import OWN_NAMES, Folder, read_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.node.code.store import Store

_FRESH = ".new-"
UNFINISHED_S = 3600.0  # after which nobody works on an unfinished directory any more
_BEGUN_S = 10.0  # after which one is locked that somebody works on
KEPT = 2  # directories of ended runs that are kept for each name, so that the next run can take one over


def open_folder(store: Store, run: str, tree: str, name: str) -> Folder:
    """Return the directory of a run, which may not exist yet; tree: its hash."""
    return Folder(os.path.join(store.trees, "%s-%s" % (run, tree[:7])), name)


def begin(store: Store, name: str) -> tuple[Folder, bytes]:
    """Return a directory without a name, for `appear`, and the listing of what is in it.

    It is one of a run that has ended, if there is one in which nothing was written, or else a new one.
    """
    for old in sorted(_find_folders(store, name), key=_changed_at, reverse=True):
        data = old.read_listing()
        if data and old.lock(fcntl.LOCK_EX):
            os.chmod(old.path, 0o700)  # before it is proved: an earlier version followed the umask
            if _is_untouched(old) and _rename(old, _fresh_path(store)):
                return old, data
        old.unlock()
    folder = Folder(_fresh_path(store), name)
    folder.make()
    folder.lock(fcntl.LOCK_EX)
    return folder, b""


def _is_untouched(folder: Folder) -> bool:
    """Tell whether exactly what was sent is there; directories without a file are removed first."""
    entries = folder.read_entries()
    for path in folder.find_written(entries):
        if path.endswith("/"):
            _remove_hollow(os.path.join(folder.root, path))
    return not folder.find_written(entries) and not proof.find_wrong(folder.root, entries)


def find_like(store: Store, name: str, data: bytes) -> Folder | None:
    """Return the directory of this name that was filled last, if possible one with this listing."""
    found = _find_folders(store, name)
    return max(found, key=lambda folder: (folder.read_listing() == data, _changed_at(folder)), default=None)


def hold(store: Store, name: str, data: bytes) -> Folder | None:
    """Return the directory of this name and listing, if there is one, and keep other runs and `prune` out of it.

    It stays until this process has ended, or `unlock` was called.
    """
    found = find_like(store, name, data)
    if found is not None and not (found.lock(fcntl.LOCK_SH) and found.read_listing() == data):
        found.unlock()
        found = None
    return found


def appear(folder: Folder, place: Folder) -> Folder:
    """Give a finished directory its place, unless another process was faster; return the one that is there."""
    os.utime(folder.path)
    if _rename(folder, place.path):
        return folder
    abandon(folder)
    if read_name(place.path) != place.name or not os.path.isdir(place.root):
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
        if folder.lock(fcntl.LOCK_EX) and (folder.read_entries() or is_hollow(folder.root)):
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
    _remove_unfinished(store, UNFINISHED_S if kept else _BEGUN_S)
    return left


def find_left(store: Store) -> list[str]:
    """Return the directories of ended runs that hold nothing that is known to be sent: some listing may be damaged."""
    found = []
    for folder in _find_folders(store, None):
        if folder.lock(fcntl.LOCK_EX) and os.path.isdir(folder.root) and not folder.read_entries():
            found += [] if is_hollow(folder.root) else [folder.root]
        folder.unlock()
    return found


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


def _remove_folder(folder: Folder) -> bool:
    """Remove what was sent; return whether nothing is left."""
    folder.remove_links()
    folder.remove_files(folder.read_entries())
    for path in proof.find_extras(folder.root, [], []):
        _remove_hollow(os.path.join(folder.root, path))
    try:
        os.rmdir(folder.root)
        for name in OWN_NAMES:
            _unlink(os.path.join(folder.path, name))
        os.rmdir(folder.path)
    except OSError:  # what the run has written is there, or beside it
        if os.path.isdir(folder.root):
            folder.write_listing(b"[]")
        return False
    return True


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _remove_unfinished(store: Store, age_s: float) -> None:
    """Remove directories of this age that nobody finished, because a process was killed; nobody knew of them."""
    for entry in list(os.scandir(store.trees)):
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
