"""The process that puts the code of a run in its place: it takes what is missing, and proves the result.

The supervisor forks it, and passes messages on between it and the launcher:

    launcher -> node    tree, within PREPARE; listing; piece ...
    node -> launcher    wanted; took ...; placed or unplaced

A node wants the listing, and then contents, if it lacks them; it may want contents again that turn out to be damaged.
Processes that share a cache directory may make the same tree at once: the first that is done gives it its place.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
from typing import Any, Callable, Dict, Iterable, Mapping, NoReturn

from launcher.node import kept_archives, messages
from launcher.node.code import folders, listing, proof
from launcher.node.code.folders import LOCK, Folder, read_name
from launcher.node.code.listing import Entry
from launcher.node.code.missing_pieces import Intake
from launcher.node.code.store import Store, find_base
from launcher.node.loading import in_time
from launcher.node.loop import READABLE, WRITABLE, Loop
from launcher.node.processes import workers
from launcher.node.send_queue import SendQueue

Header = Dict[str, Any]


_ROUNDS = messages.MOST_WANTED - 1  # of asking for files and writing them, after the listing
_MOST_LOCKS = 4
_READ_BYTES = 1 << 18
_FULL = (errno.ENOSPC, errno.EDQUOT)


class GivenUpError(Exception):
    """The code can't be put in its place, for a reason that the text tells."""


def work_and_exit(sock: socket.socket, wanted: Header, run: str, env: Mapping[str, str]) -> NoReturn:
    """In a fork: do the work, answer, and exit; `wanted`: the launcher's `tree`."""
    try:
        intake = Intake(sock)
        try:
            store = Store(find_base(env))
            if os.path.lexists(store.base) or not wanted.get("is_dry"):
                store.make()  # what is there may be another user's
            if wanted.get("is_prune"):
                _prune(intake, store, is_dry=wanted["is_dry"])
            else:
                Worker(sock, intake, store, wanted, run).work()
        except EOFError:  # the supervisor is gone
            pass
        except OSError as error:
            place = os.fsdecode(error.filename or find_base(env))
            text = "can't keep the code in %s: %s" % (place, error.strerror)
            intake.say(messages.UNPLACED, text=text, is_disk=True, is_full=error.errno in _FULL)
        except GivenUpError as error:
            intake.say(messages.UNPLACED, text=str(error), is_disk=False, is_full=False)
        except Exception as error:  # noqa: BLE001 - whatever it is, the launcher waits for an answer
            text = "it can't read what launch sent: %s" % error
            intake.say(messages.UNPLACED, text=text, is_disk=False, is_full=False)
    finally:
        os._exit(0)


def _prune(intake: Intake, store: Store, *, is_dry: bool) -> None:
    """Remove all code that no living run needs, and answer what was removed and what is left."""
    kept_bytes = store.measure()
    runs, size, left = folders.prune(store, kept=0, is_dry=is_dry)
    if not is_dry:
        store.prune(0)
        in_time(kept_archives.remove_all)
    intake.say(messages.PRUNED, runs=runs, bytes=kept_bytes + size, left=left[: messages.MOST_NAMES])


class Worker:
    """Puts one tree in its place, and answers."""

    def __init__(self, sock: socket.socket, intake: Intake, store: Store, wanted: Header, run: str) -> None:
        self._sock = sock
        self._intake = intake
        self._store = store
        self._wanted = wanted
        self._run = run
        self._listing = b""
        self._entries: list[Entry] = []
        self._made: dict[str, str] = {}  # directories of links by name
        self._moved: list[str] = []  # names of links to a directory below this node's home instead

    def work(self) -> None:
        """Put the code in its place, answer, and remove what earlier runs have left."""
        links = self._find_targets()
        place = folders.open_folder(self._store, self._run, self._wanted["hash"], self._wanted["name"])
        if ":" in place.root:
            raise GivenUpError("PYTHONPATH can't have %s: there is a colon in it" % place.root)
        self._listing = self._intake.read_listing(self._store, self._wanted["hash"])
        self._entries = listing.decode(self._listing)
        if _is_there(place):
            self._restore(place, links)
            return
        self._fill(place, links)
        try:
            folders.prune(self._store)
            self._store.prune()
        except OSError:  # the next run tries it again; this one has its code
            pass

    # ---- its directory ------------------------------------------------------------------------------------------

    def _fill(self, place: Folder, links: list[tuple[str, str]]) -> None:
        """Fill a directory and give it this place.

        Each file is hashed as it is written. Nothing of a run is there, so it may be removed if this fails.
        """
        self._intake.take_files(self._store, self._entries, self._entries)
        folder = folders.begin(self._store, self._wanted["name"])
        try:
            wrong = self._put(folder, self._entries)
            folder.write_listing(self._listing)
            self._link(folder, links)
        except BaseException:
            folders.abandon(folder)
            raise
        found = folders.appear(folder, place)
        if not found.lock(fcntl.LOCK_SH) or found.read_listing() != self._listing:
            raise GivenUpError("another process has removed the code from %s; run the command again" % found.path)
        self._answer(found, wrong)

    def _restore(self, place: Folder, links: list[tuple[str, str]]) -> None:
        """Mend what has changed in a directory that was there, as before a restart."""
        changed = proof.find_wrong(place.root, self._entries)
        self._put(place, changed)
        wrong = proof.find_wrong(place.root, changed)
        if changed:
            place.remove_bytecode(self._entries)
        self._link(place, links)
        place.write_listing(self._listing)
        self._answer(place, wrong, changed)

    def _put(self, folder: Folder, entries: list[Entry]) -> list[Entry]:
        """Write these files, and return what is missing even then.

        What can't be copied was damaged where it is kept, or has gone from there; it is sent again.
        """
        missing = folder.put(self._store, entries)
        for _ in range(_ROUNDS - 1):
            if missing:
                for entry in missing:
                    self._store.drop(entry.content)
                self._intake.take_files(self._store, self._entries, missing)
                missing = folder.put(self._store, missing)
        return missing

    def _find_targets(self) -> list[tuple[str, str]]:
        """Return the links to directories outside; make those directories if they may be made."""
        links = []
        for name, target, may_make in self._wanted["links"]:
            target = os.path.expanduser(target)
            if may_make:
                try:
                    target = self._made[name] = self._make(name, target)
                except OSError as error:
                    text = "can't make %s for %s/: %s; fix: pass --link %s=DIR"
                    raise GivenUpError(text % (target, name, error.strerror, name)) from None
            elif not os.path.exists(target):
                raise GivenUpError("--link %s=%s: there is no %s" % (name, target, target))
            links.append((name, target))
        return links

    def _make(self, name: str, target: str) -> str:
        """Make the directory of a link; where the launch host's home can't be, in the same place below this one."""
        try:
            os.makedirs(target, exist_ok=True)
        except OSError:
            home = self._wanted["home"]
            if not home or not target.startswith(home + "/"):
                raise
            target = os.path.expanduser("~") + target[len(home) :]
            os.makedirs(target, exist_ok=True)
            self._moved.append(name)
        return target

    def _link(self, folder: Folder, links: list[tuple[str, str]]) -> None:
        folder.make_links(links)
        os.makedirs(os.path.join(folder.root, self._wanted["sub"]), exist_ok=True)

    # ---- the answer ---------------------------------------------------------------------------------------------

    def _answer(self, place: Folder, wrong: list[Entry], changed: Iterable[Entry] = ()) -> None:
        """Answer, and leave the lock of the directory to the supervisor; changed: what was mended there."""
        lacking = set(wrong)
        right = [entry for entry in self._entries if entry not in lacking]
        names: dict[str, list[str]] = {
            "wrong": [entry.path for entry in wrong], "moved": self._moved,
            "repaired": [entry.path for entry in changed if entry not in lacking],
            "empty": [name for name, target in self._made.items() if _is_empty(target)],
        }  # fmt: skip
        told: Header = {key: paths[: messages.MOST_NAMES] for key, paths in names.items()}
        told["hash"] = listing.hash_listing(listing.encode(right) if wrong else self._listing)
        told.update(path=place.root, wrong_count=len(wrong))
        message = messages.encode(messages.PLACED, **told)
        self._sock.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", _hold(place)))])


def _hold(place: Folder) -> list[int]:
    """Return descriptors whose locks show that a run needs the directory: to other runs, and to systemd-tmpfiles."""
    folder_fd = os.open(place.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # a file system without locks
        pass
    return [fd for fd in (place.lock_fd, folder_fd) if fd >= 0]


def _is_there(place: Folder) -> bool:
    """Tell whether the run has its directory already; then its lock is held."""
    if read_name(place.path) == place.name and place.lock(fcntl.LOCK_SH) and os.path.isdir(place.root):
        return True
    place.unlock()  # it was moved away meanwhile
    return False


def _is_empty(path: str) -> bool:
    try:
        with os.scandir(path) as found:
            return next(found, None) is None
    except OSError:
        return False


# ---- the supervisor's end -------------------------------------------------------------------------------------------


class CodeProcess:
    """The supervisor's end of that process: one socket, and the bytes on their way to it, which the launcher bounds.

    Messages go through unchanged in both directions. When the code is there, the process hands over the open lock of
    the run's directory, which is held until this process exits: so no other run takes the directory over, or removes
    it.
    """

    def __init__(self, loop: Loop, send_queue: SendQueue, on_placed: Callable[[str], object]) -> None:
        """on_placed: gets the directory once it holds the code."""
        self._loop = loop
        self._send_queue = send_queue
        self._on_placed = on_placed
        self.root = ""  # of the code, once it is there
        self._sock: socket.socket | None = None
        self._waiting = bytearray()
        self._decoder = messages.Decoder()
        self._locks: list[int] = []
        self._has_answered = False

    def start(self, wanted: Header, run: str, env: dict[str, str]) -> None:
        """Start the process; `wanted`: the launcher's `tree`, or `is_prune`. Raise OSError if it can't be started."""
        ours, theirs = socket.socketpair()
        try:
            if workers.fork() == 0:
                workers.drop_descriptors(theirs.fileno())  # on a disk that hangs, it can't even be killed
                work_and_exit(theirs, wanted, run, env)
        finally:
            theirs.close()
        ours.setblocking(False)
        self._sock = ours
        self._loop.watch(ours.fileno(), self._read)

    def forward(self, header: Header, payload: bytes) -> None:
        """Pass a message of the launcher on, as soon as the process takes it; drop it if that has ended."""
        if self._sock is None:
            return
        self._waiting += messages.encode_again(header, payload)
        self._push()

    def find_written(self) -> list[str]:
        """Return what the ranks have written to the directory of their code: the first names."""
        try:
            folder = Folder(os.path.dirname(self.root), os.path.basename(self.root))
            return folder.find_written()[: messages.MOST_NAMES]
        except OSError:  # the code isn't there, or the disk is gone
            return []

    def find_lock(self) -> str | None:
        """Return the lock of the directory, for a process that was started before the code was there."""
        return os.path.join(os.path.dirname(self.root), LOCK) if self.root else None

    def _push(self) -> None:
        if self._sock is None:
            return
        try:
            while self._waiting:
                with memoryview(self._waiting) as view:
                    sent = self._sock.send(view[: 1 << 20])
                del self._waiting[:sent]
        except BlockingIOError:
            pass
        except OSError:  # its end is read below
            self._waiting.clear()
        self._loop.watch(self._sock.fileno(), self._turn, READABLE | WRITABLE if self._waiting else READABLE)

    def _turn(self) -> None:
        self._push()
        self._read()

    def _read(self) -> None:
        if self._sock is None:
            return
        try:
            data, extra, _, _ = self._sock.recvmsg(_READ_BYTES, socket.CMSG_SPACE(_MOST_LOCKS * 4))
        except BlockingIOError:
            return
        except OSError:
            data, extra = b"", []
        for _, _, numbers in extra:
            locks = array.array("i")
            locks.frombytes(numbers)
            for fd in locks:  # what is started from now on holds them too: the supervisor may be killed first
                os.set_inheritable(fd, True)
            self._locks += locks
        for header, payload in self._decoder.feed(data):
            self._send_queue.pass_on(messages.encode_again(header, payload))
            if header["type"] in (messages.PLACED, messages.UNPLACED, messages.PRUNED):
                self._has_answered = True
            if header["type"] == messages.PLACED and header["path"] and not header["wrong"]:
                self.root = header["path"]
                self._on_placed(self.root)
        if not data:
            self._end()

    def _end(self) -> None:
        assert self._sock is not None  # it was read
        self._loop.forget(self._sock.fileno())
        self._sock.close()
        self._sock = None
        if not self._has_answered:
            self._send_queue.send(
                messages.UNPLACED, text="the process that takes the code was killed", is_disk=False, is_full=False
            )
