"""Which nodes want which files, from the bits that they have sent."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from launcher.node.code.listing import FILE, LINK, Entry
from launcher.sync.delivery import find_wanted

FILES = [Entry(str(number), LINK if number == 3 else FILE, 1, "") for number in range(20)]


@given(st.lists(st.binary(max_size=4), max_size=6))
def test_each_bit_is_a_file_that_the_node_wants(requests: Sequence[bytes]) -> None:
    """Bits beyond the listing mean nothing, and links come with it."""
    expected = {
        place: frozenset(node for node, bits in enumerate(requests) if int.from_bytes(bits, "little") >> place & 1)
        for place, entry in enumerate(FILES)
        if entry.kind == FILE
    }
    found = find_wanted(dict(enumerate(requests)), FILES)
    assert found == {place: nodes for place, nodes in expected.items() if nodes}


def test_nodes_that_want_the_same_are_gathered_once() -> None:
    """For 40,000 files and 1,000 hosts, a set for each file would take 1.3 GB, and longer than a host may be silent."""
    wanted = find_wanted(dict.fromkeys(range(1000), b"\xff\xff"), FILES)
    assert len(wanted) == 15 and len({id(nodes) for nodes in wanted.values()}) == 1
