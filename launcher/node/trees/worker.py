"""The process that puts the code of a run in its place: it finds what is missing, takes that, and proves the result.

The supervisor forks it, and passes messages on between it and the launcher:

    launcher -> node    tree, within PREPARE; listing; piece ...; place
    node -> launcher    wanted; took ...; placed or unplaced

A node may want something twice: before it has a directory, and when a file that it keeps turns out to be damaged. Of
nodes that share their cache directory one writes, and the others look once it is done.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import time
import zlib

from launcher.node import messages
from launcher.node.trees import folders, listing, proof
from launcher.node.trees.arrivals import Arrivals
from launcher.node.trees.listing import Entry
from launcher.node.trees.store import Store, find_base

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, NoReturn

    from launcher.node.trees.folders import Folder
    from launcher.node.trees.peers import Peers

    Header = Dict[str, Any]

READ_BYTES = 1 << 18
MOST_NAMES = 20  # of files, in an answer
MOST_LISTING_BYTES = 512 << 20
LOOK_S = 5.0  # for a network file system to show what another node has written
_LOOK_AGAIN_S = 0.2
_ROUNDS = 2


class GivenUpError(Exception):
    """The code can't be put in its place, for a reason that the text tells."""


def work_and_exit(sock: socket.socket, wanted: Header, run: str, env: Mapping[str, str]) -> NoReturn:
    """In a fork: do the work, answer, and exit; `wanted`: the launcher's `tree`."""
    try:
        worker = Worker(sock, wanted, run, env)
        try:
            store = Store(find_base(env))
            store.make()
            if wanted.get("is_prune"):
                worker.prune(store, is_dry=wanted["is_dry"])
            else:
                worker.work(store)
        except OSError as error:
            place = error.filename or find_base(env)
            worker.give_up("can't keep the code in %s: %s" % (os.fsdecode(place), error.strerror), is_disk=True)
        except GivenUpError as error:
            worker.give_up(str(error))
        except ValueError as error:
            worker.give_up("it can't read what launch sent: %s" % error)
    finally:
        os._exit(0)


class Worker:
    """One conversation with the launcher about one tree."""

    def __init__(self, sock: socket.socket, wanted: Header, run: str, env: Mapping[str, str]) -> None:
        self._sock = sock
        self._wanted = wanted
        self._run = run
        self._decoder = messages.Decoder(max_header_bytes=1 << 30)
        self._heard: list[tuple[Header, bytes]] = []
        self._env = env

    def work(self, store: Store) -> None:
        """Put the code in its place, answer, and remove what earlier runs have left."""
        group = _Group(store, self._wanted["group"])
        try:
            entries = self._read_entries(store, group.name)
            if self._wanted["is_check"]:
                self._compare(store, entries)
                return
            is_writer = self._take(store, entries, entries, group.name)
            place = folders.open_folder(store, self._run, self._wanted["hash"], self._wanted["name"])
            if not is_writer:
                self._finish(place, entries, _await(place, entries), [])
            elif _is_there(place):
                changed = proof.find_wrong(place.root, entries)
                wrong = self._mend(store, place, entries, changed)
                place.remove_bytecode(entries)
                self._link(place)
                self._finish(place, entries, wrong, changed)
            else:
                place, wrong = self._fill(store, place, entries)
                self._finish(place, entries, wrong, [])
        finally:
            group.leave()
        if is_writer:
            try:
                folders.prune(store)
                store.prune()
            except OSError:  # the next run tries it again; this one has its code
                pass

    def prune(self, store: Store, *, is_dry: bool) -> None:
        """Remove all code that no living run needs, and answer what was removed and what is left."""
        found = folders.find_ended(store)
        size = store.measure() + sum(entry.size for folder in found for entry in folder.read_entries())
        for folder in found:
            folder.unlock()
        left = [] if is_dry else folders.prune(store, kept=0)
        if not is_dry:
            store.prune(0)
        self.say(messages.PRUNED, runs=len(found), bytes=size, left=left[:MOST_NAMES])

    # ---- what is needed -----------------------------------------------------------------------------------------

    def _read_entries(self, store: Store, group: str) -> list[Entry]:
        """Return the entries of the tree; its listing is kept by its hash as all files are."""
        name = self._wanted["hash"]
        try:
            data = store.read(name, MOST_LISTING_BYTES)
        except OSError:
            data = b""
        if listing.hash_listing(data) != name:
            store.drop(name)
            self.say(messages.WANTED, group=group, needs_listing=True)
            header, payload = self._hear()
            if header["type"] != messages.LISTING:
                raise ValueError("%s instead of a listing" % header["type"])
            data = zlib.decompress(payload)
            if listing.hash_listing(data) != name:
                raise ValueError("a listing with another hash")
            arrival = store.receive(Entry("listing", listing.FILE, len(data), name))
            arrival.write(0, data)
            arrival.finish()
        return listing.decode(data)

    def _take(self, store: Store, entries: list[Entry], needed: list[Entry], group: str) -> bool:
        """Ask for what is missing of `needed`, and take it; return whether this node is to write."""
        contents = {entry.content for entry in needed if entry.kind != listing.LINK}
        bits = bytearray((len(entries) + 7) // 8)
        for index, entry in enumerate(entries):
            if entry.content in contents:
                contents.remove(entry.content)
                if not store.has(entry):
                    bits[index // 8] |= 1 << index % 8
        self.say(messages.WANTED, bytes(bits), group=group, needs_listing=False)
        arrivals = Arrivals(store, entries)
        peers: Peers | None = None
        try:
            while True:
                header, payload = self._hear()
                if header["type"] == messages.MEET:
                    peers = self._meet(arrivals, header["number"], payload)
                elif header["type"] == messages.JOIN:
                    self.say(messages.JOINED, is_complete=peers is not None and peers.join(header["peers"]))
                elif header["type"] == messages.PIECE:
                    if peers is not None and header["is_for_all"]:
                        peers.pass_on(messages.encode(messages.PIECE, payload, **_fields(header)))
                    arrivals.take(header, payload)
                    self.say(messages.TOOK)
                else:
                    if peers is not None and header["has_peers"]:
                        peers.finish()
                    arrivals.close()
                    return bool(header["is_writer"])
        finally:
            if peers is not None:
                peers.close()

    def _meet(self, arrivals: Arrivals, number: int, pem: bytes) -> Peers | None:
        """Open a port for the other nodes, and answer where it is; a port of 0 says that it is impossible."""
        from launcher.node.trees import peers

        try:
            met = peers.Peers(number, pem, arrivals.take_safely)
        except (OSError, ValueError, AttributeError):  # AttributeError: the C library has no memfd
            self.say(messages.MET, port=0, addresses=[])
            return None
        self.say(messages.MET, port=met.port, addresses=peers.list_addresses(self._env))
        return met

    # ---- its place ----------------------------------------------------------------------------------------------

    def _fill(self, store: Store, place: Folder, entries: list[Entry]) -> tuple[Folder, list[Entry]]:
        """Fill a directory and give it this place; return it, and what is wrong in it.

        Each file is hashed once: what was there before, or what was written now.
        """
        folder, there = folders.begin(store, self._wanted["name"])
        try:
            needed, kept = set(map(_key, entries)), set(map(_key, there))
            folder.remove_bytecode(there)
            folder.remove_files([entry for entry in there if _key(entry) not in needed])
            wrong = [entry for entry in entries if _key(entry) not in kept]
            wrong += proof.find_wrong(folder.root, [entry for entry in entries if _key(entry) in kept])
            wrong = self._mend(store, folder, entries, wrong)
            folder.write_listing(listing.encode(entries))
            self._link(folder)
            found = folders.appear(folder, place)
        except BaseException:
            folders.abandon(folder)
            raise
        found.lock(fcntl.LOCK_SH)
        return found, wrong

    def _mend(self, store: Store, folder: Folder, entries: list[Entry], wrong: list[Entry]) -> list[Entry]:
        """Write what is wrong, and return what is wrong even then.

        What can't be copied was damaged where it is kept, or has gone from there; it is sent again.
        """
        for round_ in range(_ROUNDS):
            if round_ and wrong:
                for entry in wrong:
                    store.drop(entry.content)
                self._take(store, entries, wrong, "")
            folder.put(store, wrong)
            wrong = proof.find_wrong(folder.root, wrong)
        return wrong

    def _link(self, folder: Folder) -> None:
        """Make the links to directories outside, and those directories if they may be made."""
        links = []
        for name, target, may_make in self._wanted["links"]:
            target = os.path.expanduser(target)
            if may_make:
                try:
                    os.makedirs(target, exist_ok=True)
                except OSError as error:
                    raise GivenUpError("can't make %s for %s/: %s" % (target, name, error.strerror)) from None
            elif not os.path.exists(target):
                raise GivenUpError("--link %s=%s: there is no %s" % (name, target, target))
            links.append((name, target))
        folder.make_links(links)
        os.makedirs(os.path.join(folder.root, self._wanted["sub"]), exist_ok=True)

    # ---- the answer ---------------------------------------------------------------------------------------------

    def _finish(self, place: Folder, entries: list[Entry], wrong: list[Entry], changed: list[Entry]) -> None:
        """Answer, and leave the lock of the directory to the supervisor; changed: what was mended there."""
        answer = self._prove(place, entries, wrong)
        answer["repaired"] = [entry.path for entry in changed if entry not in wrong][:MOST_NAMES]
        made = [(name, os.path.expanduser(target)) for name, target, may_make in self._wanted["links"] if may_make]
        answer["empty"] = [name for name, target in made if _is_empty(target)][:MOST_NAMES]
        message = messages.encode(messages.PLACED, **answer)
        held = [fd for fd in (place.lock_fd, os.open(place.path, os.O_RDONLY | os.O_DIRECTORY)) if fd >= 0]
        fcntl.flock(held[-1], fcntl.LOCK_SH | fcntl.LOCK_NB)  # systemd-tmpfiles leaves a locked directory alone
        self._sock.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", held))])

    def _prove(self, place: Folder, entries: list[Entry], wrong: list[Entry]) -> Header:
        lacking = set(map(_key, wrong))
        right = listing.hash_listing(listing.encode(entry for entry in entries if _key(entry) not in lacking))
        extras = proof.find_extras(place.root, entries, [name for name, _, _ in self._wanted["links"]])
        return {
            "path": place.root,
            "hash": right,
            "wrong": [entry.path for entry in wrong][:MOST_NAMES],
            "extras": proof.find_extra_code(place.root, extras, MOST_NAMES),
            "repaired": [],
            "empty": [],
        }

    def _compare(self, store: Store, entries: list[Entry]) -> None:
        """Answer how the newest directory of this name differs from the listing; change nothing."""
        place = folders.find_newest(store, self._wanted["name"])
        if place is None:
            nothing: list[str] = []
            self.say(messages.PLACED, path="", hash="", wrong=nothing, extras=nothing, repaired=nothing, empty=nothing)
            return
        self.say(messages.PLACED, **self._prove(place, entries, proof.find_wrong(place.root, entries)))

    def give_up(self, text: str, *, is_disk: bool = False) -> None:
        """Answer why the code isn't in its place; is_disk: more room, or another disk, would help."""
        self.say(messages.UNPLACED, text=text, is_disk=is_disk)

    # ---- messages -----------------------------------------------------------------------------------------------

    def say(self, kind: str, payload: bytes = b"", **fields: object) -> None:
        """Send a message; the supervisor passes it on."""
        self._sock.sendall(messages.encode(kind, payload, **fields))

    def _hear(self) -> tuple[Header, bytes]:
        """Wait for the next message; exit if the supervisor is gone."""
        while not self._heard:
            data = self._sock.recv(READ_BYTES)
            if not data:
                os._exit(0)
            self._heard += self._decoder.feed(data)
        return self._heard.pop(0)


class _Group:
    """The nodes that share a cache directory: all of them read the same word in a file there."""

    def __init__(self, store: Store, nonce: str) -> None:
        self._path = os.path.join(store.base, "group-" + nonce)
        self._is_mine = False
        self.name = os.urandom(8).hex()
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            self.name = self._read() or self.name
            return
        os.write(fd, self.name.encode())
        os.close(fd)
        self._is_mine = True

    def _read(self) -> str:
        deadline = time.monotonic() + LOOK_S
        while time.monotonic() < deadline:
            try:
                with open(self._path) as file:
                    word = file.read(64)
            except OSError:
                return ""
            if word:
                return word
            time.sleep(0.02)
        return ""

    def leave(self) -> None:
        """Remove the file, if it is this node's; all others have read it by then."""
        if self._is_mine:
            os.unlink(self._path)


def _is_there(place: Folder) -> bool:
    """Tell whether the run has its directory already; then its lock is held."""
    if os.path.isdir(place.root) and place.lock(fcntl.LOCK_SH) and os.path.isdir(place.root):
        return True
    place.unlock()  # it was moved away meanwhile
    return False


def _await(place: Folder, entries: list[Entry]) -> list[Entry]:
    """Return what is wrong in a directory that another node has filled, once this one sees all that it can see."""
    deadline = time.monotonic() + LOOK_S
    while True:
        wrong = proof.find_wrong(place.root, entries)
        if not wrong or time.monotonic() > deadline:
            break
        time.sleep(_LOOK_AGAIN_S)
    if os.path.isdir(place.path):
        place.lock(fcntl.LOCK_SH)
    return wrong


def _fields(header: Header) -> Header:
    return {name: value for name, value in header.items() if name not in ("type", "size")}


def _key(entry: Entry) -> tuple[str, str, str]:
    return entry.path, entry.kind, entry.content


def _is_empty(path: str) -> bool:
    try:
        with os.scandir(path) as found:
            return next(found, None) is None
    except OSError:
        return False
