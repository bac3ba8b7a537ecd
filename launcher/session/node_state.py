"""What is known of each node, from the events of its connection. Pure: nothing is sent, and no clock is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from launcher.errors import HostFailure, HostFailureKind, LauncherError
from launcher.forms import FormError, reader_of
from launcher.job.facts import NodeFacts, Route
from launcher.node import messages
from launcher.session import connection as kinds
from launcher.session.allowed_messages import KeeperEnding
from launcher.session.connection import Event
from launcher.wording import count


class Stage(Enum):
    """What a node is doing, in words that the user sees if the wait is long."""

    CONNECTING = "connecting"
    STARTING_SUPERVISOR = "starting launch's helper"
    TAKING_CODE = "taking the code"
    RUNNING_SETUP = "running its setup, then looking for a Python with torch, and for GPUs (which may take a minute)"
    GATHERING_FACTS = "looking for a Python with torch, and for GPUs (which may take a minute)"
    WAITING_FOR_OTHERS = "waiting for the other hosts"
    QUEUED = "in the queue"  # which the run says itself
    WATCHED = "telling what its GPUs do"  # to `launch top`, which waits for nothing else
    IMPORTING_TORCH = "importing torch"
    STARTING_RANKS = "starting its ranks"
    RUNNING_RANKS = "running, no output yet"
    STOPPING = "stopping its processes"
    UNREACHABLE = "unreachable"


def read_facts(message: Mapping[str, Any], folder: str) -> NodeFacts:
    """Read a supervisor's facts; raise LauncherError if it could not gather them, or if they are malformed."""
    try:
        if "error" in message:
            raise LauncherError(reader_of(str)(message["error"]))
        facts: NodeFacts = reader_of(NodeFacts)(message, folder=folder)
    except FormError as error:
        raise LauncherError(f"its facts can't be read: {error}") from None
    return facts


def read_route(message: Mapping[str, Any]) -> Route:
    """Read a supervisor's answer about the route to node 0."""
    return Route(*map(message.get, ("interface", "address", "port", "error", "probe_port")))


@dataclass(slots=True)
class NodeState:
    """What is known of one node.

    Only Session changes it: through `take`, or when it sends something that changes what the node is doing. Everybody
    else only reads. Nothing is forgotten: a later event may replace what an earlier one said, but no field returns to
    None or False. It may still be out of date: a node without a failure may be dead already, while the event that says
    so is in the queue.
    """

    host: str  # its name
    stage: Stage = Stage.CONNECTING
    has_setup: bool = False  # it runs one before it looks for a Python
    has_code: bool = False  # it takes code before that
    failure: HostFailure | None = None
    has_orders: bool = False  # it may have its first message; known once all nodes are being stopped
    has_refused: bool = False  # it could not serve that message
    folder: str | None = None
    keepers: Sequence[Sequence[int]] = ()  # process id and start time of supervisor and guardian
    facts: NodeFacts | None = None
    route: Route | None = None
    probed: Mapping[str, Any] | None = None
    shared: Mapping[str, Any] | None = None  # what tells which directory it has for the checkpoints
    claimed: Mapping[str, Any] | None = None  # its last answer to CLAIM
    started: set[int] = field(default_factory=set)
    exits: dict[int, Event] = field(default_factory=dict)
    ended: Event | None = None
    has_looked: bool = False  # for a checkpoint of the ranks
    has_saved: bool | None = None  # it found one; None: not known
    lacks_folder: bool = False  # in which it should look
    census: Mapping[str, Any] | None = None
    keeper_ending: KeeperEnding | None = None  # of a helper, where another one says so
    is_lost: bool = False  # the connection broke
    lost_at: float | None = None  # then, wall-clock here
    has_sent_all: bool = False  # it ended after the census, or waits for the next attempt; all that it sent was taken
    is_swept: bool = False  # a second connection looked after the first was lost

    @property
    def may_run(self) -> bool:
        """Return whether something of the run may be there: nobody knows what a node does before its first message."""
        return self.folder is not None or (self.has_orders and not self.has_refused)

    @property
    def is_to_sweep(self) -> bool:
        """Return whether something of the run may run there, and nobody has looked since the connection broke."""
        return self.is_lost and self.census is None and not self.is_swept and self.may_run

    @property
    def is_settled(self) -> bool:
        """Return whether nothing more can be learned about what is left there."""
        return self.census is not None or self.stage is Stage.UNREACHABLE or not self.may_run

    @property
    def has_files(self) -> bool:
        """Return whether its census announced files of the ranks, which come after it."""
        return bool(self.census and self.census.get("files"))

    def take(self, event: Event) -> None:
        """Record what an event says about the node's state; some events, such as a stack, say nothing about it."""
        fields = event.fields
        match event.kind:
            case kinds.READY:
                self.stage = Stage.STARTING_SUPERVISOR
            case kinds.LOST:
                self._take_lost(event)
            case messages.HELLO:
                self.folder, self.keepers = fields["folder"], fields["keepers"]
                self.stage = Stage.TAKING_CODE if self.has_code else self._first_stage
            case messages.PLACED:
                self.stage = self._first_stage
            case messages.FACTS:
                self._take_facts(event)
            case messages.ROUTED:
                self.route = read_route(fields)
            case messages.PROBED:
                self.probed = fields
            case messages.SHARED:
                self.shared = fields
            case messages.CLAIMED:
                self.claimed = fields
                self.stage = Stage.QUEUED if fields["waits"] else self.stage
            case messages.SAMPLED if self.stage is Stage.WAITING_FOR_OTHERS:
                self.stage = Stage.WATCHED
            case messages.STARTED:
                self.started.add(fields["local_rank"])
                self.stage = Stage.RUNNING_RANKS
            case messages.EXIT:
                self.exits[fields["local_rank"]] = event
            case messages.ENDED:
                self.ended = event
            case messages.SEEN:
                self.has_looked, self.has_saved = True, fields["has_saved"]
                self.lacks_folder = fields.get("is_missing") is True
            case messages.FAILED:
                # It names the message that it could not serve; without a directory it starts nothing.
                is_refusal = fields["text"].startswith(f"{messages.PREPARE}: ") and not self.is_swept
                self.has_refused = self.has_refused or is_refusal
                self._blame_supervisor(event, fields["text"])
            case messages.CENSUS:
                self._take_census(event)
            case messages.IDLE:
                self.has_sent_all = True

    @property
    def _first_stage(self) -> Stage:
        return Stage.RUNNING_SETUP if self.has_setup else Stage.GATHERING_FACTS

    def _take_lost(self, event: Event) -> None:
        if self.census is not None:
            self.has_sent_all = True
            return
        if self.is_swept:
            self.stage = Stage.UNREACHABLE
            return
        self.is_lost = True
        self.lost_at = event.at
        failure: HostFailure = event.fields["failure"]
        is_helper = self.failure is not None and self.failure.kind is HostFailureKind.SUPERVISOR
        # Slurm kills one process after another: a helper may be the first, and the other one reports it in time.
        if self.failure is None or (is_helper and failure.kind is HostFailureKind.SLURM):
            self.failure, self.keeper_ending = failure, None
        self.ended = self.ended or event

    def _take_facts(self, event: Event) -> None:
        try:
            self.facts = read_facts(event.fields, self.folder or "")
        except LauncherError as error:
            self.failure = HostFailure(self.host, HostFailureKind.FACTS, error.message)
        self.stage = Stage.WAITING_FOR_OTHERS

    def _take_census(self, event: Event) -> None:
        self.census = event.fields
        reason, ending = event.fields.get("reason"), event.fields.get("supervisor")
        if reason or ending:  # nobody asked: a guardian or supervisor was killed, and the other one has cleaned up
            self._blame_supervisor(event, reason or "its helper died")
        self.ended = self.ended or event

    def _blame_supervisor(self, event: Event, text: str) -> None:
        self.failure = self.failure or HostFailure(self.host, HostFailureKind.SUPERVISOR, text)
        self.keeper_ending = self.keeper_ending or event.fields.get("supervisor")
        self.ended = self.ended or event


@dataclass(frozen=True, slots=True)
class Census:
    """What is left of a run: processes by host, and the hosts that can't be asked."""

    left: Mapping[str, Sequence[tuple[int, str, str]]]
    unasked: Mapping[str, int]  # host -> processes that may remain
    written: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # host -> the root of the code, names in it
    uncopied: Mapping[str, tuple[int, tuple[tuple[str, str], ...]]] = field(default_factory=dict)  # host -> how many

    @property
    def is_clean(self) -> bool:
        """Return whether every host was asked and nothing is left."""
        return not self.unasked and not any(self.left.values())

    def describe(self) -> str:
        """Return `0 processes left on 2 hosts`, and each host that could not be asked."""
        nodes = len(self.left)
        total = sum(len(processes) for processes in self.left.values())
        words = [f"{count(total, 'process')} left on {count(nodes, 'host')}"] if nodes else []
        for host, number in self.unasked.items():
            # A host that was lost while it started has reported no process.
            words.append(
                f"{host} unreachable, {count(number, 'process') if number else 'anything started there'} may remain"
            )
        return "; ".join(words)


def make_census(states: Iterable[NodeState]) -> Census:
    """Combine what all nodes reported at the end; a node on which nothing of the run may be is in neither half."""
    left, unasked, written, uncopied = {}, {}, {}, {}
    for state in states:
        if state.census is not None:
            left[state.host] = list(state.census.get("left", ()))
            if state.census.get("written"):
                written[state.host] = (str(state.census["tree"]), *state.census["written"])
            if state.census.get("uncopied"):
                uncopied[state.host] = state.census["uncopied_count"] or 0, tuple(state.census["uncopied"])
        elif state.may_run:
            unasked[state.host] = len(state.started) - len(state.exits)
    return Census(left, unasked, written, uncopied)
