"""What a run resumes, from --resume and the files in its directory; an earlier run's files are resumed or refused.

A later attempt of the same run continues in its directory, with or without --resume.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from launcher.distributed import Attempt
from launcher.trainer.checkpoints.save_folder import NAME, find_newest, find_whole, read_progress
from launcher.trainer.config import AUTO, LAST, NONE, TrainConfig
from launcher.trainer.options import ConfigError
from launcher.trainer.run_mark import find_marked, is_same_run, read_mark

DEFAULT_PARENT = Path("outputs")  # in which runs without --save-dir make their directories


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
