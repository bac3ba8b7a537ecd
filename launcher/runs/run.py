"""The life of a run: open, facts, plan, start, stream, stop all on the first failure, report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from launcher.clock import iso_time, utc_offset, wall_clock
from launcher.diagnosis.cause import SETTLE_S, Cause
from launcher.diagnosis.failure import Failure, FailureKind
from launcher.diagnosis.flight_recorder import find_unsafe
from launcher.errors import EXIT_SIGNAL_BASE, PreflightError, UnreachableError
from launcher.job.activation import candidate_pythons
from launcher.job.job import Job, ProgramKind
from launcher.job.plan import (
    ARCHIVE_NAME,
    FLIGHT_RECORDER_PREFIX,
    TORCHRUN,
    LaunchPlan,
    NodePlan,
    as_dry_record,
    as_record,
    build_plan,
    refuse_unknown_ranks,
)
from launcher.output.node_log import NodeOutput
from launcher.output.run_folder import RunRecord
from launcher.output.style import Style
from launcher.output.terminal import Screen
from launcher.output.traceback_filter import Source
from launcher.preflight.findings import WARNING
from launcher.preflight.summary import summarize
from launcher.runs import report
from launcher.runs.early_exits import EarlyExitNotice
from launcher.runs.hangs import HangWatch, StackTaker
from launcher.runs.inspection import Inspection, Inspector
from launcher.runs.verdict import Verdict
from launcher.session.node_state import Census
from launcher.session.session import Session
from launcher.session.signals import Interrupted
from launcher.transports import bootstrap
from launcher.wording import count, duration

_PORT_TAKEN = ("port-number-taken", "port-taken")  # signatures


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended."""

    exit_code: int
    seconds: float
    census: Census
    cause: Cause | None = None
    interrupted_by: int | None = None
    has_lost_port: bool = False  # another process took the master port before torchrun had it


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run, which are the same for every attempt."""

    is_dry: bool = False  # ask the hosts, print the plan, start nothing
    is_verbose: bool = False  # print what is sent to each host
    with_checks: bool = True  # or ask only for what the plan needs
    share: tuple[int, int] | None = None  # of a run by hand: (number of nodes, this node's rank)
    shown_ranks: frozenset[int] | None = None  # whose output the screen shows; None: all


class Run:
    """One run of a job on its hosts."""

    def __init__(
        self, job: Job, session: Session, outputs: Sequence[NodeOutput], record: RunRecord, *,
        screen: Screen, own_python: str, options: RunOptions, is_last_try: bool = True,
    ) -> None:  # fmt: skip
        self._job = job
        self._session = session
        self._outputs = outputs
        self._record = record
        self._own_python = own_python
        self._screen = screen
        self._say = screen.say
        self._share = options.share
        self._is_dry = options.is_dry
        self._shown_ranks = options.shown_ranks
        self._is_verbose = options.is_verbose
        self._with_checks = options.with_checks
        self._is_last_try = is_last_try
        self._stacks = StackTaker(session, record, screen)
        self._plan: LaunchPlan | None = None
        self._began_at = wall_clock()
        self._hang: HangWatch | None = None
        self._verdict: Verdict | None = None  # once there is a plan

    async def execute(self) -> Result:
        """Run the job to its end on all nodes; raise LauncherError if it can't start."""
        session = self._session
        with session.catch_signals(on_quit=self._stacks.take):
            try:
                await self._check()
                if self._is_dry:
                    return await self._print_plan()
                await self._start()
                cause = await self._watch()
            except Interrupted as interruption:
                cause = self._known_cause(interruption.number)
                if cause is not None:
                    return await self._finish(cause, interruption.number)
                return await self._stop_interrupted(interruption.number)
            except BaseException:
                await session.stop_all(timeout_s=0)
                raise
            return await self._finish(cause)

    # ---- before -------------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        """Ask all hosts, and plan; raise if something would break the run."""
        job, session = self._job, self._session
        inspector = Inspector(job, session, candidate_pythons(job, self._own_python), with_checks=self._with_checks)
        inspection = await inspector.ask(has_master=not (self._share and self._share[1]))
        if inspection.failures:
            raise UnreachableError(list(inspection.failures))
        if inspection.problems:
            raise PreflightError("\n".join(map(str, inspection.problems)))
        if inspector.job != job:
            self._say(f"launch: {count(len(inspection.hosts), 'host')} without GPUs, so the run uses CPUs")
            self._job = inspector.job
        self._plan = build_plan(self._job, session.hosts, inspection.facts, self._share)
        refuse_unknown_ranks(self._plan, self._shown_ranks)
        self._verdict = Verdict(session, self._plan, self._outputs, self._share is None, wall_clock())
        self._say_plan(inspection)

    def _say_details(self) -> None:
        """Print, for -v, what is sent to each host and what the login shells printed."""
        assert self._plan is not None
        for line in report.plan_lines(self._plan):
            self._say(line)
        for index, host in enumerate(self._session.hosts):
            for line in self._session.noise(index).splitlines():
                self._say(f"launch: {host.name}'s login shell printed: {line}")

    async def _print_plan(self) -> Result:
        assert self._plan is not None
        self._screen.emit("plan", run=None, name=self._record.name, **as_dry_record(self._plan))
        for line in report.plan_lines(self._plan):
            self._screen.show(line)
        census = await self._session.stop_all(timeout_s=0)
        self._record.discard()
        return Result(0, self._seconds(), census)

    def _say_plan(self, inspection: Inspection) -> None:
        assert self._plan is not None
        on_cpu = self._job.cpu or not any(fact.gpus for fact in inspection.facts)
        if self._is_dry:  # a run that never starts has no name
            plan_line = f"dry run of {report.plan_size(self._plan, on_cpu=on_cpu)}"
        else:
            plan_line = report.plan_line(self._plan, self._record.title, self._record.folder, on_cpu=on_cpu)
        self._say(f"launch: {plan_line}", Style.TEXT)
        seconds = duration(self._seconds())
        warnings = inspection.of(WARNING)
        counted = f"; {count(len(warnings), 'warning')}" if warnings else ""
        self._say(f"launch: checked in {seconds}: {summarize(self._job, inspection.facts)}{counted}", Style.TEXT)
        for line in report.warning_lines(warnings):
            self._say(line, Style.TEXT)
        if self._is_dry:
            return
        if self._is_verbose:
            self._say_details()
        if not self._record.link([node.node_rank for node in self._plan.nodes]):
            latest = self._record.folder.parent / "latest"
            self._say(f"launch: {latest} belongs to another user and still points to another run")
        said = [warning.one_line for warning in warnings]
        times = {"started_at": iso_time(wall_clock()), "utc_offset": utc_offset()}
        self._record.update({**times, "plan": as_record(self._plan), "warnings": said})
        self._screen.emit("plan", run=self._record.run_id, name=self._record.name, **as_record(self._plan))

    # ---- the run ------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        assert self._plan is not None
        archive = bootstrap.trainer_archive() if self._job.program.kind is ProgramKind.BUILTIN else b""
        for index, (node, output) in enumerate(zip(self._plan.nodes, self._outputs, strict=True)):
            output.first_rank = node.first_rank
            self._session.start_ranks(
                index, archive, payload_name=ARCHIVE_NAME, imports_torch=bool(node.argv),
                with_stacks=self._job.with_stacks, **start_fields(node),
            )  # fmt: skip

    async def _watch(self) -> Cause | None:
        """Wait until all nodes have succeeded, or the first failure is known; a hang may be one."""
        assert self._plan is not None and self._verdict is not None
        session, verdict = self._session, self._verdict
        with (
            self._stacks.allowed(self._plan),
            EarlyExitNotice(session, self._plan).allowed(),
            HangWatch(session, self._plan, self._outputs, self._stacks, self._job.hang_timeout_s) as watch,
        ):
            self._hang = watch
            await session.pump(
                lambda: bool(verdict.failures()) or all(state.ended for state in session.states) or bool(watch.failure)
            )
        if not verdict.failures():
            return verdict.cause(hang=watch.failure)
        self._screen.withhold()
        deadline = time.monotonic() + SETTLE_S
        if not verdict.has_final():
            await session.pump(verdict.has_final, deadline)
        if verdict.has_failed_early():
            await session.pump(verdict.has_no_rank, deadline)
        return verdict.cause()

    def _known_cause(self, number: int) -> Cause | None:
        """Return why the run had failed before a signal came, or None."""
        hang = self._hang.failure if self._hang is not None else None
        return self._verdict.cause_before(number, hang) if self._verdict is not None else None

    # ---- after --------------------------------------------------------------------------------------------------

    async def _end(self, timeout_s: float, *, ended_well: bool = False) -> Census:
        """Stop all nodes, and show the output that was still on its way."""
        if self._verdict is not None:
            self._verdict.stopped_at = wall_clock()
        census = await self._session.stop_all(timeout_s)
        for output in self._outputs:
            output.finish(ended_well=ended_well)
        return census

    async def _stop_interrupted(self, number: int) -> Result:
        if self._plan is None or self._is_dry:
            self._session.say_failures()
            census = await self._end(timeout_s=0)
            self._record.discard()
            # No rank was started; what a --setup may have left is printed.
            left = "nothing was started" if census.is_clean else report.census_words(census)
            self._say(f"launch: stopped by {_who(number)}, {left}")
            return Result(EXIT_SIGNAL_BASE + number, self._seconds(), census, interrupted_by=number)
        timeout_s = self._job.stop_timeout_s
        nodes = count(len(self._session.hosts), "host")
        self._say(
            f"launch: stopping the run on {nodes}, up to {timeout_s:g} s to save (Ctrl-C again: kill now)",
            Style.TEXT,
        )
        census = await self._end(timeout_s)
        after = duration(self._seconds())
        self._screen.release()
        await self._say_flight_recorder()
        result = Result(EXIT_SIGNAL_BASE + number, self._seconds(), census, interrupted_by=number)
        return self._conclude(result, f"stopped by {_who(number)} after {after}, {report.census_words(census)}")

    def _seconds(self) -> float:
        return wall_clock() - self._began_at

    async def _finish(self, cause: Cause | None, interrupted_by: int | None = None) -> Result:
        session = self._session
        may_retry = interrupted_by is None and not self._is_last_try
        if cause is not None and may_retry and self._has_lost_port(cause):
            census = await self._end(timeout_s=0)
            self._screen.release()
            self._say(
                f"launch: port {self._plan_port()} of node 0 was taken before torchrun started; retrying on another"
            )
            return Result(cause.failure.exit_code, self._seconds(), census, cause, has_lost_port=True)
        if cause is not None:
            self._screen.withhold()
            self._say("launch: " + report.failed_first_line(cause, len(session.hosts)), Style.STRONG)
        census = await self._end(self._job.stop_timeout_s, ended_well=cause is None)
        seconds = self._seconds()
        if cause is None:
            self._screen.release()
            await self._say_flight_recorder()
            return self._finish_well(seconds, census)
        # More may be known by now: the cause itself may have taken longest to die.
        cause = self._say_cause(cause.failure, census, seconds)
        await self._say_flight_recorder()
        code = cause.failure.exit_code
        result = Result(code, seconds, census, cause, interrupted_by)
        return self._conclude(result, f"{report.census_words(census)}, exit code {code}")

    def _say_cause(self, told: Failure, census: Census, seconds: float) -> Cause:
        """Print the cause, from all that is known at the end; `told` is the failure that was reported as the first."""
        assert self._verdict is not None  # there is a cause
        cause = self._verdict.cause(told=told)
        assert cause is not None  # it has failed
        failure = cause.failure
        alike = {(each.host, each.rank) for each in (failure, *cause.same)}
        withheld = self._screen.release(self._sources_of(failure), alike) - alike
        if (failure.subject, failure.kind) != (told.subject, told.kind):
            self._say(f"launch: correction: {failure.headline}", Style.STRONG)
        self._say(f"launch: FAILED after {duration(seconds)}", Style.FAILURE)
        others, log = self._verdict.count_others(cause, census), self._record.log_path(failure.node_rank)
        ranks = sum(rank is not None for _, rank in withheld)
        for line in report.cause_block(cause, others, log, withheld=ranks):
            self._say(line.text, line.style)
        return cause

    def _sources_of(self, failure: Failure) -> list[Source]:
        """Return whose output is about a failure; if a host is to blame, torchrun and all its ranks."""
        assert self._plan is not None  # there is a failure
        if failure.kind in (FailureKind.RANK, FailureKind.TORCHRUN, FailureKind.HANG):
            return [(failure.host, failure.rank)]
        node = next(node for node in self._plan.nodes if node.node_rank == failure.node_rank)
        ranks = range(node.first_rank, node.first_rank + node.nproc)
        return [(failure.host, None), *((failure.host, rank) for rank in ranks)]

    async def _say_flight_recorder(self) -> None:
        """Print which files the ranks left for torchfrtrace, after a check: it runs code from these files."""
        assert self._plan is not None
        files = self._record.find_files(FLIGHT_RECORDER_PREFIX)
        unsafe = await asyncio.to_thread(find_unsafe, files)  # some seconds for files that were made to be slow
        hosts = {f"node_{node.node_rank}": node.host.name for node in self._plan.nodes}
        for line in report.flight_recorder_lines(files, unsafe, hosts):
            self._say(line)

    def _has_lost_port(self, cause: Cause) -> bool:
        """Return whether the port that `launch` chose and held for torchrun was taken when torchrun came."""
        failure = cause.failure
        has_begun = any(state.started for state in self._session.states)
        is_torchrun = failure.kind is FailureKind.TORCHRUN
        is_ours = self._job.master_port is None and is_torchrun and failure.node_rank == 0
        return is_ours and not has_begun and cause.explanation is not None and cause.explanation.name in _PORT_TAKEN

    def _plan_port(self) -> int | str:
        assert self._plan is not None  # something was started
        return self._plan.master_port

    def _finish_well(self, seconds: float, census: Census) -> Result:
        assert self._plan is not None
        ranks = count(sum(node.nproc for node in self._plan.nodes), "rank")  # of a run by hand only this node's
        words = f"finished in {duration(seconds)}, {ranks} succeeded, {report.census_words(census)}"
        return self._conclude(Result(0, seconds, census), words)

    def _conclude(self, result: Result, words: str) -> Result:
        """Write the record, and then print how the run ended: the disk may be full."""
        self._record.update({"ended_at": iso_time(wall_clock()), "result": _as_record(result)})
        gap = report.gap_words(self._record.write_error)
        is_calm = result.census.is_clean and not gap
        style = Style.FAILURE if not is_calm else Style.STRONG if result.exit_code else Style.TEXT
        self._say(f"launch: {words}{gap}", style)
        for line in report.left_lines(result.census):
            self._say(line, Style.FAILURE)
        self._screen.emit("result", run=self._record.run_id, name=self._record.name, **_as_record(result))
        return result


def start_fields(node: NodePlan) -> dict[str, Any]:
    """Return what a supervisor is told to start."""
    return {
        "torchrun_args": node.argv[1 + len(TORCHRUN) :],
        "env": dict(node.env),
        "cwd": node.cwd,
        "local_ranks": list(range(node.nproc)),
        "processes": [
            {"rank": process.local_rank, "argv": process.argv, "env": dict(process.env)} for process in node.processes
        ],
    }


def _who(number: int) -> str:
    return {2: "you", 15: "SIGTERM", 1: "SIGHUP"}[number]


def _as_record(result: Result) -> dict[str, Any]:
    cause = result.cause
    return {
        "exit_code": result.exit_code,
        "seconds": round(result.seconds, 3),
        "interrupted_by": result.interrupted_by,
        "left": dict(result.census.left),
        "unreachable": dict(result.census.unasked),
        "cause": None
        if cause is None
        else {
            "host": cause.failure.host,
            "what": cause.failure.kind.value,
            "rank": cause.failure.rank,
            "local_rank": cause.failure.local_rank,
            "exit_code": cause.failure.code,
            "signal": cause.failure.signal,
            "oom": cause.failure.oom,
            "text": cause.failure.ending,
            "at": iso_time(cause.failure.at),
            "traceback": list(cause.traceback),
            "last_lines": list(cause.last_lines),
            "explanation": None
            if cause.explanation is None
            else {
                "name": cause.explanation.name,
                "cause": cause.explanation.cause,
                "fix": cause.explanation.fix,
            },
        },
    }
