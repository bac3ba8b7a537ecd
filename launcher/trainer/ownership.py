"""Which directory a run saves in, and whether other people's files are in it.

Without --save-dir a run makes its own directory, `outputs/NAME`: NAME is the run's id under `launch`, `slurm-JOB` in a
Slurm job, else the time on rank 0; a later attempt of the same run uses that directory again. With --save-dir the
directory may contain files. It belongs to the trainer if it has a run's mark, which is written before anything else,
or a complete checkpoint of the trainer, since a copied directory may lack the mark. In every other directory a file
that the trainer would overwrite is someone else's, and the run is refused. An earlier run's files in the trainer's own
directory are resumed or refused.

The mark says which run uses the directory. A later attempt of that run recognizes it, and continues there with or
without --resume: torchrun restarts its ranks from the same process, `launch` keeps the run's id, and Slurm that of a
job that it requeues.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO

from launcher import distributed
from launcher.distributed import Attempt, World
from launcher.trainer.checkpoints.replacement import make_durable, restore_displaced, sync_folder, write_durable
from launcher.trainer.checkpoints.save_folder import (
    FILES,
    LOCK,
    NAME,
    find_newest,
    find_whole,
    lock_folder,
    make_folder,
    read_progress,
)
from launcher.trainer.config import AUTO, LAST, NONE, TrainConfig
from launcher.trainer.options import ConfigError
from launcher.trainer.rank0_work import share_from_main

DEFAULT_PARENT = Path("outputs")  # in which runs without --save-dir make their directories
MARK = ".trainer.json"
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


def write_mark(path: Path, config: TrainConfig, attempt: Attempt) -> None:
    """Mark the directory as the trainer's, with the run that uses it."""
    begun: dict[str, Any] = {"begun_at": time.time(), "agent": attempt.agent, "job": attempt.job_id}
    begun.update(run=attempt.name, options=asdict(config))
    temporary = path / f"{MARK}.tmp"
    write_durable(temporary, json.dumps(begun).encode())
    temporary.replace(path / MARK)
    sync_folder(path)


def read_mark(path: Path) -> dict[str, Any] | None:
    """Return the content of the trainer's mark in a directory, or None without one."""
    try:
        mark = json.loads((path / MARK).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    is_whole = isinstance(mark, dict) and {"begun_at", "agent", "job", "options"} <= mark.keys()
    return mark if is_whole and isinstance(mark["begun_at"], float) else None


def find_marked(parent: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield each of the trainer's directories in `parent`, with the content of its mark."""
    for path in parent.iterdir() if parent.is_dir() else ():
        mark = read_mark(path)
        if mark is not None:
            yield path, mark


def is_same_run(mark: dict[str, Any], attempt: Attempt, options: dict[str, Any] | None = None) -> bool:
    """Return whether an earlier attempt of this run wrote the mark.

    One job may start several runs. If their directories don't distinguish them, pass `options`, which must match then.
    """
    is_restarted = attempt.agent is not None and mark["agent"] == attempt.agent
    is_restarted = is_restarted or (attempt.restarts > 0 and mark.get("run") == attempt.name)
    is_requeued = attempt.requeues > 0 and attempt.job_id is not None and mark["job"] == attempt.job_id
    return (is_restarted or is_requeued) and options in (None, mark["options"])


def refuse_nameless_resume(config: TrainConfig) -> None:
    """Raise ConfigError if a run is to be resumed without a --save-dir that says which one."""
    if config.resume not in (AUTO, LAST) or config.save_dir:
        return
    runs = [(mark["begun_at"], path) for path, mark in find_marked(DEFAULT_PARENT) if find_whole(path / "checkpoints")]
    newest = f"; newest run here: --save-dir {shlex.quote(str(max(runs)[1]))}" if runs else ""
    option = "--resume" if config.resume == LAST else "--resume auto"
    raise ConfigError(f"{option} needs --save-dir DIR, because each run has its own directory{newest}")


def settle_resume(path: Path, config: TrainConfig, attempt: Attempt) -> str:
    """Return what to resume: NONE, AUTO for the newest checkpoint in the directory, or the path of one.

    Raise ConfigError if the run would overwrite files of an earlier run, or has nothing to resume.
    """
    whole, mark = find_whole(path / "checkpoints"), read_mark(path)
    if mark is not None and is_same_run(mark, attempt):
        return AUTO if whole or config.resume in (NONE, AUTO, LAST) else config.resume
    if config.resume == LAST and not whole:
        raise nothing_to_resume(path)
    if config.resume in (NONE, AUTO, LAST):
        goes_on = bool(whole) and config.resume != NONE
    else:
        goes_on = is_newest(Path(config.resume), path, whole)
    results = find_results(path)
    if results and not goes_on:
        choice = "continue that run with --resume, or name another --save-dir" if whole else "name another --save-dir"
        raise ConfigError(f"{path}: an earlier run's {results} would be lost; fix: {choice}")
    if config.resume == LAST or (config.resume == NONE and (attempt.requeues or attempt.restarts)):
        return AUTO  # for a requeued job without a checkpoint the start report says so
    return config.resume


def choose_evaluated(config: TrainConfig) -> str:
    """Return the checkpoint that --evaluate-only validates: the one that --resume names, or the directory's newest."""
    if config.resume not in (NONE, AUTO, LAST):
        return config.resume
    newest = find_newest(Path(config.save_dir) / "checkpoints") if config.save_dir else None
    if newest is None:
        reason = f"{config.save_dir}: no complete checkpoint" if config.save_dir else "evaluate_only needs a checkpoint"
        raise ConfigError(f"{reason}; fix: pass --save-dir DIR of a run, or --resume DIR/checkpoints/step_N")
    return str(newest)


def is_newest(chosen: Path, path: Path, whole: Sequence[Path]) -> bool:
    """Return whether the checkpoint that --resume names is the newest one of the directory itself.

    Raise ConfigError if it isn't a complete checkpoint, or is an older one of the directory: a run that resumes an
    older one would replace the newer ones.
    """
    progress = read_progress(chosen)
    if progress is None:
        raise ConfigError(f"{chosen}: not a complete checkpoint (a directory such as outputs/RUN/checkpoints/step_60)")
    if chosen.resolve().parent != (path / "checkpoints").resolve():
        return False
    newest = read_progress(whole[-1]) if whole else None
    if newest is not None and newest["saved_at"] > progress["saved_at"]:
        lost = f"an earlier run's newer checkpoint {whole[-1].name} would be lost"
        raise ConfigError(f"{path}: {lost}; fix: continue from it with --resume, or name another --save-dir")
    return True


def find_results(path: Path) -> str:
    """Return the name of an earlier run's result: `checkpoints`, `model.pt`, or "" without any."""
    folder = path / "checkpoints"
    if folder.is_dir() and any(NAME.fullmatch(step.name) for step in folder.iterdir()):
        return folder.name
    return "model.pt" if (path / "model.pt").exists() else ""


def nothing_to_resume(path: Path) -> ConfigError:
    """Return the error for a directory without a checkpoint to resume."""
    return ConfigError(f"{path}: no complete checkpoint to resume; fix: omit --resume to start from scratch")
