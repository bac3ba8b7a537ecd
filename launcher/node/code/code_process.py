"""The process that puts the code of a run in its place: it takes what is missing, and proves the result.

The supervisor forks it, and passes messages on between it and the launcher:

    launcher -> node    tree, within PREPARE; listing; piece ...
    node -> launcher    wanted; took ...; placed or unplaced

A node wants the listing and contents that no directory of an earlier run has; it may want contents again that turn out
to be damaged. Processes that share a cache directory may make the same tree at once: the first that is done gives it
its place.
"""

from __future__ import annotations

import fcntl
import os
import socket
import zlib
from contextlib import suppress
from typing import Any, Callable, Dict, Iterator, Mapping, NoReturn

from launcher.node import kept_archives, messages, system
from launcher.node.code import folders, listing
from launcher.node.code.folders import LOCK, Folder
from launcher.node.code.listing import Entry
from launcher.node.loading import in_time
from launcher.node.loop import READABLE, WRITABLE, Loop
from launcher.node.processes import workers
from launcher.node.send_queue import SendQueue

Header = Dict[str, Any]


_ROUNDS = messages.MOST_WANTED - 1  # of asking for files and writing them, after the listing
_READ_BYTES = 1 << 18
_ANSWERS = (messages.PLACED, messages.UNPLACED, messages.PRUNED)


class GivenUpError(Exception):
    """The code can't be put in its place, for a reason that the text tells."""


def work_and_exit(sock: socket.socket, wanted: Header, run: str, env: Mapping[str, str]) -> NoReturn:
    """In a fork: do the work, answer, and exit; `wanted`: the launcher's `tree`."""
    base = folders.find_base(env)
    worker = Worker(sock, base, wanted, run)
    try:
        try:
            if os.path.lexists(base) or not wanted.get("is_dry"):
                folders.make_base(base)  # what is there may be another user's
            if wanted.get("is_prune"):
                worker.prune()
            else:
                worker.place()
        except EOFError:  # the supervisor is gone
            pass
        except OSError as error:
            text = "can't keep the code in %s: %s" % (os.fsdecode(error.filename or base), error.strerror)
            worker.say(messages.UNPLACED, text=text, is_disk=True)
        except Exception as error:  # noqa: BLE001 - whatever it is, the launcher waits for an answer
            text = "%s" if isinstance(error, GivenUpError) else "it can't read what launch sent: %s"
            worker.say(messages.UNPLACED, text=text % error, is_disk=False)
    finally:
        os._exit(0)


class Worker:
    """Puts one tree in its place, and answers."""

    def __init__(self, sock: socket.socket, base: str, wanted: Header, run: str) -> None:
        """base: the directory for code."""
        self._sock = sock
        self._base = base
        self._wanted = wanted
        self._run = run
        self._listing = b""
        self._entries: list[Entry] = []
        self._made: dict[str, str] = {}  # directories of links by name
        self._moved: list[str] = []  # names of links to a directory below this node's home instead
        self._decoder = messages.Decoder(max_header_bytes=1 << 30)
        self._heard: list[tuple[Header, bytes]] = []
        self._rest = memoryview(b"")  # of the last piece

    def prune(self) -> None:
        """Remove all code that no living run needs, and answer what was removed and what is left."""
        is_dry = self._wanted["is_dry"]
        runs, size, left = folders.prune(self._base, kept=0, is_dry=is_dry)
        if not is_dry:
            in_time(kept_archives.remove_all)
        self.say(messages.PRUNED, runs=runs, bytes=size, left=left[: messages.MOST_NAMES])

    def place(self) -> None:
        """Put the code in its place, answer, and remove what earlier runs have left."""
        links = self._find_targets()
        place = folders.open_folder(self._base, self._run, self._wanted["hash"], self._wanted["name"])
        earlier = folders.find_folders(self._base)
        self._listing = self._find_listing(earlier)
        self._entries = listing.decode(self._listing)
        changed: list[Entry] = []
        if _is_there(place):  # as before a restart
            changed = listing.find_wrong(place.root, self._entries)
            wrong = self._mend(place, changed, earlier) if changed else []
        else:
            place, wrong = self._make(place, earlier)
        place.make_links(links)
        os.makedirs(os.path.join(place.root, self._wanted["sub"]), exist_ok=True)
        place.write_listing(self._listing)
        self._answer(place, wrong, changed)
        with suppress(OSError):  # the next run tries it again; this one has its code
            folders.prune(self._base)
        while self._sock.recv(_READ_BYTES):  # until the supervisor has the lock as well
            pass

    def say(self, kind: str, payload: bytes = b"", **fields: object) -> None:
        """Send a message."""
        self._sock.sendall(messages.encode(kind, payload, **fields))

    # ---- its directory ------------------------------------------------------------------------------------------

    def _make(self, place: Folder, earlier: list[Folder]) -> tuple[Folder, list[Entry]]:
        """Fill a directory and give it this place; return it, and what is missing even then."""
        fresh = folders.begin(self._base, place.name)
        try:
            missing = self._fill(fresh, self._entries, earlier)
            fresh.write_listing(self._listing)
            place = folders.appear(fresh, place)
        finally:
            if place is not fresh:
                folders.abandon(fresh)
        if not place.lock(fcntl.LOCK_SH) or place.read_listing() != self._listing:
            raise GivenUpError("another process has removed the code from %s; run the command again" % place.path)
        return place, [entry for entry in self._entries if entry.content in missing]

    def _mend(self, place: Folder, changed: list[Entry], earlier: list[Folder]) -> list[Entry]:
        """Replace what has changed in a directory; return what is wrong even then."""
        fresh = folders.begin(self._base, place.name)
        try:
            missing = self._fill(fresh, changed, earlier)
            place.take_over(fresh, [entry for entry in changed if entry.content not in missing])
        finally:
            folders.abandon(fresh)
        place.remove_bytecode(self._entries)
        return listing.find_wrong(place.root, changed)

    def _fill(self, fresh: Folder, needed: list[Entry], earlier: list[Folder]) -> dict[str, list[Entry]]:
        """Write these files, each hashed as it is written; return those that came damaged each time, by content."""
        sources: dict[str, list[str]] = {}
        for folder in earlier:
            for entry in folder.read_entries():
                sources.setdefault(entry.content, []).append(os.path.join(folder.root, entry.path))
        missing: dict[str, list[Entry]] = {}  # by content
        for entry in needed:
            path = fresh.make_room(entry)
            if entry.kind == listing.LINK:
                os.symlink(entry.content, path)
            elif not any(folders.copy_file(source, entry, path) for source in sources.get(entry.content, ())):
                missing.setdefault(entry.content, []).append(entry)
        for _ in range(_ROUNDS):
            if missing:
                missing = self._take_files(fresh, missing)
        return missing

    def _find_targets(self) -> list[tuple[str, str]]:
        """Return the links to directories outside; make those directories if they may be made."""
        links = []
        for name, target, may_make in self._wanted["links"]:
            target = os.path.expanduser(target)
            if may_make:
                try:
                    target = self._made[name] = self._make_target(name, target)
                except OSError as error:
                    text = "can't make %s for %s/: %s; fix: pass --link %s=DIR"
                    raise GivenUpError(text % (target, name, error.strerror, name)) from None
            elif not os.path.exists(target):
                raise GivenUpError("--link %s=%s: there is no %s" % (name, target, target))
            links.append((name, target))
        return links

    def _make_target(self, name: str, target: str) -> str:
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

    # ---- what the launcher sends --------------------------------------------------------------------------------

    def _find_listing(self, earlier: list[Folder]) -> bytes:
        """Return the listing, which the launcher sends if no earlier run has the same."""
        for folder in earlier:
            data = folder.read_listing()
            if listing.hash_listing(data) == self._wanted["hash"]:
                return data
        self.say(messages.WANTED, needs_listing=True)
        data = zlib.decompress(self._hear(messages.LISTING)[1])
        if listing.hash_listing(data) != self._wanted["hash"]:
            raise ValueError("a listing with another hash")
        return data

    def _take_files(self, fresh: Folder, missing: dict[str, list[Entry]]) -> dict[str, list[Entry]]:
        """Ask for contents and write them; return which came damaged.

        They come one after the other, in the order of the listing, cut into pieces anywhere.
        """
        bits = bytearray((len(self._entries) + 7) // 8)
        places = {entry.path: place for place, entry in enumerate(self._entries)}
        for first, *_ in missing.values():
            bits[places[first.path] // 8] |= 1 << places[first.path] % 8
        self.say(messages.WANTED, bytes(bits), needs_listing=False)
        damaged = {}
        for content, (first, *others) in missing.items():
            path = fresh.make_room(first)
            if folders.write_file(path, first, self._read(first.size)):
                for other in others:
                    folders.copy_file(path, other, fresh.make_room(other))
            else:
                damaged[content] = [first, *others]
        if self._rest:
            raise ValueError("more than was wanted")
        return damaged

    def _read(self, size: int) -> Iterator[memoryview]:
        """Yield the next bytes of the contents; a piece counts as taken once those before it are written."""
        while size:
            if not self._rest:
                header, payload = self._hear(messages.PIECE)
                self._rest = memoryview(zlib.decompress(payload) if header["is_packed"] else payload)
                self.say(messages.TOOK)
            data, self._rest = self._rest[:size], self._rest[size:]
            size -= len(data)
            yield data

    def _hear(self, kind: str) -> tuple[Header, bytes]:
        """Wait for the next message; raise EOFError if the supervisor is gone, ValueError for another kind."""
        while not self._heard:
            data = self._sock.recv(_READ_BYTES)
            if not data:
                raise EOFError
            self._heard += self._decoder.feed(data)
        header, payload = self._heard.pop(0)
        if header["type"] != kind:
            raise ValueError("%s instead of %s" % (header["type"], kind))
        return header, payload

    # ---- the answer ---------------------------------------------------------------------------------------------

    def _answer(self, place: Folder, wrong: list[Entry], changed: list[Entry]) -> None:
        """Answer; changed: what was mended."""
        lacking = set(wrong)
        names: dict[str, list[str]] = {
            "wrong": [entry.path for entry in wrong], "moved": self._moved,
            "repaired": [entry.path for entry in changed if entry not in lacking],
            "empty": [name for name, target in self._made.items() if _is_empty(target)],
        }  # fmt: skip
        told: Header = {key: found[: messages.MOST_NAMES] for key, found in names.items()}
        self.say(messages.PLACED, path=place.root, **told)


def _is_there(place: Folder) -> bool:
    """Tell whether the run has its directory already; then its lock is held."""
    if folders.read_name(place.path) == place.name and place.lock(fcntl.LOCK_SH) and os.path.isdir(place.root):
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

    Messages go through unchanged in both directions. From the process's last word on, the supervisor holds the lock of
    the run's directory, until it exits: so no other run takes the directory over, or removes it.
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
        self._watch()

    def forward(self, header: Header, payload: bytes) -> None:
        """Pass a message of the launcher on, as soon as the process takes it; drop it if that has ended."""
        if self._sock is not None:
            self._waiting += messages.encode_again(header, payload)
            self._watch()

    def find_written(self) -> list[str]:
        """Return what the ranks have written to the directory of their code: the first names."""
        try:
            folder = Folder(os.path.dirname(self.root), os.path.basename(self.root))
            return folder.find_written()[: messages.MOST_NAMES]
        except OSError:  # the code isn't there, or the disk is gone
            return []

    def _watch(self) -> None:
        if self._sock is not None:
            events = READABLE | WRITABLE if self._waiting else READABLE
            self._loop.watch(self._sock.fileno(), self._turn, events)

    def _turn(self) -> None:
        assert self._sock is not None  # it is watched
        try:
            del self._waiting[: self._sock.send(self._waiting[:_READ_BYTES])]
        except BlockingIOError:
            pass
        except OSError:  # its end is read below
            self._waiting.clear()
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            self._watch()
            return
        except OSError:
            data = b""
        for header, payload in self._decoder.feed(data):
            self._send_queue.pass_on(messages.encode_again(header, payload))
            if header["type"] in _ANSWERS:
                self._conclude(header)
        if not data and self._sock is not None:
            text = "the process that takes the code was killed"
            self._send_queue.send(messages.UNPLACED, text=text, is_disk=False)
            self._end()
        self._watch()

    def _conclude(self, answer: Header) -> None:
        if answer["type"] == messages.PLACED and not answer["wrong"]:
            self.root = answer["path"]
            for path in (os.path.dirname(self.root), os.path.join(os.path.dirname(self.root), LOCK)):
                system.hold_lock(path, fcntl.LOCK_SH)  # that of the directory is for systemd-tmpfiles
        self._end()
        if self.root:
            self._on_placed(self.root)

    def _end(self) -> None:
        assert self._sock is not None  # it was read
        self._loop.forget(self._sock.fileno())
        self._sock.close()
        self._sock = None
