"""Which directory a run saves in, and whether other people's files are in it.

Without --save-dir a run makes its own directory, `outputs/NAME`: NAME is the run's id under `launch`, `slurm-JOB` in a
Slurm job, else the time on rank 0; a later attempt of the same run uses that directory again. With --save-dir the
directory may contain files. It belongs to the trainer if it has a run's mark, which is written before anything else,
or a complete checkpoint of the trainer, since a copied directory may lack the mark. In every other directory a file
that the trainer would overwrite is someone else's, and the run is refused. `resumption` decides what happens to an
earlier run's files in the trainer's own directory.
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
from launcher.trainer.checkpoints.replacement import make_durable, restore_displaced, sync_folder
from launcher.trainer.checkpoints.save_folder import FILES, LOCK, find_whole, lock_folder, make_folder
from launcher.trainer.config import LAST, TrainConfig
from launcher.trainer.rank0_work import share_from_main
from launcher.trainer.options import ConfigError
from launcher.trainer.resumption import (
    DEFAULT_PARENT,
    choose_evaluated,
    nothing_to_resume,
    refuse_nameless_resume,
    settle_resume,
)
from launcher.trainer.run_mark import MARK, find_marked, is_same_run, read_mark, write_mark

# What a run may overwrite; in a directory that isn't the trainer's own, these files are someone else's.
WRITTEN = (*FILES, "model.pt.tmp", "checkpoints", "tensorboard", "mlflow_run_id", "wandb_run_id", MARK)


class Claim:
    """One run's claim on its directory: from `take` to `release` no other run can save in it."""

    def __init__(self, config: TrainConfig, world: World) -> None:
        self._config = config
        self._world = world
        self._lock: TextIO | None = None
        self._made: Path | None = None

    def take(self) -> TrainConfig:
        """Claim the directory; return the config with save_dir and resume resolved, the same on every rank.

        Rank 0 chooses, locks and marks the directory; its ConfigError is raised on all ranks. A run that only evaluates
        writes nothing, so it claims no directory, and another run may save there.
        """
        settled = json.loads(share_from_main(self._settle, self._world))
        return replace(self._config, **settled)

    def release(self) -> None:
        """Unlock the directory; remove it if it was made for this run and nothing was written to it."""
        with contextlib.suppress(OSError):
            if self._made is not None and {path.name for path in self._made.iterdir()} <= {LOCK, MARK}:
                for name in (LOCK, MARK):
                    (self._made / name).unlink(missing_ok=True)
                self._made.rmdir()
        if self._lock is not None:
            self._lock.close()

    def _settle(self) -> bytes:
        config, attempt = self._config, distributed.find_attempt()
        if config.evaluate_only:
            return json.dumps({"resume": choose_evaluated(config)}).encode()
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
            restore_displaced(path / "checkpoints")
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
    """Raise ConfigError for a file that the trainer would overwrite in a directory that isn't its own."""
    is_own = read_mark(path) is not None or bool(find_whole(path / "checkpoints"))
    for name in () if is_own else WRITTEN:
        found = path / name
        is_empty = found.is_dir() and not any(found.iterdir())
        if os.path.lexists(found) and not is_empty:
            raise ConfigError(
                f"{found}: not written by this trainer, which would replace it; fix: name another --save-dir"
            )


def make_new(parent: Path, name: str) -> Path:
    """Make and return a new directory: `name`, or the first free one of `name-2`, `name-3` and so on."""
    make_durable(parent)
    number = 1
    while True:
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            sync_folder(parent)
            return path
