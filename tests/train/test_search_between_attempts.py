"""The search for the host to blame, with real collectives on this machine: all hosts are well, and it says so."""

from __future__ import annotations

import asyncio
from pathlib import Path

from machines.patience import DEADLINE_S

from launcher.hosts.host import Host
from launcher.job.job import Job, OnHang, Program, ProgramKind, Timeouts
from launcher.output.console import Console
from launcher.output.output_streams import Style
from launcher.output.run_folder import RunRecord
from launcher.runs.bisection import Verdict
from launcher.runs.culprits import find_between_attempts
from launcher.runs.run_request import RunOptions, RunRequest
from launcher.transports.process_channel import LocalTransport


class Screen(Console):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__((), None)
        self.words: list[str] = []

    def say(self, text: str, style: Style = Style.TEXT) -> None:
        self.words.append(text)


def test_healthy_hosts_pass_whatever_the_job_is(tmp_path: Path, forking_python: Path) -> None:
    """A test needs neither the job's directory, nor its port, and it may be silent for longer than the job.

    Without torchrun, whose imports would take most of the time.
    """
    job = Job(
        Program(ProgramKind.SCRIPT, "missing.py"), nproc=1, cpu=True, python=str(forking_python), workdir="/nowhere",
        master_addr="192.0.2.1", master_port=1, hang_timeout_s=0.1, on_hang=OnHang.END,
        timeouts=Timeouts(DEADLINE_S, stop_timeout_s=600), start="plain",
    )  # fmt: skip
    screen, hosts = Screen(), [Host("n1"), Host("n2")]
    record = RunRecord(tmp_path, "r", print)
    options = RunOptions(with_checks=False)
    request = RunRequest(job, hosts, lambda hosts, say: LocalTransport(), record, screen, options)
    searching = find_between_attempts(request, hosts)
    verdict = asyncio.run(asyncio.wait_for(searching, DEADLINE_S))
    assert verdict == Verdict(is_repeatable=False), screen.words
    assert screen.words[1:] == ["launch: all passed this time: the failure is intermittent"]
    assert len([*tmp_path.glob("bisection/2*/run.json")]) == 3
