"""Saving: whatever moment a kill or a power failure comes at, a whole checkpoint is left, and the next run finds it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from machines.patience import DEADLINE_S
from torch.distributed.checkpoint.state_dict_loader import load

from launcher import distributed
from launcher.distributed import World
from launcher.trainer.checkpoints import replacement
from launcher.trainer.checkpoints.checkpoints import Checkpoints, Position
from launcher.trainer.checkpoints.reading import PlainPlanner, PlainReader
from launcher.trainer.checkpoints.replacement import restore_displaced
from launcher.trainer.checkpoints.save_folder import SaveError, find_whole, read_progress
from launcher.trainer.config import TrainConfig
from launcher.trainer.model import build_model
from launcher.trainer.optimization import Learner, build_learner
from launcher.trainer.parallel import Replica
from launcher.trainer.rank0_work import make_cpu_group
from launcher.trainer.rank_table import RankTable
from tests.train.power_cuts import Tree, rebuild, recording

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
TABLE = RankTable("none", 1, 0, 1, 1, 1)


@pytest.fixture
def single_rank() -> Iterator[World]:
    yield distributed.init("gloo", timeout_s=DEADLINE_S)
    distributed.shutdown()


def config_of(folder: Path, *, async_save: bool = False) -> TrainConfig:
    return TrainConfig(save_dir=str(folder), layers=1, heads=1, dim=1, context=1, keep=1, async_save=async_save)


def learner_of(config: TrainConfig, world: World) -> Learner:
    model = build_model(config)
    return build_learner(Replica(model, model, TABLE), config, world.device)


def save(position: Position, config: TrainConfig, world: World) -> None:
    """Save as a run that begins does: the weights are the number of samples, to tell the checkpoints apart."""
    learner = learner_of(config, world)
    for parameter in learner.replica.model.parameters():
        torch.nn.init.constant_(parameter, float(position.samples))
    checkpoints = Checkpoints(config, world, learner, make_cpu_group())
    checkpoints.save(position)
    checkpoints.export()


def load_samples(path: Path) -> int:
    """Load the weights of a checkpoint; return the number of samples that they and its position agree on."""
    progress = read_progress(path)
    assert progress is not None
    weights = {name: torch.empty_like(one) for name, one in build_model(config_of(path)).state_dict().items()}
    load({"model": weights}, storage_reader=PlainReader(path), planner=PlainPlanner(), no_dist=True)
    assert {float(number) for weight in weights.values() for number in weight.flatten()} == {progress["samples"]}
    assert len(torch.load(path / "random.pt", weights_only=True)["states"]) == 1
    return int(progress["samples"])


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_whole_checkpoint_is_left_at_every_moment(
    can_exchange: bool, single_rank: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one, another one of that name, the next step, after which the older one goes, and again that name."""
    if not can_exchange:  # as on NFS
        monkeypatch.setattr(replacement, "RENAME_EXCHANGE", 1 << 20)  # an unknown flag: EINVAL
    root = tmp_path / "out"
    root.mkdir()
    with recording(root, lambda fsync: monkeypatch.setattr(os, "fsync", fsync)) as recorder:
        for number, step in enumerate((1, 1, 2, 2), start=1):
            begun = len(recorder.states)
            save(Position(step, 1, number), config_of(root), single_rank)
            for state in recorder.states[begun:]:
                left = what_is_left(state, tmp_path / "left")
                # Nothing at first; then the one before until this one is whole, and from then on this one.
                assert left in ((number - 1, number) if number > 1 else (None, number)), (number, state.keys())
            assert what_is_left(recorder.flushed(), tmp_path / "left") == number
    assert what_is_left(recorder.states[-1], tmp_path / "left") == 4
    assert [path.name for path in (root / "checkpoints").iterdir()] == ["step_2"]
    assert recorder.moments > 100


def what_is_left(state: Tree, folder: Path) -> int | None:
    """Return which checkpoint the next run would resume, before and after it has put the directory in order."""
    left = rebuild(state, folder)
    if (left / "model.pt").exists():
        torch.load(left / "model.pt", weights_only=True)
    found = [load_samples(path) for path in find_whole(left / "checkpoints")]
    restore_displaced(left / "checkpoints")
    again = find_whole(left / "checkpoints")
    assert [load_samples(path) for path in again] == found
    assert all(path.name.startswith("step_") for path in again)
    return found[-1] if found else None


def test_a_save_in_flight_is_no_checkpoint_until_it_is_whole(
    single_rank: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, fsync = config_of(tmp_path, async_save=True), os.fsync
    writing, may_write = threading.Event(), threading.Event()

    def blocked_fsync(descriptor: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            writing.set()
            assert may_write.wait(DEADLINE_S)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", blocked_fsync)
    learner = learner_of(config, single_rank)
    checkpoints = Checkpoints(config, single_rank, learner, make_cpu_group())
    weights = [parameter.detach() for parameter in learner.replica.model.parameters()]
    for weight in weights:
        weight.fill_(7)
    checkpoints.save(Position(1, 1, 7))
    assert writing.wait(DEADLINE_S)
    assert checkpoints.newest() is None
    for weight in weights:
        weight.fill_(8)  # the training continues
    may_write.set()
    checkpoints.finish()
    assert load_samples(tmp_path / "checkpoints" / "step_1") == 7

    # The next save, the end of the run and the model wait for it, and report what went wrong.
    (tmp_path / "checkpoints" / "step_2").write_text("in the way")
    for end in (lambda: checkpoints.save(Position(9)), checkpoints.finish, checkpoints.export):
        checkpoints.save(Position(1, 1, 7))
        checkpoints.save(Position(2, 1, 8))
        with pytest.raises(SaveError, match="step_2: not saved: step_2: Not a directory"):
            end()
        with pytest.raises(SaveError):  # after SIGTERM it isn't said to be saved
            checkpoints.save_alone(Position(2, 1, 8))
    assert checkpoints.newest() == tmp_path / "checkpoints" / "step_1"


def test_a_checkpoint_is_the_newest_whatever_the_clock_says(single_rank: World, tmp_path: Path) -> None:
    """Rank 0 may be on another host than before, whose clock is behind."""
    config = config_of(tmp_path)
    save(Position(1, 1, 1), config, single_rank)
    progress = tmp_path / "checkpoints" / "step_1" / "progress.json"
    ahead = json.loads(progress.read_text())
    progress.write_text(json.dumps({**ahead, "saved_at": ahead["saved_at"] + 3600}))
    save(Position(2, 1, 2), config, single_rank)
    assert [path.name for path in find_whole(tmp_path / "checkpoints")] == ["step_2"]
