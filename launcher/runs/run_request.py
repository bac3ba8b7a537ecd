"""What a run is to do, and what it uses for that: the same for every attempt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from launcher.hosts.host import Host
from launcher.job.job import Job

if TYPE_CHECKING:  # a question to a launcher elsewhere has RunOptions alone
    from launcher.output.console import Console
    from launcher.output.run_folder import RunRecord
    from launcher.runs.bisection import Verdict
    from launcher.runs.records import Result
    from launcher.runs.run_state import RunState
    from launcher.sync.contents import Contents
    from launcher.transports.base import Transport

Opener = Callable[[Sequence[Host], Callable[[str], None]], "Transport"]  # takes hosts and `say`
ALL_RUN, QUEUED = "all ranks run", "queued"  # why a run leaves its terminal


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run that belong to no job."""

    is_dry: bool = False  # ask the hosts, print the plan, start nothing
    is_verbose: bool = False  # print what is sent to each host
    with_checks: bool = True  # or ask only for what the plan needs
    share: tuple[int, int] | None = None  # of a run by hand: (number of nodes, this node's rank)
    shown_ranks: frozenset[int] | None = None  # whose output the screen shows; None: all
    restarts: int = 0  # how many may follow without progress
    progress_dir: str | None = None  # where the ranks save; only what is saved there counts as progress
    shares: bool = False  # start on GPUs that other runs have claimed
    queue_s: float | None = None  # for how long to wait for GPUs that other runs have claimed; None: not at all
    num_nodes: int | None = None  # how many of the hosts are used, those that are free first; None: all
    until_at: float | None = None  # wall-clock seconds: then the run is stopped
    for_s: float | None = None  # or so long after all ranks of an attempt have started
    min_nodes: int | None = None  # with how many the run may continue if no spare is left; None: with all
    saved_s: float = 60.0  # before the failure: what was saved later may be its reason


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A job, its hosts, and all that a run needs besides."""

    job: Job
    hosts: Sequence[Host]
    open_transport: Opener
    record: RunRecord
    console: Console
    options: RunOptions
    spares: Sequence[Host] = ()
    incidents: Mapping[str, str] = field(default_factory=dict)  # what went wrong with hosts in earlier runs, in words
    # Tests which of these hosts are to blame; None: nobody can.
    find_culprits: Callable[[Sequence[Host]], Awaitable[Verdict | None]] | None = None
    leave: Callable[[str], object] | None = None  # the terminal, once it isn't needed any more; gets why
    # Tells whether all of these hosts can be reached, without asking them; None: only an attempt can tell.
    can_reach: Callable[[Collection[str]], bool] | None = None
    notify: Callable[[str, Result], object] | None = None  # gets LAUNCH_EVENT, and how the attempt or run ended
    note_state: Callable[[RunState], object] | None = None  # writes down what the run does now; called in a thread
    is_listed: bool = False  # so that other commands find it
    contents: Contents | None = None  # of the job's tree, if it has one
