"""What is left of a directory if a process is killed, or the power fails, at any moment: recorded while it is written.

Python reports each operation on a file to the audit hook; before each of them the directory is what a kill would leave.
After a power failure only what was flushed is certain, so the recorder also keeps what `os.fsync` has flushed so far.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")
Tree = dict[str, "bytes | Tree"]


@dataclass
class Recorder:
    """The states of one directory, each once; `moments` counts the operations."""

    root: Path
    states: list[Tree] = field(default_factory=list)
    moments: int = 0
    files: dict[int, bytes] = field(default_factory=dict)  # inode -> what was flushed
    folders: dict[int, dict[str, int]] = field(default_factory=dict)  # inode -> the names that were flushed
    inodes: dict[int, bool] = field(default_factory=dict)  # inode -> whether it is a directory

    def record(self) -> None:
        """Add what would be left now: after a kill, and after a power failure, in three orders of writing.

        Only what was flushed got to the disk; or the names did, too, before the content; or the removal of files did.
        """
        self.moments += 1
        removed = self.files.keys() - {path.stat().st_ino for path in self.root.rglob("*")}
        for state in (
            self._now(self.root, flushed=False),
            self.flushed(),
            self._now(self.root, flushed=True),
            self._flushed(self.root.stat().st_ino, removed),
        ):
            if state not in self.states:
                self.states.append(state)

    def flushed(self) -> Tree:
        """Return only names and content that were flushed."""
        return self._flushed(self.root.stat().st_ino, set())

    def flush(self, path: Path) -> None:
        """Note that a file or directory is on disk as it is now."""
        inode = path.stat().st_ino
        if path.is_dir():
            self.folders[inode] = {}
            for entry in path.iterdir():
                self.folders[inode][entry.name] = entry.stat().st_ino
                self.inodes[entry.stat().st_ino] = entry.is_dir()
        else:
            self.files[inode] = path.read_bytes()

    def _now(self, path: Path, *, flushed: bool) -> Tree:
        """Return the names as they are now, with the content as it is, or as it was flushed."""
        tree: Tree = {}
        for entry in sorted(path.iterdir()):
            if entry.is_dir():
                tree[entry.name] = self._now(entry, flushed=flushed)
            else:
                tree[entry.name] = self.files.get(entry.stat().st_ino, b"") if flushed else entry.read_bytes()
        return tree

    def _flushed(self, inode: int, removed: set[int]) -> Tree:
        names = sorted((name, number) for name, number in self.folders.get(inode, {}).items() if number not in removed)
        return {
            name: self._flushed(number, removed) if self.inodes[number] else self.files.get(number, b"")
            for name, number in names
        }


_recorder: list[Recorder] = []  # at most one
_is_hooked: list[bool] = []


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if not _recorder or event not in OPERATIONS or not _is_below(_find_path(arguments), _recorder[0].root):
        return
    (recorder,) = _recorder
    _recorder.clear()  # what it does itself is not recorded
    try:
        recorder.record()
    finally:
        _recorder.append(recorder)


def _find_path(arguments: tuple[object, ...]) -> object:
    """Return the path of an operation; shutil.rmtree names the files relative to an open directory."""
    path, folder = arguments[0], arguments[-1]
    is_relative = isinstance(path, str) and not path.startswith("/") and isinstance(folder, int) and folder >= 0
    return Path(f"/proc/self/fd/{folder}").resolve() / str(path) if is_relative else path


def _is_below(path: object, root: Path) -> bool:
    return isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(str(root))


@contextmanager
def recording(root: Path, replace_fsync: Callable[[Callable[[int], None]], None]) -> Iterator[Recorder]:
    """Record all operations below `root` during the block.

    replace_fsync: sets `os.fsync` until the test ends.
    """
    recorder, fsync = Recorder(root), os.fsync

    def record_fsync(descriptor: int) -> None:
        fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        if _is_below(path, root):
            _recorder.clear()
            recorder.flush(path)
            recorder.record()
            _recorder.append(recorder)

    replace_fsync(record_fsync)
    if not _is_hooked:  # a hook can't be removed
        _is_hooked.append(True)
        sys.addaudithook(_hear)
    recorder.flush(root)
    _recorder.append(recorder)
    try:
        yield recorder
    finally:
        _recorder.clear()
        recorder.record()


def rebuild(tree: Tree, root: Path) -> Path:
    """Write a recorded state to a new directory, and return it."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for name, content in tree.items():
        if isinstance(content, bytes):
            (root / name).write_bytes(content)
        else:
            rebuild(content, root / name)
    return root
