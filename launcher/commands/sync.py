"""Bring the code to hosts without a run: to that of a controller, before the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from launcher.concurrency import call_in_thread
from launcher.job.tree import Tree
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
