"""What is said of hosts from the records of earlier runs, for how long, and whose word counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

import pytest

from launcher.runs import host_history
from launcher.runs.run_json import EndedAttempt, Result
from launcher.runs.run_list import CONTROLLER, Controller, RunList, claim_place

DAY_S = 86400.0
NOW = 1_800_000_000.0
ENDED = Result(exit_code=1, interrupted_by=None, time_limit=None, error=None, cause=None)


@pytest.fixture
def runs(tmp_path: Path) -> RunList:
    return RunList(tmp_path / "state" / "runs")


def add(runs: RunList, run_id: str, *attempts: tuple[float, Mapping[str, str | None]]) -> Path:
    """List a run with these attempts: each has its time, and its hosts with what went wrong with them."""
    folder = runs.base.parent / "logs" / run_id
    folder.mkdir(parents=True)
    records = []
    for at, hosts in attempts:
        blamed = {host: what for host, what in hosts.items() if what is not None}
        ended_at = datetime.fromtimestamp(at, timezone.utc).isoformat()
        ended = EndedAttempt(
            hosts=(*hosts,), began_at=ended_at, ended_at=ended_at, outcome="host", blamed=blamed, result=ENDED
        )
        records.append(ended.as_record())
    (folder / "run.json").write_text(json.dumps({"run_id": run_id, "attempts": records}))
    assert claim_place(runs.base, run_id)
    controller = Controller(run_id, None, str(folder), "laptop", "", 1, 2, attempts[0][0])
    (runs.base / run_id / CONTROLLER).write_text(json.dumps(asdict(controller)))
    return folder / "run.json"


def say(runs: RunList, days: float = 0) -> dict[str, str]:
    return host_history.describe(runs, ["gpu1", "gpu4"], NOW + days * DAY_S)


def test_what_is_said_of_a_host(runs: RunList) -> None:
    """The last thing that went wrong with it, whatever went well since."""
    assert say(runs) == {}
    add(runs, "r1", (NOW - 3 * DAY_S, {"gpu1": None, "gpu4": "lost"}))
    assert say(runs) == {"gpu4": "lost 3 days ago, in run r1"}
    again = (NOW - DAY_S - 1, {"gpu4": "lost"}), (NOW - DAY_S, {"gpu4": "failed its checks"}), (NOW, {"gpu4": None})
    add(runs, "r2", *again)
    add(runs, "r3", (NOW, {"gpu1": None, "gpu4": None}))
    assert say(runs) == {"gpu4": "failed its checks 24 h 00 min ago, in run r2"}
    assert say(runs, 14) and not say(runs, 16)


@pytest.mark.parametrize("content", ["", "[]", '{"attempts": 7}', '{"attempts": [{"blamed": 1}]}', "{", "[" * 100_000])
def test_a_damaged_record_hides_no_other(runs: RunList, content: str) -> None:
    add(runs, "r1", (NOW - DAY_S, {"gpu1": "burned", "gpu4": "lost"}))  # the former in words of another version
    add(runs, "r2", (NOW, {"gpu4": "lost"})).write_text(content)
    assert say(runs) == {"gpu4": "lost 24 h 00 min ago, in run r1"}


def test_what_others_could_have_written(runs: RunList, tmp_path: Path) -> None:
    add(runs, "r1", (NOW - DAY_S, {"gpu4": "lost"}))
    tmp_path.chmod(0o777)
    assert say(runs) == {}
    tmp_path.chmod(0o700)
    assert [*say(runs)] == ["gpu4"]


def test_a_clock_that_was_a_year_ahead(runs: RunList) -> None:
    add(runs, "r1", (NOW + 365 * DAY_S, {"gpu1": "lost"}))
    assert say(runs) == {} and "gpu1" in say(runs, days=365)
