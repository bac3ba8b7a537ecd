"""Saving: whatever moment a kill or a power failure comes at, a whole checkpoint is left, and the next run finds it.

What a checkpoint holds is read as data: code that somebody hides in one doesn't run.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from machines.patience import DEADLINE_S

from launcher import distributed
from launcher.distributed import World
from launcher.trainer import __main__ as trainer
from launcher.trainer.checkpoint import (
    METADATA,
    Checkpoints,
    Position,
    choose_folder,
    claim_folder,
    explain,
    find_whole,
    prune,
    read_progress,
    read_shards,
)
from launcher.trainer.config import ConfigError, RunError, TrainConfig
from launcher.trainer.data import Data, TokenSequences
from launcher.trainer.model import Transformer, build_model, init_weights
from launcher.trainer.parallel import ParallelDims, make_cpu_group
from tests.train.power_cuts import Tree, rebuild, recording

CPU = torch.device("cpu")
DATA = Data(TokenSequences(torch.zeros(9), 1), 8, "zeros", "digest")
TINY = ["--save-dir", "out", "--data-size", "100", "--steps-per-epoch", "2", "--layers", "1", "--batch-size", "2"]


@pytest.fixture
def single_rank() -> Iterator[World]:
    yield distributed.init("gloo", timeout_s=DEADLINE_S)
    distributed.shutdown()


def config_of(folder: Path) -> TrainConfig:
    return TrainConfig(save_dir=str(folder), layers=1, heads=1, dim=1, context=1, keep=1)


def open_run(config: TrainConfig, world: World) -> tuple[Transformer, Checkpoints]:
    """Return what saves as a run that begins does."""
    model = init_weights(build_model(config), 1, CPU)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    dims = ParallelDims("single", 1, 1, 1, 0, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    return model, Checkpoints(config, dims, world, make_cpu_group(world), DATA, model, optimizer, scaler)


def save(position: Position, config: TrainConfig, world: World) -> None:
    """Save weights that are the number of samples, to tell the checkpoints apart."""
    model, checkpoints = open_run(config, world)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, float(position.samples))
    checkpoints.save(position)
    checkpoints.export()


def load_samples(path: Path) -> int:
    """Load the weights of a checkpoint; return the number of samples that they and its position agree on."""
    progress = read_progress(path)
    weights = torch.load(path / "state.pt", weights_only=True)["model"]
    assert {float(number) for weight in weights.values() for number in weight.flatten()} == {progress["samples"]}
    assert len(torch.load(path / "random.pt", weights_only=True)["states"]) == 1
    return int(progress["samples"])


def what_is_left(state: Tree, folder: Path) -> int | None:
    """Return which checkpoint the next run would resume."""
    left = rebuild(state, folder)
    if (left / "model.pt").exists():
        torch.load(left / "model.pt", weights_only=True)
    found = [load_samples(path) for path in find_whole(left / "checkpoints")]
    return found[-1] if found else None


def test_a_whole_checkpoint_is_left_at_every_moment(
    single_rank: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one, another one of that step, the next step, after which the older ones go, and again that step."""
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
    assert [path.name for path in (root / "checkpoints").iterdir()] == ["step_2_again"]
    assert recorder.moments > 60


@contextmanager
def limited_files(most_bytes: int) -> Iterator[None]:
    """Let no file become larger: a write beyond fails as it does on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_save_that_fails_is_one_line(single_rank: World, tmp_path: Path) -> None:
    _, checkpoints = open_run(config_of(tmp_path), single_rank)
    for most_bytes, name in ((100, "progress.json"), (2 << 10, "random.pt"), (8 << 10, "state.pt")):
        with limited_files(most_bytes), pytest.raises(RunError) as caught:
            checkpoints.save(Position(3))
        part = rf"{tmp_path}/checkpoints/\.step_3_\w+/{name}: OSError: \[Errno 27\] File too large"
        assert re.fullmatch(part, str(caught.value)), caught.value
    with limited_files(100), pytest.raises(RunError) as caught:
        checkpoints.export()
    assert str(caught.value) == f"{tmp_path}/.model.pt: OSError: [Errno 27] File too large"
    (tmp_path / "model.pt").mkdir()
    with pytest.raises(RunError, match=r"model\.pt: Is a directory"):
        checkpoints.export()


def test_a_checkpoint_is_the_newest_whatever_the_clock_says(single_rank: World, tmp_path: Path) -> None:
    """Rank 0 may be on another host than before, whose clock is behind."""
    config = config_of(tmp_path)
    save(Position(1, 1, 1), config, single_rank)
    progress = tmp_path / "checkpoints" / "step_1" / "progress.json"
    ahead = json.loads(progress.read_text())
    progress.write_text(json.dumps({**ahead, "saved_at": ahead["saved_at"] + 3600}))
    save(Position(2, 1, 2), config, single_rank)
    assert [path.name for path in find_whole(tmp_path / "checkpoints")] == ["step_2"]


PROGRESS = {
    "step": 1, "epoch": 1, "samples": 8, "saved_at": 0.0, "scaler": {}, "digest": "", "config": asdict(TrainConfig()),
}  # fmt: skip


def make_checkpoint(folder: Path, name: str, saved_at: float, **more: Any) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "progress.json").write_text(json.dumps({**PROGRESS, "saved_at": saved_at, **more}))
    (folder / name / "state.pt").touch()
    return folder / name


def test_the_newest_checkpoint_is_the_one_saved_last_and_whole(tmp_path: Path) -> None:
    assert find_whole(tmp_path / "none") == []
    older = make_checkpoint(tmp_path, "step_90", saved_at=1.0)  # of an earlier run, which came further
    newest = make_checkpoint(tmp_path, "step_10", saved_at=3.0)
    (make_checkpoint(tmp_path, "step_20", saved_at=4.0) / "state.pt").unlink()  # a copy that was cut off
    (make_checkpoint(tmp_path, "step_21", saved_at=5.0) / "progress.json").write_text('{"step"')
    for number, left_out in enumerate(PROGRESS):
        cut = {name: value for name, value in PROGRESS.items() if name != left_out}
        (make_checkpoint(tmp_path, f"step_3{number}", 6.0) / "progress.json").write_text(json.dumps(cut))
    make_checkpoint(tmp_path, ".step_30", saved_at=7.0)
    assert find_whole(tmp_path) == [older, newest]


def test_the_newest_checkpoints_are_kept_and_leftovers_go(tmp_path: Path) -> None:
    for step in range(4):
        make_checkpoint(tmp_path, f"step_{step}", saved_at=float(step))
    make_checkpoint(tmp_path, ".step_9", 9.0)
    (tmp_path / "notes").mkdir()
    prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "step_2", "step_3"]


def test_where_a_run_saves_and_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    step = str(make_checkpoint(tmp_path / "used" / "checkpoints", "step_1", 1.0).relative_to(tmp_path))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine").touch()
    choices = {
        ("new", "none"): ("new", ""),
        ("new", "auto"): ("new", ""),
        ("used", "auto"): ("used", step),
        ("used", "last"): ("used", step),
        ("new", step): ("new", step),
        ("notes", "auto"): ("notes", ""),
    }
    for (folder, resume), chosen in choices.items():
        assert choose_folder(TrainConfig(save_dir=folder, resume=resume)) == chosen
    fix = "fix: continue with --resume, or name another --save-dir"
    for folder, resume, said in (
        ("used", "none", f"used: it isn't empty; {fix}"),
        ("notes", "none", f"notes: it isn't empty; {fix}"),
        ("new", "last", "new: no complete checkpoint to resume; fix: pass --save-dir DIR of a run, or --resume "
                        "DIR/checkpoints/step_N"),
        ("new", "used", "used: not a complete checkpoint (a directory such as outputs/RUN/checkpoints/step_60)"),
        ("", "last", "--resume needs --save-dir DIR, because each run has its own directory"),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            choose_folder(TrainConfig(save_dir=folder, resume=resume))
        assert str(caught.value) == said


def test_a_run_that_is_started_again_continues_in_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAUNCH_MARK", "20261127-100000.0.0")
    assert choose_folder(TrainConfig()) == ("outputs/20261127-100000", "")
    step = str(make_checkpoint(tmp_path / "outputs/20261127-100000/checkpoints", "step_1", 1.0).relative_to(tmp_path))
    again, _ = choose_folder(TrainConfig())
    assert again.startswith("outputs/20261127-100000-")  # two programs of one run
    monkeypatch.setenv("LAUNCH_ATTEMPT", "1")
    assert choose_folder(TrainConfig()) == ("outputs/20261127-100000", step)


def test_a_requeued_job_continues_where_it_saved_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `launch` its runs have other ids."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"SLURM_JOB_ID": "7", "LAUNCH_SLURM_JOB": "7", "LAUNCH_MARK": "first.0.0"}.items():
        monkeypatch.setenv(name, value)
    assert choose_folder(TrainConfig()) == ("outputs/first", "")
    claim_folder(tmp_path / "outputs/first").close()
    step = str(make_checkpoint(tmp_path / "outputs/first/checkpoints", "step_1", 1.0).relative_to(tmp_path))
    monkeypatch.setenv("LAUNCH_MARK", "second.0.0")
    assert choose_folder(TrainConfig()) == ("outputs/second", "")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert choose_folder(TrainConfig()) == ("outputs/first", step)
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    monkeypatch.setenv("LAUNCH_SLURM_JOB", "8")
    assert choose_folder(TrainConfig()) == ("outputs/second", "")


def test_one_run_at_a_time_saves_in_a_folder(tmp_path: Path) -> None:
    lock = claim_folder(tmp_path)
    with pytest.raises(ConfigError) as caught:
        claim_folder(tmp_path)
    assert str(caught.value) == f"{tmp_path}: another run is saving there"
    lock.close()
    claim_folder(tmp_path).close()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as caught:
        claim_folder(tmp_path / "file" / "b")
    assert str(caught.value) == f"{tmp_path}/file/b: can't save there: Not a directory"


def test_the_reason_is_the_innermost() -> None:
    try:
        try:
            raise OSError(28, "No space left on device")
        finally:
            raise RuntimeError("unexpected pos 64 vs 0")
    except RuntimeError as error:
        assert explain(error) == "OSError: [Errno 28] No space left on device"
    assert explain(ValueError("odd\nlong")) == "ValueError: odd"


# ---- resuming ------------------------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    exit_code = trainer.main([*TINY, *words])
    captured = capsys.readouterr()
    return exit_code, captured.out, captured.err


def test_what_a_run_says_of_the_one_that_it_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("abcdefgh" * 900)
    (tmp_path / "other").write_text("hgfedcba" * 900)
    assert run(capsys, "--data", "text")[0] == 0
    step = "out/checkpoints/step_2"
    exit_code, out, _ = run(capsys, "--data", "text", "--resume", "auto", "--epochs", "2")
    assert (exit_code, out.count("changed")) == (0, 0)
    assert f"resume  {step}, step 2 of epoch 2" in out.splitlines()
    words = ["--data", "other", "--seed", "2", "--validation-fraction", "0.2", "--epochs", "3", "--resume"]
    exit_code, out, _ = run(capsys, *words)
    assert exit_code == 0
    assert [line for line in out.splitlines() if line.startswith("changed")] == [
        "changed data: now 6.4k bytes of other, another text than before",
        "changed seed: now 2, before 1",
        "changed validation_fraction: now 0.2, before 0.1",
    ]
    assert run(capsys, "--data", "text", "--resume", "--layers", "3")[::2] == (
        2,
        "out/checkpoints/step_6: saved with layers 1, but this run has 3\n",
    )


class Trap:
    """Leaves a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("pwned",)


def spoil_state(step: Path) -> None:
    torch.save({"model": Trap(), "optimizer": {}}, step / "state.pt")


def spoil_random(step: Path) -> None:
    torch.save({"states": Trap()}, step / "random.pt")


def cut(step: Path) -> None:
    (step / "state.pt").write_bytes((step / "state.pt").read_bytes()[:-100])


@pytest.mark.parametrize("spoil", [spoil_state, spoil_random, cut])
def test_code_in_a_checkpoint_does_not_run_and_a_hole_is_one_line(
    spoil: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(capsys)[0] == 0
    spoil(tmp_path / "out/checkpoints/step_2")
    exit_code, _, said = run(capsys, "--epochs", "2", "--resume", "auto")
    assert (exit_code, said.count("\n")) == (2, 1)
    assert re.match(r"out/checkpoints/step_2/(state|random)\.pt: can't be read: .*; fix: name another one$", said)
    assert not (tmp_path / "pwned").exists()


def test_the_metadata_of_shards_holds_records_and_nothing_else(
    single_rank: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.checkpoint import metadata as dcp
    from torch.distributed.checkpoint.state_dict_saver import save

    monkeypatch.chdir(tmp_path)
    save({"weight": torch.ones(4, 4)}, checkpoint_id=tmp_path / "step")
    state = read_shards(tmp_path / "step", {"weight": torch.zeros(4, 4)})
    assert state["weight"].sum() == 16
    whole = pickle.loads((tmp_path / "step" / ".metadata").read_bytes())

    def hide(metadata: Any) -> None:
        metadata.planner_data = {"x": Trap()}

    def hold_bytes(metadata: Any) -> None:
        metadata.state_dict_metadata["weight"] = dcp.BytesStorageMetadata()

    for spoil, name in (
        (hide, "posix.mkdir"),
        (hold_bytes, "torch.distributed.checkpoint.metadata.BytesStorageMetadata"),  # torch would unpickle its content
    ):
        metadata = pickle.loads(pickle.dumps(whole))
        spoil(metadata)
        (tmp_path / "step" / ".metadata").write_bytes(pickle.dumps(metadata))
        with pytest.raises(ConfigError) as caught:
            read_shards(tmp_path / "step", state)
        fix = "fix: name another one"
        said = f"UnpicklingError: {METADATA} holds {name}, which no checkpoint needs"
        assert str(caught.value) == f"{tmp_path}/step: can't be read: {said}; {fix}"
    # A name that the module of the records has only imported.
    (tmp_path / "step" / ".metadata").write_bytes(b"\x80\x02ctorch.distributed.checkpoint.metadata\ndataclass\n.")
    with pytest.raises(ConfigError, match=r"holds torch\.distributed\.checkpoint\.metadata\.dataclass, which no"):
        read_shards(tmp_path / "step", state)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(("words", "step"), [(["--log-every", "1"], 2), (["--log-every", "20"], 3)])
def test_a_loss_that_is_not_finite_ends_the_run_unsaved(
    words: list[str], step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the step that logs, or that would save."""
    monkeypatch.chdir(tmp_path)
    words += ["--steps-per-epoch", "9", "--save-every", "3", "--lr", "1e30", "--warmup-steps", "0", "--clip-norm", "0"]
    assert run(capsys, *words)[::2] == (1, f"step {step}: the loss is not finite\n")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".lock", "metrics.jsonl"]


def test_a_gradient_that_is_not_finite_ends_the_run_before_it_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loss of that step is finite, and the checkpoint before it is the newest."""
    monkeypatch.chdir(tmp_path)
    clip, calls = torch.nn.utils.clip_grad_norm_, []

    def spoil(parameters: Any, most: float) -> torch.Tensor:
        calls.append(most)
        return clip(parameters, most) if len(calls) < 4 else torch.tensor(float("nan"))

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spoil)
    words = ["--steps-per-epoch", "9", "--save-every", "2"]
    assert run(capsys, *words)[::2] == (1, "step 4: the gradient is not finite\n")
    assert [path.name for path in find_whole(tmp_path / "out/checkpoints")] == ["step_2"]
