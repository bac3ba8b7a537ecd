"""A connection with all nodes of a job: what each has said so far, and how all are ended together."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from launcher.clock import boot_id
from launcher.errors import HostFailure, LauncherError
from launcher.hosts.host import Host, fold_names
from launcher.hosts.unreachable import failure_lines
from launcher.job.facts import NodeFacts, Route, read_facts, read_route
from launcher.node import messages
from launcher.output.node_log import NodeOutput
from launcher.session.connection import LOST, READY, Connection, Event, wall_clock
from launcher.session.pool import BROKEN, INTERRUPT, WAKE, ConnectionPool
from launcher.session.terms import Terms
from launcher.transports.base import Transport

NOTICE_S = 20.0  # waiting is never silent for longer
SWEEP_CONNECT_S = 5.0
GOODBYE_S = 1.0
FILES_S = 30.0  # what the ranks left for us is small, and nobody waits longer for it
CENSUS_SLACK_S = 9.0  # ladder's rest (1 s), census (5 s), and the way there and back
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Listener = Callable[[Event], object]


class Interrupted(Exception):
    """The user, or who started us, wants an end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Stage(Enum):
    """What a node is at; the value says it to the user where the wait is long."""

    CONNECTING = "connecting"
    STARTING_SUPERVISOR = "starting its supervisor"
    RUNNING_SETUP = "running its setup, and looking for a Python with torch, and its GPUs"
    GATHERING_FACTS = "looking for a Python with torch, and its GPUs"
    WAITING_FOR_OTHERS = "waiting for the others"
    IMPORTING_TORCH = "importing torch"
    STARTING_RANKS = "starting"
    RUNNING_RANKS = "its ranks run, without a line so far"
    STOPPING = "ending what runs there"
    UNREACHABLE = "unreachable"


@dataclass(slots=True)
class NodeState:
    """What we know of one node. Session alone writes it; everybody else only reads."""

    stage: Stage = Stage.CONNECTING
    failure: HostFailure | None = None
    has_orders: bool = False  # it may have our first message; known once all are being ended
    has_refused: bool = False  # it could do nothing with that
    folder: str | None = None
    keepers: Sequence[Sequence[int]] = ()  # process id and start time of supervisor and guardian
    facts: NodeFacts | None = None
    route: Route | None = None
    asked_at: float = 0.0  # for its route, wall-clock here
    probed: Mapping[str, Any] | None = None
    started: set[int] = field(default_factory=set)
    exits: dict[int, Event] = field(default_factory=dict)
    ended: Event | None = None
    census: Mapping[str, Any] | None = None
    keeper_ending: Mapping[str, Any] | None = None  # how the supervisor ended, where its guardian says so
    is_lost: bool = False  # the connection broke
    is_hung_up: bool = False  # it ended after the census, and what came before that was taken
    is_swept: bool = False  # a second connection looked after the first was lost

    @property
    def may_run(self) -> bool:
        """Whether something of ours may be there: what a node does before its first word nobody knows."""
        return self.folder is not None or (self.has_orders and not self.has_refused)


@dataclass(frozen=True, slots=True)
class Census:
    """What is left of a run: processes by host, and the hosts that can't be asked."""

    left: Mapping[str, Sequence[Sequence[Any]]]
    unasked: Mapping[str, int]  # host -> processes that may remain

    @property
    def is_clean(self) -> bool:
        """Whether every host was asked and nothing is left."""
        return not self.unasked and not any(self.left.values())


class Session:
    """All nodes of a job: opened together, asked together, ended together."""

    def __init__(
        self, hosts: Sequence[Host], transport: Transport, outputs: Sequence[NodeOutput], terms: Terms, *,
        say: Callable[[str], None], progress: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.hosts = list(hosts)
        self.terms = terms
        self.states = [NodeState() for _ in hosts]
        self._mark = f"{terms.run_id}.{secrets.token_hex(4)}"
        self.say = say
        self._on_quit: Callable[[], object] | None = None
        self._has_setup = False  # whether nodes run one before they look for a Python
        self._listeners: list[tuple[str, Listener]] = []  # each with the kind of events that it wants
        self._progress = progress
        self._transport = transport
        self._outputs = outputs
        self._noticed_at = time.monotonic()
        self._pool = ConnectionPool(hosts, transport, outputs, terms)

    @contextlib.contextmanager
    def catch_signals(self, on_quit: Callable[[], object] | None = None) -> Iterator[None]:
        """Turn signals into events while the block runs; a stop by Ctrl-Z would let every lease run out.

        on_quit: what Ctrl-\\ does; without it, it ends us.
        A loop has one handler for a signal, so sessions that live side by side share it.
        """
        loop = asyncio.get_running_loop()
        self._on_quit = on_quit
        # Who started us under nohup, or in a script's background, has a signal ignored and means it.
        wanted = (*SIGNALS, signal.SIGTSTP, *((signal.SIGQUIT,) if on_quit else ()))
        caught = [number for number in wanted if signal.getsignal(number) != signal.SIG_IGN]
        _catching.append(self)
        for number in caught:
            loop.add_signal_handler(number, _take_signal, number)
        try:
            yield
        finally:
            _catching.remove(self)
            for number in caught if not _catching else ():
                loop.remove_signal_handler(number)

    def _take_signal(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self.say("launch: not stopped by Ctrl-Z: the nodes would take us for dead and end the run")
        elif number == signal.SIGQUIT:
            if self._on_quit is not None:
                self._on_quit()
        else:
            self._pool.interrupt(number)

    # ---- asking -------------------------------------------------------------------------------------------------

    def open(self, order: bytes = b"", **wanted: Any) -> None:
        """Connect to all nodes at once; each is prepared, and gets `order` (encoded messages) right after that.

        wanted: fields of PREPARE that say which facts are asked for.
        """
        self._has_setup = wanted.get("setup") is not None
        self._pool.start([self._prepare_message(index, **wanted) + order for index in range(len(self.hosts))])

    def _prepare_message(self, index: int, **wanted: Any) -> bytes:
        return messages.encode(
            messages.PREPARE,
            run=self.terms.run_id,
            # Two hosts may be one machine, and each supervisor ends its own share only.
            mark=f"{self._mark}.{index}",
            silence_s=self.terms.silence_s,
            beats=not self._transport.is_terse,
            boot_id=boot_id(),
            stop_timeout_s=self.terms.stop_timeout_s,
            env=dict(self.terms.env),
            **wanted,
        )

    def send(self, index: int, kind: str, **fields: Any) -> None:
        """Queue a message to one node; one to a node that is gone is dropped."""
        self._pool.connections[index].send(kind, **fields)

    def send_to_all(self, kind: str, **fields: Any) -> None:
        """Queue the same message to every node."""
        self._pool.broadcast(kind, **fields)

    def ask_route(self, index: int, **question: Any) -> None:
        """Send a node its ROUTE, and note when: its answer shows how far its clock is off."""
        self.states[index].asked_at = wall_clock()
        self.send(index, messages.ROUTE, **question)

    def start_ranks(self, index: int, archive: bytes, *, imports_torch: bool, **order: Any) -> None:
        """Send a node its START; `imports_torch`: it runs torchrun, which takes its time before the first rank."""
        self._pool.connections[index].send(messages.START, archive, **order)
        self.states[index].stage = Stage.IMPORTING_TORCH if imports_torch else Stage.STARTING_RANKS

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

    def watch(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task beside `pump`, which raises its failure."""
        return self._pool.watch(work)

    def wake(self) -> None:
        """Make `pump` ask again whether it is done: something beside the nodes has changed."""
        self._pool.wake()

    async def pump(self, is_done: Callable[[], bool], deadline: float | None = None) -> bool:
        """Take events until `is_done`; return False when the deadline (monotonic seconds) comes first."""
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

    def noise(self, index: int) -> str:
        """Return what a node's shell and supervisor said on stderr."""
        return self._pool.connections[index].noise_text()

    def failures(self) -> list[HostFailure]:
        """Return what went wrong with hosts so far."""
        return [state.failure for state in self.states if state.failure is not None]

    def say_failures(self) -> None:
        """Say which hosts have failed so far, before an end that would be blamed for it."""
        for line in failure_lines(self.failures()):
            self.say(line)

    def _take(self, event: Event) -> None:
        if event.kind == INTERRUPT:
            raise Interrupted(event.fields["signal"])
        if event.kind == BROKEN:
            raise event.fields["error"]
        if event.kind == WAKE:  # of no node: its index is none
            return
        handlers = {
            READY: self._take_ready,
            LOST: self._take_lost,
            messages.HELLO: self._take_hello,
            messages.FACTS: self._take_facts,
            messages.ROUTED: self._take_routed,
            messages.PROBED: self._take_probed,
            messages.STARTED: self._take_started,
            messages.EXIT: self._take_exit,
            messages.ENDED: self._take_ended,
            messages.FAILED: self._take_failed,
            messages.CENSUS: self._take_census,
        }
        handler = handlers.get(event.kind)
        if handler is not None:
            handler(self.states[event.index], event)
        for kind, listener in self._listeners:
            if kind == event.kind:
                listener(event)

    def _take_ready(self, state: NodeState, event: Event) -> None:
        state.stage = Stage.STARTING_SUPERVISOR

    def _take_lost(self, state: NodeState, event: Event) -> None:
        if state.census is not None:
            state.is_hung_up = True
            return
        if state.is_swept:
            state.stage = Stage.UNREACHABLE
            return
        state.is_lost = True
        state.failure = state.failure or event.fields["failure"]
        state.ended = state.ended or event

    def _take_hello(self, state: NodeState, event: Event) -> None:
        state.folder = event.fields["folder"]
        state.keepers = event.fields["keepers"]
        state.stage = Stage.RUNNING_SETUP if self._has_setup else Stage.GATHERING_FACTS

    def _take_facts(self, state: NodeState, event: Event) -> None:
        try:
            state.facts = read_facts(event.fields, state.folder or "")
        except LauncherError as error:
            state.failure = HostFailure(self.hosts[event.index].name, "facts", error.message)
        state.stage = Stage.WAITING_FOR_OTHERS

    def _take_routed(self, state: NodeState, event: Event) -> None:
        state.route = read_route(event.fields, state.asked_at, event.at)

    def _take_probed(self, state: NodeState, event: Event) -> None:
        state.probed = event.fields

    def _take_started(self, state: NodeState, event: Event) -> None:
        state.started.add(event.fields["local_rank"])
        state.stage = Stage.RUNNING_RANKS

    def _take_exit(self, state: NodeState, event: Event) -> None:
        state.exits[event.fields["local_rank"]] = event

    def _take_ended(self, state: NodeState, event: Event) -> None:
        state.ended = event

    def _take_failed(self, state: NodeState, event: Event) -> None:
        # It says so of a message that it could not serve, and without a folder it starts nothing.
        is_refusal = event.fields["text"].startswith(f"{messages.PREPARE}: ") and not state.is_swept
        state.has_refused = state.has_refused or is_refusal
        self._blame_supervisor(state, event, event.fields["text"])

    def _take_census(self, state: NodeState, event: Event) -> None:
        state.census = event.fields
        reason, ending = event.fields.get("reason"), event.fields.get("supervisor")
        if reason or ending:  # nobody asked: a guardian or supervisor was killed, and the other one has cleaned up
            self._blame_supervisor(state, event, reason or "its supervisor died")
        state.ended = state.ended or event

    def _blame_supervisor(self, state: NodeState, event: Event, text: str) -> None:
        state.failure = state.failure or HostFailure(self.hosts[event.index].name, "supervisor", text)
        state.keeper_ending = state.keeper_ending or event.fields.get("supervisor")
        state.ended = state.ended or event

    # ---- waiting is never silent --------------------------------------------------------------------------------

    def _show_progress(self) -> None:
        waiting = [state for state in self.states if state.stage in (Stage.CONNECTING, Stage.STARTING_SUPERVISOR)]
        if waiting:
            self._progress(f"{len(self.states) - len(waiting)} of {len(self.states)} nodes answer")
        else:
            self._progress("")

    def _notice(self) -> None:
        """Say which nodes have shown nothing yet, and what they are at."""
        self._noticed_at = time.monotonic()
        quiet: dict[Stage, list[str]] = {}
        for host, state, output in zip(self.hosts, self.states, self._outputs, strict=True):
            if state.ended is None and state.census is None and not output.has_lines:
                quiet.setdefault(state.stage, []).append(host.name)
        for stage, names in quiet.items():
            self.say(f"launch: waiting for {fold_names(names)}: {stage.value}")

    # ---- the end ------------------------------------------------------------------------------------------------

    async def stop_all(self, timeout_s: float) -> Census:
        """End everything everywhere, look what is left, and hang up.

        A host whose connection was lost is asked over a new one: its own supervisor is ending the run there.
        A signal meanwhile means: at once.
        """
        for state, connection in zip(self.states, self._pool.connections, strict=True):
            state.has_orders = connection.recall()
            state.stage = Stage.STOPPING
        self.send_to_all(messages.STOP, timeout_s=timeout_s)
        try:
            await self._await_censuses(timeout_s)
            await self._see_them_off()
        finally:
            self._pool.close()
        return self._census()

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
                self.say("launch: killing what is left, at once")
                self.send_to_all(messages.STOP, timeout_s=0)
                is_hurried = True
                deadline = min(deadline, time.monotonic() + CENSUS_SLACK_S)
                continue
            if not is_settled or not self._has_lost():
                break

    async def _see_them_off(self) -> None:
        """Wait for the files that the ranks left for us, and a moment for the guardians to be gone as well."""
        has_files = any(state.census and state.census.get("files") for state in self.states)
        with contextlib.suppress(Interrupted):
            await self.pump(self._all_hung_up, time.monotonic() + (FILES_S if has_files else GOODBYE_S))
        waiting = [
            host.name
            for host, state in zip(self.hosts, self.states, strict=True)
            if state.census and state.census.get("files") and not state.is_hung_up
        ]
        if waiting:
            self.say(f"launch: {fold_names(waiting)}: not all files of the ranks were copied back")

    def _all_hung_up(self) -> bool:
        # Not connection.is_over: its thread is ahead of the events, and a file may still be among them.
        return all(state.is_hung_up for state in self.states if state.census is not None)

    def _has_lost(self) -> bool:
        return any(map(_is_to_sweep, self.states))

    def _needs_nobody(self) -> bool:
        """Whether each node has sent its census, can't be asked, or is to be asked over a new connection."""
        return self._has_lost() or all(
            state.census is not None or state.stage is Stage.UNREACHABLE or not state.may_run for state in self.states
        )

    def _sweep_wait_s(self) -> float:
        """How long a lost node's own supervisor may take to end the run there."""
        return self.terms.stop_timeout_s + 1

    def _sweep_lost(self) -> bool:
        """Ask each host whose connection broke over a new one; return whether there was one to ask."""
        terms = replace(self.terms, connect_timeout_s=min(SWEEP_CONNECT_S, self.terms.connect_timeout_s))
        lost = [index for index, state in enumerate(self.states) if _is_to_sweep(state)]
        for index in lost:
            state = self.states[index]
            state.is_swept = True
            self._pool.connections[index].close()
            sweeper = Connection(
                index, self.hosts[index], self._transport, terms, self._outputs[index], self._pool.post,
            )  # fmt: skip
            self._pool.connections[index] = sweeper
            order = messages.encode(messages.STOP, timeout_s=0, wait_s=self._sweep_wait_s())
            # "": lost before it could name one; what it has started is found by its mark.
            prepare = self._prepare_message(index, lost_folder=state.folder or "", lost_keepers=state.keepers)
            self._pool.start_one(sweeper, prepare + order)
        return bool(lost)

    def _census(self) -> Census:
        left, unasked = {}, {}
        for host, state in zip(self.hosts, self.states, strict=True):
            if state.census is not None:
                left[host.name] = list(state.census.get("left", ()))
            elif state.may_run:
                unasked[host.name] = len(state.started) - len(state.exits)
        return Census(left, unasked)


_catching: list[Session] = []


def _take_signal(number: int) -> None:
    for session in _catching:
        session._take_signal(number)


def _is_to_sweep(state: NodeState) -> bool:
    """Whether something of ours may run on a node that nobody has looked at since its connection broke."""
    return state.is_lost and state.census is None and not state.is_swept and state.may_run
