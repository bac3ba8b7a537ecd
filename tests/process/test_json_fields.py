"""docs/json.md has every field of run.json and --json with its type, and no other.

docs/json_fields.py makes the tables of the records that have a class.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from machines.example_facts import JOB, facts
from machines.launches import PROGRAM, run_launch
from machines.patience import DEADLINE_S
from machines.processes import wait_until
from node_process import STAND_IN

from launcher.cli import check, free
from launcher.errors import HostFailure, HostFailureKind
from launcher.hosts.host import Host
from launcher.job.facts import BoxClaim
from launcher.preflight.findings import Finding
from launcher.runs.inspection import Inspection

GUIDE = (Path(__file__).parents[2] / "docs" / "json.md").read_text("utf-8")
COMMON = {"event", "time"}
TYPES = {
    str: "string", int: "number", float: "number", bool: "boolean", list: "list", tuple: "list", dict: "object",
    type(None): "`null`",
}  # fmt: skip
# Objects whose keys are names of hosts and variables, and what another table has.
LEAVES = {"left", "paths", "blamed", "unreachable", "written", "exit_codes", "failures", "env", "plan", "result"}
FAILS = """
import os, sys, time
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
"""


def documented(heading: str, *found: Mapping[str, Any]) -> set[str]:
    """Return the fields in the tables of a part of the guide, but for objects whose own fields are there.

    found: values of that part, each field of which has the type that is documented.
    """
    part = GUIDE.partition(f"\n{heading}\n")[2]
    rows = re.findall(
        r"^\| `(.+?)` \| (.+?) \|", re.split(r"^#", part, maxsplit=1, flags=re.MULTILINE)[0], re.MULTILINE
    )
    assert rows, heading
    types = dict(rows)
    assert len(rows) == len(types), heading
    for path, value in (each for values in found for each in leaves(values)):
        said = types.get(path, TYPES[type(value)]).split(" or ")
        assert any(each.startswith(TYPES[type(value)]) for each in said), (heading, path, value)
    return without_objects([*types])


def without_objects(paths: list[str]) -> set[str]:
    return {path for path in paths if not any(other.startswith(f"{path}.") for other in paths)}


def leaves(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, each in value.items():
        place = f"{path}{name}"
        if isinstance(each, Mapping) and name not in LEAVES:
            yield from leaves(each, f"{place}.")
        elif isinstance(each, list | tuple) and each and isinstance(each[0], Mapping):
            for entry in each:
                yield from leaves(entry, f"{place}[].")
        else:
            yield place, each


def fields(value: Mapping[str, Any]) -> Iterator[str]:
    return (path for path, _ in leaves(value))


def run(folder: Path, *words: str) -> list[dict[str, Any]]:
    done = run_launch(*words, cwd=folder)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_run_and_its_record(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FAILS)
    subprocess.run(["git", "init", "--quiet", "."], cwd=tmp_path, check=True)
    commit = ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "--message", "x")
    subprocess.run(["git", *commit], cwd=tmp_path, check=True)
    words = ("--nproc", "1", "--cpu", "--python", sys.executable, "--env", f"PYTHONPATH={STAND_IN}", "train.py")
    out = tmp_path / "out"
    with out.open("wb") as stdout:
        launcher = subprocess.Popen([PROGRAM, "singlenode", "--json", *words], cwd=tmp_path, stdout=stdout)
    try:
        assert wait_until(lambda: '"ready"' in out.read_text())
        launcher.send_signal(signal.SIGQUIT)
        assert wait_until(lambda: '"stacks"' in out.read_text())
        (tmp_path / "go").touch()
        assert launcher.wait(DEADLINE_S) == 1
    finally:
        launcher.kill()  # its ranks end with it
    events = {event["event"]: event for event in map(json.loads, out.read_text().splitlines())}
    for name in ("plan", "line", "stacks", "result"):
        assert set(fields(events[name])) - COMMON == documented(f"### {name}", events[name]), name
    record = json.loads((tmp_path / "logs" / "latest" / "run.json").read_text())
    assert set(fields(record)) == documented("## run.json", record)
    for name, others in (("plan", set()), ("result", {"run", "name", "attempts", "hosts"})):
        assert set(fields(record[name])) | others == documented(f"### {name}")
    assert documented("## --json of a run") == COMMON
    first, *others, last = run(tmp_path, "attach", "--json", record["run_id"])
    assert set(fields(first)) - COMMON == documented("### attached", first)
    assert [{*line} - COMMON for line in others] == [documented("### line")] * len(others) != []
    assert set(fields(last)) - COMMON == documented("### result")
    assert {**last, "time": 0} == {**events["result"], "time": 0}


def test_a_run_that_never_begins(tmp_path: Path) -> None:
    (event,) = run(tmp_path, "singlenode", "--json", "--nproc", "1", "--cpu", "--python", "/none", "train.py")
    assert set(event) - COMMON == {"run", "name", "exit_code", "error"}
    assert "there are only `run`, `name`, `exit_code` and `error`" in GUIDE


def test_a_dry_run(tmp_path: Path) -> None:
    """No object names a run, which is never made."""
    dry = ("--dry-run", "--json", "--hosts", "localhost", "--nproc", "1", "--cpu", "--no-check")
    checked = run(tmp_path, *dry, "--check", "--name", "a", "--no-python", "true")
    for plan in (*run(tmp_path, *dry, "--name", "a", "train.py"), *checked):
        assert set(fields(plan)) - COMMON == documented("### plan", plan)
        assert (plan["run"], plan["name"], plan["nodes"][0]["argv"]) == (None, "a", [])
    assert isinstance(checked[0]["master_port"], int)
    (failed,) = run(tmp_path, *dry, "--check", "--python", "/none", "train.py")
    assert (failed["event"], failed["run"], failed["exit_code"]) == ("result", None, 70)


def test_a_check() -> None:
    lost = HostFailure("b", HostFailureKind.TIMED_OUT, "no answer")
    inspection = Inspection((Host("a"),), (facts(),), (Finding(("a",), "busy"),), (lost,), 1.0)
    found = set(fields(check.as_record(JOB, inspection) | {"hosts": None, "unreachable": None})) | COMMON
    found |= {f"unreachable[].{name}" for name in asdict(lost)}
    assert found - {"unreachable"} == documented("## launch check --json")


def test_free_gpus() -> None:
    box = free.Box(Host("a"), facts(), (BoxClaim("ann", "20261124-091233", 0.0, until=60.0),))
    record = free.as_record(free.Survey((box,), (), 1.0))
    assert set(fields(record)) | COMMON == documented("## launch free --json", record)
    (claim,) = record["hosts"][0]["claims"]
    assert (claim["since"][17:23], claim["until"][14:23]) == ("00.000", "01:00.000")
