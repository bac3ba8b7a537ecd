"""`launch sync`: bring the code to all hosts without a run, or compare what they have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from launcher.concurrency import call_in_thread
from launcher.errors import EXIT_PREFLIGHT, EXIT_UNREACHABLE, HostFailure
from launcher.job.tree import Tree
from launcher.preflight.findings import PROBLEM
from launcher.session.session import Session
from launcher.session.signals import Interrupted
from launcher.sync.contents import Contents
from launcher.sync.delivery import Delivered, Delivery, tree_fields


async def sync(
    session: Session, read: Callable[[], Tree], variables: Mapping[str, str], *, is_check: bool
) -> tuple[Tree, Delivered]:
    """Send what is missing, or with `is_check` nothing; return the tree and what was delivered.

    read: reads the tree, in a thread, while the hosts are connected; variables: of this process, as for Contents. At a
    signal, report which hosts have failed so far, and raise Interrupted.
    """
    with session.catch_signals():
        try:
            session.connect("reading the code")
            tree = await _read_meanwhile(session, read)
            session.open(tree=tree_fields(tree, is_check=is_check))
            contents = Contents(tree, variables)
            return tree, await Delivery(session, tree, contents, is_check=is_check).deliver()
        except Interrupted:
            session.say_failures()
            raise
        finally:
            await session.stop_all(timeout_s=0)


async def _read_meanwhile(session: Session, read: Callable[[], Tree]) -> Tree:
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


def as_record(tree: Tree, delivered: Delivered) -> dict[str, object]:
    """Return what was sent as JSON values."""
    return {
        "hash": tree.hash,
        "files": tree.files,
        "bytes": tree.bytes_in_all,
        "left_out": tree.left_out,
        "files_sent": delivered.files,
        "bytes_sent": delivered.sent_bytes,
        "findings": [finding.as_record() for finding in delivered.findings],
    }
