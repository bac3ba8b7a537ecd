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

A place in the queue for GPUs is such a file, too (`Claim.is_waiting`). Its age is its place, and it stays beside the
claim until the run has all that it needs.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import struct
import time

from launcher.node import messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, Mapping, Sequence

    from launcher.node.loop import Loop, Timer
    from launcher.node.send_queue import SendQueue

UNUSED_S = 60.0  # after it a claim counts only while its holder has a child: ranks
MOST_RESERVED_S = 600.0  # for the next attempt of a run
KEPT_S = 120.0  # a place in the queue whose holder has lost the launcher
_CPUS = "cpus"
_SETTLING_S = 0.002
_MOST_SETTLING_S = 1.0
_LOOK_S = 5.0  # for runs that have started on GPUs of this one
_TURN_S = 2.0  # between two looks whether it is a run's turn
_REST = 100  # times as long as a look took, at least: somebody may have filled the directory
_DIRECTORIES = ("/run/lock", "/var/lock", "/tmp")
_SHARED_DISKS = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "9p", "glusterfs", "afs")
_PREFIX = "launch-claim-"
_NEW = "launch-new-"  # nobody looks at these
_KEPT = "launch-kept-"  # followed by the name of a place: it counts without its holder, and its age is still its own
_MOST_BYTES = 4096
_MOST_LETTERS = 100
_MOST_PARTS = 1024
_MOST_SECONDS = 1e11
_MOST_OF_A_USER = 64
_COARSE_CLOCK = 5  # CLOCK_REALTIME_COARSE, which file systems read
_FLOCK = struct.Struct("hhqqi")  # struct flock of 64-bit Linux


class Claim:
    """A claim, as anybody on the box may read it; all but `uid` and `order` is its owner's word."""

    __slots__ = (
        "is_reserved",
        "is_shared",
        "is_waiting",
        "name",
        "order",
        "parts",
        "run",
        "since",
        "uid",
        "until",
    )

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
        self.is_waiting = values.get("is_waiting") is True  # a place in the queue
        self.is_reserved = is_reserved  # for the next attempt of its run

    def as_fields(self, numbers: Mapping[str, int]) -> dict[str, Any]:
        """Return what a message says of it; numbers: of this node's GPUs, by key."""
        return {
            "user": _find_user(self.uid), "is_mine": self.uid == os.geteuid(),
            "run": self.run, "name": self.name or None, "since": self.since,
            "gpus": sorted(numbers[part] for part in self.parts if part in numbers),
            "is_of_cpus": _CPUS in self.parts, "is_shared": self.is_shared, "is_waiting": self.is_waiting,
            "is_reserved": self.is_reserved, "until": self.until,
        }  # fmt: skip


def _find_user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name[:_MOST_LETTERS].encode("utf-8", "replace").decode()
    except KeyError:
        return str(uid)


def find_directory() -> str | None:
    """Return the directory of claims, the same for every user of this box; None if it has none.

    It belongs to root, everybody may write there, only owners may remove, and it is on a disk of this box.
    """
    for place in _DIRECTORIES:
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

    def __init__(self, directory: str, values: dict[str, Any], left: tuple[str, int] | None = None) -> None:
        """Make it known; raise OSError if that fails, such as on a full disk.

        values: see `Claim`. left: path and descriptor, with the lock, of a file that is known already.
        """
        self.values = values
        self._directory = directory
        self._made_at = time.monotonic()
        if left is not None:
            self.path, self._fd = left
        else:
            self._make()
        status = os.fstat(self._fd)
        self.order = _order(status, self.path)
        self.file_id = status.st_dev, status.st_ino

    def _make(self) -> None:
        name = os.urandom(8).hex()
        self.path = os.path.join(self._directory, _PREFIX + name)
        new = os.path.join(self._directory, _NEW + name)
        self._fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write(self.values)
            os.fchmod(self._fd, 0o644)
            os.rename(new, self.path)
        except BaseException:
            os.close(self._fd)
            _unlink(new)
            raise

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
        return is_late or time.clock_gettime_ns(_COARSE_CLOCK) > self.order[0]

    def _write(self, values: dict[str, Any]) -> None:
        data = json.dumps(values).encode()
        if len(data) > _MOST_BYTES:
            raise OSError(errno.EFBIG, "a claim of %d bytes" % len(data), self.path)
        os.pwrite(self._fd, data, 0)  # all at once, and it only grows: nobody reads half of it

    def find_others(self, held: Sequence[OwnClaim] = ()) -> list[Claim]:
        """Return the claims of other runs on the same GPUs; `order` tells whose is older.

        held: all that this process holds, if that is more than this one.
        """
        own, parts = (os.geteuid(), self.values["run"]), frozenset(self.values["parts"])
        claims = read_claims(self._directory, own=held or (self,))
        found = [claim for claim in claims if claim.parts & parts]
        return [claim for claim in found if (claim.uid, claim.run) != own]

    def end(self, reserve_s: float = 0.0) -> None:
        """End it after that time, also without this process, or at once; the run's next attempt may take it over.

        A place in the queue stays for KEPT_S; it must not be written to, which would make it younger.
        """
        try:
            if reserve_s > 0 and self.values.get("is_waiting"):
                kept = os.path.join(self._directory, "%s%s-%s" % (_KEPT, _name(self.path), os.urandom(8).hex()))
                os.close(os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
            elif reserve_s > 0:
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
    skipped = {claim.file_id for claim in own}  # by whatever name
    kept = _find_kept(directory)
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
        for claim in _read(path, order, kept)
    ]
    return sorted(claims, key=lambda claim: claim.order)


def remove_old(directory: str, taken: Mapping[str, Any] | None = None, own: Sequence[OwnClaim] = ()) -> None:
    """Remove this user's files whose holders have died, and what is reserved for a run that has taken it over.

    taken: what that run has claimed now. own: what this process holds, which stays.
    """
    held, kept = {claim.file_id for claim in own}, _find_kept(directory)
    for path in [*_list(directory, _PREFIX), *_list(directory, _NEW), *_list(directory, _KEPT)]:
        try:
            status = os.lstat(path)
            is_mine = status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode)
            if not is_mine or (status.st_dev, status.st_ino) in held:
                continue
            if not os.path.basename(path).startswith(_PREFIX):
                if time.time() - status.st_ctime > KEPT_S:
                    _unlink(path)
                continue
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            if _find_holder(fd) is None:
                values = _parse(os.read(fd, _MOST_BYTES + 1))
                is_left = values is not None and _is_left(values, os.fstat(fd), path, kept)
                if values is None or not is_left or (taken is not None and _is_of(values, taken)):
                    _unlink(path)
        finally:
            os.close(fd)


def _is_of(values: Mapping[str, Any], taken: Mapping[str, Any]) -> bool:
    """Tell whether a file is of the same run, and about the same GPUs: another box may have the same directory."""
    parts = values.get("parts")
    return values.get("run") == taken["run"] and isinstance(parts, list) and set(map(str, parts)) <= {*taken["parts"]}


def take_place(directory: str, values: dict[str, Any], own: Sequence[OwnClaim] = ()) -> OwnClaim | None:
    """Return the place in the queue that a process of the same run has left, as old as it is; None: it has none.

    values: of the place. own: what this process holds.
    """
    held, kept = {claim.file_id for claim in own}, _find_kept(directory)
    for path in _list(directory, _PREFIX):
        try:
            status = os.lstat(path)
            is_mine = (status.st_uid, _name(path)) in kept and status.st_uid == os.geteuid()
            if not is_mine or not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) in held:
                continue
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            found = _parse(os.pread(fd, _MOST_BYTES + 1, 0)) or {}
            is_it = all(found.get(key) == values[key] for key in ("run", "parts", "is_waiting"))
            if is_it:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            is_it = False
        if is_it:
            for name in kept[status.st_uid, _name(path)]:
                _unlink(name)
            return OwnClaim(directory, values, (path, fd))
        os.close(fd)
    return None


def _find_kept(directory: str) -> dict[tuple[int, str], list[str]]:
    """Return what keeps places in the queue whose holders have ended: files, by user and name of the place."""
    found: dict[tuple[int, str], list[str]] = {}
    for path in _list(directory, _KEPT):
        try:
            status = os.lstat(path)
        except OSError:
            continue
        if time.time() - status.st_ctime < KEPT_S:
            found.setdefault((status.st_uid, _name(path).partition("-")[0]), []).append(path)
    return found


def _list(directory: str, prefix: str) -> Iterator[str]:
    try:
        names = os.listdir(directory)
    except OSError:
        names = []
    return (os.path.join(directory, name) for name in names if name.startswith(prefix))


def _name(path: str) -> str:
    """Return what follows the prefix: of a place, what keeps it, too, begins with that."""
    return os.path.basename(path).split("-", 2)[-1]


def _read(path: str, order: tuple[int, str], kept: Mapping[tuple[int, str], Any]) -> list[Claim]:
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
        if holder is None and not _is_left(values, status, path, kept):
            return []
        claim = Claim(status.st_uid, order, values, is_reserved=holder is None)
        is_new = time.time() - status.st_ctime < UNUSED_S
        if holder is None or is_new:
            return [claim]
        return [claim] if (not _is_stopped(holder) if claim.is_waiting else _has_child(holder)) else []
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


def _is_stopped(pid: int) -> bool:
    """Tell whether a process is stopped by a signal: it would be first in line for ever."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return file.read(4096).rpartition(b") ")[2][:1] == b"T"
    except OSError:  # hidden, or in another namespace
        return False


def _is_left(values: dict[str, Any], status: os.stat_result, path: str, kept: Mapping[tuple[int, str], Any]) -> bool:
    """Tell whether a file counts whose holder has ended: for the next attempt of its run."""
    if values.get("is_waiting") is True:
        return (status.st_uid, _name(path)) in kept
    seconds = values.get("reserved_s")
    if not isinstance(seconds, (int, float)):
        return False
    return time.time() - status.st_ctime < min(seconds, MOST_RESERVED_S)


def _parse(data: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(data.decode())
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MOST_LETTERS:
        raise ValueError("no short text")
    return value.encode("utf-8", "replace").decode()  # JSON may have half a character, which nobody can print


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
        self._place: OwnClaim | None = None  # in the queue for it
        self._lost_reserve_s = 0.0
        self._timer: Timer | None = None
        self._told: set[tuple[int, str]] = set()

    @property
    def _held(self) -> tuple[OwnClaim, ...]:
        return tuple(claim for claim in (self._own, self._place) if claim is not None)

    def answer(self, header: Mapping[str, Any]) -> None:
        """Serve a CLAIM."""
        self._loop.cancel(self._timer)
        directory = find_directory()
        if directory is None:
            self._send([], "there is no directory that all its users share", waits=header.get("waits", False))
        elif header["is_look"]:
            remove_old(directory, own=self._held)
            self._send(read_claims(directory, self._held))
        else:
            try:
                self._claim(directory, header)
            except OSError as error:
                self._say_whose(directory, header, "%s: %s" % (directory, error.strerror))

    def _claim(self, directory: str, header: Mapping[str, Any]) -> None:
        """Raise OSError if a file can't be made."""
        self._lost_reserve_s, parts = header["lost_reserve_s"], self._find_parts(header)
        values = {"run": header["run"], "name": header["name"], "since": header["since"], "parts": parts}
        had_own = self._own is not None
        values.update(is_shared=header["shares"], until=header["until"])
        # A better guess of its end is no reason to lose its place among others.
        is_same = self._own is not None and self._own.values == dict(values, until=self._own.values["until"])
        if self._own is not None and (header["waits"] or not is_same):
            self._own.end()
            self._own = None
        remove_old(directory, own=self._held)  # of a user only so many count
        if header["waits"]:
            values["is_waiting"] = True
            self._place = self._place or take_place(directory, values, self._held) or OwnClaim(directory, values)
            self._when_settled(self._place, lambda: self._await_turn(None))
            return
        mine = os.geteuid(), header["run"]
        reserved = [claim for claim in read_claims(directory, self._held) if claim.is_reserved and not claim.is_waiting]
        was_here = had_own or mine in {(claim.uid, claim.run) for claim in reserved}
        own = self._own = self._own or OwnClaim(directory, values)
        self._when_settled(own, lambda: self._decide(own, directory, header, was_here=was_here))

    def _find_parts(self, header: Mapping[str, Any]) -> list[str]:
        if header["cpus"]:
            return [_CPUS, *self._numbers]
        return [self._keys[index] for index in header["gpus"] if index in self._keys]

    def _say_whose(self, directory: str, header: Mapping[str, Any], error: str) -> None:
        """Say whose the GPUs are that can't be claimed, such as on a full disk; who waits for them looks again."""
        claims = read_claims(directory, self._held)
        rivals = []
        if claims:
            own, parts, place = (os.geteuid(), header["run"]), frozenset(self._find_parts(header)), self._place
            rivals = [claim for claim in claims if claim.parts & parts and (claim.uid, claim.run) != own]
            if header["continues"]:  # as in `_decide`
                rivals = [claim for claim in rivals if not claim.is_waiting and not claim.is_shared]
            elif place is not None:
                rivals = [claim for claim in rivals if not claim.is_waiting or claim.order < place.order]
        self._send(rivals, error, waits=header.get("waits", False), taken=self._find_taken(claims))
        if header.get("waits"):
            self._timer = self._loop.call_later(_TURN_S, lambda: self.answer(header))

    def _find_taken(self, claims: Sequence[Claim]) -> list[int]:
        parts = {part for claim in claims for part in claim.parts}
        return sorted(self._numbers[part] for part in parts if part in self._numbers)

    def _when_settled(self, own: OwnClaim, act: Callable[[], object]) -> None:
        if own.is_settled:
            act()
        else:
            self._timer = self._loop.call_later(_SETTLING_S, lambda: self._when_settled(own, act))

    def _decide(self, own: OwnClaim, directory: str, header: Mapping[str, Any], *, was_here: bool) -> None:
        """Keep the claim, unless an older one is in its way; was_here: the run had claimed them before."""
        others = own.find_others(self._held)
        # To reserve a claim makes it younger.
        rivals = [claim for claim in others if claim.order < own.order or (claim.is_reserved and not claim.is_waiting)]
        if was_here or self._place is not None:  # before those that wait
            rivals = [claim for claim in rivals if not claim.is_waiting]
        if was_here and header["continues"]:  # who shares its GPUs with it came after it
            rivals = [claim for claim in rivals if not claim.is_shared]
        if rivals and not header["shares"]:
            own.end()
            self._own = None
        else:
            remove_old(directory, own.values, own=self._held)
            self._told = {(claim.uid, claim.run) for claim in rivals}
            self._timer = self._loop.call_later(_LOOK_S, self._look)
        self._send(rivals, taken=self._find_taken(read_claims(directory, self._held) if rivals else ()))

    def _send(
        self, claims: Sequence[Claim], error: str | None = None, *, waits: bool = False, taken: Sequence[int] = ()
    ) -> None:
        """taken: GPUs that anybody has claimed, if these claims are not all."""
        found = [claim.as_fields(self._numbers) for claim in claims[: messages.MAX_CLAIMS]]
        self._send_queue.send(messages.CLAIMED, rivals=found, error=error, waits=waits, taken=taken)

    def _await_turn(self, told: object) -> None:
        """Say what is before this place, whenever that changes: all claims, and the places that are older."""
        place, began_at = self._place, time.monotonic()
        assert place is not None  # until `end`, which cancels this
        others = place.find_others(self._held)
        rivals = [claim for claim in others if not claim.is_waiting or claim.order < place.order]
        seen = [(claim.uid, claim.order, claim.is_reserved) for claim in rivals]
        if seen != told:
            self._send(rivals, waits=True)
        pause = max(_TURN_S, _REST * (time.monotonic() - began_at))
        self._timer = self._loop.call_later(pause, lambda: self._await_turn(seen))

    def _look(self) -> None:
        began_at = time.monotonic()
        assert self._own is not None  # until `end`, which cancels this
        for claim in self._own.find_others(self._held):
            who = claim.uid, claim.run or claim.order[1]
            if claim.is_shared and who not in self._told and len(self._told) < messages.MAX_NEIGHBOURS:
                self._told.add(who)
                self._send_queue.send(messages.NEIGHBOUR, claim=claim.as_fields(self._numbers))
        self._timer = self._loop.call_later(max(_LOOK_S, _REST * (time.monotonic() - began_at)), self._look)

    def end(self, reserve_s: float | None) -> None:
        """End the claim, at once or after that time; None: the launcher is lost, and has said before what follows."""
        self._loop.cancel(self._timer)
        seconds = self._lost_reserve_s if reserve_s is None else reserve_s
        if self._own is not None:
            self._own.end(seconds)
        if self._place is not None:  # with a claim it is of no use any more
            self._place.end(seconds if self._own is None else 0.0)
        self._own = self._place = None

    def leave(self) -> OwnClaim | None:
        """Return the claim, which the next attempt on this connection takes over."""
        self._loop.cancel(self._timer)
        return self._own


def _find_key(gpu: Mapping[str, Any]) -> str:
    """Return what names a GPU of this box for all its users, however they number them."""
    return gpu["uuid"] or gpu.get("bus_id") or "GPU %d" % gpu["index"]
