"""Find who else can write a file that was found, not named: `launch` uses it only if no one but the user and root can.

The models are OpenSSH's StrictModes, which checks the file and each directory above it (secure_permissions and
safe_path in misc.c), and git's safe.directory, which checks the owner.
A file that is named on the command line isn't checked, as with `ssh -F FILE`.

For root, a file in a user's directory belongs to another user, also under sudo: the user who runs sudo may not have
written the file. So does a file that NFS's root squash shows as owned by nobody.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from launcher.errors import UsageError
from launcher.escapes import one_line

Entry = TypeVar("Entry", pwd.struct_passwd, grp.struct_group)
_MAX_NAME = 100  # characters
_GROUP, _EVERYBODY = stat.S_IWGRP, stat.S_IWOTH


def show_path(path: Path) -> str:
    """Return a path as part of one line: another user may have chosen a name with a newline in it."""
    text = str(path)
    return text if text.isprintable() else repr(text)


def find_other_writer(
    file: Path,
    uid: int,
    *,
    read_stat: Callable[[Path], os.stat_result] = os.stat,
    is_own_group: Callable[[Path, int], bool] | None = None,
) -> str | None:
    """Return who else can write `file`, a path without symlinks; None if only this user and root can.

    Each directory above it counts too, up to one that root owns: whoever can write one can replace the rest. Root
    checks all of them.
    In a sticky directory such as /tmp no user can replace another's files, so the user's own directories in it are
    safe; the file itself must not be in one, since anybody can put a file or a symlink there.
    """
    is_own_group = is_own_group or (lambda path, gid: _is_own_group(path, gid, uid))
    for path in (file, *file.parents):
        found = read_stat(path)
        if found.st_uid not in (0, uid):
            return f"{show_path(path)} belongs to {_user_name(found.st_uid)}"
        is_kept = found.st_mode & stat.S_ISVTX and path not in (file, file.parent)
        if found.st_mode & _EVERYBODY and not is_kept:
            return f"every user can write {show_path(path)}"
        if found.st_mode & _GROUP and not is_kept and not is_own_group(path, found.st_gid):
            return f"group {_group_name(found.st_gid)} can write {show_path(path)}"
        if path != file and found.st_uid == 0 != uid:
            break
    return None


def refuse_strange_folder(folder: Path) -> None:
    """Raise UsageError for a log directory that another user made where every user can, such as /tmp/logs.

    Its owner could replace the run's files there with symlinks to this user's files. A directory that a colleague made
    in a group's project is accepted: the group's members can change the script as well.
    """
    try:
        owners = {folder.stat().st_uid, folder.lstat().st_uid} - {0, os.geteuid()}
        places = [folder.parent, folder.resolve().parent]
        is_anybodys = any(place.stat().st_mode & _EVERYBODY for place in places)
    except OSError:
        return  # not there yet; other errors are reported when it is used
    if owners and is_anybodys:
        owner = _user_name(owners.pop())
        text = f"{show_path(folder)} belongs to {owner} and is in a directory that every user can write"
        raise UsageError(text, "name another with --log-dir")


def _is_own_group(path: Path, gid: int, uid: int) -> bool:
    """Tell whether a group has only this user: with one group per user the umask is 002, so all is group-writable.

    Debian's sshd has the same exception (user-group-modes.patch). It lists all accounts, which a directory service
    may refuse; useradd makes a primary group with the user's own name. In a container that was started with only
    numbers (`docker run --user 1234:1234`), neither has a name.
    """
    account, group = _find(pwd.getpwuid, uid), _find(grp.getgrgid, gid)
    if account is None and group is None:
        is_alone = gid == os.getegid()
    elif account is None or group is None:
        return False
    else:
        is_alone = account.pw_gid == gid and group.gr_name == account.pw_name and {*group.gr_mem} <= {account.pw_name}
    return is_alone and not _has_acl(path)


def _find(look_up: Callable[[int], Entry], number: int) -> Entry | None:
    try:
        return look_up(number)
    except KeyError:
        return None


def _has_acl(path: Path) -> bool:
    """Tell whether the mode's group bits are the mask of an access control list (acl(5))."""
    try:
        return hasattr(os, "listxattr") and "system.posix_acl_access" in os.listxattr(path)  # macOS has no such lists
    except OSError:  # a file system without them
        return False


def _user_name(uid: int) -> str:
    account = _find(pwd.getpwuid, uid)
    return one_line(account.pw_name, _MAX_NAME) if account is not None else f"uid {uid}"


def _group_name(gid: int) -> str:
    group = _find(grp.getgrgid, gid)
    return one_line(group.gr_name, _MAX_NAME) if group is not None else str(gid)
