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

_MOST_LINKS = 40  # as the kernel has it
_ACL = "system.posix_acl_access"  # without one, the mode says which group may write


def make_own(path: str) -> None:
    """Make a directory with mode 0700, and those above it that are missing; one that is there gets this mode.

    path: absolute. Raise OSError if that fails, or another user may replace it or write there; root may.
    """
    place, links = "", 0
    names = _split(path)
    while names:
        name = names.pop(0)
        if name == "..":
            place = os.path.dirname(place)
            continue
        here = place.rstrip("/") + "/" + name
        if not os.path.exists(here + "/."):  # to look there mounts what is to be mounted there
            try:
                os.mkdir(here, 0o700)
            except FileExistsError:
                pass
        found = os.lstat(here)
        _refuse_owner(here, found)
        if stat.S_ISLNK(found.st_mode):
            target, links = os.readlink(here), links + 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            place, names = "/" if target.startswith("/") else place, [*_split(target), *names]
            continue
        if not stat.S_ISDIR(found.st_mode):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), here)
        if not names:
            found = _make_private(here, found)
        _refuse_writers(here, found)
        place = here


def refuse_writers(path: str) -> None:
    """Raise OSError if others may write to a directory, or to one above it, and could replace what is there."""
    place = os.path.abspath(path)
    _refuse_writers(place, os.stat(place))
    if os.path.islink(place):
        refuse_writers(os.path.realpath(place))
    if place != "/":
        refuse_writers(os.path.dirname(place))


def _split(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _make_private(path: str, found: os.stat_result) -> os.stat_result:
    """Give a directory that is to be this user's its mode: it may be there from before, with a umask of 002."""
    if found.st_uid != os.geteuid():
        raise OSError(errno.EPERM, "it belongs to user %s" % _name_owner(found), path)
    if found.st_mode & 0o077:
        os.chmod(path, 0o700)
        found = os.lstat(path)
    return found


def _refuse_owner(path: str, found: os.stat_result) -> None:
    """Refuse what belongs to anybody but this user, root, and whoever root is in this user namespace."""
    if found.st_uid not in (os.geteuid(), 0) and found.st_uid != os.lstat("/").st_uid:
        raise OSError(errno.EPERM, "it belongs to user %s, who could replace what is there" % _name_owner(found), path)


def _refuse_writers(path: str, found: os.stat_result) -> None:
    """Refuse a directory in which others may rename what isn't theirs."""
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
