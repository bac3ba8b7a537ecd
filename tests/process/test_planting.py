"""The start of a detached run, up to the moment when all agents have reached its controller."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from machines.patience import slowed

from launcher.controller.orders import Control
from launcher.controller.planting import Planting
from launcher.errors import HostFailureKind, HostsUnreachable
from launcher.hosts.host import Host
from launcher.job.job import Job, Program, ProgramKind, Timeouts
from launcher.output.output_streams import OutputStreams
from launcher.runs.run_request import RunOptions
from launcher.transports.agents.credentials import make_credentials
from launcher.transports.process_channel import LocalTransport, ProcessChannel

STREAMS = OutputStreams(frozenset(), is_one_file=False, with_color=False)


class LostChannel(ProcessChannel):
    """The connection to a host is lost once the code of its agent was sent."""

    is_lost = False

    def write(self, data: bytes) -> None:
        if self.is_lost:
            raise ConnectionResetError("it was lost")
        super().write(data)
        self.is_lost = True
        self.close()

    def exit_code(self) -> int | None:
        return None


class LosingTransport(LocalTransport):
    """Loses the agent's host; the controller never listens."""

    def open(self, host: Host, command: str, timeout_s: float) -> ProcessChannel:
        if host.name == "controller":
            return super().open(host, "exec cat >/dev/null", timeout_s)
        channel = super().open(host, command, timeout_s)
        return LostChannel(channel._process)


def test_a_host_that_is_lost_before_the_controller_listens(tmp_path: Path) -> None:
    job = Job(Program(ProgramKind.COMMAND, "true", ()), timeouts=Timeouts(slowed(1.0)), workdir=str(tmp_path))
    request = Control(job, (Host("n1"),), (), RunOptions(), {}, make_credentials(1), "20261120-091233")
    planting = Planting(Host("controller"), request, LosingTransport(), [sys.executable], STREAMS)
    with pytest.raises(HostsUnreachable) as raised:
        planting.gather(lambda text: None)
    planting.close()
    (failure,) = raised.value.failures
    assert (failure.host, failure.kind, failure.text) == ("n1", HostFailureKind.CONNECTION, "the connection was lost")
