"""Which directory a run saves in, and whose files lie there already.

Without --save-dir a run makes a directory of its own, `outputs/NAME`: the name that `launch` gave the run, `slurm-JOB`,
or the time on rank 0; a later attempt of the same run takes that one again. With --save-dir the directory may hold
files. It is the trainer's own if a run's mark is in it, which is left there before anything else is written, or a whole
checkpoint of the trainer, for directories that were copied without the mark. In every other directory a file that the
trainer would write over is somebody else's, and the run is refused. What becomes of an earlier run's files in one of
its own, `resumption` says.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TextIO

from launcher import distributed
from launcher.distributed import Attempt, World
from launcher.trainer.config import LAST, TrainConfig
from launcher.trainer.data import share_from_main
from launcher.trainer.options import ConfigError
from launcher.trainer.resumption import DEFAULT_PARENT, nothing_to_resume, refuse_nameless_resume, settle_resume
from launcher.trainer.run_mark import MARK, find_marked, is_same_run, read_mark, write_mark
from launcher.trainer.save_folder import FILES, LOCK, find_whole, lock_folder, make_folder

# What a run may write over: in a directory that isn't the trainer's own, these are somebody else's.
WRITTEN = (*FILES, "model.pt.tmp", "checkpoints", "tensorboard", "mlflow_run_id", "wandb_run_id", MARK)


class Claim:
    """One run's claim on its directory. From `take` to `release` no other run can save in it."""

    def __init__(self, config: TrainConfig, world: World) -> None:
        self._config = config
        self._world = world
        self._lock: TextIO | None = None
        self._made: Path | None = None

    def take(self) -> TrainConfig:
        """Return the config with its save_dir and resume settled, the same on every rank.

        Rank 0 chooses the directory, locks and marks it; its ConfigError is raised on all ranks.
        """
        settled = json.loads(bytes(share_from_main(self._settle, self._world).tolist()))
        return replace(self._config, **settled)

    def release(self) -> None:
        """Unlock the directory, and remove one that was made for this run if nothing was written there."""
        with contextlib.suppress(OSError):
            if self._made is not None and {path.name for path in self._made.iterdir()} <= {LOCK, MARK}:
                for name in (LOCK, MARK):
                    (self._made / name).unlink(missing_ok=True)
                self._made.rmdir()
        if self._lock is not None:
            self._lock.close()

    def _settle(self) -> bytes:
        config, attempt = self._config, distributed.find_attempt()
        try:
            refuse_nameless_resume(config)
            path = Path(config.save_dir) if config.save_dir else self._choose(attempt)
            if config.resume == LAST and not path.is_dir():
                raise nothing_to_resume(path)
            if not path.exists():
                self._made = path
            refuse_others_files(path)
            make_folder(str(path))
            self._lock = lock_folder(str(path))
            resume = settle_resume(path, config, attempt)
            write_mark(path, config, attempt)
        except OSError as error:
            raise ConfigError(f"{error.filename or 'the save directory'}: can't save there: {error.strerror}") from None
        return json.dumps({"save_dir": str(path), "resume": resume}).encode()

    def _choose(self, attempt: Attempt) -> Path:
        """Return the directory of an earlier attempt of this run, or make a new one."""
        options = asdict(self._config)
        earlier = [
            (mark["begun_at"], path)
            for path, mark in find_marked(DEFAULT_PARENT)
            if is_same_run(mark, attempt, options=options)
        ]
        if earlier:
            return max(earlier)[1]
        self._made = make_new(DEFAULT_PARENT, attempt.name or time.strftime("%Y%m%d-%H%M%S"))
        return self._made


def refuse_others_files(path: Path) -> None:
    """Raise ConfigError for what the trainer would write over in a directory that isn't its own."""
    is_own = read_mark(path) is not None or bool(find_whole(path / "checkpoints"))
    for name in () if is_own else WRITTEN:
        found = path / name
        is_empty = found.is_dir() and not any(found.iterdir())
        if os.path.lexists(found) and not is_empty:
            raise ConfigError(f"{found}: not written by this trainer, which would replace it: name another --save-dir")


def make_new(parent: Path, name: str) -> Path:
    """Make a directory that wasn't there: `name`, or with -2, -3 and so on after it."""
    parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path
