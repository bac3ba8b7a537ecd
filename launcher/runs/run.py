"""The life of a run: attempts, each as clean as the first, until one succeeds or another would be pointless."""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from launcher.clock import boottime, iso_time, wall_clock
from launcher.diagnosis.failure import FailureKind
from launcher.errors import EXIT_SIGNAL_BASE, HostsUnreachable, LauncherError
from launcher.hosts.host import Host
from launcher.hosts.ranges import fold_names
from launcher.job.job import OnHang
from launcher.node import messages
from launcher.output.node_output import NodeOutput
from launcher.output.output_streams import Style
from launcher.output.write_queue import STALLED_S, WriteQueue, disk_not_awaited, disk_stalled
from launcher.preflight.claims import GpusClaimedError
from launcher.runs import report
from launcher.runs.attempt import Attempt, CarriedOver, make_claim_order
from launcher.runs.hosts_and_spares import HostsAndSpares
from launcher.runs.judge import find_incidents, judge_refusal, judge_result
from launcher.runs.policy import (
    Ending,
    Outcome,
    Restart,
    Stop,
    count_restarts,
    decide,
    number_next,
    use_verdict,
    waits_for_hosts,
)
from launcher.runs.queue import AGAIN_S, BusyError, Place, Queue, QueueTimeoutError, refuse_late
from launcher.runs.records import Result
from launcher.runs.run_json import EndedAttempt
from launcher.runs.run_request import QUEUED, RunRequest
from launcher.runs.run_state import Activity, RestartCount, StateKeeper
from launcher.session.connection import Connection
from launcher.session.node_state import Census
from launcher.session.session import HANG_UP_S, SIGNALS, Session
from launcher.session.settings import Settings, loader_pythons
from launcher.session.signals import Action, Interrupted, catch_signals
from launcher.wording import age, count, span

LOOK_AGAIN_S = 2.0
LONG_WAIT_S = 300.0  # for hosts; then --notify hears of it, before the next pause
_TIME_LOOK_S = 60.0  # at the clock: a suspended machine delays a timer
_LISTEN_S = 0.02  # to signals, at least: one may have come while the loop was busy


class Run:
    """One run of a job on its hosts.

    Each attempt has its own port, processes and connections, and the next one begins only when nothing of it is left,
    or can be alive where nobody could look (docs/decisions/0016). Signals are heard at any time, also between two
    attempts: then none follows.
    """

    def __init__(self, request: RunRequest) -> None:
        self._request = request
        self._home_disk = WriteQueue("disk", ignore)  # of the state: a run needs none
        self._state = StateKeeper(request.note_state, self._home_disk)
        self._record = request.record
        self._say = request.console.say
        self._options = request.options
        self._signals: asyncio.Queue[int] = asyncio.Queue()
        self._began_at = wall_clock()
        self._hosts = HostsAndSpares(request.hosts[: self._options.num_nodes], request.spares, self._options.min_nodes)
        others = request.hosts[len(self._hosts.hosts) :]
        self._carried = CarriedOver(incidents=request.incidents, until=self._options.until_at, others=tuple(others))
        self._endings: list[Ending] = []
        self._attempts: list[EndedAttempt] = []  # for run.json
        self._idle: list[Connection] = []  # to hosts that hold claims until the next attempt takes them
        self._timer: asyncio.TimerHandle | None = None  # for the time limit
        self._time_limit: str | None = None  # that has been reached
        self._told_wait = 0.0  # since when the run waited for hosts as --notify was told of that

    async def execute(self) -> Result:
        """Run the job to its end; raise LauncherError if it can't start."""
        actions: dict[int, Action] = {number: partial(self._hear, number) for number in SIGNALS}
        actions |= dict.fromkeys((signal.SIGTSTP, signal.SIGQUIT), ignore)  # between attempts these would suspend it
        with catch_signals(actions):
            self._look_at_clock()
            try:
                return await self._repeat()
            except LauncherError as error:
                await self._discard_record()
                run_id = None if self._options.is_dry else self._record.run_id  # a dry run has none
                names = {"run": run_id, "name": self._record.name}
                self._request.console.emit("result", **names, exit_code=error.exit_code, error=error.message)
                raise
            except Exception:
                await self._close_disk()  # what was logged until then says most about a bug
                raise
            finally:
                self._stop_timer()
                for connection in self._idle:
                    connection.close()

    def _hear(self, number: int) -> None:
        self._signals.put_nowait(number)
        self._stop_timer()  # the run ends anyway
        self._state.change(Activity.STOPPING)

    async def _repeat(self) -> Result:
        self._state.count(self._count_restarts(follows=True))
        while True:
            began_at = wall_clock()
            refusal: LauncherError | None = None
            try:
                result = await self._attempt()
                if result.interrupted_by is not None:
                    result = replace(result, time_limit=self._time_limit)
            except QueueTimeoutError as error:
                return await self._conclude_queue(error)
            except LauncherError as error:
                if not self._endings and not self._record.has_begun:  # every mistake is reported before anything runs
                    raise
                refusal = error
                result = Result(error.exit_code, wall_clock() - began_at, Census({}, {}), error=error.message)
                for line in report.refusal_lines(error, self._number):
                    self._say(line, Style.FAILURE)
            if self._options.is_dry or (not self._endings and not self._record.has_begun):
                return await self._return_unstarted(result)
            if result.exit_code == 0:
                self._note_attempt(began_at, result, None, None, None)
                words = report.finished_words(
                    result, self._elapsed_s(), sum(not ending.is_refused for ending in self._endings)
                )
                return await self._conclude(result, words)
            ended = await self._follow(began_at, result, self._judge(result, refusal), refusal)
            if ended is not None:
                return ended

    async def _follow(
        self, began_at: float, result: Result, ending: Ending, refusal: LauncherError | None = None
    ) -> Result | None:
        """Prepare what follows an attempt that has failed; return how the run ended if no other one follows."""
        self._endings.append(ending)
        decision = decide(self._endings, self._options.restarts)
        self._state.count(self._count_restarts(follows=isinstance(decision, Restart)))
        self._note_attempt(began_at, result, refusal, ending, decision)
        if isinstance(decision, Stop):
            return await self._conclude_failure(await self._hang_up(result), decision)
        self._say_restart(result, decision)
        begins_at = boottime() + max(decision.pause_s, result.lost_host_wait_s)
        if self._request.notify is not None and not waits_for_hosts(ending):
            self._request.notify("restart", result)
        try:
            if self._searches(decision):
                await self._pause(result.lost_host_wait_s)
                decision = await self._search(decision)
            self._replace_hosts(result, decision)
            self._note_pause(ending, begins_at - boottime())
            await self._pause_for(ending, begins_at)
        except Interrupted as interruption:
            return await self._conclude_stop(await self._hang_up(result), interruption.number)
        return None

    # ---- the time limit -----------------------------------------------------------------------------------------

    def _note_all_started(self) -> None:
        """Let the time of --for count from now, once all ranks have started; a restart doesn't prolong it.

        What hosts still hold is of those that this attempt doesn't use.
        """
        for connection in self._idle:
            connection.send(messages.STOP, timeout_s=0)
        for_s = self._options.for_s
        if for_s is not None and self._carried.until is None:
            self._carried.until = wall_clock() + for_s
            self._look_at_clock()

    def _look_at_clock(self) -> None:
        """Stop the run as SIGTERM does if its time has come; else look again then."""
        until, now = self._carried.until, wall_clock()
        if until is None:
            return
        if now < until:
            wait_s = min(until - now, _TIME_LOOK_S)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._look_at_clock)
            return
        for_s = self._options.for_s
        self._time_limit = "until" if for_s is None else "for"
        self._say(f"launch: {report.limit_words(until, for_s, now)}", Style.STRONG)
        if self._state.state.what is Activity.STOPPING:
            self._hear(signal.SIGTERM)  # by Run alone: a second signal would kill ranks that are saving
        else:
            signal.raise_signal(signal.SIGTERM)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # ---- one attempt --------------------------------------------------------------------------------------------

    async def _attempt(self) -> Result:
        """Make an attempt, with --queue once its GPUs are free; raise LauncherError if it can't start."""
        self._carried.attempts = self._number
        if self._state.state.what is not Activity.WAITING:  # one that hosts kept from starting still waits for them
            self._state.change(Activity.STARTING)
        while True:
            attempt = self._open_attempt()
            try:
                return await attempt.execute()
            except GpusClaimedError:
                if self._options.queue_s is None or self._options.is_dry:
                    raise
            finally:
                self._idle = [*self._idle_now(), *attempt.session.idle]
            try:
                await self._queue()
            except Interrupted as interruption:
                code = EXIT_SIGNAL_BASE + interruption.number
                return Result(code, 0.0, Census({}, {}), interrupted_by=interruption.number)

    def _open_attempt(self) -> Attempt:
        is_first = not self._endings and not self._record.has_begun
        # Later these are checked when they are needed.
        others, spares = (self._carried.others, self._hosts.spares) if is_first else ((), ())
        self._record.attempt = self._number
        session, outputs = self._open_session((*self._hosts.hosts, *others, *spares), is_first=is_first)
        return Attempt(
            self._request, session, outputs, self._carried, self._state, self._note_all_started,
            spares=len(others) + len(spares),
        )  # fmt: skip

    def _open_session(self, hosts: Sequence[Host], *, is_first: bool = False) -> tuple[Session, list[NodeOutput]]:
        """is_first: what the transport says of the hosts, such as which of them is this machine, is printed."""
        if not is_first:  # the connections of an earlier transport end when nothing refers to it any more
            gc.collect()
        transport = self._request.open_transport(hosts, self._say if is_first else ignore)
        first_node = (self._options.share or (1, 0))[1]
        outputs = self._request.console.outputs(hosts, self._record, first_node=first_node)
        job = self._request.job
        settings = Settings(self._record.run_id, job.env, loader_pythons(job.python), job.timeouts)
        progress = self._request.console.progress
        session = Session(hosts, transport, outputs, settings, say=self._say, progress=progress)
        return session, outputs

    # ---- the queue ----------------------------------------------------------------------------------------------

    async def _queue(self) -> None:
        """Wait until the GPUs that the run needs are its own; of the hosts, those with free GPUs are then its hosts.

        Raise Interrupted for a signal, QueueTimeoutError, and HostsUnreachable if a run without restarts loses a host.
        """
        options, began_at = self._options, time.monotonic()
        await self._pause(0.0)  # a signal may have come while the attempt was ended
        hosts = (*self._hosts.hosts, *self._carried.others)
        if not self._record.has_begun:
            self._record.transcript.begin()  # it may take days, and whoever looks for the run shall find it
            self._record.disk.put(partial(self._record.update, {}))
        deadline = began_at + (options.queue_s or 0.0)
        order = make_claim_order(self._request, self._carried, len(hosts))
        place: Place | None = None
        lost = ""

        def note(now: Place) -> None:
            nonlocal place
            if now == place:  # busy hosts are looked at again and again
                return
            place = now
            self._state.change(Activity.QUEUED, place=now.number, behind=now.whom)
            waited = f" for {age(time.monotonic() - began_at)}" if time.monotonic() - began_at >= 1 else ""
            self._say(f"launch: queued{waited}, {place.describe()}")
            self._carried.leave(self._request.leave, QUEUED)

        while True:
            session, _ = self._open_session(hosts)
            needed, with_checks = len(self._hosts.hosts), options.with_checks
            queue = Queue(self._request.job, session, order, needed, note, with_checks=with_checks)
            try:
                chosen = await queue.wait(deadline)
                break
            except BusyError:
                continue
            except HostsUnreachable as error:
                if not options.restarts:
                    raise
                names = fold_names(failure.host for failure in error.failures)
                if names != lost:
                    self._say(f"launch: {names} can't be reached; the run stays in the queue on the other hosts")
                lost = names
            finally:
                self._idle = [*self._idle_now(), *session.idle]
            refuse_late(deadline)
            await self._pause(AGAIN_S)
        self._hosts = HostsAndSpares(chosen, self._hosts.spares, options.min_nodes)
        self._carried.others = ()
        await self._pause(0.0)  # or while the session was
        waited = age(time.monotonic() - began_at)
        self._say(f"launch: its turn on {fold_names(host.name for host in chosen)} after {waited} in the queue")

    async def _hang_up(self, result: Result) -> Result:
        """Let the claims go; return the result, with the hosts that don't say that they have ended as unasked.

        Such a host ends its claim by itself once its connection is closed, or it has heard nothing for 15 s.
        """
        idle, self._idle = self._idle_now(), []
        for connection in idle:
            connection.send(messages.STOP, timeout_s=0)
        deadline = time.monotonic() + HANG_UP_S
        while any(not connection.is_over for connection in idle) and time.monotonic() < deadline:
            await asyncio.sleep(_LISTEN_S)
        silent = {connection.host.name: 1 for connection in idle if not connection.has_exited}
        for connection in idle:
            connection.close()
        left = {name: found for name, found in result.census.left.items() if name not in silent}
        unasked = {**result.census.unasked, **silent}
        return replace(result, census=replace(result.census, left=left, unasked=unasked))

    def _idle_now(self) -> list[Connection]:
        return [connection for connection in self._idle if not connection.is_over]

    @property
    def _number(self) -> int:
        """The number of the attempt that runs, or begins next."""
        return number_next(self._endings)

    def _count_restarts(self, *, follows: bool) -> RestartCount:
        return count_restarts(self._endings, self._options.restarts, follows=follows)

    def _note_pause(self, ending: Ending, seconds: float) -> None:
        """Note that the next attempt is awaited, and for which of its hosts, if these kept the last one from starting.

        After the loss of a host nobody knows whether it is still away, until an attempt has tried to reach it.
        """
        names = [host.name for host in self._hosts.hosts]
        suspects = ending.suspects or [name for name in names if name not in self._carried.here]
        away = [name for name in names if name in suspects]
        if waits_for_hosts(ending) and away:
            self._state.change(Activity.WAITING, hosts=tuple(away))
            self._notify_long_wait()
        else:
            self._state.change(Activity.PAUSED, until=wall_clock() + max(0.0, seconds))

    def _notify_long_wait(self) -> None:
        """Tell once that the run has waited for hosts for long."""
        state, notify = self._state.state, self._request.notify
        if notify is not None and state.since != self._told_wait and wall_clock() - state.since >= LONG_WAIT_S:
            self._told_wait = state.since
            code, words = self._attempts[-1].result.exit_code, str(state.as_doing(wall_clock()))
            notify("wait", Result(code, self._elapsed_s(), Census({}, {}), error=words))

    @property
    def _is_awaited(self) -> bool:
        """Return whether somebody waits until all ranks have run for a while, and they have not yet."""
        return self._request.leave is not None and not self._carried.has_left

    def _judge(self, result: Result, refusal: LauncherError | None) -> Ending:
        hosts = [host.name for host in self._hosts.hosts]
        if result.interrupted_by is not None or not self._signals.empty():  # a signal may come while it is stopped
            return Ending(Outcome.STOPPED)
        if refusal is not None:
            ending = judge_refusal(refusal, hosts, self._carried.here)
            is_start = self._is_awaited and isinstance(refusal, HostsUnreachable)
            return replace(ending, is_start=is_start, is_replaced=self._hosts.can_replace(ending.suspects))
        ending = judge_result(result, hosts)
        is_lost = result.cause is not None and result.cause.failure.kind is FailureKind.CONNECTION
        ending = replace(
            ending, has_spare=self._hosts.has_spare(ending.suspects),
            is_start=self._is_awaited and (is_lost or result.is_network),
        )  # fmt: skip
        is_ended = ending.outcome is Outcome.HANG and self._request.job.on_hang is OnHang.END
        return replace(ending, outcome=Outcome.STOPPED) if is_ended else ending

    def _searches(self, decision: Restart) -> bool:
        return decision.is_unexplained and self._request.find_culprits is not None and len(self._hosts.hosts) > 1

    async def _search(self, decision: Restart) -> Restart:
        """Return the decision after a search for the hosts to blame; raise Interrupted for a signal."""
        assert self._request.find_culprits is not None  # `_searches` has looked
        names = [host.name for host in self._hosts.hosts]
        self._state.change(Activity.SEARCHING)
        verdict = await self._request.find_culprits(self._hosts.hosts)
        if verdict is None:
            return decision
        searched = use_verdict(decision, verdict, names)
        last = self._attempts[-1]
        found = dict.fromkeys(searched.without, "failed test-distributed") if searched.is_blamed else {}
        self._attempts[-1] = replace(last, search=verdict, blamed={**last.blamed, **found})
        self._write_attempts()
        return searched

    def _replace_hosts(self, result: Result, decision: Restart) -> None:
        """Replace the hosts that the next attempt does without."""
        if result.ranks:
            self._hosts.note_start()
        changes = self._hosts.replace(decision.without, may_shrink=decision.is_blamed)
        if not changes:
            return
        nodes, batch = len(self._hosts.hosts), "; the global batch changes with the number of ranks"
        shrinks = any(text.startswith("without ") for text in changes)
        self._say(f"launch: {', '.join(changes)}, on {count(nodes, 'host')}{batch if shrinks else ''}", Style.STRONG)

    async def _pause(self, seconds: float) -> None:
        """Wait between two attempts; raise Interrupted for a signal."""
        try:
            number = await asyncio.wait_for(self._signals.get(), max(seconds, _LISTEN_S))
        except asyncio.TimeoutError:
            return
        raise Interrupted(number)

    async def _pause_for(self, ending: Ending, begins_at: float) -> None:
        """Wait; hosts that kept the attempt from starting cut that short once they can be reached.

        begins_at: of launcher.clock.boottime. Raise Interrupted for a signal.
        """
        names = ending.suspects or tuple(host.name for host in self._hosts.hosts)
        can_reach = self._request.can_reach
        if can_reach is not None and ending.is_refused and not can_reach(names):
            while begins_at - boottime() > LOOK_AGAIN_S:
                await self._pause(LOOK_AGAIN_S)
                if can_reach(names):
                    return
        await self._pause(begins_at - boottime())

    def _note_attempt(
        self, began_at: float, result: Result, refusal: LauncherError | None, ending: Ending | None,
        decision: Restart | Stop | None,
    ) -> None:  # fmt: skip
        others = [host for host in self._hosts.hosts if host.name not in self._carried.here]
        has_one_other = len(others) == 1 < len(self._hosts.hosts)
        self._attempts.append(
            EndedAttempt(
                hosts=tuple(host.name for host in self._hosts.hosts),
                spares=tuple(host.name for host in self._hosts.spares),
                master_port=None if result.master_port is None else int(result.master_port),
                began_at=iso_time(began_at),
                ended_at=iso_time(wall_clock()),
                outcome="succeeded" if ending is None else ending.outcome.value,
                progress=ending is not None and ending.has_progress,
                then=None if decision is None else decision.why,
                restarts=self._count_restarts(follows=not isinstance(decision, Stop)),
                blamed=find_incidents(result.cause, refusal, ending, has_one_other=has_one_other),
                result=result.describe(),
            )
        )
        self._write_attempts()

    def _write_attempts(self) -> None:
        record, attempts = self._record, (*self._attempts,)
        record.disk.put(lambda: record.update({"attempts": [attempt.as_record() for attempt in attempts]}))

    # ---- messages -----------------------------------------------------------------------------------------------

    def _say_restart(self, result: Result, decision: Restart) -> None:
        census = result.census.describe()
        wait_s = 0.0 if self._searches(decision) else max(decision.pause_s, result.lost_host_wait_s)
        wait = f" in {span(round(wait_s))}" if wait_s >= 1 else ""
        unasked = ", ".join(result.census.unasked)
        where = f" on {unasked}" if unasked else ""
        when = f", when nothing can be alive any more{where}" if result.lost_host_wait_s else ""
        counted = self._count_restarts(follows=True).describe()
        search = " after a search for the host to blame" if self._searches(decision) else ""
        verb = f"trying restart {self._number} again" if waits_for_hosts(self._endings[-1]) else "restarting"
        line = f"{verb}{wait}{when}{search}: {decision.why} ({counted})"
        self._say(f"launch: {'; '.join(filter(None, [census, line]))}", Style.STRONG)
        self._say_losses(result.census)

    def _say_losses(self, census: Census) -> None:
        for line in report.uncopied_lines(census):
            self._say(line)

    async def _discard_record(self) -> None:
        if await self._close_disk() is None:
            self._record.discard()

    async def _close_disk(self) -> OSError | None:
        """Wait until all is written; return why that is not known: the disk does not respond, or the user can't wait.

        A signal that comes now changes nothing else: how the run has ended is known.
        """
        signals = self._signals.qsize()

        def is_hurried() -> bool:
            return self._signals.qsize() > signals

        if await asyncio.to_thread(self._record.disk.close, is_hurried):
            return None
        return disk_not_awaited() if is_hurried() else disk_stalled()

    async def _return_unstarted(self, result: Result) -> Result:
        """Return how a dry run ended, or a run that a signal stopped before it was started."""
        await self._discard_record()
        if result.interrupted_by is not None:
            self._say(f"launch: {report.unstarted_words(result)}")
        return result

    async def _conclude_failure(self, result: Result, decision: Stop) -> Result:
        number = result.interrupted_by
        if number is not None and result.cause is None:
            return await self._conclude_stop(result, number)
        if self._options.restarts and self._endings[-1].outcome is not Outcome.STOPPED:
            words = report.no_restart_words(decision, len(self._endings), self._elapsed_s())
            self._say(f"launch: {words}", Style.STRONG)
        run_id = self._record.run_id if self._request.is_listed else None
        return await self._conclude(result, report.failed_words(result, run_id))

    async def _conclude_stop(self, result: Result, number: int) -> Result:
        code = EXIT_SIGNAL_BASE + number
        stopped = Result(code, result.seconds, result.census, interrupted_by=number, time_limit=self._time_limit)
        return await self._conclude(stopped, report.stopped_words(stopped, self._elapsed_s()))

    async def _conclude_queue(self, error: QueueTimeoutError) -> Result:
        result = Result(error.exit_code, self._elapsed_s(), Census({}, {}), error=error.message)
        nothing = "" if self._endings else "; nothing was started"
        return await self._conclude(result, f"{error.message}{nothing}, exit code {error.exit_code}")

    def _elapsed_s(self) -> float:
        return wall_clock() - self._began_at

    async def _conclude(self, result: Result, words: str) -> Result:
        """Write the record, and then print how the run ended: the disk may be full."""
        self._stop_timer()
        values = {**result.describe().as_record(), "seconds": round(self._elapsed_s(), 3)}
        self._record.disk.put(partial(self._record.update, {"ended_at": iso_time(wall_clock()), "result": values}))
        unwritten = await self._close_disk()
        if unwritten is not None:
            self._record.complain(self._record.folder, unwritten)
        await asyncio.to_thread(self._home_disk.wait, STALLED_S)
        error = self._record.write_error
        gap = "" if error is None else f"; the logs are incomplete: {error.strerror}"
        is_calm = result.census.is_clean and not gap
        style = Style.FAILURE if not is_calm else Style.STRONG if result.exit_code else Style.TEXT
        self._say(f"launch: {words}{gap}", style)
        for line in report.left_lines(result.census):
            self._say(line, Style.FAILURE)
        self._say_losses(result.census)
        for line in report.written_lines(result.census):
            self._say(line)
        names = {"run": self._record.run_id, "name": self._record.name, "attempts": len(self._attempts)}
        self._request.console.emit("result", **names, hosts=[host.name for host in self._hosts.hosts], **values)
        if self._request.notify is not None:
            await asyncio.to_thread(self._request.notify, "end", result)
            await asyncio.to_thread(self._home_disk.wait, STALLED_S)  # it may have said something
        return result


def ignore(*args: object) -> None:
    """Do nothing, as with a signal that would suspend or end this process while nothing runs that it could ask."""
