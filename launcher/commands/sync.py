"""`launch sync`: bring the code to all hosts without a run, or compare what they have."""

from __future__ import annotations

from launcher.job.tree import Tree
from launcher.session.session import Session
from launcher.session.signals import Interrupted
from launcher.sync.contents import Contents
from launcher.sync.delivery import Delivered, Delivery, tree_fields


async def sync(session: Session, tree: Tree, contents: Contents, *, is_check: bool) -> Delivered:
    """Send what is missing, or with `is_check` nothing; raise PreflightError if a host can't have the code, or differs.

    At a signal, report which hosts have failed so far, and raise Interrupted.
    """
    with session.catch_signals():
        try:
            session.open(tree=tree_fields(tree, is_check=is_check))
            return await Delivery(session, tree, contents).deliver()
        except Interrupted:
            session.say_failures()
            raise
        finally:
            await session.stop_all(timeout_s=0)
