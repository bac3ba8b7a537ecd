"""Data, model and checkpoint, each on its own, in this process."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from traceback import StackSummary
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from machines.patience import DEADLINE_S
from torch.distributed.checkpoint.api import CheckpointException
from torch.utils.data import DistributedSampler

from launcher import distributed
from launcher.distributed import World
from launcher.trainer import __main__ as trainer
from launcher.trainer import data
from launcher.trainer.checkpoints.checkpoints import Checkpoints, Position
from launcher.trainer.checkpoints.checks import check_model
from launcher.trainer.checkpoints.replacement import put_in_place
from launcher.trainer.checkpoints.save_folder import (
    SaveError,
    find_best,
    find_newest,
    find_whole,
    lock_folder,
    make_folder,
    prune,
    save_file,
)
from launcher.trainer.config import TrainConfig, read_config
from launcher.trainer.data import (
    MOST_WORKERS,
    Loader,
    SampleOrder,
    Task,
    TokenSequences,
    build_loader,
    count_workers,
    deal_validation,
    load_task,
    make_regression,
    number_characters,
    short,
    split,
)
from launcher.trainer.evaluation import Evaluator
from launcher.trainer.loop import train
from launcher.trainer.model import FEATURES, build_model
from launcher.trainer.optimization import build_learner
from launcher.trainer.options import ConfigError, RunError
from launcher.trainer.parallel import Replica, make_mesh
from launcher.trainer.rank0_work import make_cpu_group
from launcher.trainer.rank_table import RankTable
from launcher.trainer.report import Node, check_nodes, describe_peak_memory, describe_ranks, describe_start
from launcher.trainer.schedule import Schedule, learning_rate

CONFIG = TrainConfig()
SHORT = ["--save-dir", "outputs", "--data-size", "100", "--steps-per-epoch", "2", "--layers", "1", "--batch-size", "2"]
WORLD = World(0, 1, 0, 1, torch.device("cpu"), "gloo", "single process")


def table_of(size: int, rank: int = 0, batch_size: int = 3) -> RankTable:
    return RankTable("ddp", size, rank, 1, batch_size, 1)


def text_task(text: torch.Tensor, context: int) -> Task:
    sequences = TokenSequences(text, context)
    config = TrainConfig(context=context, validation_fraction=0)
    source = f"{short(len(text))} bytes of zeros"
    return split(config, sequences, source=source, size_bytes=len(text))


@pytest.fixture
def single_rank() -> Iterator[World]:
    yield distributed.init("gloo", timeout_s=DEADLINE_S)
    distributed.shutdown()


def starts_of(loader: Loader, epoch: int = 0, skip: int = 0) -> list[list[int]]:
    """Return the first byte of each sequence, batch by batch."""
    return [tokens[:, 0].tolist() for tokens, _ in loader.load_epoch(epoch, skip)]


def test_sequences_cover_the_text_once_and_targets_are_one_byte_on() -> None:
    text = torch.arange(33, dtype=torch.uint8)
    sequences = TokenSequences(text, context=8)
    assert len(sequences) == 4
    tokens, targets = sequences.unpack(sequences.gather(torch.arange(4), pin=False))
    assert tokens.flatten().tolist() == list(range(32))
    assert targets.flatten().tolist() == list(range(1, 33))
    assert len(TokenSequences(text[:8], context=8)) == 0
    assert len(TokenSequences(text[:0], context=8)) == 0


@pytest.mark.parametrize("threads", [0, 2])
def test_ranks_take_the_samples_of_torchs_sampler(threads: int) -> None:
    task = text_task(torch.arange(0, 251, dtype=torch.uint8), context=10)  # 25 sequences for two ranks
    for rank in range(2):
        loader = build_loader(task, replace(CONFIG, workers=threads), table_of(2, rank), WORLD)
        sampler: DistributedSampler[int] = DistributedSampler(range(25), 2, rank, seed=CONFIG.seed, drop_last=True)
        for epoch in (1, 2):
            sampler.set_epoch(epoch)
            expected = torch.tensor(list(sampler)).view(4, 3) * 10
            assert loader.epoch_size == 12
            assert starts_of(loader, epoch) == expected.tolist()
            assert starts_of(loader, epoch, skip=6) == expected[2:].tolist()


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_step_is_of_the_same_samples_on_any_number_of_ranks(ranks: int) -> None:
    task = text_task(torch.arange(0, 251, dtype=torch.uint8), context=10)  # 25 sequences: 2, 3 and 4 leave a rest

    def steps(size: int) -> list[list[int]]:
        dealt = [starts_of(build_loader(task, CONFIG, table_of(size, rank, 12 // size), WORLD)) for rank in range(size)]
        return [sorted(start for starts in batches for start in starts) for batches in zip(*dealt, strict=True)]

    assert steps(ranks) == steps(1)


@pytest.mark.parametrize("size", [1, 2, 3, 64, 65, 1000])
def test_more_samples_than_a_list_holds_are_shuffled_too(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "MOST_LISTED", 0)
    places = torch.arange(size)
    shuffled = SampleOrder(size, seed=1, epoch=1).take(places)
    assert sorted(shuffled.tolist()) == places.tolist()
    assert torch.equal(shuffled, SampleOrder(size, seed=1, epoch=1).take(places))
    if size == 1000:
        assert not torch.equal(shuffled, SampleOrder(size, seed=1, epoch=2).take(places))
        # Neighbours are as far apart as in any shuffled list: a third of the size on average.
        assert shuffled.diff().abs().float().mean() == pytest.approx(size / 3, rel=0.1)


def test_data_too_few_for_one_step_are_refused() -> None:
    task = text_task(torch.zeros(100, dtype=torch.uint8), context=64)
    with pytest.raises(ConfigError) as caught:
        build_loader(task, CONFIG, table_of(2), WORLD)
    assert str(caught.value) == (
        "too little data (100 bytes of zeros): one step takes 6 samples (2 ranks x batch size 3), got 1 to train on"
    )


def test_the_last_samples_are_kept_for_validation() -> None:
    text = torch.arange(101, dtype=torch.uint8)
    samples = TokenSequences(text, context=10)
    task = split(TrainConfig(validation_fraction=0.25), samples, source="", size_bytes=101)
    assert (task.train_size, task.validation_size) == (8, 2)
    ((tokens, _),) = build_loader(task, CONFIG, table_of(1), WORLD).load_validation([range(2)])
    assert tokens[:, 0].tolist() == [80, 90]
    assert split(TrainConfig(validation_fraction=0), samples, source="", size_bytes=0).train_size == 10
    assert split(TrainConfig(), TokenSequences(text, context=33), source="", size_bytes=0).validation_size == 1


@given(st.integers(0, 50), st.integers(1, 7), st.integers(1, 6))
def test_validation_deals_each_sample_once_and_as_many_batches_to_each(size: int, batch_size: int, shares: int) -> None:
    dealt = [list(deal_validation(size, batch_size, shares, share)) for share in range(shares)]
    assert sorted(number for batches in dealt for batch in batches for number in batch) == list(range(size))
    assert len({len(batches) for batches in dealt}) == 1
    assert max((len(batch) for batches in dealt for batch in batches), default=0) <= batch_size


def test_the_validation_loss_is_that_of_a_plain_loop(single_rank: World) -> None:
    """Each rank's share by itself, added up as `all_reduce` does: 7 samples are no multiple of anything here."""
    config = TrainConfig(data="regression", data_size=70, batch_size=2)
    task = load_task(config, single_rank, None)
    assert task.validation_size == 7
    model = build_model(config)
    every = build_loader(task, config, table_of(1), WORLD).load_validation(
        range(number, number + 1) for number in range(7)
    )
    losses = [model(*batch).item() for batch in every]
    for shares in (1, 2, 3, 4, 5):
        totals = torch.zeros(2, dtype=torch.float64)
        for share in range(shares):
            table = table_of(shares, share, batch_size=2)
            learner = build_learner(Replica(model, model, table), config, WORLD.device)
            loader = build_loader(task, config, table, WORLD)
            totals += Evaluator(loader, config, learner, WORLD).sum_up(lambda: False)
        assert totals[1] == 7
        assert (totals[0] / totals[1]).item() == pytest.approx(sum(losses) / 7, rel=1e-6)


def test_a_regression_is_the_same_for_a_seed() -> None:
    features, targets = make_regression(100, seed=1)
    assert features.shape == (100, FEATURES)
    assert torch.equal(targets, make_regression(100, seed=1)[1])
    assert not torch.equal(targets, make_regression(100, seed=2)[1])
    assert 0.5 < make_regression(10_000, seed=1)[1].std() < 2


@pytest.mark.parametrize(
    ("asked", "size_bytes", "workers"), [(-1, 1000, 0), (3, 1000, 3), (0, 10**9, 0), (-1, 10**9, None)]
)
def test_small_data_need_no_workers(asked: int, size_bytes: int, workers: int | None) -> None:
    expected = min(MOST_WORKERS, distributed.cpu_count() - 1) if workers is None else workers
    assert count_workers(asked, size_bytes) == expected


def test_the_learning_rate_rises_and_falls() -> None:
    config = TrainConfig(lr=1.0, warmup_steps=4, final_lr_fraction=0.1)
    rates = [learning_rate(step, 24, config) for step in range(1, 25)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[13] == pytest.approx(0.55)
    assert rates[-1] == pytest.approx(0.1)
    assert rates[3:] == sorted(rates[3:], reverse=True)
    flat = TrainConfig(lr=1.0, warmup_steps=0, final_lr_fraction=1)
    assert [learning_rate(step, 3, flat) for step in (1, 2, 3)] == [1.0, 1.0, 1.0]
    assert learning_rate(3, 3, TrainConfig(lr=1.0, warmup_steps=9)) == 1.0


def test_a_run_that_resumes_with_shorter_epochs_is_as_long_as_it_says() -> None:
    schedule = Schedule(epochs=3, epoch_steps=20, global_batch=8, samples_per_rank=8)
    position = Position(step=30, epoch=1, samples=30 * 8)
    assert (schedule.steps_done(position), schedule.count_steps(position)) == (20, 70)


@pytest.mark.parametrize("amp", ["off", "bf16"])
def test_passes_together_are_one_large_batch(amp: str) -> None:
    batch = make_regression(8, seed=3)
    config = TrainConfig(data="regression", amp=amp)
    norms: list[float] = []

    def learn(passes: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[float, torch.Tensor]:
        model = build_model(config)
        learner = build_learner(Replica(model, model, table_of(1)), config, WORLD.device)
        loss, norm = learner.take_step(passes, lr=0.1)
        assert norm is not None
        norms.append(norm.item())
        return loss.item(), model.head.weight.detach()

    whole, parts = learn([batch]), learn([tuple(part[:4] for part in batch), tuple(part[4:] for part in batch)])
    assert parts[0] == pytest.approx(whole[0], rel=1e-2 if amp == "bf16" else 1e-5)
    torch.testing.assert_close(parts[1], whole[1], rtol=1e-3, atol=1e-2 if amp == "bf16" else 1e-4)
    assert norms[1] == pytest.approx(norms[0], rel=1e-2 if amp == "bf16" else 1e-4)


def test_the_norm_of_the_gradient_is_measured_without_clipping_too() -> None:
    batch = make_regression(8, seed=3)
    measured = []
    for clip_norm, measures in ((0.0, True), (1e9, False), (0.0, False)):
        config = TrainConfig(data="regression", clip_norm=clip_norm)
        model = build_model(config)
        learner = build_learner(Replica(model, model, table_of(1)), config, WORLD.device)
        measured.append((learner.take_step([batch], lr=0.1, measures=measures)[1], model.head.weight.detach()))
    (asked, weights), (clipped, same), (none, also_same) = measured
    assert (asked, none) == (clipped, None)
    assert torch.equal(weights, same) and torch.equal(weights, also_same)


def test_fp16_on_a_cpu_is_refused() -> None:
    model = build_model(TrainConfig())
    with pytest.raises(ConfigError) as caught:
        build_learner(Replica(model, model, table_of(1)), TrainConfig(amp="fp16"), WORLD.device)
    assert str(caught.value) == "amp fp16 needs a GPU; fix: use bf16, which CPUs support too"


def test_the_first_guess_is_even_and_the_seed_decides_it() -> None:
    tokens = torch.randint(256, (4, 64), generator=torch.Generator().manual_seed(0))
    loss = build_model(TrainConfig())(tokens, tokens)
    assert loss.item() == pytest.approx(math.log(256), abs=0.2)
    assert build_model(TrainConfig())(tokens, tokens).item() == loss.item()
    assert build_model(TrainConfig(seed=2))(tokens, tokens).item() != loss.item()


def test_the_model_sees_no_later_byte() -> None:
    model = build_model(TrainConfig())
    seen: list[torch.Tensor] = []
    model.head.register_forward_hook(lambda module, inputs, output: seen.append(output))
    tokens = torch.zeros(1, 8, dtype=torch.long)
    changed = tokens.clone()
    changed[0, 5:] = 7
    model(tokens, tokens)
    model(changed, tokens)
    assert torch.equal(seen[0][0, :5], seen[1][0, :5])
    assert not torch.equal(seen[0][0, 5:], seen[1][0, 5:])


def test_a_file_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    save_file(path, {"step": 1})
    with pytest.raises(AttributeError):
        save_file(path, {"step": lambda: 2})
    assert torch.load(path, weights_only=True) == {"step": 1}
    save_file(path, {"step": 3})
    assert torch.load(path, weights_only=True) == {"step": 3}
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.pt"]


PROGRESS = {
    "step": 1,
    "epoch": 1,
    "samples": 8,
    "saved_at": 0.0,
    "scaler": {},
    "kind": "text",
    "config": asdict(CONFIG),
}


def make_checkpoint(folder: Path, name: str, saved_at: float) -> Path:
    temporary = folder / f".{name}.tmp"
    temporary.mkdir(parents=True)
    (temporary / "progress.json").write_text(json.dumps({**PROGRESS, "saved_at": saved_at}))
    (temporary / ".metadata").write_bytes(b"x")
    put_in_place(temporary, folder / name)
    return folder / name


def test_the_newest_checkpoint_is_the_one_saved_last_and_whole(tmp_path: Path) -> None:
    assert find_newest(tmp_path / "none") is None
    make_checkpoint(tmp_path, "step_90", saved_at=1.0)  # of an earlier run, which came further
    newest = make_checkpoint(tmp_path, "step_10", saved_at=3.0)
    make_checkpoint(tmp_path, "step_5", saved_at=2.0)
    (make_checkpoint(tmp_path, "step_20", saved_at=4.0) / ".metadata").unlink()  # a copy that was cut off
    (make_checkpoint(tmp_path, "step_21", saved_at=5.0) / ".metadata").write_bytes(b"")  # and one a moment later
    (tmp_path / ".step_30.tmp").mkdir()
    assert find_newest(tmp_path) == newest


@pytest.mark.parametrize(
    "progress",
    [
        *({name: PROGRESS[name] for name in PROGRESS if name != left_out} for left_out in PROGRESS),
        {},
        [],
        {**PROGRESS, "step": "1"},
        {**PROGRESS, "config": {"layers": 2, "heads": 2, "dim": 64}},
    ],
)
def test_a_checkpoint_that_says_too_little_is_not_whole(progress: object, tmp_path: Path) -> None:
    older = make_checkpoint(tmp_path, "step_1", saved_at=1.0)
    newer = make_checkpoint(tmp_path, "step_2", saved_at=2.0)
    assert find_newest(tmp_path) == newer
    (newer / "progress.json").write_text(json.dumps(progress))
    assert find_newest(tmp_path) == older


def test_the_start_report_says_where_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def resume_lines(*argv: str) -> list[str]:
        assert trainer.main([*SHORT, *argv]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("resume")]

    assert resume_lines() == []
    step = "outputs/checkpoints/step_2"
    assert resume_lines("--resume", "auto", "--epochs", "2") == [f"resume  {step}, step 2 of epoch 2"]
    assert resume_lines("--save-dir", "new", "--resume", "auto") == ["resume  nothing to resume, starting from scratch"]


def test_a_checkpoint_with_a_hole_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert trainer.main([*SHORT, "--epochs", "1"]) == 0
    capsys.readouterr()
    step = Path("outputs/checkpoints/step_2")
    metadata = (step / ".metadata").read_bytes()
    (step / ".metadata").write_bytes(metadata[:-1])
    assert trainer.main([*SHORT, "--resume", "auto"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{step}: can't be read: ")
    assert said.endswith("; fix: name another one with --resume PATH\n")
    assert said.count("\n") == 1
    (step / ".metadata").write_bytes(metadata)
    torch.save({"states": [{"python": torch.zeros(3)}]}, step / "random.pt")
    assert trainer.main([*SHORT, "--resume", str(step)]) == 2
    said = capsys.readouterr().err
    assert (
        said
        == f"{step}: can't be read: random.pt: KeyError: 'python_spare'; fix: name another one with --resume PATH\n"
    )
    (step / "__0_0.distcp").unlink()
    assert trainer.main([*SHORT, "--resume", str(step)]) == 2
    missing = "__0_0.distcp: No such file or directory"
    assert capsys.readouterr().err == f"{step}: can't be read: {missing}; fix: name another one with --resume PATH\n"


def test_a_checkpoint_takes_the_place_of_one_of_that_name(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "step_1", saved_at=1.0)
    make_checkpoint(tmp_path, "step_1", saved_at=2.0)
    assert json.loads((tmp_path / "step_1" / "progress.json").read_text())["saved_at"] == 2


def test_the_oldest_checkpoints_go_and_what_was_left_half_done(tmp_path: Path) -> None:
    for number in (3, 1, 2):
        make_checkpoint(tmp_path, f"step_{number}", saved_at=float(number))
    (tmp_path / ".step_9.tmp").mkdir()
    (tmp_path / "notes").mkdir()
    prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "step_2", "step_3"]


def test_a_folder_that_can_not_be_made_is_one_line(tmp_path: Path) -> None:
    make_folder(str(tmp_path / "a" / "b"))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as caught:
        make_folder(str(tmp_path / "file" / "b"))
    assert str(caught.value) == f"{tmp_path}/file/b: can't save there: Not a directory"


def test_the_best_checkpoint_is_kept_beside_the_newest(tmp_path: Path) -> None:
    for step, loss in enumerate((None, 2.5, 2.0, 2.25, float("nan"), 3.0)):
        make_checkpoint(tmp_path, f"step_{step}", saved_at=float(step))
        said = tmp_path / f"step_{step}" / "progress.json"
        said.write_text(json.dumps({**json.loads(said.read_text()), "validation_loss": loss}))
    prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_2", "step_4", "step_5"]
    assert find_best(find_whole(tmp_path)) == (tmp_path / "step_2", 2.0)
    assert find_best([tmp_path / "step_4"]) is None


@pytest.mark.parametrize(
    ("name", "is_folder", "reason"),
    [
        ("checkpoints", False, "Not a directory"),
        ("model.pt", True, "Is a directory"),
        ("metrics.jsonl", True, "Is a directory"),
    ],
)
def test_what_is_in_the_way_is_found_at_the_start(name: str, is_folder: bool, reason: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir() if is_folder else (tmp_path / name).touch()
    with pytest.raises(ConfigError) as caught:
        make_folder(str(tmp_path))
    assert str(caught.value) == f"{tmp_path}/{name}: can't save there: {reason}"


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
    config = TrainConfig(save_dir=str(tmp_path))
    model = build_model(config)
    learner = build_learner(Replica(model, model, table_of(1)), config, WORLD.device)
    checkpoints = Checkpoints(config, single_rank, learner, make_cpu_group())
    for most_bytes in (4 << 10, 20 << 10):  # less than random.pt has, and less than the model has
        with limited_files(most_bytes), pytest.raises(SaveError) as caught:
            checkpoints.save(Position(3))
        assert str(caught.value) == f"{tmp_path}/checkpoints/step_3: not saved: File too large"
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "checkpoints").touch()
    with pytest.raises(SaveError) as caught:
        checkpoints.save(Position(3))
    assert str(caught.value) == f"{tmp_path}/checkpoints/step_3: not saved: checkpoints: File exists"
    (tmp_path / "model.pt").mkdir()
    with pytest.raises(SaveError) as caught:
        checkpoints.export()
    assert str(caught.value).startswith(f"{tmp_path}/model.pt: not saved: ")
    assert str(caught.value).endswith(": Is a directory")


def test_a_checkpoint_with_other_groups_of_parameters_is_resumed(single_rank: World, tmp_path: Path) -> None:
    """Checkpoints of earlier versions have a single group, which decays."""
    step = str(tmp_path / "checkpoints" / "step_3")
    config = TrainConfig(save_dir=str(tmp_path), data="regression", layers=1, resume=step)
    model = build_model(config)
    replica = Replica(model, model, table_of(1))
    learner = build_learner(replica, config, WORLD.device)
    single_group = torch.optim.AdamW(model.parameters(), 0.5, weight_decay=0.5)
    older = replace(learner, optimizer=single_group)
    older.take_step([make_regression(8, seed=3)], lr=0.5)
    Checkpoints(config, single_rank, older, make_cpu_group()).save(Position(3))
    moments = [single_group.state[weights]["exp_avg"].clone() for weights in model.parameters()]

    assert Checkpoints(config, single_rank, learner, make_cpu_group()).resume() == Position(3)
    loaded = [learner.optimizer.state[weights]["exp_avg"] for weights in model.parameters()]
    assert all(torch.equal(*pair) for pair in zip(moments, loaded, strict=True))
    assert [(group["lr"], group["weight_decay"]) for group in learner.optimizer.param_groups] == [
        (config.lr, config.weight_decay),
        (config.lr, 0),
    ]


def test_the_reason_is_the_innermost() -> None:
    try:
        try:
            raise OSError(28, "No space left on device")
        finally:
            raise RuntimeError("unexpected pos 64 vs 0")
    except RuntimeError as error:
        failed = CheckpointException(
            "write", {1: (CheckpointException("w", {0: (error, StackSummary())}), StackSummary())}
        )
    assert str(SaveError(Path("step_3"), failed)) == "step_3: not saved: No space left on device"
    assert str(SaveError(Path("model.pt"), ValueError("odd\nlong"))) == "model.pt: not saved: ValueError: odd"


def test_a_picture_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert trainer.main(SHORT) == 0
    finished = [*SHORT, "--resume", "auto", "--plot"]
    assert trainer.main([*finished, "curve.svg"]) == 0
    assert "nothing left to train" in capsys.readouterr().out
    assert (tmp_path / "curve.svg").is_file()
    (tmp_path / "gone.svg").symlink_to("no/such/folder.svg")
    assert trainer.main([*finished, "gone.svg"]) == 0
    assert capsys.readouterr().err == "warning: can't draw gone.svg: gone.svg: No such file or directory\n"


@pytest.mark.parametrize(("log_every", "step"), [("1", 2), ("20", 3)])
def test_a_loss_that_is_not_finite_ends_the_run_unsaved(
    log_every: str, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the step that logs, or that would save."""
    monkeypatch.chdir(tmp_path)
    argv = ["--data-size", "100", "--batch-size", "2", "--steps-per-epoch", "9", "--save-every", "3"]
    config = read_config([*argv, "--lr", "1e30", "--warmup-steps", "0", "--clip-norm", "0", "--log-every", log_every])
    world = distributed.init("gloo", timeout_s=DEADLINE_S)
    try:
        with pytest.raises(RunError) as caught:
            train(config, world)
    finally:
        distributed.shutdown()
    assert str(caught.value) == f"step {step}: the loss is not finite"
    (folder,) = (tmp_path / "outputs").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [".lock", ".trainer.json", "metrics.jsonl"]


def test_the_groups_of_a_mesh_get_the_time_limit_in_torchs_public_way(
    single_rank: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch 2.15 has one, and warns of the private function on each rank."""
    limits: list[tuple[timedelta, int]] = []

    def set_timeout(limit: timedelta, group: Any) -> None:
        limits.append((limit, group.size()))

    monkeypatch.setattr(torch.distributed, "set_timeout", set_timeout, raising=False)
    make_mesh(table_of(1), single_rank)
    assert limits == [(timedelta(seconds=DEADLINE_S), 1)] * 2


def test_one_run_at_a_time_saves_in_a_folder(tmp_path: Path) -> None:
    lock = lock_folder(str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        lock_folder(str(tmp_path))
    assert str(caught.value) == f"{tmp_path}: another run is saving there"
    fork = multiprocessing.get_context("fork")
    begun, ended = fork.Event(), fork.Event()
    worker = fork.Process(target=lambda: (begun.set(), ended.wait(60)))
    worker.start()
    try:
        assert begun.wait(60)
        lock.close()
        lock_folder(str(tmp_path)).close()  # a child process doesn't hold it on
    finally:
        ended.set()
        worker.join()


def test_a_checkpoint_of_another_model_is_refused() -> None:
    saved = {"kind": "text", **asdict(TrainConfig())}
    check_model(Path("step_1"), saved, saved)
    with pytest.raises(ConfigError) as caught:
        check_model(Path("step_1"), saved, {**saved, "layers": 3})
    assert str(caught.value) == "step_1: saved with layers 2, but this run has 3"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nodes", "3"], "--nodes 3, but the ranks are on 2 nodes: gpu1, gpu2"),
        (["--gpus-per-node", "8"], "--gpus-per-node 8, but gpu2 has 4 ranks: there is one rank per GPU"),
    ],
)
def test_another_world_than_was_asked_for(argv: list[str], message: str) -> None:
    nodes = [Node("gpu1", 8), Node("gpu2", 4)]
    check_nodes(nodes, TrainConfig(nodes=2))
    with pytest.raises(ConfigError) as caught:
        check_nodes(nodes, read_config(argv))
    assert str(caught.value) == message


def test_characters_are_numbered_in_their_order() -> None:
    text = torch.frombuffer(bytearray("Grüße, 世界!".encode()), dtype=torch.uint8)
    vocabulary, numbers = number_characters(text, None, "a.txt")
    assert (vocabulary, numbers.dtype) == (" !,Gerßü世界", torch.uint8)
    assert "".join(vocabulary[number] for number in numbers) == "Grüße, 世界!"
    assert number_characters(text, 4, "a.txt")[0] == "Grßü"  # of characters, not bytes
    assert number_characters(text[:0], None, "a.txt")[1].tolist() == []
    many = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
    vocabulary, numbers = number_characters(torch.tensor(list(many.encode()), dtype=torch.uint8), None, "a.txt")
    assert (vocabulary, numbers.dtype, numbers.tolist()) == (many, torch.int16, list(range(300)))
    with pytest.raises(ConfigError) as caught:
        number_characters(torch.tensor([65, 255], dtype=torch.uint8), None, "a.bin")
    assert str(caught.value) == "a.bin: byte 1 isn't UTF-8 text, so it has no characters; fix: use --tokens bytes"


def test_the_peak_of_the_memory_in_words(single_rank: World) -> None:
    kind, most, unit = describe_peak_memory(single_rank).rsplit(" ", 2)
    assert (kind, 0.01 < float(most) < 100, unit) == ("peak memory", True, "GB")


def test_the_start_report() -> None:
    task = text_task(torch.zeros(2000, dtype=torch.uint8), context=10)
    world = World(0, 16, 0, 8, torch.device("cpu"), "gloo", "srun", job_id="4711")
    report = describe_start(world, [Node("gpu1", 8), Node("gpu2", 8)], table_of(16), task, build_model(TrainConfig()))
    assert report.splitlines() == [
        "job     4711",
        "nodes   2: gpu1, gpu2",
        "ranks   16, 8 per node, from srun",
        "device  cpu, gloo",
        "batch   ddp, 48 samples per step (16 ranks x batch size 3)",
        "data    2.0k bytes of zeros, 199 samples, 0 to validate",
        "model   137.0k parameters",
    ]
    nodes = [Node(f"gpu{number}", 2) for number in range(1, 11)]
    spread = RankTable("fsdp+tp", 5, 0, 4, 3, 2)
    report = describe_start(replace(WORLD, world_size=20), nodes, spread, task, build_model(TrainConfig()))
    assert report.splitlines() == [
        "nodes   10: gpu1, gpu2, gpu3, gpu4, gpu5, gpu6, gpu7, gpu8 and 2 more",
        "ranks   20, 2 per node, from single process",
        "device  cpu, gloo",
        "batch   fsdp+tp, 30 samples per step (5 groups of 4 ranks x batch size 3 x 2 passes)",
        "data    2.0k bytes of zeros, 199 samples, 0 to validate",
        "model   137.0k parameters",
        "warning some groups of 4 ranks span two nodes, so each matrix product waits for the network",
    ]


def test_ranks_are_reported_one_by_one_if_they_are_few() -> None:
    assert describe_ranks(CONFIG, WORLD) == f"\nrank 0  , cpu, pid {os.getpid()}"
    shard = f"\nrank 0  , cpu, pid {os.getpid()}, 34.2k of 137.0k parameters"
    assert describe_ranks(CONFIG, WORLD, (34_240, 136_960)) == shard
    assert describe_ranks(replace(CONFIG, report_ranks="off"), WORLD) == ""
    many = replace(WORLD, world_size=17)
    assert describe_ranks(CONFIG, many) == ""
    assert describe_ranks(replace(CONFIG, report_ranks="on"), many).count("\nrank ") == 17


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999.4, "999"),
        (12_345, "12.3k"),
        (999_949, "999.9k"),
        (999_950, "1.00M"),
        (4_560_000, "4.56M"),
    ],
)
def test_short(number: float, text: str) -> None:
    assert short(number) == text
