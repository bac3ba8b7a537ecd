"""Where launch rejoin logs in, by what the controller's host says."""

from __future__ import annotations

import re
from typing import Any

import pytest

from launcher.cli.rejoin import choose_logins
from launcher.errors import LauncherError
from launcher.hosts.host import Host
from launcher.runs.run_list import RemoteRun, Way

LOGINS = (Host("gpu1"), Host("gpu2", "ann", 2222))
STARTED_HERE = RemoteRun("20261120-091233", Way("gpu1"), logins=LOGINS)
STARTED_ELSEWHERE = RemoteRun("20261120-091233", Way("gpu1"))


def order(name: str, **fields: Any) -> dict[str, Any]:
    found = {"token": f"of {name}", "addresses": [["192.0.2.7", 4000]]}
    return {"name": name, "user": None, "port": None, "order": found, **fields}


def test_it_logs_in_as_the_run_was_started() -> None:
    """What the controller's host says of the way there is of no account."""
    told = [order("gpu2", user="root", port=1)]
    assert choose_logins(STARTED_HERE, told) == {LOGINS[1]: order("gpu2")["order"]}


@pytest.mark.parametrize(
    ("run", "told", "says"),
    [
        (
            STARTED_HERE,
            [order("gpu2"), order("bank\n")],
            "gpu1 says that run 20261120-091233 misses 'bank\\n', which is no host of the run",
        ),
        (
            STARTED_ELSEWHERE,
            [order("gpu2")],
            "only the machine that started run 20261120-091233 knows how to log in to its hosts",
        ),
        (STARTED_HERE, [{"name": "gpu2"}], "gpu1 sent an answer that can't be read"),
        (
            STARTED_HERE,
            [order("gpu2", order={"addresses": [["192.0.2.7", "\x1b[2J"]]})],
            "gpu1 sent an answer that can't be read",
        ),
        (
            STARTED_HERE,
            [order("gpu2", order={"addresses": [["192.0.2.7", float("inf")]]})],
            "gpu1 sent an answer that can't be read",
        ),
        (STARTED_HERE, ["gpu2"], "gpu1 sent an answer that can't be read"),
    ],
)
def test_it_logs_in_nowhere_else(run: RemoteRun, told: list[Any], says: str) -> None:
    with pytest.raises(LauncherError, match=f"^{re.escape(says)}$"):
        choose_logins(run, told)
