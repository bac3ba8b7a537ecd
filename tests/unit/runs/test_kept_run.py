"""What a controller keeps of a run: read back whole, or refused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.errors import LauncherError
from launcher.hosts.host import Host
from launcher.runs.attempt import CarriedOver
from launcher.runs.hosts_and_spares import HostsAndSpares
from launcher.runs.kept_run import KeptRun, start_argv
from launcher.runs.policy import Ending, Outcome
from launcher.runs.standing import Standing

HOSTS = HostsAndSpares([Host("n1"), Host("n2")], [Host("n3")])
CODE = b"PK"
STANDING = Standing(1.0, HOSTS, [Ending(Outcome.ERROR)], [{"outcome": "error"}], CarriedOver(1, here={"n1"}), 2.0)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return the entry of a run."""
    place = tmp_path / "runs" / "r"
    place.mkdir(parents=True, mode=0o700)
    (place / "lock").touch()
    return place


def test_it_is_read_back_as_it_was_last(place: Path) -> None:
    kept = KeptRun(place)
    kept.note(STANDING)
    assert not kept.is_kept
    assert not (place / "kept").exists(), "it has not run for long enough"
    kept.begin({"port": 7}, CODE)
    kept.note(replace(STANDING, attempt_began_at=None))
    assert kept.wait()
    for number in (2, 3):
        request, standing, found = KeptRun(place).resume()
        assert (request, found) == ({"port": 7}, number)
        assert (standing.attempt_began_at, standing.endings, standing.attempts, standing.carried) == (
            None, STANDING.endings, STANDING.attempts, STANDING.carried
        )  # fmt: skip
        assert [host.name for host in (*standing.hosts.hosts, *standing.hosts.spares)] == ["n1", "n2", "n3"]
    folder = place / "kept"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert start_argv(place)[-1] == str(folder / "start.py")
    kept.remove()
    assert not folder.exists()


@pytest.mark.parametrize("name", ["request", "standing", "generation"])
def test_what_a_power_cut_has_damaged_is_refused(place: Path, name: str) -> None:
    kept = KeptRun(place)
    kept.note(STANDING)
    kept.begin({}, CODE)
    assert kept.wait()
    path = place / "kept" / name
    for content in (b"", b"\0" * path.stat().st_size, path.read_bytes()[:-1]):
        path.write_bytes(content)
        with pytest.raises(LauncherError, match=f"{path} is damaged"):
            KeptRun(place).resume()
    path.unlink()
    with pytest.raises(LauncherError, match=f"can't read {path}"):
        KeptRun(place).resume()


def test_what_can_t_be_kept_is_said_once(place: Path) -> None:
    said: list[OSError] = []
    (place / "kept").touch()
    kept = KeptRun(place, said.append)
    kept.note(STANDING)
    kept.begin({}, CODE)
    kept.note(STANDING)
    assert not kept.wait()
    assert [os.strerror(error.errno or 0) for error in said] == ["Not a directory"]
