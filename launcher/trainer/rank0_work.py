"""Work that rank 0 does for all ranks: the others wait as long as rank 0 responds, whatever the time limit is.

A collective would fail after the time limit of the process group. So rank 0 announces the end of its work in the store
of the process group, and sends heartbeats there until then. What it shares never passes through a GPU.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store, _get_default_store

from launcher.distributed import World
from launcher.trainer.options import ConfigError, RunError

BEATS = "trainer/beats"
BEAT_S = 5.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.001, 0.25
LAST_S = 5.0  # how long rank 0 waits for others that may hear of its failure; on a busy host they come late
DONE, WRONG, FAILED = b"done", b"wrong", b"failed"
DISK_PATIENCE = 6  # times the time limit
BEATS_MISSED = 2  # after SIGTERM: the time to save is short

_hurries = False  # this rank has got SIGTERM


def make_cpu_group(timeout_s: float = 600) -> Any:
    """Make a group of all ranks that communicate between CPUs, for work whose time depends on a disk.

    timeout_s: of the other groups. This one waits `DISK_PATIENCE` times as long, since one rank's disk may be slow.
    It ends if a rank hangs.
    """
    return dist.new_group(timeout=timedelta(seconds=DISK_PATIENCE * timeout_s), backend="gloo")


def hurry() -> None:
    """Wait no longer than two heartbeats for a silent rank 0 from now on: after SIGTERM it may be dead."""
    global _hurries  # a signal handler calls it
    _hurries = True


class MainRankError(RunError):
    """Rank 0 failed in what it did for all ranks; rank 0 itself says why."""


def share_from_main(read: Callable[[], bytes | None], world: World) -> bytes:
    """Run `read` on rank 0, and return its bytes on every rank; None gives no bytes.

    Every rank must call this equally often. `read` may take any time, and may not contain a collective of all ranks.
    If it raises ConfigError, every rank does; after another error the other ranks raise MainRankError, so that none
    is left waiting. They raise RuntimeError if rank 0 hasn't responded for `world.timeout_s`, after SIGTERM for 10 s.
    """
    if world.world_size == 1:
        return read() or b""
    store = _get_default_store()  # torch has no public name for it (2.4 to 2.13)
    key = f"trainer/turn/{store.add(f'trainer/turns/{world.rank}', 1)}"
    heard = f"{key}/heard"
    if world.is_main:
        try:
            return tell(store, key, read, world.timeout_s)
        except Exception:
            _await_listeners(store, heard, world.world_size - 1)
            raise
    outcome, _, content = listen(store, key, world.timeout_s).partition(b" ")
    if outcome != DONE:
        store.add(heard, 1)
    if outcome == WRONG:
        raise ConfigError("rank 0 could not continue")
    if outcome == FAILED:
        raise MainRankError("rank 0 could not continue")
    return content


def tell(store: Store, key: str, read: Callable[[], bytes | None], timeout_s: float) -> bytes:
    """Run `read`, and put its outcome into the store."""
    outcome = FAILED
    try:
        with heartbeats(store, min(BEAT_S, timeout_s / 4)):
            content = read() or b""
        outcome = DONE + b" " + content
        return content
    except ConfigError:
        outcome = WRONG
        raise
    finally:
        store.set(key, outcome)  # type: ignore[arg-type]  # bytes too, whatever the stub says


def _await_listeners(store: Store, heard: str, others: int) -> None:
    """Wait a moment until the other ranks have heard of a failure: without torchrun, the store ends with this process.

    heard: the key at which they are counted.
    """
    deadline = time.monotonic() + LAST_S
    with contextlib.suppress(RuntimeError):  # the store is gone already
        while store.add(heard, 0) < others and time.monotonic() < deadline:
            time.sleep(FIRST_PAUSE_S)


@contextlib.contextmanager
def heartbeats(store: Store, every_s: float) -> Iterator[None]:
    """Count up in the store during the block, from a thread, to show that this process lives."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(every_s):
            store.add(BEATS, 1)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def listen(store: Store, key: str, timeout_s: float) -> bytes:
    """Wait until rank 0 has set the key, and return its value.

    It polls: torch prints a warning for each wait in the store that ends without the key.
    """
    pause_s, beats, heard_at = FIRST_PAUSE_S, 0, time.monotonic()
    short_s = min(timeout_s, BEATS_MISSED * BEAT_S)
    while not store.check([key]):
        newest = store.add(BEATS, 0)
        if newest != beats:
            beats, heard_at = newest, time.monotonic()
        elif (silent_s := time.monotonic() - heard_at) > (short_s if _hurries else timeout_s):
            raise RuntimeError(f"rank 0 has not responded for {silent_s:.0f} s")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    return store.get(key)
