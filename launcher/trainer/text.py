"""The text to train on, mapped into memory from one file per node, so that it may be larger than the memory.

A rank that finds the same file under the same path maps that file. To the other nodes rank 0 sends a copy, once per
node: the first rank there writes it to a temporary file without a name, which the node's ranks map.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import stat
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Union

import torch
import torch.distributed as dist
from torch import Tensor

from launcher import distributed
from launcher.distributed import World
from launcher.trainer.options import ConfigError
from launcher.trainer.prepare_data import find_shakespeare
from launcher.trainer.rank0_work import share_from_main

Content = Union[bytes, mmap.mmap]  # noqa: UP007  # evaluated, on Python 3.9 too
SHAKESPEARE_FOLDER = Path("data")
# A text of at most PROBES pieces is compared as a whole.
PROBES, PROBE_BYTES = 256, 1 << 16
PIECE_BYTES = 1 << 24


def load_text(path: str, world: World, group: Any, most_bytes: int | None = None) -> Tensor:
    """Return the text, or its first `most_bytes`, on every rank: a uint8 tensor on the CPU, which must not be changed.

    path: as for `open_text`. group: of all ranks, on the CPU.
    Only rank 0 must be able to read it; rank 0's ConfigError is raised on every rank.
    """
    content: Content | None = None

    def open_and_identify() -> bytes:
        nonlocal content
        content = open_text(path)
        return b"%d %s" % (len(content), identify(content, path))

    size, identity = share_from_main(open_and_identify, world).split()
    size_bytes = int(size) if most_bytes is None else min(int(size), most_bytes)
    if not size_bytes:
        content = b""
    elif world.world_size > 1:
        if not world.is_main:
            content = find_same(path, int(size), identity)
        content = copy_to_nodes(content, size_bytes, world, group)
    assert content is not None  # rank 0 has the text, and the others have it or a copy
    return as_tensor(content, size_bytes)


def open_text(path: str) -> Content:
    """Open the file or the named text `path`; "" is the text that every Python includes for `help()`."""
    if not path:
        try:
            from pydoc_data.topics import topics
        except ImportError:
            raise ConfigError("this Python lacks pydoc_data; fix: name a text with --data FILE") from None
        return "\n".join(topics[name] for name in sorted(topics)).encode()
    try:
        with (find_shakespeare(SHAKESPEARE_FOLDER) if path == "shakespeare" else Path(path)).open("rb") as file:
            is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            return map_file(file) if is_file else file.read()  # a pipe can't be mapped
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        shown, reason = path if path.isprintable() else repr(path), getattr(error, "strerror", None) or error
        raise ConfigError(f"{shown}: {reason} (on rank 0's host)") from None


def map_file(file: BinaryIO) -> Content:
    """Map a file for reading. All processes that map it share one copy, which the kernel can drop and read again."""
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else b""


def as_tensor(content: Content, size_bytes: int) -> Tensor:
    """Return the first bytes of the text as a tensor that shares its memory."""
    if not size_bytes:  # frombuffer refuses it
        return torch.empty(0, dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")  # nothing writes to it
        return torch.frombuffer(content, dtype=torch.uint8, count=size_bytes)


def identify(content: Content, path: str) -> bytes:
    """Return what only the same text has: a hash of it; of a large file, a hash of its samples and of its timestamp.

    Size and timestamp are what rsync compares to skip a file; the samples are checked in addition.
    """
    size_bytes = len(content)
    digest = sha256(b"%d" % size_bytes)
    if size_bytes <= PROBES * PROBE_BYTES:
        digest.update(content)
    else:
        last = size_bytes - PROBE_BYTES
        for start in (number * last // (PROBES - 1) for number in range(PROBES)):
            digest.update(content[start : start + PROBE_BYTES])
        digest.update(b"%d" % Path(path).stat().st_mtime_ns if Path(path).is_file() else b"")
    return digest.hexdigest().encode()


def find_same(path: str, size_bytes: int, identity: bytes) -> Content | None:
    """Return rank 0's text if this host has it too, under the same path; None if it doesn't."""
    if path not in ("", "shakespeare") and not os.path.isfile(path):  # noqa: PTH113  # takes any text for a path
        return None  # nor does it open a pipe, which would wait for a writer
    try:
        content = open_text(path)
        return content if len(content) == size_bytes and identify(content, path) == identity else None
    except (ConfigError, OSError):
        return None


def copy_to_nodes(content: Content | None, size_bytes: int, world: World, group: Any) -> Content:
    """Return the text on every rank; ranks that lack it (None) get it from a copy that their node receives.

    Every rank must call this. Raise ConfigError on all of them if a node can't keep a copy.
    """
    here = (world.node_rank, world.host)
    receivers: dict[Any, int] = {}  # the first rank without the text on each node that has such ranks
    for rank, node in enumerate(gather(None if content is not None else here, world)):
        if node is not None:
            receivers.setdefault(node, rank)
    if not receivers:
        assert content is not None  # no rank lacks it
        return content
    neighbours = find_neighbours([0, *receivers.values()], world.rank)
    receives = content is None and receivers[here] == world.rank
    with open_copy(size_bytes, world, is_first=receives, is_needed=content is None, receivers=receivers) as copy:
        problem = ""
        if receives:
            assert copy is not None
            problem = receive(copy, size_bytes, neighbours, group)
        # Those that wait for the whole text wait for rank 0, since a collective has a time limit.
        share_from_main(lambda: send(content, size_bytes, neighbours, group), world)
        refuse_problems(problem, world)
        return map_file(copy) if copy is not None else content  # type: ignore[return-value]  # it has one of them


@contextlib.contextmanager
def open_copy(
    size_bytes: int, world: World, *, is_first: bool, is_needed: bool, receivers: dict[Any, int]
) -> Iterator[BinaryIO | None]:
    """Open the file for a node's copy on each of its ranks that needs it; it is nameless before it holds anything.

    So nothing is left of it, however the ranks end.
    """
    name = problem = ""
    file: BinaryIO | None = None
    if is_first:
        try:
            file = make_copy(size_bytes)
            name = str(file.name)
        except (OSError, ConfigError) as error:
            problem = f"{world.host}: {error}"
    try:
        names = gather(name, world)
        refuse_problems(problem, world)
        if is_needed and not is_first:
            name = names[receivers[world.node_rank, world.host]]
            try:
                file = Path(name).open("rb")  # noqa: SIM115  # closed below
            except OSError as error:
                problem = f"{world.host}: {name}: {error.strerror}; fix: set TMPDIR to a directory that its ranks share"
        refuse_problems(problem, world)
    finally:
        if is_first and name:
            Path(name).unlink()
    with contextlib.ExitStack() as stack:
        yield stack.enter_context(file) if file is not None else None


def make_copy(size_bytes: int) -> BinaryIO:
    """Make an empty file on a disk with room for the text, which may be larger than the memory (and than /dev/shm)."""
    folder = distributed.scratch_folder()
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < size_bytes:
        room = f"{folder} has {free_bytes / 1e9:.1f} GB free, but the copy of the text takes {size_bytes / 1e9:.1f} GB"
        raise ConfigError(f"{room}; fix: set TMPDIR to a larger disk, or put the text where all hosts see it")
    descriptor, name = tempfile.mkstemp(prefix="trainer-text-", dir=folder)
    os.close(descriptor)
    return Path(name).open("r+b")


def find_neighbours(ranks: Sequence[int], rank: int) -> tuple[int, list[int]]:
    """Return the rank that a rank gets the text from, and at most two that it passes it on to: the ranks form a tree.

    ranks: rank 0, then those that receive the text. No others take part.
    """
    if rank not in ranks:
        return 0, []
    place = ranks.index(rank)
    return ranks[max(0, place - 1) // 2], list(ranks[2 * place + 1 : 2 * place + 3])


def send(content: Content | None, size_bytes: int, neighbours: tuple[int, list[int]], group: Any) -> None:
    """Send the text from rank 0, piece by piece."""
    assert content is not None  # rank 0 has read it
    for piece in torch.split(as_tensor(content, size_bytes), PIECE_BYTES):
        for rank in neighbours[1]:
            dist.send(piece, rank, group=group)


def receive(file: BinaryIO, size_bytes: int, neighbours: tuple[int, list[int]], group: Any) -> str:
    """Write the text and pass it on; return the problem, or "". After a failed write, the rest is only passed on."""
    problem = ""
    source, targets = neighbours
    buffer = bytearray(min(PIECE_BYTES, size_bytes))
    tensor = torch.frombuffer(buffer, dtype=torch.uint8)
    for start in range(0, size_bytes, PIECE_BYTES):
        length = min(PIECE_BYTES, size_bytes - start)
        dist.recv(tensor[:length], source, group=group)
        for rank in targets:
            dist.send(tensor[:length], rank, group=group)
        try:
            if not problem:
                file.write(memoryview(buffer)[:length])
                file.flush()
        except OSError as error:
            problem = f"{file.name}: {error.strerror}; fix: set TMPDIR to a larger disk"
    return problem


def gather(value: Any, world: World) -> list[Any]:
    """Return every rank's value, in rank order, on every rank."""
    values = [value] * world.world_size
    dist.all_gather_object(values, value)
    return values


def refuse_problems(problem: str, world: World) -> None:
    """Raise ConfigError on every rank if one of them has a problem."""
    problems = [one for one in gather(problem, world) if one]
    if problems:
        raise ConfigError(problems[0])
