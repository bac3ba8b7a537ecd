"""docs/json.md has every field of run.json and --json, and no other."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from machines.example_facts import JOB, facts
from machines.launches import PROGRAM, run_launch
from machines.patience import DEADLINE_S
from machines.processes import wait_until
from node_process import STAND_IN

from launcher.commands import check, free
from launcher.errors import HostFailure, HostFailureKind
from launcher.hosts.host import Host
from launcher.job.facts import BoxClaim, NodeFacts
from launcher.preflight.findings import Finding
from launcher.preflight.load import MeasuredLoad
from launcher.runs.bisection import Together, Verdict
from launcher.runs.inspection import Inspection

GUIDE = (Path(__file__).parents[2] / "docs" / "json.md").read_text("utf-8")
COMMON = {"event", "time"}
# Objects whose keys are names of hosts and variables, and what another table has.
LEAVES = {"left", "blamed", "unreachable", "written", "exit_codes", "failures", "env", "plan", "result"}
FAILS = """
import os, sys, time
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
"""


def documented(heading: str) -> set[str]:
    """Return the fields in the tables of a part of the guide, but for objects whose own fields are there."""
    part = GUIDE.partition(f"\n{heading}\n")[2]
    rows = re.findall(r"^\| `(.+?)` \|", re.split(r"^#", part, maxsplit=1, flags=re.MULTILINE)[0], re.MULTILINE)
    assert rows, heading
    assert len(rows) == len(set(rows)), heading
    return without_objects(rows)


def without_objects(paths: list[str]) -> set[str]:
    return {path for path in paths if not any(other.startswith(f"{path}.") for other in paths)}


def fields(value: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, each in value.items():
        place = f"{path}{name}"
        if isinstance(each, Mapping) and name not in LEAVES:
            yield from fields(each, f"{place}.")
        elif isinstance(each, list | tuple) and each and isinstance(each[0], Mapping):
            for entry in each:
                yield from fields(entry, f"{place}[].")
        else:
            yield place


def fields_of_type(kind: Any, path: str = "") -> Iterator[str]:
    for name, each in get_type_hints(kind).items():
        parts = [each, *get_args(each)]
        inner = next((part for part in parts if is_dataclass(part)), None)
        is_list = inner is not None and "tuple" in str(each)
        yield from [f"{path}{name}"] if inner is None else fields_of_type(inner, f"{path}{name}{'[]' * is_list}.")


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
        assert set(fields(events[name])) - COMMON == documented(f"### {name}"), name
    record = json.loads((tmp_path / "logs" / "latest" / "run.json").read_text())
    assert set(fields(record)) == documented("## run.json")
    for name, others in (("plan", {"attempt", "code", "logs"}), ("result", {"attempts", "hosts"})):
        assert set(fields(record[name])) | {"run", "name", *others} == documented(f"### {name}")
    assert documented("## --json of a run") == COMMON
    first, *others, last = run(tmp_path, "attach", "--json", record["run_id"])
    assert set(fields(first)) - COMMON == documented("### attached")
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
        assert set(fields(plan)) - COMMON == documented("### plan of a dry run")
        assert (plan["run"], plan["name"]) == (None, "a")
    assert isinstance(checked[0]["master_port"], int)
    (failed,) = run(tmp_path, *dry, "--check", "--python", "/none", "train.py")
    assert (failed["event"], failed["run"], failed["exit_code"]) == ("result", None, 70)


def test_other_commands(tmp_path: Path) -> None:
    verdict = Verdict(("a",), (Together(("b", "c"), ("b",)),))
    assert set(fields(asdict(verdict))) == documented("### verdict")
    *_, result = run(tmp_path, "exec", "--json", "--hosts", "localhost", "--", "false")
    assert set(fields(result)) == documented("## launch exec --json")
    done = run_launch("hosts", "--json", "--hosts", "a", cwd=tmp_path, code=0)
    assert set(fields(json.loads(done.stdout)[0])) == documented("## launch hosts --json")


def test_a_check() -> None:
    lost = HostFailure("b", HostFailureKind.TIMED_OUT, "no answer")
    load = MeasuredLoad(0, 0, "H100", "bf16", 453e12, 2.7e12)
    inspection = Inspection((Host("a"),), (facts(),), (Finding(("a",), "busy"),), (lost,), 1.0, loads=(load,))
    found = set(fields(check.as_record(JOB, inspection) | {"hosts": None, "unreachable": None})) | COMMON
    found |= {f"unreachable[].{name}" for name in asdict(lost)}
    of_host = documented("### The facts of a host")
    assert found - {"unreachable"} == documented("## launch check --json")
    assert of_host == set(fields_of_type(NodeFacts))


def test_free_gpus() -> None:
    box = free.Box(Host("a"), facts(), (BoxClaim("ann", "20261124-091233", 0.0),))
    record = free.as_record(free.Survey((box,), (), 1.0))
    assert set(fields(record)) | COMMON == documented("## launch free --json")


def test_the_guide_leads_there() -> None:
    assert "(docs/json.md)" in (Path(__file__).parents[2] / "LAUNCH_GUIDE.md").read_text("utf-8")
