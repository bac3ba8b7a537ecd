"""The form of each message: nonsense is refused. That what is as it should be passes, test_allowed_messages shows."""

from __future__ import annotations

from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.node import messages
from launcher.node.messages import MalformedMessage
from launcher.session.allowed_messages import read_message

STACK = {"type": "stack", "number": 1, "local_rank": 0, "pid": 7}
EXIT = {"type": "exit", "local_rank": 0, "age_s": 0, "was_stopping": False, "code": 0, "signal": None}
KINDS = ["beat", "hello", "routed", "probed", "started", "output", "exit", "ended", "census", "file", "stack"]
NAMES = [
    "address", "age_s", "code", "errors", "files", "folder", "folders", "keepers", "left", "local_rank", "name",
    "number", "oom", "pid", "port", "probe_port", "reason", "signal", "state", "stream", "supervisor",
    "text", "was_stopping",
]  # fmt: skip


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ({"type": "start"}, "unknown type 'start'"),
        ({"type": "hello"}, "hello with folder: None"),
        ({"type": "output", "local_rank": 5000, "stream": 1}, "output with local_rank: 5000"),
        ({**EXIT, "age_s": nan}, "exit with age_s: nan"),
        ({**EXIT, "code": None, "signal": 65}, "exit with signal: 65"),
        ({**EXIT, "oom": "x"}, "exit with oom: 'x'"),
        ({"type": "ended", "code": "1", "signal": None}, "ended with code: '1'"),
        ({"type": "census", "left": [], "files": -1}, "census with files: -1"),
        ({"type": "file", "name": ".."}, "file with name: '..'"),
        ({"type": "file", "name": "a/b"}, "file with name: 'a/b'"),
        ({"type": "file", "name": ".a.part"}, "file with name: '.a.part'"),
        ({"type": "file", "name": ".envrc"}, "file with name: '.envrc'"),
        ({"type": "file", "name": "launcher.toml"}, "file with name: 'launcher.toml'"),
        ({"type": "file", "name": "\ud800"}, "file with name: '\\ud800'"),
        (
            {"type": "file", "name": "x" * 250},
            "file with name: 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        ),
        ({**STACK, "state": "R"}, "stack with state: 'R'"),
        (
            {"type": "hello", "folder": "/tmp/x", "keepers": [[1, 2]] * 3},
            "hello with keepers: 3 of them; at most 2 are accepted",
        ),
        ({"type": "census", "left": [], "files": 1001}, "census with files: 1001"),
        ({"type": "routed", "address": "gpu9.example.com"}, "routed with address: 'gpu9.example.com'"),
        ({"type": "routed", "port": 65536}, "routed with port: 65536"),
        ({"type": "census", "left": [[1, "python"]]}, "census with left: a list of 2"),
        (
            {"type": "probed", "errors": [None] * 20_001},
            "probed with errors: 20001 of them; at most 20000 are accepted",
        ),
        ({"type": "hello", "folder": "/tmp/x", "keepers": [], "sleeps_along": 1}, "hello with sleeps_along: 1"),
        ({"type": "census", "left": [], "supervisor": {"code": 256}}, "census with supervisor: code: 256"),
    ],
)
def test_nonsense_is_refused(header, text):
    with pytest.raises(MalformedMessage) as error:
        read_message(header)
    assert str(error.value) == text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.sampled_from(["code", "signal"]), values),
    max_leaves=4,
)


@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_nothing_but_a_malformed_message_is_raised(kind, fields):
    try:
        read_message({**fields, "type": kind})
    except MalformedMessage:
        assert kind != messages.BEAT
