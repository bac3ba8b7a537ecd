"""The code on its way from the launcher to several nodes: real supervisors of this machine, and some that lie."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from lying_node import HELLO, HOSTILE, LyingTransport
from machines.patience import DEADLINE_S, NEVER_S
from machines.processes import is_alive
from machines.repositories import run_git
from node_process import share_code, wait_until
from transport_by_host import TransportByHost

from launcher.cli.clean import clean_code
from launcher.errors import HostFailure, UsageError
from launcher.hosts.host import Host
from launcher.job.job import Timeouts
from launcher.job.tree import Link, Tree
from launcher.node import messages
from launcher.node.code import folders, listing
from launcher.node.code.folders import Folder
from launcher.node.messages import encode
from launcher.output.node_output import NodeOutput
from launcher.session.session import Session
from launcher.session.settings import Settings
from launcher.session.signals import Interrupted
from launcher.sync.delivery import PIECES_IN_TRANSIT, Delivered, send_code
from launcher.sync.selection import select
from launcher.sync.snapshot import take_snapshot
from launcher.transports.base import Transport
from launcher.transports.process_channel import ProcessChannel, start_process

MIB = 1 << 20
SMALL = {"train.py": b"print(1)\n", "pkg/__init__.py": b"", "pkg/model.py": b"SIZE = 3\n"}
DISK_FIX = "look for a program that writes there, or for a damaged disk; launch clean --code removes it"


class WatchedChannel(ProcessChannel):
    """The pipes of a node; `before_write` is called with all that is about to be written."""

    def __init__(self, process: subprocess.Popen[bytes], before_write: Callable[[bytes], object] | None) -> None:
        super().__init__(process)
        self._before_write = before_write
        self.is_over = threading.Event()  # the launcher has read all there is

    def write(self, data: bytes) -> None:
        if self._before_write is not None:
            self._before_write(data)
        super().write(data)

    def read(self) -> tuple[int, bytes]:
        stream, data = super().read()
        if not stream:
            self.is_over.set()
        return stream, data

    @property
    def pid(self) -> int:
        return self._process.pid


@dataclass(frozen=True)
class CacheTransport:
    """Starts nodes on this machine, each with a cache directory of its own, or the one that `caches` names."""

    folder: Path
    caches: Mapping[str, str] = field(default_factory=dict)
    name: str = "local"
    channels: dict[str, WatchedChannel] = field(default_factory=dict)  # the first of each host
    before_write: Mapping[str, Callable[[bytes], object]] = field(default_factory=dict)

    def open(self, host: Host, command: str, timeout_s: float) -> ProcessChannel:
        tmpdir = self.folder / "tmp"  # a killed node leaves its directory
        tmpdir.mkdir(exist_ok=True)
        cache = self.cache(host.name)
        share_code(cache)
        places = [f"XDG_CACHE_HOME={cache}", f"TMPDIR={tmpdir}"]
        process = start_process(["env", *places, "/bin/sh", "-c", command])
        channel = WatchedChannel(process, self.before_write.get(host.name))
        self.channels.setdefault(host.name, channel)
        return channel

    def own_messages(self, host: Host) -> list[str]:
        return []

    def cache(self, host: str) -> Path:
        return self.folder / self.caches.get(host, host)


@pytest.fixture
def nodes(tmp_path: Path) -> CacheTransport:
    return CacheTransport(tmp_path)


def make_root(folder: Path) -> Path:
    folder.mkdir(parents=True)
    run_git(folder, "init", "-q")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "proj")


@dataclass
class Sent:
    """What one delivery has come to."""

    delivered: Delivered
    failures: list[HostFailure]
    said: list[str]

    @property
    def texts(self) -> list[str]:
        return [str(finding) for finding in self.delivered.findings]


def write(root: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def tree_of(root: Path) -> Tree:
    return take_snapshot(select(root))


async def start(root: Path, transport: Transport, *names: str, tree: Tree | None = None, run: str = "test") -> Sent:
    said: list[str] = []
    settings = Settings(run, {}, ["python3"], Timeouts(DEADLINE_S, NEVER_S, 1))
    outputs = [NodeOutput(name, None, None) for name in names]
    session = Session(
        [Host(name) for name in names], transport, outputs, settings, say=said.append, progress=said.append
    )
    sending = send_code(session, tree or tree_of(root), {"XDG_CACHE_HOME": "/nowhere"})
    delivered = await asyncio.wait_for(sending, DEADLINE_S)
    return Sent(delivered, session.failures(), said)


def send(root: Path, transport: Transport, *names: str, **options: Any) -> Sent:
    return asyncio.run(start(root, transport, *names, **options))


def read(folder: str | Path) -> dict[str, bytes | str]:
    """Return what is below a directory: the bytes of files, and the targets of links."""
    return {
        path.relative_to(folder).as_posix(): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_symlink() or path.is_file()
    }


def expect_whole(cache: Path) -> None:
    """Check that a cache has only whole directories, but for those without a place, which the next run removes."""
    for path in (cache / "launch/trees").glob("[!.]*"):
        folder = Folder(str(path), folders.read_name(str(path)))
        assert folder.name
        assert listing.find_wrong(folder.root, folder.read_entries()) == []


# ---- all goes well --------------------------------------------------------------------------------------------------


def test_every_host_gets_every_byte(root: Path, nodes: CacheTransport) -> None:
    files = {
        **SMALL, "one": b"", "exact": os.urandom(MIB), "more": os.urandom(MIB + 1), "noise": os.urandom(3 * MIB + 7),
        "text": b"spam " * 500_000, "two\nlines": b"1", "with space/'q\"": b"2", "ünï/ñ": b"3", "caf\udce9.txt": b"4",
        "-x": b"5", "$HOME": b"6", "a:b": b"7", "same": b"SIZE = 3\n",
    }  # fmt: skip
    write(root, files)
    (root / "link").symlink_to("pkg")
    (root / "pkg" / "again").symlink_to("../two\nlines")
    (root / "train.py").chmod(0o755)
    tree = tree_of(root)
    first = send(root, nodes, "a", "b", "c", tree=tree)
    assert (first.failures, first.texts) == ([], [])
    assert first.delivered.files == tree.files == len(files) + 2, "all, though each content is sent once"
    for path in first.delivered.paths.values():
        assert read(path) == {**files, "link": "pkg", "pkg/again": "../two\nlines"}
        assert [each.name for each in Path(path).rglob("*") if each.is_file() and os.access(each, os.X_OK)] == [
            "train.py"
        ]
    assert {str(Path(path).parents[3]) for path in first.delivered.paths.values()} == {
        str(nodes.cache(name)) for name in "abc"
    }
    noise = sum(len(files[name]) for name in ("exact", "more", "noise"))
    assert 3 * noise < first.delivered.sent_bytes < 3 * noise + 300_000
    again = send(root, nodes, "a", "b", "c", run="again", tree=tree)
    assert (again.delivered.is_nothing, again.delivered.sent_bytes) == (True, 0)
    assert all(read(path)["noise"] == files["noise"] for path in again.delivered.paths.values())


def read_sent(root: Path) -> dict[str, bytes | str]:
    return {path: data for path, data in read(root).items() if not path.startswith(".git/")}


def test_any_name_of_the_directory(tmp_path: Path, nodes: CacheTransport) -> None:
    """The path that a host tells is where the code is."""
    root = make_root(tmp_path / "r" / "it's\nmy: prüj")
    write(root, SMALL)
    found = send(root, nodes, "a")
    (path,) = found.delivered.paths.values()
    assert (found.texts, read(path)) == ([], dict(SMALL))
    assert ":" not in path


# ---- shared directories ---------------------------------------------------------------------------------------------


def test_hosts_that_share_their_cache_make_the_same_tree_at_once(root: Path, tmp_path: Path) -> None:
    """And mend it at once, for another attempt, after a rank has changed it."""
    write(root, {**SMALL, "noise": os.urandom(2 * MIB)})
    nodes = CacheTransport(tmp_path, dict.fromkeys("abcd", "shared"))
    found = send(root, nodes, *"abcd")
    assert (found.failures, found.texts) == ([], [])
    (path,) = set(found.delivered.paths.values())
    assert read(path) == read_sent(root)
    expect_whole(tmp_path / "shared")
    Path(path, "train.py").write_bytes(b"changed\n")
    Path(path, "noise").unlink()
    found = send(root, nodes, *"abcd")
    assert (found.failures, {*found.delivered.paths.values()}) == ([], {path})
    assert {name: data for name, data in read(path).items() if ".replaced-" not in name} == read_sent(root)
    assert b"changed\n" in read(path).values()


# ---- hosts that fail ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["supervisor", "worker", "all"])
def test_a_host_that_is_lost_in_the_middle(root: Path, tmp_path: Path, victim: str) -> None:
    """The others get everything, and nothing of it is half there."""
    write(root, {**SMALL, "noise": os.urandom(4 * MIB)})
    seen = 0

    def kill(data: bytes) -> None:
        nonlocal seen
        seen += len(data) > MIB // 2
        if seen == 3:
            top = nodes.channels["a"].pid
            # The kernel's list of children may lack one while others are forked or end: proc(5).
            wait_until(lambda: len(find_family(top)) == 3)
            _, supervisor, worker = find_family(top)
            wait_until(lambda: any("/proj/" in path for path in list_open_files(worker)))
            if victim == "all":
                os.killpg(top, signal.SIGKILL)
            else:
                os.kill({"supervisor": supervisor, "worker": worker}[victim], signal.SIGKILL)

    nodes = CacheTransport(tmp_path, before_write={"a": kill})
    found = send(root, nodes, "a", "b")
    if victim == "worker":
        assert (found.failures, found.texts) == ([], ["a: the process that takes the code was killed"])
    else:
        assert [failure.host for failure in found.failures] == ["a"]
    assert read(found.delivered.paths[1]) == read_sent(root)
    expect_whole(tmp_path / "a")
    again = send(root, CacheTransport(tmp_path), "a", run="again")
    assert read(again.delivered.paths[0]) == read_sent(root)


def list_open_files(pid: int) -> list[str]:
    found = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            found.append(str(fd.readlink()))
    return found


def find_family(top: int) -> list[int]:
    """Return guardian, supervisor and the process that takes the code, which are each other's children."""
    family = [top]
    while children := Path(f"/proc/{family[-1]}/task/{family[-1]}/children").read_text().split():
        family.append(int(children[-1]))
    return family[-3:]


# ---- hosts that lie -------------------------------------------------------------------------------------------------


def wants_all(order: dict[str, Any], said: list[Any], nonce: str) -> list[Any]:
    """Say what a node says that lacks everything, and more than there is, up to its last word."""
    kind = order["type"]
    if kind == messages.PREPARE:
        wanted = encode(messages.WANTED, b"\xff" * (1 << 20), needs_listing=False)
        return [HELLO, *([wanted] if order.get("tree") else [])]
    return [encode(messages.TOOK)] if kind == messages.PIECE else said


PLACED = {"path": "/x", "repaired": [], "empty": [], "moved": [], "wrong": [HOSTILE, "b", "c", "d"]}


@pytest.mark.parametrize(
    ("word", "texts"),
    [
        (encode(messages.PLACED, **PLACED), [
            "liar: its copy of boom?[2J?]0;t??launch: 0 processes left on 2 hosts, b, c and more differs\n"
            f"  fix: {DISK_FIX}",
        ]),
        (None, []),  # it hangs up
    ],
)  # fmt: skip
def test_a_host_that_lies_is_named_alone(
    root: Path, nodes: CacheTransport, word: bytes | None, texts: list[str]
) -> None:
    write(root, {**SMALL, "noise": os.urandom(MIB // 2)})

    def lie(order: dict[str, Any], said: list[Any], nonce: str) -> list[Any]:
        is_piece = order["type"] == messages.PIECE
        return [encode(messages.TOOK), word] if is_piece else wants_all(order, said, nonce)

    found = send(root, TransportByHost({"good": nodes, "liar": LyingTransport(lie)}), "good", "liar")
    assert read(found.delivered.paths[0]) == read_sent(root)
    assert list(found.delivered.paths) == [0]
    assert (found.texts, [failure.host for failure in found.failures]) == (texts, [] if texts else ["liar"])


# ---- this machine ---------------------------------------------------------------------------------------------------


def test_a_file_that_changes_while_it_is_sent_ends_it(root: Path, tmp_path: Path) -> None:
    """The host gets another content than was listed, and wants it again; by then launch looks."""
    write(root, {**SMALL, "noise": os.urandom(40 * MIB)})  # more than is read ahead

    def change(data: bytes) -> None:
        if len(data) > MIB // 2:
            with (root / "noise").open("r+b") as file:
                file.seek(39 * MIB)
                file.write(b"another content")

    nodes = CacheTransport(tmp_path, before_write={"a": change})
    with pytest.raises(UsageError) as caught:
        send(root, nodes, "a", "b")
    assert str(caught.value) == "noise has changed or was removed since launch listed it"
    for name in "ab":
        wait_until(lambda: not is_alive(nodes.channels[name].pid))  # noqa: B023 - called at once
        expect_whole(nodes.cache(name))


def test_a_slow_host_holds_nobody_up(root: Path, tmp_path: Path) -> None:
    """It has taken nothing when the others have all."""
    write(root, {"noise": os.urandom(9 * MIB)})
    sent = {"fast": 0, "slow": 0}

    def count(data: bytes) -> None:
        sent["fast"] += len(data) > MIB // 2

    def wait(data: bytes) -> None:
        if len(data) > MIB // 2:
            wait_until(lambda: sent["fast"] == 9)
            sent["slow"] += 1

    nodes = CacheTransport(tmp_path, before_write={"fast": count, "slow": wait})
    found = send(root, nodes, "fast", "slow")
    assert [read(path) for path in found.delivered.paths.values()] == 2 * [read_sent(root)]
    assert sent == {"fast": 9, "slow": 9}


def test_a_host_that_takes_nothing_gets_a_window_of_pieces(root: Path, tmp_path: Path) -> None:
    """So what waits for slow hosts takes a bounded part of this machine's memory."""
    write(root, {"noise": os.urandom(9 * MIB)})
    got = {"good": 0, "liar": 0}

    def lie(order: dict[str, Any], said: list[Any], nonce: str) -> list[Any]:
        got["liar"] += order["type"] == messages.PIECE
        return [] if order["type"] == messages.PIECE else wants_all(order, said, nonce)

    def end_at_last(data: bytes) -> None:
        is_piece = len(data) > MIB // 2
        got["good"] += is_piece
        if is_piece and got["good"] == 9:
            wait_until(lambda: got["liar"] >= PIECES_IN_TRANSIT)
            liar.opened[0].say(encode(messages.UNPLACED, text="enough", is_disk=False))

    liar = LyingTransport(lie)
    good = CacheTransport(tmp_path, before_write={"good": end_at_last})
    found = send(root, TransportByHost({"good": good, "liar": liar}), "good", "liar")
    assert (found.failures, found.texts) == ([], ["liar: enough"])
    assert got == {"good": 9, "liar": PIECES_IN_TRANSIT}


def test_a_signal_while_it_sends(root: Path, tmp_path: Path) -> None:
    write(root, {**SMALL, "noise": os.urandom(12 * MIB)})
    seen = 0

    def interrupt(data: bytes) -> None:
        nonlocal seen
        seen += len(data) > MIB // 2
        if seen == 3:
            os.kill(os.getpid(), signal.SIGINT)
            seen = 100

    nodes = CacheTransport(tmp_path, before_write={"a": interrupt, "b": interrupt})
    with pytest.raises(Interrupted):
        send(root, nodes, "a", "b")
    for name in "ab":
        wait_until(lambda: not is_alive(nodes.channels[name].pid))  # noqa: B023 - called at once
        expect_whole(nodes.cache(name))
    again = send(root, CacheTransport(tmp_path), "a", "b", run="again")
    assert [read(path) for path in again.delivered.paths.values()] == 2 * [read_sent(root)]


# ---- what is left ---------------------------------------------------------------------------------------------------


def clean(nodes: CacheTransport, *names: str, is_dry: bool = False) -> list[str]:
    async def run() -> list[str]:
        settings = Settings("clean", {}, ["python3"], Timeouts(DEADLINE_S, NEVER_S, 1))
        outputs = [NodeOutput(name, None, None) for name in names]
        session = Session([Host(name) for name in names], nodes, outputs, settings, say=print, progress=print)
        done = await asyncio.wait_for(clean_code(session, print, is_dry=is_dry), DEADLINE_S)
        assert done.exit_code == 0
        return [*done.lines]

    return asyncio.run(run())


def test_a_tree_with_links_and_a_directory_of_its_own_goes_without_rest(
    root: Path, nodes: CacheTransport, tmp_path: Path
) -> None:
    """With a link below a directory that isn't sent, and a working directory without files."""
    write(root, {"train.py": b""})
    (tmp_path / "data").mkdir()
    tree = replace(tree_of(root), inside="runs/here", links=(Link("a/b/data", str(tmp_path / "data"), may_make=False),))
    found = send(root, nodes, "a", tree=tree)
    assert (Path(found.delivered.paths[0]) / "a/b/data").is_dir()
    send(root, nodes, "a", run="again")
    assert clean(nodes, "a")[1:] == []
    assert list((nodes.cache("a") / "launch/trees").iterdir()) == []
