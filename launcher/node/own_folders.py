"""Make directories that only this user can fill or replace: the code in them is run.

Another user could put other code there in three ways: by writing to such a directory, by renaming it, or one above it,
or by making it first where everybody may. So every level is looked at from the root on: whoever may change one level
could replace all that is below it. Once all levels above are safe, nobody else can swap the next one between the look
at it and its use.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat

_ACL = "system.posix_acl_access"  # without one, the mode says which group may write


def make_own(path: str) -> None:
    """Make a directory with mode 0700, and those above it that are missing; one that is there gets this mode.

    path: absolute. Raise OSError if that fails, or another user may replace it or write there; root may. What was made
    by then where another user may is empty, and nobody uses it.
    """
    _make(os.path.realpath(path))
    _refuse_others(path, is_private=True)


def refuse_others(path: str) -> None:
    """Raise OSError if others may write to a directory, or could replace it, or one above it."""
    os.stat(path)  # refuses links that lead round in a circle
    _refuse_others(os.path.abspath(path))


def _make(path: str) -> None:
    if os.path.exists(path + "/."):  # to look there mounts what is to be mounted there
        return
    _make(os.path.dirname(path))
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):  # else another process was faster
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None


def _refuse_others(path: str, *, is_private: bool = False) -> None:
    """Look at each level from the root on, and at those above the target of a link before it is followed.

    is_private: the last one is to be this user's: it may be there from before, with a umask of 002.
    """
    above = os.path.dirname(path)
    if above != path:
        _refuse_others(above)
    found = os.lstat(path)
    # Root may replace everything, and so may whoever root is in this user namespace.
    if found.st_uid not in (os.geteuid(), 0) and found.st_uid != os.lstat("/").st_uid:
        raise OSError(errno.EPERM, "it belongs to user %s, who could replace what is there" % _name_owner(found), path)
    if stat.S_ISLNK(found.st_mode):
        _refuse_others(os.path.join(above, os.readlink(path)), is_private=is_private)
        return
    if is_private and found.st_mode & 0o077:
        os.chmod(path, 0o700)
        found = os.lstat(path)
    is_open = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_own_group(path, found.st_gid))
    if is_open and not found.st_mode & stat.S_ISVTX:
        text = "others may write to it (mode %04o), and could replace what is there" % stat.S_IMODE(found.st_mode)
        raise OSError(errno.EPERM, text, path)


def _is_own_group(path: str, group: int) -> bool:
    """Tell whether only this user, or root, is in a directory's group, as where a umask of 002 is the default."""
    if group == os.lstat("/").st_gid:
        return not _has_acl(path)
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    is_own = user.pw_gid == group and found.gr_name == user.pw_name and not set(found.gr_mem) - {user.pw_name}
    return is_own and not _has_acl(path)


def _has_acl(path: str) -> bool:
    """Tell whether the mode's bits of the group stand for a list that may name others."""
    try:
        return bool(os.getxattr(path, _ACL))
    except (AttributeError, OSError):  # macOS has none
        return False


def _name_owner(found: os.stat_result) -> str:
    try:
        return pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        return str(found.st_uid)
