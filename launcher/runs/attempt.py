"""One start of a run: facts, plan, start, stream, stop all on the first failure, report."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from launcher.clock import iso_time, utc_offset, wall_clock
from launcher.diagnosis.cause import SETTLE_S, Cause
from launcher.diagnosis.failure import Failure, FailureKind
from launcher.diagnosis.flight_recorder import find_unsafe
from launcher.errors import EXIT_SIGNAL_BASE, HostFailureKind, HostsUnreachable
from launcher.hosts.host import Host
from launcher.job.activation import candidate_pythons
from launcher.job.job import ProgramKind
from launcher.job.plan import (
    ARCHIVE_NAME,
    FLIGHT_RECORDER_PREFIX,
    LaunchPlan,
    build_plan,
    refuse_unknown_ranks,
    start_fields,
)
from launcher.node import messages
from launcher.node.facts.machine import find_identity
from launcher.output.node_output import CODE_BORDER, RESTART_BORDER, NodeOutput
from launcher.output.output_streams import Style
from launcher.output.traceback_filter import Source
from launcher.output.write_queue import STALLED_S
from launcher.preflight.claims import ClaimOrder, refuse_claimed
from launcher.preflight.findings import WARNING
from launcher.preflight.summary import summarize
from launcher.runs import report
from launcher.runs.hangs import HangWatch, StackTaker
from launcher.runs.inspection import Inspection, Inspector
from launcher.runs.judge import Judge, find_lost_host_wait
from launcher.runs.records import Result, describe_code, describe_hosts, describe_plan
from launcher.runs.run_request import ALL_RUN, RunRequest
from launcher.runs.run_state import Activity, StateKeeper
from launcher.runs.samples import PERIOD_S, RunSamples
from launcher.session.connection import Event
from launcher.session.node_state import Census
from launcher.session.session import Session
from launcher.session.signals import Interrupted
from launcher.sync.code_messages import code_line
from launcher.sync.delivery import Delivered
from launcher.transports.archives import trainer_archive
from launcher.wording import count, duration

ALL_RUN_S = 10.0  # most of what fails at once has failed by then
SILENT_RECHECK_S = 0.5
LOOK_S = 2.5  # a node gives up on a hung file system after 2 s


@dataclass(slots=True)
class CarriedOver:
    """What a run knows from its attempts so far, for the next one."""

    attempts: int = 0  # before this one
    has_left: bool = False  # the terminal, if it was to
    warnings: set[str] = field(default_factory=set)  # that were printed
    incidents: Mapping[str, str] = field(default_factory=dict)  # by host, of earlier runs
    here: set[str] = field(default_factory=set)  # hosts that are this machine: its network can't lose them
    others: tuple[Host, ...] = ()  # that could be used as well as those of the run, until ranks were started
    claimed_since: float = 0.0  # wall-clock seconds; 0.0: nothing was claimed yet
    until: float | None = None  # wall-clock seconds; None: the run has no time limit, or its ranks never started
    odd: set[tuple[str, int | None, str]] = field(default_factory=set)  # GPUs and hosts that stood out, and by what

    def leave(self, leave: Callable[[str], object] | None, why: str) -> None:
        """Leave the terminal, if that is wanted and was not done yet."""
        if leave is not None and not self.has_left:
            self.has_left = True
            leave(why)


def make_claim_order(request: RunRequest, carried: CarriedOver, hosts: int) -> ClaimOrder:
    """Return what a run claims of so many hosts."""
    record, options, until = request.record, request.options, carried.until
    carried.claimed_since = carried.claimed_since or wall_clock()
    if until is None and options.for_s is not None:  # a little early: it counts from the start of the ranks
        until = wall_clock() + options.for_s
    return ClaimOrder(
        record.run_id, record.name, carried.claimed_since, hosts, options.shares, bool(carried.attempts), until,
    )  # fmt: skip


class Attempt:
    """One start of a run on its hosts, to the last process gone; `Run` makes it, and says what follows."""

    def __init__(
        self, request: RunRequest, session: Session, outputs: list[NodeOutput], carried: CarriedOver,
        state: StateKeeper, on_all_started: Callable[[], object], *, spares: int = 0,
    ) -> None:  # fmt: skip
        """carried: from earlier attempts, and extended here.

        spares: how many of the session's hosts, the last ones, are only checked.
        """
        self._request = request
        self._job = request.job  # on CPUs, once it is known that the hosts leave no choice
        self.session = session
        self._outputs = outputs
        self._carried = carried
        self._state = state
        self._on_all_started = on_all_started
        self._record = request.record
        self._console = request.console
        self._say = request.console.say
        self._options = request.options
        self._has_restarts = bool(request.options.restarts)  # so that claims wait for what follows
        self._spares = spares
        self._stacks = StackTaker(session, request.record, request.console)
        self._samples: RunSamples | None = None  # if the run takes any
        self._began_at = wall_clock()
        self._ranks_asked_at: float | None = None  # by time.monotonic(): the ranks are started from then on
        self._hang: HangWatch | None = None
        self._running_timer: asyncio.TimerHandle | None = None
        self._known: Judge | None = None  # once there is a plan

    @property
    def _judge(self) -> Judge:
        assert self._known is not None  # whoever asks comes after the plan
        return self._known

    @property
    def _plan(self) -> LaunchPlan:
        return self._judge.plan

    async def execute(self) -> Result:
        """Run the job to its end on all nodes; raise LauncherError if it can't start."""
        session = self.session
        with session.catch_signals(on_quit=self._stacks.take):
            try:
                await self._check()
                if self._options.is_dry:
                    return await self._print_plan()
                await self._start()
                cause = await self._watch()
            except Interrupted as interruption:
                cause = self._known_cause(interruption.number)
                if cause is not None:
                    return await self._finish(cause, interruption.number)
                return await self._stop_interrupted(interruption.number)
            except BaseException:
                await session.stop_all(timeout_s=0, stays=bool(self._carried.attempts) and self._has_restarts)
                raise
            return await self._finish(cause)

    # ---- before -------------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        """Ask all hosts, and plan; raise if something would break the run."""
        job, session, share = self._job, self.session, self._options.share
        pythons = candidate_pythons(job, job.own_python or sys.executable)
        claimed = 0 if self._options.is_dry else len(session.hosts) - self._spares  # the others are looked at
        inspector = Inspector(
            job, session, pythons, with_checks=self._options.with_checks, incidents=self._carried.incidents,
            checkpoints=None if self._carried.attempts or self._options.is_dry else self._options.progress_dir,
            contents=self._request.contents,
            warm_hosts=claimed,
            attempt=self._carried.attempts, claims=make_claim_order(self._request, self._carried, claimed),
        )  # fmt: skip
        inspection = await inspector.ask(has_master=not (share and share[1]))
        own, pairs = find_identity(), zip(inspection.hosts, inspection.facts, strict=True)
        self._carried.here.update(host.name for host, fact in pairs if own and fact.machine == own)
        self._say_code(inspector.delivered)
        if inspection.failures:
            raise HostsUnreachable(list(inspection.failures))
        refuse_claimed(inspection.findings, inspection.claimed)
        is_moved, self._job = inspector.job != job, inspector.job
        number = len(session.hosts) - self._spares
        session.release_after(number)
        del self._outputs[number:]
        plan = build_plan(self._job, session.hosts, inspection.facts[: len(session.hosts)], share)
        if not self._carried.attempts:  # with fewer hosts some ranks may be gone
            refuse_unknown_ranks(plan, self._options.shown_ranks)
        if is_moved and not self._carried.attempts:
            self._say(f"launch: {report.cpu_words(self._job, plan)}")
        self._known = Judge(session, plan, self._outputs, share is None, wall_clock())
        if not self._options.is_dry:
            self._samples = RunSamples(
                session, plan, inspection.facts, self._record, self._carried.odd, self._console,
                self._state.note_odd,
            )  # fmt: skip
        self._say_plan(inspection)

    def _say_code(self, delivered: Delivered | None) -> None:
        """Print what was sent; in a later attempt only if something was."""
        tree = self._job.tree
        if tree is not None and delivered is not None and not (self._carried.attempts and delivered.is_nothing):
            self._say(f"launch: {code_line(tree, delivered.files, delivered.sent_bytes)}")

    def _say_details(self) -> None:
        """Print, for -v, what is sent to each host and what the login shells printed."""
        for line in report.plan_lines(self._plan):
            self._say(line)
        if self._job.start == "warm" and not self._job.starts_warm:
            self._say("launch: --start warm has no effect: the ranks run a command, and import nothing")
        for index, host in enumerate(self.session.hosts):
            for line in self.session.noise(index).splitlines():
                self._say(f"launch: {host.name}'s login shell printed: {line}")

    async def _print_plan(self) -> Result:
        plan = describe_plan(self._plan, is_dry=True, name=self._record.name, code=describe_code(self._job))
        self._console.emit("plan", **plan)
        for line in report.plan_lines(self._plan):
            self._console.show(line)
        census = await self.session.stop_all(timeout_s=0)
        self._record.discard()
        return self._make_result(census)

    def _say_plan(self, inspection: Inspection) -> None:
        number, spares = self._carried.attempts, [host.name for host in self._request.spares]
        restarts = report.restart_words(self._options.restarts, spares)
        on_cpu = self._job.cpu or not any(fact.gpus for fact in inspection.facts)
        code = self._job.tree.name if self._job.tree is not None else None
        if self._options.is_dry:  # a run that never starts has no name
            plan_line = f"dry run of {report.plan_size(self._plan, on_cpu=on_cpu)}{restarts}"
        elif number:
            plan_line = f"restart {number}: {report.plan_size(self._plan, on_cpu=on_cpu)}"
        else:
            folder = self._record.show(self._record.folder)
            plan_line = report.plan_line(self._plan, self._record.title, folder, on_cpu=on_cpu, code=code)
            plan_line += restarts
        self._say(f"launch: {plan_line}")
        seconds = duration(self._seconds())
        warnings = inspection.of(WARNING)
        counted = f"; {count(len(warnings), 'warning')}" if warnings else ""
        self._say(f"launch: checked in {seconds}: {summarize(self._job, inspection.facts)}{counted}")
        for line in report.warning_lines([each for each in warnings if each.one_line not in self._carried.warnings]):
            self._say(line)
        self._carried.warnings.update(warning.one_line for warning in warnings)
        if self._options.is_dry:
            return
        self._state.change(Activity.STARTING)
        if self._options.is_verbose:
            self._say_details()
        disk = self._record.disk
        self._record.transcript.begin()
        disk.put(partial(self._record.link, [node.node_rank for node in self._plan.nodes]))
        said = [warning.one_line for warning in warnings]
        times = {} if number else {"started_at": iso_time(wall_clock()), "utc_offset": utc_offset()}
        hosts, facts = self.session.hosts, inspection.facts[: len(self.session.hosts)]
        plan = describe_plan(
            self._plan, run=self._record.run_id, name=self._record.name, logs=str(self._record.folder.absolute()),
            attempt=number, code=describe_code(self._job),
        )  # fmt: skip
        values = {"plan": plan, "code": plan["code"], "hosts": describe_hosts(hosts, facts), "warnings": said}
        disk.put(partial(self._record.update, times | values))
        self._console.emit("plan", **plan)

    # ---- the run ------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        archive = trainer_archive() if self._job.program.kind is ProgramKind.BUILTIN else b""
        number = self._carried.attempts
        self._carried.others = ()
        self._ranks_asked_at = time.monotonic()
        for index, (node, output) in enumerate(zip(self._plan.nodes, self._outputs, strict=True)):
            output.first_rank = node.first_rank
            if self._job.tree is not None and not number:
                output.note(CODE_BORDER.format(self._job.tree.hash))
            if number:
                output.note(RESTART_BORDER.format(number))
            self.session.start_ranks(
                index, archive, payload_name=ARCHIVE_NAME, imports_torch=bool(node.argv) or self._job.starts_warm,
                with_stacks=self._job.with_stacks, import_timeout_s=self._job.rendezvous_timeout_s,
                samples_s=PERIOD_S if self._samples is not None else None,
                near_gpus=[node.gpu_of(rank) for rank in range(node.nproc)] if self._job.binds_cpus else [],
                **start_fields(node, number),
            )  # fmt: skip

    async def _watch(self) -> Cause | None:
        """Wait until all nodes have succeeded, or the first failure is known; a hang may be one."""
        session, judge = self.session, self._judge
        with (
            self._stacks.allowed(self._plan),
            session.subscribe(messages.STARTED, self._take_started),
            session.subscribe(messages.COLD, self._say_cold),
            self._samples.taken() if self._samples is not None else contextlib.nullcontext(),
            HangWatch(session, self._plan, self._outputs, self._stacks, self._job) as watch,
        ):
            self._hang = watch
            try:
                await session.pump(
                    lambda: bool(judge.failures() or watch.failure) or all(state.ended for state in session.states)
                )
            finally:
                if self._running_timer is not None:
                    self._running_timer.cancel()
        if not judge.failures():
            return judge.cause(hang=watch.failure)
        self._console.withhold()
        deadline = time.monotonic() + SETTLE_S
        if not judge.has_final():
            await session.pump(judge.has_final, deadline)
        if judge.has_failed_early():
            await session.pump(judge.has_no_rank, deadline)
        return judge.cause()

    def _take_started(self, event: Event) -> None:
        """Note once all ranks run."""
        if [len(state.started) for state in self.session.states] != [node.nproc for node in self._plan.nodes]:
            return
        self._running_timer = asyncio.get_running_loop().call_later(ALL_RUN_S, self._note_all_running)
        self._state.change(Activity.RUNNING)
        self._on_all_started()
        if self._samples is not None:
            self._samples.begin()

    def _say_cold(self, event: Event) -> None:
        if self._options.is_verbose:
            host = self.session.hosts[event.index].name
            self._say(f"launch: {host}: its ranks import torch themselves: {event.fields['reason']}")

    def _note_all_running(self) -> None:
        """Leave the terminal once all ranks have run for a while, and no host is silent: it is heard again, or lost."""
        if self.session.is_silent():
            self._running_timer = asyncio.get_running_loop().call_later(SILENT_RECHECK_S, self._note_all_running)
        else:
            self._carried.leave(self._request.leave, ALL_RUN)

    def _known_cause(self, number: int) -> Cause | None:
        """Return why the run had failed before a signal came, or None."""
        hang = self._hang.failure if self._hang is not None else None
        return self._judge.cause_before(number, hang) if self._known is not None else None

    # ---- after --------------------------------------------------------------------------------------------------

    async def _end(self, timeout_s: float, *, stays: bool = False) -> Census:
        """Stop all nodes, and show the output that was still on its way."""
        if self._known is not None:
            self._known.stopped_at = wall_clock()
        self._state.change(Activity.STOPPING)
        census = await self.session.stop_all(timeout_s, stays=stays)
        for output in self._outputs:
            output.finish()
        return census

    async def _stop_interrupted(self, number: int) -> Result:
        if self._known is None or self._options.is_dry:
            self.session.say_failures()
            return self._make_result(await self._end(timeout_s=0), interrupted_by=number)
        timeout_s = self._job.timeouts.stop_timeout_s
        nodes = count(len(self.session.hosts), "host")
        self._say(
            f"launch: stopping the run on {nodes}, up to {timeout_s:g} s to save (Ctrl-C again: kill now)",
            Style.TEXT,
        )
        census = await self._end(timeout_s)
        self._console.release()
        await self._say_flight_recorder()
        return self._make_result(census, interrupted_by=number)

    def _seconds(self) -> float:
        return wall_clock() - self._began_at

    async def _finish(self, cause: Cause | None, interrupted_by: int | None = None) -> Result:
        if cause is not None:
            self._console.withhold()
            self._say("launch: " + report.failed_first_line(cause, len(self.session.hosts)), Style.STRONG)
        is_hurried = cause is not None and await self._look_for_checkpoint()
        timeout_s = 0 if is_hurried else self._job.timeouts.stop_timeout_s
        stays = self._has_restarts and cause is not None and interrupted_by is None
        census = await self._end(timeout_s, stays=stays)
        if cause is None:
            self._console.release(ended_well=True)
        else:  # more may be known by now: the cause itself may have taken longest to die
            cause = self._say_cause(cause.failure)
        await self._say_flight_recorder()
        return self._make_result(census, cause, interrupted_by)

    async def _look_for_checkpoint(self) -> bool:
        """Ask all nodes that respond whether their ranks have saved; return whether the user is in a hurry."""
        folder, options = self._options.progress_dir, self._options
        if not options.restarts or folder is None:
            return False
        self._state.change(Activity.STOPPING)  # what follows a signal now is a kill
        living = [state for state in self.session.states if state.failure is None and state.census is None]
        self.session.send_to_all(messages.LOOK, folder=folder, least_s=options.saved_s)
        try:
            deadline = time.monotonic() + LOOK_S
            await self.session.pump(lambda: all(state.has_looked or state.failure for state in living), deadline)
        except Interrupted:  # Run has heard it too
            self._say("launch: killing all remaining processes now")
            return True
        is_named = self._job.program.kind is not ProgramKind.BUILTIN  # the trainer makes its directory when it saves
        answers = [state.lacks_folder for state in living if state.has_looked]
        if is_named and answers and all(answers):
            self._say(f"launch: no host has the directory {folder} (--progress-dir) yet, so nothing counts as progress")
        return False

    def _make_result(self, census: Census, cause: Cause | None = None, interrupted_by: int | None = None) -> Result:
        code = cause.failure.exit_code if cause is not None else 0
        if cause is None and interrupted_by is not None:
            code = EXIT_SIGNAL_BASE + interrupted_by
        asked_at, heard_at = self._ranks_asked_at, max((output.heard_at for output in self._outputs), default=0.0)
        saved = [state.has_saved for state in self.session.states if state.has_saved is not None]  # none could look
        failed = self._judge.find_failed(cause) if cause is not None else ()
        return Result(
            code, self._seconds(), census, cause, failed, interrupted_by,
            master_port=self._plan.master_port if self._known is not None else None,
            ranks=sum(node.nproc for node in self._plan.nodes) if self._known is not None else 0,
            is_network=self._has_lost_network(),
            output_s=max(0.0, heard_at - asked_at) if heard_at and asked_at is not None else None,
            has_saved=any(saved) if saved else None,
            lost_host_wait_s=find_lost_host_wait(self._job, self.session.states, wall_clock()),
        )  # fmt: skip

    def _has_lost_network(self) -> bool:
        """Return whether this machine was suspended, or lost all other hosts at once: then none of them is to blame."""
        session, here = self.session, self._carried.here
        kinds = [state.failure.kind for state in session.states if state.failure is not None]
        pairs = list(zip(session.hosts, session.states, strict=True))
        others = [state for host, state in pairs if host.name not in here] or session.states
        return HostFailureKind.STANDSTILL in kinds or (len(others) > 1 and all(state.is_lost for state in others))

    def _say_cause(self, told: Failure) -> Cause:
        """Print the cause, from all that is known at the end; `told` is the failure that was reported as the first."""
        cause = self._judge.cause(told=told)
        assert cause is not None  # it has failed
        failure = cause.failure
        alike = {(each.host, each.rank) for each in (failure, *cause.same)}
        withheld = self._console.release(self._sources_of(failure), alike) - alike
        if (failure.subject, failure.kind) != (told.subject, told.kind):
            self._say(f"launch: correction: {failure.headline}", Style.STRONG)
        which = f"restart {self._carried.attempts} " if self._carried.attempts else ""
        self._say(f"launch: {which}FAILED after {duration(self._seconds())}", Style.FAILURE)
        failures, size = self._judge.failures(), sum(node.nproc for node in self._judge.plan.nodes)
        log = self._record.show(self._record.log_path(failure.node_rank))
        ranks = sum(rank is not None for _, rank in withheld)
        for line in report.cause_block(cause, failures, size, log, withheld=ranks, code=self._find_code(failure)):
            self._say(line.text, line.style)
        return cause

    def _find_code(self, failure: Failure) -> tuple[str, str] | None:
        """Return the root of the code that was sent to a failure's host, there and here."""
        tree = self._job.tree
        node = next((node for node in self._plan.nodes if node.node_rank == failure.node_rank), None)
        if tree is None or node is None:
            return None
        return node.cwd.removesuffix(tree.directory("")), tree.root

    def _sources_of(self, failure: Failure) -> list[Source]:
        """Return whose output is about a failure; if a host is to blame, torchrun and all its ranks."""
        if failure.kind in (FailureKind.RANK, FailureKind.TORCHRUN, FailureKind.HANG):
            return [(failure.host, failure.rank)]
        node = next(node for node in self._plan.nodes if node.node_rank == failure.node_rank)
        ranks = range(node.first_rank, node.first_rank + node.nproc)
        return [(failure.host, None), *((failure.host, rank) for rank in ranks)]

    async def _say_flight_recorder(self) -> None:
        """Print which files the ranks left for torchfrtrace, after a check: it runs code from these files."""
        if not await asyncio.to_thread(self._record.disk.wait, STALLED_S):
            return
        files = self._record.find_files(FLIGHT_RECORDER_PREFIX)
        unsafe = await asyncio.to_thread(find_unsafe, files)  # some seconds for files that were made to be slow
        for line in report.flight_recorder_lines(files, unsafe):
            self._say(line)
