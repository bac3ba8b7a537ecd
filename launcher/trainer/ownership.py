"""Which directory a run saves in, and whose files lie there already.

Without --save-dir a run makes a directory of its own, `outputs/NAME`: the name that `launch` gave the run, `slurm-JOB`,
or the time on rank 0. With --save-dir the directory may hold files. It is the trainer's own if MARK is in it, which a
run leaves there before it writes anything else, or a whole checkpoint of the trainer, for directories that were copied
without MARK. In every other directory a file that the trainer would write over is somebody else's, and the run is
refused. In one of its own a run goes on from what is there, or is refused: checkpoints and model.pt of an earlier run
stay as they are.

MARK also tells a later attempt of the same run: a torchrun that starts its ranks again is the same process, and a job
that Slurm puts back into the queue keeps its number. Such an attempt goes on in the same directory, with or without
--resume.
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
from launcher.trainer.config import AUTO, LAST, NONE, TrainConfig
from launcher.trainer.data import share_from_main
from launcher.trainer.options import ConfigError
from launcher.trainer.save_folder import FILES, LOCK, NAME, find_whole, lock_folder, make_folder, read_progress

DEFAULT_PARENT = Path("outputs")
MARK = ".trainer.json"
# What a run may write over: in a directory that isn't the trainer's own, these are somebody else's.
WRITTEN = (*FILES, "model.pt.tmp", "checkpoints", "tensorboard", "mlflow_run_id", "wandb_run_id", MARK)


class SaveFolder:
    """The directory of one run. From `claim` to `release` no other run can save in it."""

    def __init__(self, config: TrainConfig, world: World) -> None:
        self._config = config
        self._world = world
        self._lock: TextIO | None = None
        self._made: Path | None = None

    def claim(self) -> TrainConfig:
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


def refuse_nameless_resume(config: TrainConfig) -> None:
    """Raise ConfigError where a run is to go on, and no directory says which one."""
    if config.resume not in (AUTO, LAST) or config.save_dir:
        return
    runs = [(mark["begun_at"], path) for path, mark in find_marked(DEFAULT_PARENT) if find_whole(path / "checkpoints")]
    newest = f"; the newest run here: --save-dir {shlex.quote(str(max(runs)[1]))}" if runs else ""
    option = "--resume" if config.resume == LAST else "--resume auto"
    raise ConfigError(f"{option} needs --save-dir DIR, since each run has a directory of its own{newest}")


def settle_resume(path: Path, config: TrainConfig, attempt: Attempt) -> str:
    """Return what to go on from: NONE, AUTO for the newest checkpoint in the directory, or the path of one.

    Raise ConfigError where the run would write over files of an earlier run, or has nothing to go on from.
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
        choice = "go on with --resume, or name another --save-dir" if whole else "name another --save-dir"
        raise ConfigError(f"{path}: an earlier run's {results} would be lost: {choice}")
    if config.resume == LAST or (config.resume == NONE and attempt.requeues):
        return AUTO  # for a requeued job the start report then says that there was nothing to go on from
    return config.resume


def is_newest(chosen: Path, path: Path, whole: Sequence[Path]) -> bool:
    """Tell whether the checkpoint that --resume names is the directory's own, after which none was saved there.

    Raise ConfigError for no whole checkpoint, and for one of the directory's own that has newer ones beside it: a run
    that goes on from it would replace them.
    """
    progress = read_progress(chosen)
    if progress is None:
        raise ConfigError(f"{chosen}: no whole checkpoint, a directory such as outputs/RUN/checkpoints/step_60")
    if chosen.resolve().parent != (path / "checkpoints").resolve():
        return False
    newest = read_progress(whole[-1]) if whole else None
    if newest is not None and newest["saved_at"] > progress["saved_at"]:
        lost = f"an earlier run's newer checkpoint {whole[-1].name} would be lost"
        raise ConfigError(f"{path}: {lost}: go on from it with --resume, or name another --save-dir")
    return True


def refuse_others_files(path: Path) -> None:
    """Raise ConfigError for what the trainer would write over in a directory that isn't its own."""
    is_own = read_mark(path) is not None or bool(find_whole(path / "checkpoints"))
    for name in () if is_own else WRITTEN:
        found = path / name
        is_empty = found.is_dir() and not any(found.iterdir())
        if os.path.lexists(found) and not is_empty:
            raise ConfigError(f"{found}: not written by this trainer, which would replace it: name another --save-dir")


def find_results(path: Path) -> str:
    """Name what an earlier run left to go on from or to use: `checkpoints`, `model.pt`, or nothing."""
    folder = path / "checkpoints"
    if folder.is_dir() and any(NAME.fullmatch(step.name) for step in folder.iterdir()):
        return folder.name
    return "model.pt" if (path / "model.pt").exists() else ""


def nothing_to_resume(path: Path) -> ConfigError:
    """Say that a directory holds nothing to go on from."""
    return ConfigError(f"{path}: no whole checkpoint to go on from; without --resume a run begins anew")


def is_same_run(mark: dict[str, Any], attempt: Attempt, options: dict[str, Any] | None = None) -> bool:
    """Tell whether an earlier attempt of this run left the mark.

    One job may start several runs. Where their directories don't tell them apart, their options do.
    """
    is_restarted = attempt.agent is not None and mark["agent"] == attempt.agent
    is_requeued = attempt.requeues > 0 and attempt.job_id is not None and mark["job"] == attempt.job_id
    return (is_restarted or is_requeued) and options in (None, mark["options"])


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


def write_mark(path: Path, config: TrainConfig, attempt: Attempt) -> None:
    """Say in the directory that the trainer writes it, and in which run."""
    begun = {"begun_at": time.time(), "agent": attempt.agent, "job": attempt.job_id, "options": asdict(config)}
    temporary = path / f"{MARK}.tmp"
    temporary.write_text(json.dumps(begun))
    temporary.replace(path / MARK)


def read_mark(path: Path) -> dict[str, Any] | None:
    """Return what the mark in a directory says, or None where there is none of the trainer's."""
    try:
        mark = json.loads((path / MARK).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    is_whole = isinstance(mark, dict) and {"begun_at", "agent", "job", "options"} <= mark.keys()
    return mark if is_whole and isinstance(mark["begun_at"], float) else None


def find_marked(parent: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the trainer's directories in `parent`, with what their marks say."""
    for path in parent.iterdir() if parent.is_dir() else ():
        mark = read_mark(path)
        if mark is not None:
            yield path, mark
