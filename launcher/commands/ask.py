"""`launch stop --ask`: leave another user's run a line that asks its owner to end it; nothing else happens to it."""

from __future__ import annotations

import time

from launcher.commands.free import look
from launcher.errors import LauncherError, UsageError
from launcher.hosts.ranges import fold_names
from launcher.job.facts import BoxClaim
from launcher.node import messages
from launcher.session.session import Session

_HELD_S = 8.0  # more than from one look of a run at what others leave there to the next


async def ask(session: Session, word: str) -> list[str]:
    """Ask the owners of the runs of this id or name that have claimed GPUs of these hosts; return who was asked.

    Raise UsageError if there is none, or if it is the user's own, and LauncherError if nothing can be left there.
    """
    states, hosts = session.states, session.hosts
    with session.catch_signals():
        try:
            await look(session)
            found: dict[tuple[str, str], dict[int, BoxClaim]] = {}
            for index, state in enumerate(states):
                for claim in state.claimed["rivals"] if state.claimed is not None else ():
                    if word in (claim.run, claim.name) and not claim.is_waiting:
                        found.setdefault((claim.user, claim.run), {})[index] = claim
            session.say_failures()
            if not found:
                names = fold_names(host.name for host in hosts)
                raise UsageError(f"no run {word} has claimed GPUs of {names}", f"see launch free --hosts {names}")
            texts = []
            for (user, run), places in found.items():
                if any(claim.is_mine for claim in places.values()):
                    raise UsageError(f"run {run} is yours", f"launch stop {run}")
                session.send(min(places), messages.CLAIM, is_look=False, asks=f"{user}/{run}", gpus=[])
                texts.append(f"asked {user} to end run {run} on {fold_names(hosts[index].name for index in places)}")
            await session.pump(lambda: False, time.monotonic() + _HELD_S)
            for index in {min(places) for places in found.values()}:
                answer = states[index].claimed
                if answer is not None and answer["error"]:
                    raise LauncherError(
                        f"{hosts[index].name}: its users can't be asked: {answer['error']}", "ask them in another way"
                    )
        finally:
            await session.stop_all(timeout_s=0)
    return texts
