"""Who could have written a file that nobody named: only one that is this user's or root's is obeyed.

The models are OpenSSH's StrictModes, which looks at the file and at each directory above it up to the home directory
(secure_permissions and safe_path in misc.c), and git's safe.directory, which looks at the owner.
A file that is named on the command line isn't looked at, as with `ssh -F FILE`.

As root, a file in a user's directory belongs to somebody else, also under sudo: the one who may type sudo need not be
the one who wrote the file. So does a file that NFS's root squash shows as nobody's.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path

from launcher.errors import UsageError

_GROUP, _EVERYBODY = stat.S_IWGRP, stat.S_IWOTH


def find_home() -> Path | None:
    """Return the home directory without symlinks; None if there is none, or if it is `/`, where everything is below."""
    home = os.path.expanduser("~")  # noqa: PTH111 - stays '~' where pathlib would raise
    path = Path(os.path.realpath(home))
    is_there = os.path.isdir(path)  # noqa: PTH112 - false where pathlib would raise, on NFS with root squash
    return path if home.startswith("/") and is_there and path != path.parent else None


def find_other_writer(
    file: Path,
    home: Path | None,
    uid: int,
    *,
    read_stat: Callable[[Path], os.stat_result] = os.stat,
    is_own_group: Callable[[Path, int], bool] | None = None,
) -> str:
    """Say who else may write `file`, a path without symlinks; empty if only this user and root can.

    Each directory above it counts as well, up to the home directory or `/`: whoever may write one can replace the rest.
    In a sticky directory such as /tmp nobody can replace what is another's, so the user's own directories in it are
    safe; the file itself must not stand in one, since anybody can put a file or a symlink there.
    """
    is_own_group = is_own_group or (lambda path, gid: _is_own_group(path, gid, uid))
    for path in (file, *file.parents):
        found = read_stat(path)
        if found.st_uid not in (0, uid):
            return f"{path} belongs to {_user_name(found.st_uid)}"
        is_kept = found.st_mode & stat.S_ISVTX and path not in (file, file.parent)
        if found.st_mode & _EVERYBODY and not is_kept:
            return f"every user can write {path}"
        if found.st_mode & _GROUP and not is_kept and not is_own_group(path, found.st_gid):
            return f"group {_group_name(found.st_gid)} can write {path}"
        if path == home:
            break
    return ""


def refuse_strange_folder(folder: Path) -> None:
    """Raise UsageError for a log directory that somebody made where everybody can, such as /tmp/logs.

    Its owner could replace what a run writes there by symlinks to this user's files. A directory that a colleague made
    in a project of a group is no such case: its members can change the script as well.
    """
    try:
        owners = {folder.stat().st_uid, folder.lstat().st_uid} - {0, os.geteuid()}
        places = [folder.parent, folder.resolve().parent]
        is_anybodys = any(place.stat().st_mode & _EVERYBODY for place in places)
    except OSError:
        return  # not there yet, or what is wrong is said when it is used
    if owners and is_anybodys:
        raise UsageError(
            f"{folder} belongs to {_user_name(owners.pop())} and is in a directory that every user can write",
            "name another with --log-dir",
        )


def _is_own_group(path: Path, gid: int, uid: int) -> bool:
    """Tell whether a group has this user alone: with one group per user the umask is 002, and all is group-writable.

    Debian's sshd has the same exception (user-group-modes.patch). It asks for all accounts, which a directory service
    may refuse to list; a primary group of the user's own name is what useradd makes.
    """
    try:
        account, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    is_alone = account.pw_gid == gid and group.gr_name == account.pw_name and {*group.gr_mem} <= {account.pw_name}
    return is_alone and not _has_acl(path)


def _has_acl(path: Path) -> bool:
    """Tell whether the mode's group bits stand for a list of users and groups (acl(5))."""
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except (AttributeError, OSError):  # not on macOS; a file system without them
        return False


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
