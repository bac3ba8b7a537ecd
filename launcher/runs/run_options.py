"""The options of a run that belong to no job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run, which are the same for every attempt."""

    is_dry: bool = False  # ask the hosts, print the plan, start nothing
    is_verbose: bool = False  # print what is sent to each host
    with_checks: bool = True  # or ask only for what the plan needs
    share: tuple[int, int] | None = None  # of a run by hand: (number of nodes, this node's rank)
    shown_ranks: frozenset[int] | None = None  # whose output the screen shows; None: all
    restarts: int = 0  # how many may follow without progress
    progress_dir: str | None = None  # where the ranks save; only what is saved there counts as progress
    min_nodes: int | None = None  # with how many the run may continue if no spare is left; None: with all
    saved_s: float = 60.0  # before the failure: what was saved later may be its reason
