"""Create files and directories that may hold secrets: only the user can read them, whatever the umask is."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path


def open_private(path: str, flags: int) -> int:
    """Open a file, as the `opener` of open(); a new one gets mode 0600, an existing one keeps its mode."""
    return os.open(path, flags, 0o600)


def make_private(folder: Path, base: Path, *, exist_ok: bool = False) -> None:
    """Make a directory with mode 0700, and those missing between it and `base`; `base` itself follows the umask.

    An existing one that others may write to gets this mode, too. Raise PermissionError if another user has made it.
    """
    if folder.parent != base:
        make_private(folder.parent, base, exist_ok=True)
    elif not os.path.lexists(base):
        base.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except OSError:  # not always EEXIST, as on a file system that is read-only
        if not (exist_ok and folder.is_dir()):
            raise
        _take_over(folder)


def _take_over(folder: Path) -> None:
    found = folder.stat()
    # Whoever owns the directory above could replace this one anyhow; where a server maps users, all have one owner.
    if found.st_uid not in (os.geteuid(), folder.parent.stat().st_uid):
        raise PermissionError(errno.EPERM, f"it belongs to user {found.st_uid}", str(folder))
    if found.st_mode & 0o022 and found.st_uid == os.geteuid():
        folder.chmod(0o700)


def write_private(path: Path, text: str) -> None:
    """Write a text; an argument that isn't valid text holds lone surrogates, which as `\\udce9` are JSON again."""
    with open(path, "w", encoding="utf-8", errors="backslashreplace", opener=open_private) as file:
        file.write(text)


def replace_private(path: Path, content: str | bytes, *, is_synced: bool = False) -> None:
    """Write a file so that whoever reads it gets the old content or the new one; is_synced: also after a power cut.

    It is a new file that gets the old one's name at the end; nobody can have put a link in its place.
    """
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    fresh = path.with_name(f"{path.name}.{os.urandom(4).hex()}.new")
    try:
        with open(fresh, "xb", opener=open_private) as file:
            file.write(data)
            if is_synced:
                file.flush()
                os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        with suppress(OSError):
            fresh.unlink()  # a full disk leaves it empty
        raise
