"""Files cut into pieces: every byte that a node lacks once, in order, and each piece made once for all nodes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.node.code.listing import FILE, LINK, Entry
from launcher.node.messages import Decoder
from launcher.sync import contents
from launcher.sync.contents import PIECE_BYTES, Pieces, find_wanted

MIB = 1 << 20


def entries_of(files: Sequence[bytes]) -> list[Entry]:
    return [Entry(str(number), FILE, len(data), hashlib.sha256(data).hexdigest()) for number, data in enumerate(files)]


class Source:
    """Files that are read in pieces; `found` has the number of each that was looked for."""

    def __init__(self, files: Sequence[bytes], folder: Path | None = None) -> None:
        """folder: where the files are; None: they are small, and kept in memory."""
        self.files = list(files)
        self.found: list[int] = []
        self.folder = folder
        self.entries = entries_of(files)
        self.pieces = Pieces(self.entries, self._find)
        for number, data in enumerate(files if folder is not None else ()):
            (folder / str(number)).write_bytes(data)

    def _find(self, entry: Entry) -> bytes | str:
        self.found.append(int(entry.path))
        return self.files[int(entry.path)] if self.folder is None else str(self.folder / entry.path)

    async def read(self, *wanted: int) -> bytes:
        """Return all that a node gets that wants these."""
        data = b""
        while len(data) < sum(self.entries[number].size for number in wanted):
            data += unpack((await self.pieces.get(bits_of(*wanted), len(data))).message)
        return data


def bits_of(*wanted: int) -> bytes:
    return sum(1 << number for number in wanted).to_bytes(2, "little")


def unpack(message: bytes) -> bytes:
    ((header, payload),) = Decoder().feed(message)
    data = zlib.decompress(payload) if header["is_packed"] else payload
    assert len(data) <= PIECE_BYTES
    return data


def test_what_shrinks_is_compressed_and_the_rest_is_sent_as_it_is() -> None:
    files = [b"spam " * 20000, os.urandom(MIB), os.urandom(64 << 10) + bytes(MIB // 2)]
    source = Source(files)
    text, noise, mixed = (asyncio.run(source.pieces.get(bits_of(number), 0)) for number in range(3))
    assert text.header["is_packed"] and text.sent_bytes < 2000
    assert not noise.header["is_packed"] and noise.sent_bytes == MIB
    assert not mixed.header["is_packed"], "its beginning decides"


def test_a_file_is_looked_for_once_for_all_nodes_that_want_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if they want it at the same time, and if one of them wants another file as well; what is kept is bounded."""
    monkeypatch.setattr(contents, "_MOST_KEPT", 2)
    source = Source([b"small", os.urandom(2 * MIB + 9), b"other"], tmp_path)

    async def read_all() -> list[bytes]:
        return await asyncio.gather(source.read(0, 1), source.read(0, 1), source.read(1, 2))

    small, large, other = source.files
    assert asyncio.run(read_all()) == [small + large, small + large, large + other]
    assert sorted(source.found) == [0, 1, 2]
    assert len(source.pieces._kept) == 2


@pytest.mark.parametrize("left", [None, 0, 1, MIB + 1, MIB + 10])
def test_a_file_whose_size_has_changed_leaves_those_after_it_alone(tmp_path: Path, left: int | None) -> None:
    """What is missing is filled up, and what is too much isn't read."""
    large = os.urandom(MIB + 10)
    source = Source([large[: MIB + 9], b"next"], tmp_path)
    (tmp_path / "0").unlink() if left is None else (tmp_path / "0").write_bytes(large[:left])
    expected = large[: left or 0][: MIB + 9].ljust(MIB + 9, b"\0")
    assert asyncio.run(source.read(0, 1)) == expected + b"next"


@given(st.lists(st.integers(0, 400) | st.integers(MIB - 2, MIB + 2), max_size=8), st.sets(st.integers(0, 7)))
def test_a_node_gets_exactly_what_it_wants(sizes: list[int], wanted: set[int]) -> None:
    source = Source([bytes([number]) * size for number, size in enumerate(sizes)])
    chosen = [number for number in range(len(sizes)) if number in wanted]
    assert asyncio.run(source.read(*chosen)) == b"".join(source.files[number] for number in chosen)


@given(st.binary(max_size=4))
def test_each_bit_is_a_file_that_the_node_wants(bits: bytes) -> None:
    """Bits beyond the listing mean nothing, and links come with it."""
    entries = [Entry(str(number), LINK if number == 3 else FILE, 1, "") for number in range(20)]
    expected = [place for place in range(20) if int.from_bytes(bits, "little") >> place & 1 and place != 3]
    assert find_wanted(bits, entries) == expected
