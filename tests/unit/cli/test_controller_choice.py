"""Which host controls a detached run."""

from __future__ import annotations

import click
import pytest

from launcher.cli.host_choice import choose_controller
from launcher.cli.options.request import Request
from launcher.errors import UsageError
from launcher.hosts.host import Host

HOSTS = (Host("gpu1", user="ann", port=2222), Host("gpu2"))
SPARES = (Host("gpu3", is_spare=True), Host("gpu4", is_spare=True))


@pytest.fixture(autouse=True)
def _a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def choose(controller: str | None = None, *, spares: tuple[Host, ...] = (), detach: bool = True) -> Host | None:
    with click.Context(click.Command("run")):
        return choose_controller(Request(detach=detach, controller=controller), HOSTS, spares)


def test_the_last_spare_or_else_node_0() -> None:
    assert choose() == HOSTS[0]
    assert choose(spares=SPARES) == SPARES[1]


def test_a_host_of_the_run_is_reached_as_the_run_reaches_it() -> None:
    assert choose("GPU1") == HOSTS[0]
    assert choose("head:22") == Host("head", port=22, source="--controller")


@pytest.mark.parametrize(("controller", "detach"), [("here", True), (None, False)])
def test_this_machine(controller: str | None, detach: bool) -> None:
    assert choose(controller, detach=detach) is None


def test_nothing_outlives_a_slurm_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert choose() is None


def test_two_controllers_are_refused() -> None:
    with pytest.raises(UsageError) as raised:
        choose("gpu1,gpu2")
    assert raised.value.message == "--controller names 2 hosts"
