"""What a run goes on from, as --resume and its directory say; an earlier run's files are gone on from, or refused.

A later attempt of the same run goes on in its directory, with or without --resume.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from launcher.distributed import Attempt
from launcher.trainer.config import AUTO, LAST, NONE, TrainConfig
from launcher.trainer.options import ConfigError
from launcher.trainer.run_mark import find_marked, is_same_run, read_mark
from launcher.trainer.save_folder import NAME, find_whole, read_progress

DEFAULT_PARENT = Path("outputs")  # of the directories that runs without --save-dir make


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


def find_results(path: Path) -> str:
    """Name what an earlier run left to go on from or to use: `checkpoints`, `model.pt`, or nothing."""
    folder = path / "checkpoints"
    if folder.is_dir() and any(NAME.fullmatch(step.name) for step in folder.iterdir()):
        return folder.name
    return "model.pt" if (path / "model.pt").exists() else ""


def nothing_to_resume(path: Path) -> ConfigError:
    """Say that a directory holds nothing to go on from."""
    return ConfigError(f"{path}: no whole checkpoint to go on from; without --resume a run begins anew")
