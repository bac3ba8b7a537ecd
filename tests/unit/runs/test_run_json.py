"""What a reader gets of a run.json: of this version, of an older one, and of one that has another form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from machines.example_run import ExampleRun

from launcher.diagnosis.cause import Cause
from launcher.diagnosis.failure import Failure, FailureKind
from launcher.diagnosis.signatures import Explanation
from launcher.runs.records import Result
from launcher.runs.run_json import EndedAttempt, RunJson, read_run_json
from launcher.runs.run_state import RestartCount
from launcher.session.node_state import Census

# As the first version that had attempts wrote it: no restarts, no steps, and less of a cause.
OLD = json.loads("""{
  "run_id": "20261123-041351", "name": null, "command": "launch train.py", "directory": "/home/ann", "user": "ann",
  "launch_host": "laptop", "git": null, "started_at": "2026-11-23T04:13:52.000+01:00", "utc_offset": "+01:00",
  "plan": {"program": {"kind": "script", "target": "train.py", "args": []}, "world_size": 2, "master_addr": "gpu1",
           "master_port": 29500, "nodes": [
    {"host": "gpu1", "node_rank": 0, "first_rank": 0, "nproc": 1, "cwd": "/home/ann", "argv": ["torchrun"], "env": {}},
    {"host": "gpu2", "node_rank": 1, "first_rank": 1, "nproc": 1, "cwd": "/home/ann", "argv": ["torchrun"], "env": {}}
  ]},
  "warnings": [],
  "attempts": [{
    "hosts": ["gpu1", "gpu3"], "master_port": 29500, "began_at": "2026-11-23T04:13:51.000+01:00",
    "ended_at": "2026-11-23T04:14:51.000+01:00", "outcome": "error", "progress": false, "then": "no restarts",
    "result": {"exit_code": 1, "seconds": 60.0, "interrupted_by": null, "error": null, "left": {}, "unreachable": {},
               "cause": {"host": "gpu3", "what": "rank", "rank": 1, "local_rank": 0, "exit_code": 1, "signal": null,
                         "oom": null, "text": "exit code 1", "at": "2026-11-23T04:14:50.000+01:00",
                         "traceback": ["ValueError: x"], "last_lines": ["step 1"], "explanation": null}}}]
}""")


def test_what_is_written_is_what_is_read() -> None:
    failure = Failure("gpu1", 0, FailureKind.RANK, 7.0, rank=3, local_rank=1, code=1, gpu=1)
    cause = Cause(failure, ("File 'a'", "\tValueError: x"), ("step 1",), Explanation("oom", "no memory", "less"))
    census = Census({"gpu1": [(7, "python", "S")]}, {"gpu2": 8}, {"gpu1": ("/code", "a", "b")})
    result = Result(1, 60.0, census, cause, (failure,), error="two\nlines")
    attempt = EndedAttempt(
        hosts=("gpu1", "gpu2"), began_at="a", ended_at="b", outcome="error", restarts=RestartCount(1, 1, 2),
        blamed={"gpu2": "lost"}, result=result.describe(),
    )  # fmt: skip
    written = json.loads(json.dumps({"attempts": [attempt.as_record()]}))
    assert written["attempts"][0]["result"].keys().isdisjoint({"run", "name", "attempts", "hosts"})
    assert read_run_json(written) == RunJson(attempts=(attempt,))


def test_an_older_version_has_written_less() -> None:
    record = read_run_json({**OLD, "of_a_newer_one": {"deep": [1]}})
    (attempt,), nodes = record.attempts, record.plan.nodes
    assert (record.launch_host, record.utc_offset, nodes[1].cwd) == ("laptop", "+01:00", "/home/ann")
    assert record.all_hosts == ["gpu1", "gpu2", "gpu1", "gpu3"]
    assert (attempt.restarts, attempt.spares, attempt.blamed) == (None, (), {})
    assert attempt.result.cause is not None and attempt.result.cause.culprit == "gpu3 rank 1"
    assert (record.result, record.code, record.ended_at) == (None, None, "")


@pytest.mark.parametrize(("change", "lost"), [
    ({"plan": {"nodes": [{"host": "a", "node_rank": -1, "first_rank": 0, "nproc": 1}]}}, "plan"), ({"plan": 7}, "plan"),
    ({"attempts": [7]}, "attempts"), ({"hosts": [{"host": ["a"]}]}, "hosts"), ({"user": 7}, "user"),
    ({"result": {"exit_code": True}}, "result"), ({"git": {"commit": None}}, "git"),
])  # fmt: skip
def test_another_form_costs_one_field(change: dict[str, Any], lost: str) -> None:
    record = ExampleRun().record()
    whole, read = read_run_json(record), read_run_json({**record, **change})
    default = getattr(RunJson(), lost)
    assert getattr(whole, lost) != default == getattr(read, lost)
    names = [name for name in RunJson.__dataclass_fields__ if name != lost]
    assert [getattr(read, name) for name in names] == [getattr(whole, name) for name in names]


@pytest.mark.parametrize("found", [None, [], 7, "x", {}])
def test_what_is_no_object_says_nothing(found: object) -> None:
    assert read_run_json(found) == RunJson()


def test_texts_keep_their_lines_but_no_control_sequence() -> None:
    long = "x" * 10_000
    record = read_run_json({"command": f"echo '\n\t{long}'\x1b]0;title\x07\x00"})
    assert record.command == f"echo '\n\t{long}'"
