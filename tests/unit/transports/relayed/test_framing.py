"""What goes over one srun as lines: exact bytes whatever they are, each block once, and lines that were cut."""

from __future__ import annotations

import itertools
from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.node.relays import relay
from launcher.transports.base import STDERR, STDOUT
from launcher.transports.relayed.framing import (
    BLOCK_BYTES,
    KEPT_BLOCKS,
    MAX_LINE_BYTES,
    DataLines,
    Exit,
    LineDecoder,
    Noise,
    ProcessOutput,
    RelayStarted,
    hang_line,
    open_line,
    shut_line,
    took_line,
)

NONCE = "0123abcd"


class Reader:
    """The end of a relay, from its documentation."""

    def __init__(self) -> None:
        self.blocks: dict[int, bytes] = {}
        self.data: dict[int, bytes] = {}
        self._count = 0

    def take(self, line: bytes) -> None:
        assert line.endswith(b"\n") and line.count(b"\n") == 1
        verb, channel, word = line.split()
        if verb == b"again":
            data = self.blocks[int(word)]
        else:
            data = b64decode(word, validate=True)
            if len(data) == BLOCK_BYTES:
                self.blocks[self._count] = data
                self.blocks.pop(self._count - KEPT_BLOCKS, None)
                self._count += 1
        self.data[int(channel)] = self.data.get(int(channel), b"") + data


pieces = st.binary(max_size=40) | st.integers(0, 3).map(lambda kind: bytes([kind]) * BLOCK_BYTES)
payloads = st.tuples(st.integers(1, 3), st.lists(pieces, max_size=4).map(b"".join))


@given(st.lists(payloads, max_size=8))
def test_each_channel_gets_its_bytes(sent: list[tuple[int, bytes]]) -> None:
    lines, reader, wanted = DataLines(), Reader(), dict[int, bytes]()
    for channel, data in sent:
        for line in lines.encode(channel, data):
            reader.take(line)
        if data:
            wanted[channel] = wanted.get(channel, b"") + data
    assert reader.data == wanted


def test_what_many_hosts_get_travels_once() -> None:
    lines, code = DataLines(), b"".join(number.to_bytes(4, "big") * 1024 for number in range(25))
    sizes = [sum(map(len, lines.encode(host, b"%d" % host + code))) for host in range(1, 65)]
    assert sizes[0] > len(code)
    assert max(sizes[1:]) < 600


def test_blocks_that_a_relay_has_forgotten_are_sent_again() -> None:
    lines, reader = DataLines(), Reader()
    numbers = itertools.chain([0], range(KEPT_BLOCKS + 1), [0])
    data = b"".join(number.to_bytes(4, "big") * (BLOCK_BYTES // 4) for number in numbers)
    for line in lines.encode(1, data):
        reader.take(line)
    assert reader.data == {1: data}
    assert len(reader.blocks) == KEPT_BLOCKS


def test_orders_to_relays() -> None:
    assert open_line(3, 1, "echo \udce4") == b"open 3 1 " + b64encode(b"echo \xe4") + b"\n"
    assert took_line(3, 1000) == b"took 3 1000\n"
    assert shut_line(3) == b"shut 3\n"
    assert hang_line(1, RelayStarted(0, "n1", 4711, 99)) == b"hang 1 4711 99\n"


# ---- what comes


def line(text: str, data: bytes = b"") -> bytes:
    return f"~{NONCE} {text}{b64encode(data).decode()}\n".encode()


SAID = (
    line("here 0 n1 4711 1234")
    + b"module noise\n"
    + line("out 1 ", b"a\0")
    + line("out 1 ", b"\xff")
    + line("err 1 ", b"b")
    + line("out 2 ", b"c")
    + line("exit 1 137")
)
READ = [
    RelayStarted(0, "n1", 4711, 1234),
    Noise(b"module noise"),
    ProcessOutput(1, STDOUT, b"a\0\xff"),
    ProcessOutput(1, STDERR, b"b"),
    ProcessOutput(2, STDOUT, b"c"),
    Exit(1, 137),
]


def test_lines_of_relays() -> None:
    assert LineDecoder(NONCE).feed(SAID) == READ


@pytest.mark.parametrize("size", [1, 7, 60])
def test_lines_in_pieces(size: int) -> None:
    decoder = LineDecoder(NONCE)
    found = [event for start in range(0, len(SAID), size) for event in decoder.feed(SAID[start : start + size])]
    assert [event for event in found if not isinstance(event, ProcessOutput)] == [READ[0], READ[1], READ[5]]
    data = {key: b"".join(event.data for event in found if isinstance(event, ProcessOutput) and event.channel == key)
            for key in (1, 2)}  # fmt: skip
    assert data == {1: b"a\0\xffb", 2: b"c"}


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (line("out 1 ", b"cut off")[:-5] + line("out 2 ", b"on"), [Noise(line("out 1 ", b"cut off")[:-5]),
                                                                  ProcessOutput(2, STDOUT, b"on")]),
        (b"~" + line("exit 2 0"), [Noise(b"~"), Exit(2, 0)]),
        (b"~ffffffff out 1 aGk=\n", [Noise(b"~ffffffff out 1 aGk=")]),
        (line("out x aGk="), [Noise(line("out x aGk=")[:-1])]),
        (line("out 1 a"), [Noise(line("out 1 a")[:-1])]),
        (line("out 1"), [Noise(line("out 1")[:-1])]),
        (line("exit 1 256"), [Noise(line("exit 1 256")[:-1])]),
        (line("exit 1 -9"), [Noise(line("exit 1 -9")[:-1])]),
        (line("exit 1 " + "9" * 5000), [Noise(line("exit 1 " + "9" * 5000)[:-1])]),
        (line("here 0 n1 1"), [Noise(line("here 0 n1 1")[:-1])]),
        (f"~{NONCE} here 0 \xff 1 1\n".encode("latin-1"), [Noise(f"~{NONCE} here 0 \xff 1 1".encode("latin-1"))]),
        (line("dance 1"), [Noise(line("dance 1")[:-1])]),
        (b"\n", [Noise(b"")]),
    ],
)  # fmt: skip
def test_lines_that_were_cut_are_noise_and_hide_no_other(text: bytes, events: list[object]) -> None:
    assert LineDecoder(NONCE).feed(text) == events


def test_a_line_without_end_is_not_hoarded() -> None:
    decoder = LineDecoder(NONCE)
    found = [event for _ in range(1000) for event in decoder.feed(b"x" * 1000)]
    assert {type(event) for event in found} == {Noise}
    assert sum(len(event.text) for event in found if isinstance(event, Noise)) > 1_000_000 - 2 * MAX_LINE_BYTES
    assert decoder.feed(b"\n" + line("exit 1 0"))[1:] == [Exit(1, 0)]


@given(st.lists(st.sampled_from([f"~{NONCE} ".encode(), b"out ", b"exit ", b"here ", b"1 ", b"-1", b"aGk=", b"\n"])
                | st.binary(max_size=3)).map(b"".join))  # fmt: skip
def test_any_bytes_are_lines_or_noise(data: bytes) -> None:
    whole = LineDecoder(NONCE).feed(data)
    assert all(isinstance(event, RelayStarted | ProcessOutput | Exit | Noise) for event in whole)
    decoder = LineDecoder(NONCE)
    pieces = [event for byte in data for event in decoder.feed(bytes([byte]))]
    assert [event for event in pieces if not isinstance(event, ProcessOutput)] == [
        event for event in whole if not isinstance(event, ProcessOutput)
    ]


def test_lines_of_relays_are_short_enough_for_srun() -> None:
    longest = f"~{NONCE} out {10**9} ".encode() + b64encode(bytes(relay.LINE_BYTES)) + b"\n"
    assert len(longest) < 1024
