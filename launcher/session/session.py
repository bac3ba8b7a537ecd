"""All nodes of a job together: what each has reported so far, what all are asked, and how all are stopped."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from launcher.clock import boot_id, wall_clock
from launcher.errors import HostFailure
from launcher.hosts.host import Host
from launcher.hosts.ranges import fold_names
from launcher.hosts.unreachable import failure_lines
from launcher.node import messages
from launcher.output.node_output import NodeOutput
from launcher.session.connection import Connection, Event
from launcher.session.node_state import Census, NodeState, Stage, make_census
from launcher.session.pool import CALL, ConnectionPool
from launcher.session.settings import Settings
from launcher.session.signals import Action, Interrupted, catch_signals
from launcher.transports.base import Transport

NOTICE_S = 20.0  # what a node is doing is printed by then
SWEEP_CONNECT_S = 5.0
HANG_UP_S = 1.0
FILES_S = 30.0  # the files that the ranks left are small, and nobody waits longer for them
HURRIED_SLACK_S = 9.0  # the stop's rest (1 s), census (5 s), and the way there and back
CENSUS_SLACK_S = 54.0  # the same with the census of processes that use GPUs (50 s)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Listener = Callable[[Event], object]


class Session:
    """All nodes of a job: opened together, asked together, stopped together.

    `hosts[i]` and `states[i]` are the same node for as long as the session lives; a node that fails keeps its place,
    and only the last ones may be released.
    Only `pump` takes events, so states change only while somebody awaits it or `stop_all`, or when this class sends
    something. Interrupted and the failures of watched tasks are raised only there. `is_done` is never called between
    two events that came together.

    Output and files don't wait for `pump`: each node's reader thread hands them to `outputs` at any time. When an
    event of a supervisor is taken, the output that it sent before is there already, and so may be later output.
    After `stop_all` no message reaches a node any more.
    """

    def __init__(
        self, hosts: Sequence[Host], transport: Transport, outputs: Sequence[NodeOutput], settings: Settings, *,
        say: Callable[[str], None], progress: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.hosts = list(hosts)
        self.settings = settings
        self.states = [NodeState(host.name) for host in hosts]
        self.say = say
        self.doing = ""  # shown as progress once all hosts have responded
        self._listeners: list[tuple[str, Listener]] = []  # each with the kind of events that it wants
        self._progress = progress
        self._transport = transport
        self.outputs = outputs
        self._noticed_at = time.monotonic()
        self._noticed: set[tuple[int, Stage]] = set()  # what was printed about which node
        self.idle: list[Connection] = []  # once all is stopped: to hosts that hold claims for the next attempt
        mark = f"{settings.run_id}.{secrets.token_hex(4)}"
        self._pool = ConnectionPool(hosts, transport, outputs, settings, mark)

    @property
    def is_slurm_step(self) -> bool:
        """Whether Slurm may kill all that runs on the nodes: one process after another, and it says so afterwards."""
        return self._transport.name == "srun"

    def catch_signals(self, on_quit: Callable[[], object] | None = None) -> AbstractContextManager[None]:
        """Let `pump` raise Interrupted for a signal that comes while the block runs; Ctrl-Z is ignored.

        on_quit: what Ctrl-\\ does, in `pump`; without it, Ctrl-\\ ends this process.
        """
        # If Ctrl-Z suspended this process, every lease would run out.
        refusal = "launch: ignoring Ctrl-Z: if launch were suspended, the hosts would end the run"
        actions: dict[int, Action] = {
            number: partial(self._pool.call, partial(_interrupt, number)) for number in SIGNALS
        }
        actions[signal.SIGTSTP] = partial(self.say, refusal)
        if on_quit is not None:
            actions[signal.SIGQUIT] = partial(self._pool.call, on_quit)
        return catch_signals(actions)

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Let a signal end the block, say then which hosts have failed so far, and hang up in any case."""
        with self.catch_signals():
            try:
                yield
            except Interrupted:
                self.say_failures()
                raise
            finally:
                await self.stop_all(timeout_s=0)

    def interrupt(self, number: int) -> None:
        """Let `pump` raise Interrupted, as for a signal; from any thread."""
        self._pool.post([Event(-1, CALL, {"action": partial(_interrupt, number)}, wall_clock())])

    # ---- asking -------------------------------------------------------------------------------------------------

    def open(self, order: bytes = b"", **wanted: Any) -> None:
        """Connect to all nodes at once; each is prepared, and gets `order` (encoded messages) right after that.

        wanted: fields of PREPARE that say which facts are asked for.
        """
        for state in self.states:
            state.has_setup = wanted.get("setup") is not None
            state.has_code = wanted.get("tree") is not None
        self._pool.start([self._prepare_message(index, **wanted) + order for index in range(len(self.hosts))])

    def _prepare_message(self, index: int, **wanted: Any) -> bytes:
        return messages.encode(
            messages.PREPARE,
            run=self.settings.run_id,
            mark=self._pool.connections[index].mark,
            silence_s=self.settings.timeouts.silence_s,
            boot_id=boot_id(),
            stop_timeout_s=self.settings.timeouts.stop_timeout_s,
            env=dict(self.settings.env),
            **wanted,
        )

    def send(self, index: int, kind: str, payload: bytes = b"", **fields: Any) -> None:
        """Queue a message to one node; drop it if the connection has ended."""
        self._pool.connections[index].send(kind, payload, **fields)

    def pass_on(self, index: int, header: Mapping[str, Any], message: bytes) -> None:
        """Queue a message that is encoded already, so that several nodes share its bytes."""
        self._pool.connections[index].pass_on(header, message)

    def send_to_all(self, kind: str, **fields: Any) -> None:
        """Queue the same message to every node."""
        self._pool.broadcast(kind, **fields)

    def start_ranks(self, index: int, archive: bytes, *, imports_torch: bool, **order: Any) -> None:
        """Send a node START; `imports_torch`: it runs torchrun, which takes a while before the first rank starts."""
        self._pool.connections[index].send(messages.START, archive, **order)
        self.states[index].stage = Stage.IMPORTING_TORCH if imports_torch else Stage.STARTING_RANKS

    def release_after(self, number: int) -> None:
        """Keep the first nodes only: the others end what they have begun, and nothing they send counts any more."""
        for connection in self._pool.connections[number:]:
            connection.send(messages.STOP, timeout_s=0)
        del self.hosts[number:], self.states[number:]

    # ---- hearing ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def subscribe(self, kind: str, listener: Listener) -> Iterator[None]:
        """Give `listener` every event of one kind, from all nodes, while the block runs."""
        subscription = kind, listener
        self._listeners.append(subscription)
        try:
            yield
        finally:
            self._listeners.remove(subscription)

    def take_samples(self) -> list[Event]:
        """Return the SAMPLED of all nodes since the last call; nothing else tells that they have come."""
        taken = []
        for _, connection in zip(self.states, self._pool.connections, strict=False):  # without the released ones
            while connection.samples:
                taken.append(connection.samples.popleft())
        for event in taken:
            self.states[event.index].take(event)
        return taken

    def watch(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task beside `pump`, which raises its failure."""
        return self._pool.watch(work)

    def wake(self) -> None:
        """Make `pump` check again whether it is done: something other than the nodes has changed."""
        self._pool.call(lambda: None)

    async def pump(self, is_done: Callable[[], bool], deadline: float | None = None) -> bool:
        """Take events until `is_done`; return False when the deadline (monotonic seconds) comes first.

        Raise Interrupted for a signal that `catch_signals` catches, and what a task of `watch` raised.
        """
        while not is_done():
            ends = [self._noticed_at + NOTICE_S] + ([deadline] if deadline is not None else [])
            try:
                event = await asyncio.wait_for(self._pool.events.get(), max(0.0, min(ends) - time.monotonic()))
            except asyncio.TimeoutError:
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                self._notice()
                continue
            self._take(event)
            while not self._pool.events.empty():  # what came together is looked at together: `is_done` asks all nodes
                self._take(self._pool.events.get_nowait())
            self._show_progress()
        return True

    def is_silent(self) -> bool:
        """Tell whether a host may be gone, though its time is not up: it has missed a heartbeat."""
        missed_s = self.settings.timeouts.silence_s / 2  # a bit more than from one heartbeat to the next
        now = time.monotonic()
        return any(not each.is_over and now - each.heard_at > missed_s for each in self._pool.connections)

    def noise(self, index: int) -> str:
        """Return what a node's login shell and supervisor printed on stderr."""
        return self._pool.connections[index].noise_text()

    def failures(self) -> list[HostFailure]:
        """Return what went wrong with hosts so far."""
        return [state.failure for state in self.states if state.failure is not None]

    def say_failures(self) -> None:
        """Print which hosts have failed so far, since the stop that follows may look like the reason."""
        for line in failure_lines(self.failures()):
            self.say(line)

    def _take(self, event: Event) -> None:
        if event.kind == CALL:
            event.fields["action"]()
            return
        if event.index >= len(self.states):  # of a released node
            return
        self.states[event.index].take(event)
        for kind, listener in self._listeners:
            if kind == event.kind:
                listener(event)

    # ---- waiting is never silent --------------------------------------------------------------------------------

    def _show_progress(self) -> None:
        waiting = [state for state in self.states if state.stage in (Stage.CONNECTING, Stage.STARTING_SUPERVISOR)]
        if waiting:
            self._progress(f"{len(self.states) - len(waiting)} of {len(self.states)} hosts have responded")
        else:
            self._progress(self.doing)

    def _notice(self) -> None:
        """Print which nodes have shown nothing yet, and what they are doing; each stage of a node once.

        Silent ranks aren't named once any rank has printed: in most trainers only rank 0 does.
        """
        self._noticed_at = time.monotonic()
        says_itself = any(state.stage in (Stage.QUEUED, Stage.WATCHED) for state in self.states)
        if says_itself:
            return
        has_output = any(output.heard_at for output in self.outputs)
        quiet: dict[Stage, list[str]] = {}
        for index, (state, output) in enumerate(zip(self.states, self.outputs, strict=False)):
            has_shown = has_output if state.stage is Stage.RUNNING_RANKS else output.has_lines
            has_shown = has_shown and state.stage is not Stage.STOPPING
            is_over = state.ended is not None or state.census is not None
            if not (has_shown or is_over or (index, state.stage) in self._noticed):
                self._noticed.add((index, state.stage))
                quiet.setdefault(state.stage, []).append(self.hosts[index].name)
        for stage, names in quiet.items():
            self.say(f"launch: waiting for {fold_names(names)}: {stage.value}")

    # ---- the end ------------------------------------------------------------------------------------------------

    async def stop_all(self, timeout_s: float, *, stays: bool | Collection[int] = False) -> Census:
        """Stop everything on all nodes, check what is left, and hang up.

        A host whose connection was lost is asked over a new one; its own supervisor is ending the run there.
        A signal that comes meanwhile kills what is left at once. stays: whether hosts hold their claims for the next
        attempt, or the indexes of those that do; `idle` then has the connections to them.
        """
        for state, connection in zip(self.states, self._pool.connections, strict=False):  # without the released ones
            state.has_orders = connection.recall()
            state.stage = Stage.STOPPING
        for index in range(len(self.states)):
            holds = stays if isinstance(stays, bool) else index in stays
            self.send(index, messages.STOP, timeout_s=timeout_s, stays=holds)
        try:
            await self._await_censuses(timeout_s)
            await self._await_hang_ups()
        finally:
            self._pool.close()
            self.idle = [connection for connection in self._pool.connections if connection.is_idle]
        return make_census(self.states)

    async def _await_censuses(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s + CENSUS_SLACK_S
        is_hurried = False
        while True:
            if self._sweep_lost() and not is_hurried:
                sweep_s = SWEEP_CONNECT_S + self._sweep_wait_s() + CENSUS_SLACK_S
                deadline = max(deadline, time.monotonic() + sweep_s)
            try:
                is_settled = await self.pump(self._needs_nobody, deadline)
            except Interrupted:
                self.say("launch: killing all remaining processes now")
                self.send_to_all(messages.STOP, timeout_s=0)
                is_hurried = True
                deadline = min(deadline, time.monotonic() + HURRIED_SLACK_S)
                continue
            if not is_settled or not self._has_lost():
                break

    async def _await_hang_ups(self) -> None:
        """Wait for the files that the ranks left, and for a moment until the guardians are gone as well."""
        has_files = any(state.has_files for state in self.states)
        with contextlib.suppress(Interrupted):
            await self.pump(self._all_hung_up, time.monotonic() + (FILES_S if has_files else HANG_UP_S))
        waiting = [
            host.name
            for host, state in zip(self.hosts, self.states, strict=True)
            if state.has_files and not state.has_sent_all
        ]
        if waiting:
            self.say(f"launch: {fold_names(waiting)}: not all of the ranks' files were copied back")

    def _all_hung_up(self) -> bool:
        # Not connection.is_over: its thread is ahead of the events, and a file may still be among them.
        return all(state.has_sent_all for state in self.states if state.census is not None)

    def _has_lost(self) -> bool:
        return any(state.is_to_sweep for state in self.states)

    def _needs_nobody(self) -> bool:
        """Return whether each node has sent its census, can't be asked, or is to be asked over a new connection."""
        return self._has_lost() or all(state.is_settled for state in self.states)

    def _sweep_wait_s(self) -> float:
        """Return how long a lost node's own supervisor may take to end the run there."""
        return self.settings.timeouts.stop_timeout_s + 1

    def _sweep_lost(self) -> bool:
        """Connect again to each host whose connection broke, to ask what is left; return whether there was one."""
        lost = [index for index, state in enumerate(self.states) if state.is_to_sweep]
        for index in lost:
            state = self.states[index]
            state.is_swept = True
            order = messages.encode(messages.STOP, timeout_s=0, wait_s=self._sweep_wait_s())
            # "": lost before it could name one; what it has started is found by its mark.
            prepare = self._prepare_message(index, lost_folder=state.folder or "", lost_keepers=state.keepers)
            self._pool.reconnect(index, prepare + order, min(SWEEP_CONNECT_S, self.settings.timeouts.connect_timeout_s))
        return bool(lost)


def _interrupt(number: int) -> None:
    raise Interrupted(number)
