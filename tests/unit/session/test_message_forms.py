"""The form of each message: one that is as it should be is read, and nonsense is refused."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.node import messages
from launcher.node.messages import MalformedMessage
from launcher.session.allowed_messages import read_message

STACK = {"type": "stack", "number": 1, "local_rank": 0, "pid": 7}
EXIT = {"type": "exit", "local_rank": 0, "age_s": 0, "was_stopping": False, "code": 0, "signal": None}
GOOD = [
    {"type": "beat"},
    {"type": "hello", "folder": "/tmp/x", "pid": 1, "keepers": [[12, 345]]},
    {"type": "routed", "interface": None, "address": "10.0.0.1", "port": 1, "error": None},
    {"type": "routed", "interface": "eth0", "address": "10.0.0.1", "probe_port": 4},
    {"type": "probed", "errors": [None, "No route to host"], "reverse_dns_s": 0.1},
    {"type": "probed", "errors": [], "reverse_dns_s": None},
    {"type": "started", "local_rank": 0, "pid": 7},
    {"type": "output", "local_rank": None, "stream": 2, "size": 5},
    {"type": "exit", "local_rank": 3, "age_s": 0.1, "was_stopping": False, "code": None, "signal": 9},
    {"type": "exit", "local_rank": 3, "age_s": 0.1, "was_stopping": True, "code": None, "signal": 9, "oom": "probable"},
    {"type": "exit", "local_rank": 3, "age_s": 0.1, "was_stopping": False, "code": 137, "signal": None, "oom": None},
    {"type": "ended", "code": 1, "signal": None},
    {"type": "census", "left": [[1, "python", "D"]]},
    {"type": "census", "left": [], "reason": "cgroup is gone", "supervisor": {"code": None, "signal": 9}},
    {"type": "census", "left": [], "files": 2},
    {"type": "census", "left": [], "folders": [["/tmp/launch-a-ab12cd34", "its run is still active"]]},
    {"type": "file", "name": "nccl_trace_rank_0", "size": 3},
    {"type": "stack", "number": 1, "local_rank": 0, "pid": 7, "state": "T", "size": 1 << 20},
    {"type": "stack", "number": 1, "local_rank": 0, "pid": 7, "state": "D", "wchan": "nfs_wait", "reason": "x"},
    {"type": "failed", "text": "no room"},
    {"type": "failed", "text": "", "supervisor": {"code": 255, "signal": None}},
    {"type": "ended", "code": 255, "signal": None},
    {"type": "ended", "code": None, "signal": 64},
]


@pytest.mark.parametrize("header", GOOD, ids=lambda header: header["type"])
def test_a_message_as_it_should_be_passes(header):
    read_message(header)


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ({"type": "start"}, "unknown type 'start'"),
        ({"type": "hello"}, "hello with folder: None"),
        ({"type": "output", "local_rank": 5000, "stream": 1}, "output with local_rank: 5000"),
        ({"type": "output", "local_rank": 0, "stream": 3}, "output with stream: 3"),
        ({**EXIT, "age_s": nan}, "exit with age_s: nan"),
        ({**EXIT, "age_s": -1}, "exit with age_s: -1"),
        ({**EXIT, "code": 256}, "exit with code: 256"),
        ({**EXIT, "code": None, "signal": 65}, "exit with signal: 65"),
        ({**EXIT, "local_rank": nan}, "exit with local_rank: nan"),
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
        ({**STACK, "local_rank": 5000}, "stack with local_rank: 5000"),
        ({**STACK, "number": None}, "stack with number: None"),
        ({**STACK, "state": "R"}, "stack with state: 'R'"),
        ({**STACK, "wchan": 0}, "stack with wchan: 0"),
        ({**STACK, "reason": []}, "stack with reason: a list of 0"),
        ({"type": "ended", "code": 256, "signal": None}, "ended with code: 256"),
        ({"type": "ended", "code": None, "signal": 65}, "ended with signal: 65"),
        (
            {"type": "hello", "folder": "/tmp/x", "keepers": [[1, 2]] * 3},
            "hello with keepers: 3 of them; at most 2 are accepted",
        ),
        ({"type": "census", "left": [], "files": 1001}, "census with files: 1001"),
        ({"type": "routed", "address": "gpu9.example.com"}, "routed with address: 'gpu9.example.com'"),
        ({"type": "beat", "echo": nan}, "beat with echo: nan"),
        ({"type": "beat", "echo": 1, "held_s": "x"}, "beat with held_s: 'x'"),
        ({"type": "routed", "port": 65536}, "routed with port: 65536"),
        ({"type": "routed", "probe_port": -1}, "routed with probe_port: -1"),
        ({"type": "probed", "errors": None}, "probed with errors: None"),
        ({"type": "probed", "errors": [], "reverse_dns_s": nan}, "probed with reverse_dns_s: nan"),
        ({"type": "started", "local_rank": 0, "pid": inf}, "started with pid: inf"),
        ({"type": "census", "left": [[1, "python"]]}, "census with left: a list of 2"),
        (
            {"type": "census", "left": [[1, "a", "D"]] * 20_001},
            "census with left: 20001 of them; at most 20000 are accepted",
        ),
        (
            {"type": "probed", "errors": [None] * 20_001},
            "probed with errors: 20001 of them; at most 20000 are accepted",
        ),
        ({"type": "hello", "folder": "/tmp/x", "keepers": [], "sleeps_along": 1}, "hello with sleeps_along: 1"),
        ({"type": "census", "left": [], "folders": [["/tmp/a"]]}, "census with folders: a list of 1"),
        ({"type": "census", "left": [], "reason": 1}, "census with reason: 1"),
        ({"type": "census", "left": [], "supervisor": {"code": 256}}, "census with supervisor: code: 256"),
        ({"type": "failed", "text": "", "supervisor": {"signal": 65}}, "failed with supervisor: signal: 65"),
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
NAMES = sorted({name for header in GOOD for name in header} - {"type"})


@given(st.sampled_from([header["type"] for header in GOOD]), st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_nothing_but_a_malformed_message_is_raised(kind, fields):
    try:
        read_message({**fields, "type": kind})
    except MalformedMessage:
        assert kind != messages.BEAT
