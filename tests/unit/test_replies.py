"""A node that says nonsense is refused, message by message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.node import messages
from launcher.node.messages import MalformedMessage
from launcher.replies import check_reply

GOOD = [
    {"type": "beat"},
    {"type": "hello", "folder": "/tmp/x", "pid": 1},
    {"type": "routed", "interface": None, "address": "10.0.0.1", "port": 1, "error": None},
    {"type": "started", "local_rank": 0, "pid": 7},
    {"type": "output", "local_rank": None, "stream": 2, "size": 5},
    {"type": "exit", "local_rank": 3, "age_s": 0.1, "code": None, "signal": 9},
    {"type": "ended", "code": 1, "signal": None},
    {"type": "census", "left": [[1, "python", "D"]]},
    {"type": "failed", "text": "no room"},
]


@pytest.mark.parametrize("header", GOOD, ids=lambda header: header["type"])
def test_a_message_as_it_should_be_passes(header):
    check_reply(header)


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ({"type": "start"}, "no message of a node's: 'start'"),
        ({"type": "hello"}, "hello with folder None"),
        ({"type": "output", "local_rank": 5000, "stream": 1}, "output with local_rank 5000"),
        ({"type": "output", "local_rank": -1, "stream": 1}, "output with local_rank -1"),
        ({"type": "output", "local_rank": 0, "stream": 3}, "output with stream 3"),
        ({"type": "exit", "local_rank": True, "age_s": 0, "code": 0, "signal": None}, "exit with local_rank True"),
        ({"type": "exit", "local_rank": 0, "age_s": "x", "code": 0, "signal": None}, "exit with age_s 'x'"),
        ({"type": "ended", "code": "1", "signal": None}, "ended with code '1'"),
        ({"type": "census", "left": [[1, "python"]]}, "census with left [[1, 'python']]"),
        ({"type": "census", "left": {"n": 1}}, "census with left {'n': 1}"),
    ],
)
def test_nonsense_is_refused(header, text):
    with pytest.raises(MalformedMessage) as error:
        check_reply(header)
    assert str(error.value) == text


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=4)
NAMES = ["folder", "local_rank", "stream", "code", "signal", "age_s", "left", "text", "pid", "port"]


@given(st.sampled_from([header["type"] for header in GOOD]), st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_nothing_but_a_malformed_message_is_raised(kind, fields):
    try:
        check_reply({**fields, "type": kind})
    except MalformedMessage:
        assert kind != messages.BEAT
