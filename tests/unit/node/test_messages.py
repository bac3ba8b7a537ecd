"""The wire format: what was encoded comes back in any pieces, and what is no message is refused at its header."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.node import messages
from launcher.node.messages import MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES, Decoder, MalformedMessage, encode

# Lone surrogates too: that is how argv and paths hold bytes that are no UTF-8.
texts = st.text(st.characters(), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
fields = st.dictionaries(texts.filter(lambda name: name not in {"kind", "payload", "type", "size"}), values, max_size=4)
payloads = st.binary(max_size=300)


def pieces_of(data, cuts):
    borders = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(borders)]


def decode(pieces):
    decoder = Decoder()
    return [message for piece in pieces for message in decoder.feed(piece)]


@given(st.lists(st.tuples(texts, payloads, fields), max_size=4), st.lists(st.integers(0), max_size=12))
def test_messages_come_back_in_any_pieces(sent, cuts):
    stream = b"".join(encode(kind, payload, **more) for kind, payload, more in sent)
    expected = [
        ({"type": kind, **more, **({"size": len(payload)} if payload else {})}, payload) for kind, payload, more in sent
    ]
    assert decode(pieces_of(stream, cuts)) == expected


def test_a_message_comes_with_its_last_byte_and_not_before():
    payload = b'\n{"type":"beat"}\n\x00\xff\r\n'
    stream = encode(messages.OUTPUT, payload, rank=3, stream=1)
    decoder = Decoder()
    assert [decoder.feed(stream[at : at + 1]) for at in range(len(stream) - 1)] == [[]] * (len(stream) - 1)
    assert decoder.feed(stream[-1:]) == [({"type": "output", "rank": 3, "stream": 1, "size": len(payload)}, payload)]
    assert decoder.feed(b"") == []


def test_a_message_on_the_wire():
    assert encode(messages.OUTPUT, b"a\xff\n", rank=0) == b'{"type": "output", "rank": 0, "size": 3}\na\xff\n'
    assert encode(messages.BEAT) == b'{"type": "beat"}\n'
    assert encode(messages.FAILED, text="ä\n\udcff") == b'{"type": "failed", "text": "\\u00e4\\n\\udcff"}\n'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "not JSON: b''"),
        (b'{"type":"b\xffat"}', 'not JSON: b\'{"type":"b\\xffat"}\''),
        (b"x" * 200, f"not JSON: {b'x' * 80!r}"),
        (b"[" * 100_000, f"not JSON: {b'[' * 80!r}"),
        (b"9" * 10_000, f"not JSON: {b'9' * 80!r}"),
        (b"[]", "not a message: b'[]'"),
        (b"{}", "not a message: b'{}'"),
        (b'{"type":3}', "not a message: b'{\"type\":3}'"),
        (b'{"type":"output","size":-1}', "invalid size: -1"),
        (b'{"type":"output","size":"3"}', "invalid size: '3'"),
        (b'{"type":"output","size":true}', "invalid size: True"),
        (b'{"type":"output","size":Infinity}', "invalid size: inf"),
        (b'{"type":"output","size":%d}' % (MAX_PAYLOAD_BYTES + 1), f"invalid size: {MAX_PAYLOAD_BYTES + 1}"),
    ],
)
def test_what_is_no_message_is_refused(line, message):
    with pytest.raises(MalformedMessage) as caught:
        Decoder().feed(line + b"\n")
    assert str(caught.value) == message


# What a header may be made of, and what not.
fragments = st.sampled_from([
    b'{"type":"output"', b',"size":3', b',"size":-1', b',"local_rank":0', b"}", b"{", b"[", b'"', b"\n", b"NaN",
    b"1e999", b"9" * 5000, b"null", b"\xff", b"\\ud800", b"\x00", encode(messages.BEAT), encode("output", b"abc"),
])  # fmt: skip
streams = st.lists(fragments | st.binary(max_size=4), max_size=20).map(b"".join)


def read_until_refused(pieces):
    """Return the messages, and why the rest was refused."""
    decoder, found = Decoder(), []
    try:
        for piece in pieces:
            found += decoder.feed(piece)
    except MalformedMessage as error:
        return found, str(error)
    return found, None


@given(streams, st.lists(st.integers(0), max_size=12))
def test_any_bytes_in_any_pieces_are_messages_or_refused(stream, cuts):
    whole, refused = read_until_refused([stream])
    found, refused_in_pieces = read_until_refused(pieces_of(stream, cuts))
    assert refused_in_pieces == refused
    assert found == whole if refused is None else found[: len(whole)] == whole  # before a refusal, more may have come
    assert refused is None or refused.isprintable()


def test_a_header_is_judged_before_its_payload_is_waited_for():
    def accept(header):
        if header["type"] == messages.FILE:
            raise MalformedMessage("no files")
        return {**header, "seen": True}

    decoder = Decoder(accept=accept)
    assert decoder.feed(encode(messages.OUTPUT, b"abc")) == [({"type": "output", "size": 3, "seen": True}, b"abc")]
    with pytest.raises(MalformedMessage, match=r"^no files$"):
        decoder.feed(b'{"type":"file","size":%d}\n' % MAX_PAYLOAD_BYTES)


def test_a_header_without_end_is_refused_before_it_fills_the_memory():
    decoder = Decoder()
    for _ in range(MAX_HEADER_BYTES >> 20):
        assert decoder.feed(b"x" * (1 << 20)) == []
    with pytest.raises(MalformedMessage, match=f"^a header line over {MAX_HEADER_BYTES} bytes$"):
        decoder.feed(b"x")
