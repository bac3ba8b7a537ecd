"""Claims on the GPUs of a box: files that all its users share, in a directory of the system.

Who wants GPUs makes a file of its own there, holds a lock on it, and then looks for files of others that are older. So
nobody writes what another one reads first, and nothing is left to be agreed upon:

- Only the owner can hold the write lock, since only the owner may open the file for writing, and the lock was there
  before anybody else could open it. The kernel releases it when the holder dies.
- Only the owner can remove it, since the directory is sticky and belongs to root. No name is known beforehand, so
  nobody can take it first.
- Its age is its ctime, which nobody can set, and which `rename` sets under the lock of the directory that listing it
  takes, too. Once the clock has gone on since then, a file that a look did not show is younger (`Claim.is_settled`).

What the file says is its owner's word: it may name any run, but its user is the owner of the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import time

from launcher.node import fast_json, messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, Mapping, Sequence

    from launcher.node.loop import Loop, Timer
    from launcher.node.send_queue import SendQueue

UNUSED_S = 60.0  # after it a claim counts only while its holder has a child: ranks
MOST_RESERVED_S = 600.0  # for the next attempt of a run
_CPUS = "cpus"
_SETTLING_S = 0.002
_MOST_SETTLING_S = 1.0
_LOOK_S = 5.0  # for runs that have started on GPUs of this one
_PLACES = ("/run/lock", "/var/lock", "/tmp")
_SHARED_DISKS = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "9p", "glusterfs", "afs")
_PREFIX = "launch-claim-"
_NEW = "launch-new-"  # nobody looks at these
_MOST_BYTES = 4096
_MOST_LETTERS = 100
_MOST_PARTS = 1024
_MOST_SECONDS = 1e11
_MOST_OF_A_USER = 64
_COARSE_CLOCK = 5  # CLOCK_REALTIME_COARSE, which file systems read
_FLOCK = struct.Struct("hhqqi")  # struct flock of 64-bit Linux


class Claim:
    """A claim, as anybody on the box may read it; all but `uid` and `order` is its owner's word."""

    __slots__ = ("is_reserved", "is_shared", "name", "order", "parts", "run", "since", "uid", "until")

    def __init__(self, uid: int, order: tuple[int, str], values: dict[str, Any], *, is_reserved: bool) -> None:
        """Raise ValueError, TypeError or KeyError for values of another form."""
        self.uid = uid
        self.order = order  # the oldest first
        self.run = _text(values["run"])
        self.name = _text(values.get("name") or "")
        parts, since = values["parts"], values["since"]
        if not isinstance(parts, list) or not 0 <= since <= _MOST_SECONDS:  # nor NaN
            raise ValueError("no list, or no time")
        self.parts = frozenset(map(_text, parts[:_MOST_PARTS]))  # keys of GPUs, and _CPUS
        self.since = float(since)  # seconds since 1970
        self.until: float | None = None  # seconds since 1970: when it will be stopped
        until = values.get("until")
        if isinstance(until, (int, float)) and 0 <= until <= _MOST_SECONDS:
            self.until = float(until)
        self.is_shared = values.get("is_shared") is True  # its run was started on claimed GPUs by --share
        self.is_reserved = is_reserved  # for the next attempt of its run

    def as_fields(self, numbers: Mapping[str, int]) -> dict[str, Any]:
        """Return what a message says of it; numbers: of this node's GPUs, by key."""
        import pwd

        try:
            user = pwd.getpwuid(self.uid).pw_name[:_MOST_LETTERS]
        except KeyError:
            user = str(self.uid)
        return {
            "user": user, "run": self.run, "name": self.name or None, "since": self.since,
            "gpus": sorted(numbers[part] for part in self.parts if part in numbers),
            "is_of_cpus": _CPUS in self.parts, "is_shared": self.is_shared, "is_reserved": self.is_reserved,
            "until": self.until,
        }  # fmt: skip


def find_directory() -> str | None:
    """Return the directory of claims, the same for every user of this box; None if it has none.

    It belongs to root, everybody may write there, only owners may remove, and it is on a disk of this box.
    """
    for place in _PLACES:
        try:
            found = os.stat(place)
        except OSError:
            continue
        is_open = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX and found.st_mode & stat.S_IWOTH
        if is_open and found.st_uid == 0 and not _is_on_network(found.st_dev):
            return os.path.realpath(place)
    return None


def _is_on_network(device: int) -> bool:
    number = "%d:%d" % (os.major(device), os.minor(device))
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return False
    kinds = [line.partition(" - ")[2].split(" ")[0] for line in lines if line.split(" ")[2] == number]
    return any(kind in _SHARED_DISKS or kind.startswith("fuse.") for kind in kinds)


class OwnClaim:
    """A claim of this process; it ends with it.

    Only one object has the file open. Whoever opens and closes it again in this process ends the lock: `read_claims`
    leaves it out.
    """

    def __init__(self, directory: str, values: dict[str, Any]) -> None:
        """Make it known; raise OSError if that fails, such as on a full disk.

        values: see `Claim`.
        """
        name = os.urandom(8).hex()
        self.values = values
        self._directory = directory
        self.path = os.path.join(directory, _PREFIX + name)
        new = os.path.join(directory, _NEW + name)
        self._fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write(values)
            os.fchmod(self._fd, 0o644)
            os.rename(new, self.path)
        except BaseException:
            os.close(self._fd)
            _unlink(new)
            raise
        status = os.fstat(self._fd)
        self.order = _order(status, self.path)
        self.place = status.st_dev, status.st_ino
        self._made_at = time.monotonic()

    @property
    def fd(self) -> int:
        """The descriptor that holds the lock."""
        return self._fd

    @property
    def is_settled(self) -> bool:
        """Whether all that may be older can be seen by now; it takes the kernel's clock a few milliseconds.

        A clock that was set back delays a start for no longer than a moment.
        """
        is_late = time.monotonic() - self._made_at > _MOST_SETTLING_S
        return is_late or int(time.clock_gettime(_COARSE_CLOCK) * 1e9) > self.order[0]

    def _write(self, values: dict[str, Any]) -> None:
        data = fast_json.dumps(values).encode()
        if len(data) > _MOST_BYTES:
            raise OSError(errno.EFBIG, "a claim of %d bytes" % len(data), self.path)
        os.pwrite(self._fd, data, 0)  # all at once, and it only grows: nobody reads half of it

    def find_others(self) -> list[Claim]:
        """Return the claims of other runs on the same GPUs; `order` tells whose is older."""
        own, parts = (os.geteuid(), self.values["run"]), frozenset(self.values["parts"])
        claims = read_claims(self._directory, own=(self,))
        return [claim for claim in claims if claim.parts & parts and (claim.uid, claim.run) != own]

    def end(self, reserve_s: float = 0.0) -> None:
        """End it after that time, also without this process, or at once; the run's next attempt may take it over."""
        try:
            if reserve_s > 0:
                self._write(dict(self.values, reserved_s=min(reserve_s, MOST_RESERVED_S)))
            else:
                _unlink(self.path)
        except OSError:  # a full disk
            _unlink(self.path)
        os.close(self._fd)


def read_claims(directory: str, own: Sequence[OwnClaim] = ()) -> list[Claim]:
    """Return all claims that count, the oldest first.

    own: what this process holds, which is left out. A file that its owner makes or removes meanwhile may be missing.
    """
    skipped = {claim.place for claim in own}  # by whatever name
    found: dict[int, list[tuple[tuple[int, str], str]]] = {}
    for path in _list(directory, _PREFIX):
        try:
            status = os.lstat(path)
        except OSError:
            continue
        is_file = stat.S_ISREG(status.st_mode) and status.st_size <= _MOST_BYTES
        if is_file and (status.st_dev, status.st_ino) not in skipped:
            found.setdefault(status.st_uid, []).append((_order(status, path), path))
    claims = [
        claim
        for places in found.values()
        for order, path in sorted(places)[:_MOST_OF_A_USER]
        for claim in _read(path, order)
    ]
    return sorted(claims, key=lambda claim: claim.order)


def remove_old(directory: str, run: str | None = None, own: Sequence[OwnClaim] = ()) -> None:
    """Remove this user's files whose holders have died, and what is reserved for a run that has taken it over.

    run: the one that has. own: what this process holds, which stays.
    """
    kept = {claim.place for claim in own}
    for path in [*_list(directory, _PREFIX), *_list(directory, _NEW)]:
        try:
            status = os.lstat(path)
            is_mine = status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode)
            if not is_mine or (status.st_dev, status.st_ino) in kept:
                continue
            is_new = time.time() - status.st_ctime < UNUSED_S
            if os.path.basename(path).startswith(_NEW):
                if not is_new:
                    _unlink(path)
                continue
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            if _find_holder(fd) is None:
                values = _parse(os.read(fd, _MOST_BYTES + 1))
                is_over = values is None or values.get("run") == run or not _is_reserved(values, os.fstat(fd))
                if is_over:
                    _unlink(path)
        finally:
            os.close(fd)


def _list(directory: str, prefix: str) -> Iterator[str]:
    try:
        names = os.listdir(directory)
    except OSError:
        names = []
    return (os.path.join(directory, name) for name in names if name.startswith(prefix))


def _read(path: str, order: tuple[int, str]) -> list[Claim]:
    """Return the claim of a file, if it counts."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        status = os.fstat(fd)
        holder = _find_holder(fd)
        values = _parse(os.read(fd, _MOST_BYTES + 1))
        if values is None:
            return []
        is_reserved = holder is None and _is_reserved(values, status)
        if holder is None and not is_reserved:
            return []
        claim = Claim(status.st_uid, order, values, is_reserved=is_reserved)
        is_new = time.time() - status.st_ctime < UNUSED_S
        return [claim] if holder is None or is_new or _has_child(holder) else []
    except (OSError, ValueError, TypeError, KeyError):
        return []
    finally:
        os.close(fd)


def _find_holder(fd: int) -> int | None:
    """Return the process id of who holds the write lock, 0 if it can't be seen here, and None if nobody does."""
    asked = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    try:
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    except OSError:  # a file system without locks
        return 0
    return None if kind == fcntl.F_UNLCK else int(pid)  # -1 for a lock of another kind, which launch doesn't take


def _has_child(pid: int) -> bool:
    """Tell whether a process, of one thread, has a child, or nobody can know: it is hidden, or in another namespace."""
    if pid == 0:
        return True
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid), "rb") as file:
            return bool(file.read(1))
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN, or a process that is hidden
        return pid > 0


def _is_reserved(values: dict[str, Any], status: os.stat_result) -> bool:
    seconds = values.get("reserved_s")
    if not isinstance(seconds, (int, float)):
        return False
    return time.time() - status.st_ctime < min(seconds, MOST_RESERVED_S)


def _parse(data: bytes) -> dict[str, Any] | None:
    try:
        values = fast_json.loads(data.decode())
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MOST_LETTERS:
        raise ValueError("no short text")
    return value


def _order(status: os.stat_result, path: str) -> tuple[int, str]:
    return status.st_ctime_ns, os.path.basename(path)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


# ---- for a run -------------------------------------------------------------------------------------------------------


class ClaimHolder:
    """Claims GPUs of this node for an attempt of a run, and watches who else starts on them."""

    def __init__(
        self, loop: Loop, send_queue: SendQueue, gpus: Sequence[Mapping[str, Any]], own: OwnClaim | None = None
    ) -> None:
        """gpus: of this node, as it reports them; own: of the attempt before, on the same connection."""
        self._loop = loop
        self._send_queue = send_queue
        self._keys = {gpu["index"]: _find_key(gpu) for gpu in gpus}
        self._numbers = {key: index for index, key in self._keys.items()}
        self._own = own
        self._lost_reserve_s = 0.0
        self._timer: Timer | None = None
        self._told: set[tuple[int, str]] = set()

    @property
    def own(self) -> OwnClaim | None:
        """What is held."""
        return self._own

    def answer(self, header: Mapping[str, Any]) -> None:
        """Serve a CLAIM."""
        directory = find_directory()
        if directory is None:
            self._send([], "there is no directory that all its users share")
        elif header["is_look"]:
            self._send(read_claims(directory))
        else:
            self._claim(directory, header)

    def _claim(self, directory: str, header: Mapping[str, Any]) -> None:
        self._lost_reserve_s = header["lost_reserve_s"]
        parts = [self._keys[index] for index in header["gpus"] if index in self._keys]
        if header["cpus"]:
            parts = [_CPUS, *self._numbers]
        values = {"run": header["run"], "name": header["name"], "since": header["since"], "parts": parts}
        values.update(is_shared=header["shares"], until=header["until"])
        # A better guess of its end is no reason to lose its place among others.
        if self._own is not None and self._own.values != dict(values, until=self._own.values["until"]):
            self._own.end()
            self._own = None
        remove_old(directory, own=() if self._own is None else (self._own,))  # of a user only so many count
        try:
            self._own = self._own or OwnClaim(directory, values)
        except OSError as error:
            self._send([], "%s: %s" % (directory, error.strerror))
            return
        self._settle(directory, header)

    def _settle(self, directory: str, header: Mapping[str, Any]) -> None:
        own = self._own
        assert own is not None  # until `end`, which cancels this
        if not own.is_settled:
            self._timer = self._loop.call_later(_SETTLING_S, lambda: self._settle(directory, header))
            return
        rivals = [claim for claim in own.find_others() if claim.order < own.order]
        if header["continues"]:  # who shares its GPUs with it came after it
            rivals = [claim for claim in rivals if not claim.is_shared]
        if rivals and not header["shares"]:
            self.end(0.0)
        else:
            remove_old(directory, own.values["run"], own=(own,))
            self._told = {(claim.uid, claim.run) for claim in rivals}
            self._timer = self._loop.call_later(_LOOK_S, self._look)
        self._send(rivals)

    def _send(self, claims: Sequence[Claim], error: str | None = None) -> None:
        found = [claim.as_fields(self._numbers) for claim in claims[: messages.MAX_CLAIMS]]
        self._send_queue.send(messages.CLAIMED, rivals=found, error=error)

    def _look(self) -> None:
        assert self._own is not None  # until `end`, which cancels this
        for claim in self._own.find_others():
            who = claim.uid, claim.run
            if claim.is_shared and who not in self._told and len(self._told) < messages.MAX_NEIGHBOURS:
                self._told.add(who)
                self._send_queue.send(messages.NEIGHBOUR, claim=claim.as_fields(self._numbers))
        self._timer = self._loop.call_later(_LOOK_S, self._look)

    def end(self, reserve_s: float | None) -> None:
        """End the claim, at once or after that time; None: the launcher is lost, and has said before what follows."""
        self._loop.cancel(self._timer)
        own, self._own = self._own, None
        seconds = self._lost_reserve_s if reserve_s is None else reserve_s
        if own is not None:
            own.end(seconds)

    def leave(self) -> OwnClaim | None:
        """Return the claim, which the next attempt on this connection takes over."""
        self._loop.cancel(self._timer)
        return self._own


def _find_key(gpu: Mapping[str, Any]) -> str:
    """Return what names a GPU of this box for all its users, however they number them."""
    return gpu["uuid"] or gpu.get("bus_id") or "GPU %d" % gpu["index"]
