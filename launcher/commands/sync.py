"""`launch sync`: bring the code to all hosts without a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from launcher.concurrency import call_in_thread
from launcher.errors import EXIT_PREFLIGHT, EXIT_UNREACHABLE, HostFailure
from launcher.job.tree import Tree
from launcher.preflight.findings import PROBLEM
from launcher.session.session import Session
from launcher.session.signals import Interrupted
from launcher.sync.contents import Contents
from launcher.sync.delivery import Delivered, Delivery, tree_fields


async def sync(session: Session, read: Callable[[], Tree], variables: Mapping[str, str]) -> tuple[Tree, Delivered]:
    """Send what is missing; return the tree and what was delivered.

    read: reads the tree, in a thread; variables: of this process, as for Contents. At a signal, report which hosts have
    failed so far, and raise Interrupted.
    """
    with session.catch_signals():
        try:
            tree = await _read_tree(session, read)
            session.open(tree=tree_fields(tree))
            contents = Contents(tree, variables)
            return tree, await Delivery(session, tree, contents).deliver()
        except Interrupted:
            session.say_failures()
            raise
        finally:
            await session.stop_all(timeout_s=0)


async def _read_tree(session: Session, read: Callable[[], Tree]) -> Tree:
    found: list[Tree] = []

    async def await_tree() -> None:
        found.append(await call_in_thread(read))
        session.wake()

    session.watch(await_tree())  # whose failure is raised by `pump`
    await session.pump(lambda: bool(found))
    return found[0]


def exit_code(delivered: Delivered, failures: Sequence[HostFailure]) -> int:
    """Return the exit code; a host that can't be reached takes precedence over one that has other code."""
    if failures:
        return EXIT_UNREACHABLE
    return EXIT_PREFLIGHT if any(finding.severity is PROBLEM for finding in delivered.findings) else 0


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The event `sync` of --json, but for its findings."""

    exit_code: int  # 0, 69 if a host can't be reached, 70 if a host can't have the code or has other code
    hash: str  # of the listing of the code
    files: int  # how many files there are
    bytes: int  # their size
    left_out: str  # what was not sent, as a text
    files_sent: int  # how many files some host lacked
    bytes_sent: int  # how much was sent to all hosts together, compressed
    paths: Mapping[str, str]  # the directory of the code on each host, by name
