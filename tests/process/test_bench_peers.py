"""What `python -m bench peers` measures, with ranks that do nothing: how long a tool takes, and what a fault leaves."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence

import pytest
from machines.cluster import find_obstacle

from bench import faults, measures
from bench.lab import Argv, Lab, lab
from bench.rank import NAME
from bench.tools import TOOLS, Tool

CAP_S = 1.5
RANK = (
    f"open('/proc/self/comm', 'w').write('{NAME}'); print('first all-reduce done', flush=True);"
    "import time; time.sleep(600)"
)
FAULTS = {fault.name: fault for fault in faults.FAULTS}


def start(lab: Lab, names: Sequence[str], words: Sequence[str]) -> Argv:
    """Run a rank on each host by plain ssh, which stops nothing there when it ends."""
    calls = [shlex.join(["ssh", name, shlex.join([sys.executable, "-c", RANK])]) for name in names]
    return ["sh", "-c", " & ".join(calls) + " & wait"]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Lab]:
    if obstacle := find_obstacle():
        pytest.skip(obstacle)
    with lab(2) as made:
        yield made


@pytest.mark.parametrize("name", ["launch", "ssh", "pdsh"])
def test_a_tool_runs_on_all_hosts(hosts: Lab, name: str) -> None:
    assert measures.connect(hosts, TOOLS[name], 2) > 0
    failing = TOOLS[name].execute
    assert failing is not None
    if name != "ssh":  # a loop in a shell knows no exit code
        with pytest.raises(RuntimeError, match="exit code 3"):
            hosts.run(failing(hosts, hosts.names, ["sh", "-c", "exit 3"]))


def test_a_tool_that_does_not_end_has_failed(hosts: Lab) -> None:
    with hosts.started(["sleep", "30"]) as running:
        assert running.finish(0.1) is None
        with pytest.raises(RuntimeError, match="exit code None"):
            running.require_success()


@pytest.mark.parametrize(
    ("fault", "left", "code"),
    [
        ("Ctrl-C", 2, -2),
        ("a rank is killed", 1, None),
        ("a host's cable is pulled", 2, None),
    ],
)
def test_what_stays_is_counted(
    hosts: Lab, fault: str, left: int, code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "HEALED_S", 0.1)
    fate = faults.cause(hosts, Tool("ssh", "", train=start), FAULTS[fault], CAP_S)
    assert (fate.seconds, fate.left, fate.exit_code) == (None, left, code)
    assert [process for host in hosts.hosts for process in host.processes()] == []  # the next fault starts from nothing


def test_a_cause_is_named_by_where_and_what(hosts: Lab) -> None:
    def says(words: str) -> Tool:
        command = f"echo first all-reduce done; sleep 1.5; echo {shlex.quote(words)}; exit 7"
        return Tool("x", "", train=lambda lab, names, argv: ["sh", "-c", command])

    fault = faults.Fault("nothing", lambda lab, running: None, faults.KILLED)
    told = {words: faults.cause(hosts, says(words), fault, 30.0) for words in ("n2: SIGKILL", "SIGKILL", "n2 ended")}
    assert [(fate.is_named, fate.exit_code, fate.left) for fate in told.values()] == [
        (True, 7, 0), (False, 7, 0), (False, 7, 0),
    ]  # fmt: skip
