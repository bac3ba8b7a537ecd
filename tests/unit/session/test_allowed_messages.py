"""What a node may say when: honest connections pass, and a liar's message costs it its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.forms import MOST_LETTERS
from launcher.node import messages
from launcher.node.messages import Decoder, MalformedMessage, encode
from launcher.session.allowed_messages import AllowedMessages, UnaskedMessage

Header = dict[str, Any]

BEAT = {"type": "beat"}
HELLO = {"type": "hello", "folder": "/tmp/x", "keepers": [[12, 345], [11, 344]]}
FACTS = {"type": "facts", "hostname": "gpu1"}
ROUTED = {"type": "routed", "interface": "eth0", "address": "10.0.0.1"}
PROBED = {"type": "probed", "errors": [None, "No route to host"], "reverse_dns_s": 0.1}
EARLY = {"type": "output", "local_rank": None, "stream": 2, "size": 5}
OUTPUT = {"type": "output", "local_rank": 1, "stream": 1, "size": 1 << 18}
ENDED = {"type": "ended", "code": 0, "signal": None}
FAILED = {"type": "failed", "text": "no room"}
CENSUS = {"type": "census", "left": [], "reason": None, "files": 2}
DEAD = {"type": "census", "left": [], "supervisor": {"code": None, "signal": 9}}
STACK = {"type": "stack", "number": 1, "local_rank": 0, "pid": 7, "size": 1 << 20}
FILE = {"type": "file", "name": "trace_0", "size": 16 << 20}

PREPARE = {"type": "prepare", "facts": True}
SEND = {"type": "prepare", "tree": {"hash": "5f3a91c"}}
ROUTE = {"type": "route"}
PROBE = {"type": "probe", "targets": [["10.0.0.1", 1], ["10.0.0.2", 2]]}
START = {"type": "start", "local_ranks": [0, 1], "processes": []}
SHORT = {"type": "start", "processes": [{"rank": 0}], "is_short": True}
STACKS = {"type": "stacks", "number": 1}
STOP = {"type": "stop"}


def started(local_rank: int) -> Header:
    return {"type": "started", "local_rank": local_rank, "pid": 7}


def exit_of(local_rank: int) -> Header:
    return {"type": "exit", "local_rank": local_rank, "age_s": 0, "was_stopping": False, "code": 0, "signal": None}


WANTED = {"type": "wanted", "needs_listing": False, "size": 1 << 20}
TOOK = {"type": "took"}
PLACED = {"type": "placed", "path": "/x", "wrong": [], "repaired": [], "empty": [], "moved": []}
PIECE = {"type": "piece"}

ASKED = (PREPARE, SEND, PIECE, ROUTE, PROBE, START, SHORT, STACKS, STOP)
BEGUN = (PREPARE, HELLO, START, started(0), started(1))


def talk(*said: Header) -> AllowedMessages:
    """Play a connection; what is of ours is known by its type."""
    expected = AllowedMessages()
    for header in said:
        if any(header is one for one in ASKED):
            expected.ask(header)
        else:
            assert expected.accept(header)["type"] == header["type"]
    return expected


@pytest.mark.parametrize(
    "said",
    [
        # A run from its start to its end, and what may come in between.
        (PREPARE, HELLO, BEAT, EARLY, FACTS, ROUTE, ROUTED, PROBE, PROBED, START, started(0), OUTPUT, started(1), BEAT,
         STACKS, STACK, {**STACK, "local_rank": 1}, exit_of(1), exit_of(0), ENDED, STOP, CENSUS, FILE, OUTPUT,
         {**FILE, "name": "trace_1"}),
        # torchrun died of its import; a port was taken, and the way is asked for once more.
        (PREPARE, HELLO, ENDED, FACTS, ROUTE, ROUTED, ROUTE, ROUTED),
        # It takes code, of which it wants some twice again.
        (SEND, HELLO, *4 * [WANTED], PIECE, TOOK, PIECE, TOOK, PLACED),
        # A plain command, which ends by itself.
        (PREPARE, SHORT, HELLO, started(0), OUTPUT | {"local_rank": 0}, exit_of(0), ENDED, CENSUS),
        # Nothing could be made there, or started.
        (PREPARE, FAILED),
        (PREPARE, HELLO, START, FAILED),
        # Somebody has killed the guardian, or the supervisor when all was said.
        ({**CENSUS, "reason": "its parent process was killed"},),
        (*BEGUN, {**CENSUS, "reason": "its helper got signal 15"}),
        (*BEGUN, FAILED, DEAD),
        (*BEGUN, STOP, CENSUS, FAILED, DEAD),
        # A sweep over a second connection, and `clean`.
        (PREPARE, STOP, HELLO, CENSUS),
    ],
)  # fmt: skip
def test_what_honest_nodes_say_is_taken(said: tuple[Header, ...]) -> None:
    talk(*said)


@pytest.mark.parametrize(
    ("said", "lie", "text"),
    [
        # At the wrong moment.
        ((PREPARE,), FACTS, "facts before hello"),
        ((PREPARE,), ENDED, "ended before hello"),
        ((PREPARE,), EARLY, "output before hello"),
        ((), HELLO, "hello"),
        ((PREPARE, HELLO), HELLO, "hello"),
        ((PREPARE, HELLO, FACTS), FACTS, "facts"),
        ((PREPARE, HELLO), ROUTED, "routed"),
        ((PREPARE, HELLO, ROUTE, ROUTED), ROUTED, "routed"),
        ((PREPARE, HELLO), PROBED, "probed of 2 addresses"),
        ((PREPARE, HELLO, PROBE), {**PROBED, "errors": [None]}, "probed of 1 addresses"),
        ((PREPARE, HELLO, PROBE, PROBED), PROBED, "probed of 2 addresses"),
        ((PREPARE, HELLO, ENDED), ENDED, "ended"),
        ((PREPARE, FAILED, FAILED), FAILED, "failed"),
        # Code that isn't sent, or without end.
        ((PREPARE, HELLO), WANTED, "wanted"),
        ((SEND, HELLO, *4 * [WANTED]), WANTED, "wanted"),
        ((SEND, HELLO, PIECE, TOOK), TOOK, "took"),
        ((SEND, HELLO, PLACED), PLACED, "placed"),
        # For ranks that it has not got.
        ((PREPARE, HELLO), started(0), "started of local rank 0"),
        ((PREPARE, HELLO, START), started(2), "started of local rank 2"),
        (BEGUN, started(0), "started of local rank 0"),
        ((PREPARE, HELLO, START), exit_of(0), "exit of local rank 0"),
        (BEGUN, exit_of(7), "exit of local rank 7"),
        ((*BEGUN, exit_of(0)), exit_of(0), "exit of local rank 0"),
        ((PREPARE, HELLO), OUTPUT, "output of local rank 1"),
        (BEGUN, {**OUTPUT, "local_rank": 2}, "output of local rank 2"),
        (BEGUN, STACK, "stack number 1"),
        ((*BEGUN, STACKS), {**STACK, "number": 2}, "stack number 2"),
        ((*BEGUN, STACKS, STACK), STACK, "stack number 1"),
        ((*BEGUN, STACKS), {**STACK, "local_rank": 5}, "stack of local rank 5"),
        # An end that nobody wants.
        ((PREPARE,), CENSUS, "census"),
        (BEGUN, CENSUS, "census"),
        ((PREPARE, SHORT, HELLO, started(0)), CENSUS, "census"),
        ((PREPARE, HELLO, STOP, CENSUS, DEAD), DEAD, "census"),
        # Files without end.
        (BEGUN, FILE, "file trace_0"),
        ((*BEGUN, STOP), FILE, "file trace_0"),
        ((*BEGUN, STOP, CENSUS, FILE, FILE), FILE | {"size": 0}, "file trace_0"),
        ((*BEGUN, STOP, CENSUS, FILE), {**FILE, "size": (16 << 20) + 1}, "file trace_0"),
    ],
)
def test_what_nobody_asked_for_is_refused(said: tuple[Header, ...], lie: Header, text: str) -> None:
    expected = talk(*said)
    with pytest.raises(UnaskedMessage) as error:
        expected.accept(lie)
    assert str(error.value) == text


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (BEAT | {"size": 1}, "beat with 1 bytes"),
        (FAILED | {"size": 5}, "failed with 5 bytes"),
        (FACTS | {"size": 1 << 20}, f"facts with {1 << 20} bytes"),
        (OUTPUT | {"size": (1 << 18) + 1}, f"output with {(1 << 18) + 1} bytes"),
        (STACK | {"size": (1 << 20) + 1}, f"stack with {(1 << 20) + 1} bytes"),
        (FILE | {"size": (32 << 20) + 1}, f"file with {(32 << 20) + 1} bytes"),
        (WANTED | {"size": (1 << 20) + 1}, f"wanted with {(1 << 20) + 1} bytes"),
        ({"type": "interrupt"}, "unknown type 'interrupt'"),
    ],
)
def test_a_payload_that_is_too_large_is_not_waited_for(header: Header, text: str) -> None:
    expected = talk(*BEGUN, STACKS, STOP, CENSUS)
    with pytest.raises(MalformedMessage) as error:
        Decoder(accept=expected.accept).feed(encode(header["type"], **header))
    assert str(error.value) == text


@pytest.mark.parametrize("kind", ["hello", "output", "file", "interrupt"])
def test_a_guardian_says_nothing_else(kind: str) -> None:
    with pytest.raises(MalformedMessage, match=f"^not allowed on stderr: '{kind}'$"):
        talk(PREPARE).accept_from_guardian({"type": kind})


def test_words_become_one_line() -> None:
    told = talk(PREPARE).accept(FAILED | {"text": "boom\x1b[2J\nlaunch: 0 processes left", "x": "a\x07"})
    assert told == {"type": "failed", "size": 0, "text": "boom?[2J?launch: 0 processes left", "supervisor": None}
    assert len(talk(PREPARE).accept(FAILED | {"text": "x" * 5000})["text"]) == MOST_LETTERS + len("...")
    left = [[1, "a\u202eb", "D"], [2, "b\u2028\x9b2J", "D"]]
    assert talk(PREPARE, STOP).accept(CENSUS | {"left": left})["left"] == [(1, "a?b", "D"), (2, "b??2J", "D")]


def test_values_in_one_another_are_refused() -> None:
    deep: object = 1
    for _ in range(500):  # JSON's reader takes more, and what prints it takes less
        deep = [deep]
    with pytest.raises(MalformedMessage, match=r"^census with left: a list of 1$"):
        talk(PREPARE, HELLO).accept({**CENSUS, "left": deep})


ANSWERS = st.sampled_from([
    BEAT, HELLO, FACTS, ROUTED, PROBED, EARLY, OUTPUT, ENDED, FAILED, CENSUS, DEAD, STACK, FILE,
    *map(started, range(4)), *map(exit_of, range(4)),
])  # fmt: skip


@given(st.lists(st.sampled_from(ASKED)), st.lists(ANSWERS, max_size=200))
def test_nobody_is_flooded(asked: list[Header], said: list[Header]) -> None:
    """Whatever a node says, what the launcher has to keep of it is bounded by what it has asked."""
    expected = AllowedMessages()
    for header in asked:
        expected.ask(header)
    kept = 0
    for header in said:
        try:
            expected.accept(header)
        except MalformedMessage:
            break
        kept += header["type"] not in (messages.BEAT, messages.OUTPUT)
    most_ranks, most_files, unasked = 2 * 2 * 2, 2, 4
    assert kept <= unasked + 3 * len(asked) + most_ranks + most_files
