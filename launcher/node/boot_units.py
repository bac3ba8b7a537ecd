"""Start a program of this user after every boot of this node, until it is removed.

A unit of systemd's user manager does that if the user lingers, since only then the manager starts at boot; elsewhere a
line `@reboot` in the user's crontab does. Both run a file that only this user can read: it may hold secrets.

The home directory may be that of all nodes. So the names of unit and file say for whom they are, the unit has a
condition, and the file waits until this node has its name: nodes that were made from one image have one machine id. A
crontab is on a disk of the node itself.
"""

from __future__ import annotations

import fcntl
import glob
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from typing import Iterator, List, Optional, Tuple

from launcher.node.own_folders import make_own
from launcher.node.processes.run_owner import is_locked
from launcher.node.system import machine_id, read_text

_DAEMONS = ("cron", "crond", "fcron")  # what they call themselves
_ANSWER_S = 10.0  # for each program that is asked
_LOCK_S = 10.0  # for another process of this user that changes the crontab
_KEPT_S = 30 * 86400.0  # a lock whose program was killed, or whose host lost power
_MOST_KILLS = 20
_NAME_S = 60  # until the network has given this node its name
_TOOLS = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"  # besides PATH
_NAME = r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)+"
_UNIT_NAME = re.compile("launch-(%s)\\.service" % _NAME)
_FILE_NAME = re.compile("(%s)\\.py" % _NAME)
_LINE = re.compile(("@reboot .* # launch (%s)\\s*" % _NAME).encode())
_NOT_BOOTED = "System has not been booted with systemd"  # sd_booted(3)
_NO_CRONTAB = "no crontab for "
# A process of the run may be killed for want of memory: the others are the run's to stop. What has ended by itself,
# which is with 0, is not started again before the next boot.
_UNIT = """\
# Made by launch --survive-reboots, which removes it when the run has ended.
[Unit]
Description=launch %(name)s
ConditionHost=%(host)s
StartLimitIntervalSec=3600
StartLimitBurst=5

[Service]
ExecStart=%(command)s
OOMPolicy=continue
TasksMax=infinity
Restart=on-abnormal
RestartSec=5

[Install]
WantedBy=default.target
"""
_FILE = """\
# %(node)s: made by launch --survive-reboots, which removes it when the run has ended
import os, time
for _ in range(%(seconds)d):
    if os.uname().nodename == %(node)r:
        break
    time.sleep(1)
else:
    os._exit(0)  # another node with the same machine id
"""


def install(name: str, program: str) -> str:
    """Run a program, which is source, after every boot; return why that is not possible, or "".

    name: `RUN.WORD`, or of more words. Its standard streams may be anything, and its environment is that of a boot.
    """
    try:
        _write_file(name, program)
    except OSError as error:
        return "can't write %s: %s" % (error.filename or find_file(name), error.strerror)
    reasons = []
    for try_to_install in (_install_unit, _install_line):
        why = try_to_install(name)
        if not why:
            return ""
        reasons.append(why)
    remove(name)
    return ", and ".join(reasons)


def remove(name: str) -> str:
    """Remove all that `install` has made for this name; return what could not be removed, and why, or ""."""
    units = _unit_files(name)
    may_have_line = os.path.lexists(find_file(name)) and not any(map(os.path.lexists, units))
    why = _change_crontab(name, None)  # many sites let nobody use it
    reasons = [why if may_have_line else "", *map(_unlink, [*units, *_program_files(name)])]
    return "; ".join(filter(None, reasons))


def end(name: str) -> str:
    """Kill what holds the lock of a name, since its run has ended elsewhere, and do what `remove` does."""
    for _ in range(_MOST_KILLS):
        pids = sorted(_find_holders(find_lock(name)))  # a parent, which would start it again, is mostly the first
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # it has just ended
                pass
        if not pids:
            break
        time.sleep(0.05)
    _unlink(find_lock(name))
    return remove(name)


def _find_holders(lock: str) -> Iterator[int]:
    """Yield the other processes that have a file open."""
    for path in glob.iglob("/proc/[0-9]*/fd/*"):
        try:
            is_open = os.readlink(path) == lock
        except OSError:  # it was closed, or is another user's
            continue
        pid = int(path.split("/")[2])
        if is_open and pid != os.getpid():
            yield pid


def find() -> List[str]:
    """Return the names for which this node has a unit, a line or a file."""
    return sorted({*_read_units(), *_read_lines(), *_read_files()})


def is_running(name: str) -> bool:
    """Tell whether the program of a name runs, which holds the lock."""
    return is_locked(find_lock(name), is_shared=False) is True


def find_lock(name: str) -> str:
    """Return the path of the lock that the program of a name holds."""
    return os.path.join(_find_state(), "%s.lock" % name)


class Lock:
    """The lock of a name, which one program at most holds, however many are started.

    It is that of an open file, so the parent of a program shares it with the one that it starts again, and the kernel
    releases it with the last of them. Without a disk that takes it there is none, which is no reason not to start.
    """

    def __init__(self, path: str = "", fd: int = -1) -> None:
        self._path = path
        self._fd = fd

    def release(self) -> None:
        """Remove the file, and with it the lock."""
        if self._fd >= 0:
            _unlink(self._path)
            os.close(self._fd)
            self._fd = -1


def take_lock(name: str) -> Optional[Lock]:
    """Return the lock, or None if another process holds it."""
    path, folder = find_lock(name), _find_state()
    try:
        make_own(os.path.dirname(folder))
        make_own(folder)
        _remove_old_locks(folder)
        while True:
            fd = _lock(path, os.O_CREAT)
            if fd is None:
                return None
            if os.path.exists(path) and os.path.samestat(os.fstat(fd), os.stat(path)):
                return Lock(path, fd)
            os.close(fd)  # its holder has just removed it
    except OSError:
        return Lock()


def _lock(path: str, flags: int = 0) -> Optional[int]:
    """Open and lock a file; None: another process has locked it. Raise OSError if it can't be locked."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return fd


def _remove_old_locks(folder: str) -> None:
    """Remove those of programs that were killed long ago; one that is locked belongs to a long run."""
    for path in glob.glob(os.path.join(glob.escape(folder), "*.lock")):
        try:
            fd = _lock(path) if time.time() - os.lstat(path).st_mtime > _KEPT_S else None
        except OSError:
            continue
        if fd is not None:
            _unlink(path)
            os.close(fd)


def find_file(name: str) -> str:
    """Return the path of the file that is run."""
    return os.path.join(_find_state(), "%s.py" % name)


def _program_files(name: str) -> Tuple[str, str]:
    """Return the path of the file that is run, and of one that is being written."""
    return find_file(name), find_file(name) + ".new"


def _find_state() -> str:
    """Return the directory of files and locks, as launcher.runs.state_home finds that of this user."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "launch", "agents")


def _write_file(name: str, program: str) -> None:
    """Write the file so that it appears whole, in a directory in which nobody else can put another one."""
    path, fresh = _program_files(name)
    make_own(os.path.dirname(path))
    begin = _FILE % {"node": os.uname().nodename, "seconds": _NAME_S}
    _unlink(fresh)
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(begin + program)
        os.rename(fresh, path)
    except OSError:
        _unlink(fresh)
        raise


def _unlink(path: str) -> str:
    """Remove a file; return why that is not possible, or ""."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        return "can't remove %s: %s" % (path, error.strerror)
    return ""


def _read_files() -> Iterator[str]:
    begin = "# %s: " % os.uname().nodename
    for name, path in _list(_find_state(), _FILE_NAME):
        if read_text(path, len(begin)) == begin:
            yield name


def _list(folder: str, pattern: re.Pattern[str]) -> Iterator[Tuple[str, str]]:
    """Yield what of a file's name is before its ending, and its path."""
    try:
        entries = os.listdir(folder)
    except OSError:
        return
    for entry in entries:
        match = pattern.fullmatch(entry)
        if match:
            yield match.group(1), os.path.join(folder, entry)


def find_command(name: str) -> List[str]:
    """Return the command that a boot runs."""
    return [sys.executable, "-X", "utf8", "-IS", find_file(name)]


# ---- systemd ---------------------------------------------------------------------------------------------------------


def _install_unit(name: str) -> str:
    """Make and enable a unit; return why that is not possible, or ""."""
    code, told, error_text = _ask("loginctl", "show-user", str(os.geteuid()), "--property=Linger")
    if code is None or error_text.startswith(_NOT_BOOTED):
        return "no systemd"
    if code != 0:
        return "loginctl: %s" % error_text
    if told.strip() != b"Linger=yes":
        return "this user doesn't linger"
    try:
        text = unit_text(name)
    except ValueError as error:
        return str(error)
    unit, _ = _unit_files(name)
    try:
        # With a umask of 002, the group could otherwise let this user run something else.
        make_own(_find_units())
        with open(os.open(unit, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        return "can't write %s: %s" % (error.filename or unit, error.strerror)
    code, _, error_text = _ask("systemctl", "--user", "--quiet", "enable", os.path.basename(unit))
    if code == 0:
        return ""
    for each in _unit_files(name):
        _unlink(each)
    return "systemctl --user: %s" % error_text


def _find_host() -> str:
    """Return what of this node a unit's condition can name: the machine id, unless there is none, as in containers."""
    found = machine_id() or ""
    return found if re.fullmatch("[0-9a-f]{32}", found) else os.uname().nodename


def unit_text(name: str) -> str:
    """Return the unit of a name; raise ValueError if a unit can't name its file."""
    command = " ".join(map(_quote_for_unit, find_command(name)))
    host = _find_host()
    return _UNIT % {"name": name.replace("%", "%%"), "host": host, "command": command}


def _quote_for_unit(word: str) -> str:
    """Quote a word of ExecStart (systemd.service(5)), in which the path of a program can't have a dollar sign."""
    if "$" in word or not word.isprintable():
        raise ValueError("a unit of systemd can't name %r" % word)
    return '"%s"' % word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def _unit_files(name: str) -> Tuple[str, str]:
    """Return the paths of a unit and of the link that enables it, which needs no manager to be removed."""
    unit = "launch-%s.service" % name
    return os.path.join(_find_units(), unit), os.path.join(_find_units(), "default.target.wants", unit)


def _find_units() -> str:
    """Return where the manager finds units: its environment has no XDG_CONFIG_HOME of a login's rc files."""
    return os.path.join(os.path.expanduser("~"), ".config", "systemd", "user")


def _read_units() -> Iterator[str]:
    condition = "ConditionHost=%s" % _find_host()
    for name, path in _list(_find_units(), _UNIT_NAME):
        if condition in read_text(path, 4096).splitlines() and _is_of_this_node(name):
            yield name


def _is_of_this_node(name: str) -> bool:
    """Tell whether a unit's file is of this node, or missing: another one may have the same machine id."""
    path = find_file(name)
    return not os.path.lexists(path) or read_text(path, 300).startswith("# %s: " % os.uname().nodename)


# ---- cron ------------------------------------------------------------------------------------------------------------


def _install_line(name: str) -> str:
    """Add a line to the crontab; return why that is not possible, or ""."""
    if not _sees_cron():
        return "no cron daemon"
    # A percent sign ends a command of cron; some shells have no comments there, and the program ignores its words.
    command = shlex.join(find_command(name)).replace("%", "\\%")
    if not command.isprintable():
        return "crontab can't name %r" % find_file(name)
    return _change_crontab(name, "@reboot %s # launch %s\n" % (command, name))


def _sees_cron() -> bool:
    """Tell whether a daemon serves crontabs, or may, where others' processes can't be seen."""
    if not os.path.exists("/proc/1"):
        return True
    return any(read_text("/proc/%s/comm" % pid, 64).strip() in _DAEMONS for pid in os.listdir("/proc") if pid.isdigit())


def _change_crontab(name: str, line: Optional[str]) -> str:
    """Replace the line for a name, and leave all others as they are; return why that is not possible, or ""."""
    lock = _lock_crontab()
    try:
        before, why = _read_crontab()
        if before is None:
            return why
        lines = [each for each in before.splitlines(keepends=True) if _name_of(each) != name]
        if line is not None:
            if lines and not lines[-1].endswith(b"\n"):
                lines[-1] += b"\n"
            lines.append(line.encode())
        after = b"".join(lines)
        if after == before:
            return ""
        code, _, error_text = _ask("crontab", "-", data=after) if after else _ask("crontab", "-r")
        return "" if code == 0 else "crontab: %s" % error_text
    finally:
        if lock is not None:
            os.close(lock)


def _lock_crontab() -> Optional[int]:
    """Wait until no other program of launch's changes the crontab; a directory that can't be written is no obstacle."""
    try:
        lock = os.open(os.path.join(_find_state(), "crontab.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    deadline = time.monotonic() + _LOCK_S
    while time.monotonic() < deadline:  # on a directory of all nodes, one that has lost power may hold it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(0.05)
        except OSError:  # a file system without locks
            break
    return lock


def _read_crontab() -> Tuple[Optional[bytes], str]:
    """Return the user's crontab, or None and why it can't be read, which is no reason to think it empty."""
    code, text, error_text = _ask("crontab", "-l")
    if code is None:
        return None, "no crontab program"
    if code and error_text.startswith(_NO_CRONTAB):
        return b"", ""
    return (text, "") if code == 0 else (None, "crontab: %s" % error_text)


def _read_lines() -> Iterator[str]:
    text, _ = _read_crontab()
    yield from filter(None, map(_name_of, (text or b"").splitlines()))


def _name_of(line: bytes) -> str:
    match = _LINE.fullmatch(line)
    return match.group(1).decode() if match else ""


# ---- programs --------------------------------------------------------------------------------------------------------


def _ask(*argv: str, data: bytes = b"") -> Tuple[Optional[int], bytes, str]:
    """Run a program; return its exit code, its output and its first error; None if there is no such program."""
    env = {**os.environ, "LC_ALL": "C", "PATH": "%s:%s" % (os.environ.get("PATH", ""), _TOOLS)}
    if "XDG_RUNTIME_DIR" not in env:  # a login without pam_systemd has none
        env["XDG_RUNTIME_DIR"] = "/run/user/%d" % os.geteuid()
    try:
        done = subprocess.run(argv, input=data, capture_output=True, env=env, timeout=_ANSWER_S)
    except subprocess.TimeoutExpired:
        return 1, b"", "no answer in %g s" % _ANSWER_S
    except OSError:
        return None, b"", ""
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return done.returncode, done.stdout, lines[0].strip()[:200] if lines else "exit code %d" % done.returncode
