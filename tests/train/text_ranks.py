"""Run under the trainer's tests: ranks in folders of their own share with rank 0, and print what they saw as JSON.

Their argument is a time limit in seconds.
`text` is the same file for ranks 0 and 1, rank 2 has another text of that size there, and rank 3 has none.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch.distributed.distributed_c10d import _get_default_store

from launcher import distributed
from launcher.distributed import leave
from launcher.trainer import rank0_work, text

SHORT_S = float(sys.argv[1])
LONGER_S = 2.5 * SHORT_S
world = distributed.init("gloo", timeout_s=120)
group = rank0_work.make_cpu_group()
hurried = replace(world, timeout_s=SHORT_S)
store = _get_default_store()
seen: dict[str, object] = {}


def outcome(attempt: Callable[[], object]) -> object:
    try:
        return attempt()
    except Exception as error:  # noqa: BLE001  # the test compares it
        return f"{type(error).__name__}: {error}"


def mapped(path: str, most_bytes: int | None = None) -> list[object]:
    loaded = text.load_text(path, world, group, most_bytes)
    files = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    copies = {part[4] for part in files if "trainer-text" in part[-1] and part[-1].endswith("(deleted)")}
    return [bytes(loaded.tolist()).decode(), *copies]


def work() -> bytes:
    ends = time.monotonic() + LONGER_S
    while time.monotonic() < ends:
        sum(range(1000))
    return b"done"


def fail() -> bytes:
    raise OSError("broken")


os.chdir(f"node{world.rank}")
text.PIECE_BYTES = 16  # several pieces
seen["text"] = mapped("text")
seen["part"] = mapped("text", most_bytes=20)
seen["topics"] = len(text.load_text("", world, group)) > 100_000
seen["empty"] = mapped("empty")
seen["missing"] = outcome(lambda: mapped("missing"))
seen["error"] = outcome(lambda: rank0_work.share_from_main(fail, world))
seen["long"] = outcome(lambda: rank0_work.share_from_main(work, hurried).decode())
if world.is_main:  # it stays away until the others have given up
    store.wait([f"gave up/{rank}" for rank in range(1, world.world_size)])
seen["silent"] = outcome(lambda: rank0_work.share_from_main(lambda: b"", hurried).decode())
store.set(f"gave up/{world.rank}", "")
os.environ["TMPDIR"] = "/nowhere"
seen["nowhere"] = outcome(lambda: mapped("text"))
print(json.dumps(seen), flush=True)
leave(0)
