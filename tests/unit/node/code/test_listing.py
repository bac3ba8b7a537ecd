"""The listing of a tree: it comes back as it was sent, and names no place outside of the tree."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.node.code import listing
from launcher.node.code.listing import FILE, LINK, PROGRAM, Entry

HASH = hashlib.sha256(b"").hexdigest()
ENTRIES = [
    Entry("a", FILE, 3, HASH),
    Entry("a b\n\udcff/é", PROGRAM, 0, HASH),
    Entry("l", LINK, 0, "a"),
    Entry("z/l", LINK, 0, "../a b\n\udcff/é"),
]

# A byte that is no UTF-8 is a surrogate, as os.fsdecode has it.
names = st.binary(min_size=1, max_size=8).map(lambda data: data.decode("utf-8", "surrogateescape").replace("/", "_"))
paths = st.lists(names.filter(lambda name: "\0" not in name and name not in (".", "..")), min_size=1, max_size=3)


def test_equal_trees_have_equal_listings() -> None:
    encoded = listing.encode(ENTRIES)
    assert encoded == listing.encode(reversed(ENTRIES))
    assert encoded.isascii()
    assert listing.decode(encoded) == ENTRIES
    assert [[*entry] for entry in listing.decode(encoded)] == json.loads(encoded)
    assert listing.hash_listing(encoded) == hashlib.sha256(encoded).hexdigest()
    assert listing.encode(ENTRIES[1:]) != encoded
    assert listing.decode(listing.encode([])) == []


@given(st.lists(st.tuples(paths, st.sampled_from([FILE, PROGRAM]), st.integers(0, 2**63)), max_size=6))
def test_what_is_encoded_is_decoded(found: list[tuple[list[str], str, int]]) -> None:
    # A number makes each path differ from the others, and from the directories above them.
    entries = [
        Entry("/".join([f"{number}", *path]), kind, size, HASH) for number, (path, kind, size) in enumerate(found)
    ]
    assert listing.decode(listing.encode(entries)) == sorted(entries, key=lambda entry: entry.path)


@pytest.mark.parametrize(
    "path", ["", "/", "/etc/x", "..", "../x", "a/../b", "a/..", ".", "./a", "a//b", "a/", "a\0b", 7, None, ["a"]]
)
def test_a_path_out_of_the_tree_is_refused(path: object) -> None:
    with pytest.raises(ValueError, match="not a path in a tree"):
        listing.decode(json.dumps([["a/x", FILE, 0, HASH], [path, FILE, 0, HASH]]).encode())


@pytest.mark.parametrize(
    ("path", "target", "is_inside"),
    [
        ("l", "a", True),
        ("l", "a/../b", True),
        ("d/e/l", "../../a", True),
        ("d/l", "..", True),
        ("d/l", ".././/a", True),
        ("l", "..a", True),
        ("l", "", False),
        ("l", "/etc/passwd", False),
        ("l", "..", False),
        ("l", "a/../../b", False),
        ("d/l", "../../x", False),
        ("d/l", "../../d/x", False),  # it comes back, but only if the tree has that name
        ("l", "a\0b", False),
    ],
)
def test_a_link_out_of_the_tree_is_refused(path: str, target: str, is_inside: bool) -> None:
    assert listing.is_inside(path, target) == is_inside
    encoded = listing.encode([Entry(path, LINK, 0, target)])
    if is_inside:
        assert [entry.content for entry in listing.decode(encoded)] == [target]
    else:
        with pytest.raises(ValueError, match="not an entry"):
            listing.decode(encoded)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff", b"null", b'"abcd"', b"[7]", b'[["a"]]', b'[{"a": 1}]',
        json.dumps([["a", FILE, 0, HASH, 1]]).encode(),
        json.dumps([["a", FILE, -1, HASH]]).encode(),
        json.dumps([["a", FILE, True, HASH]]).encode(),
        json.dumps([["a", FILE, 1.5, HASH]]).encode(),
        json.dumps([["a", FILE, 0, None]]).encode(),
        json.dumps([["a", FILE, 0, HASH[1:]]]).encode(),
        json.dumps([["a", FILE, 0, "../" + HASH[3:]]]).encode(),
        json.dumps([["a", "d", 0, HASH]]).encode(),
        json.dumps([["a", ["-"], 0, HASH]]).encode(),
    ],
)  # fmt: skip
def test_what_is_no_listing_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        listing.decode(data)
