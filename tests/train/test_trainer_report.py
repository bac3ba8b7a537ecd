"""What rank 0 reports: the start, the metrics in their file, and the real packages of the trackers."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from machines.patience import DEADLINE_S
from machines.processes import CENSUS_POLL_S, wait_until

from launcher import distributed
from launcher.distributed import World
from launcher.trainer.checkpoint import Position
from launcher.trainer.config import ConfigError, TrainConfig, read_config
from launcher.trainer.data import Data, TokenSequences
from launcher.trainer.model import build_model
from launcher.trainer.parallel import ParallelDims
from launcher.trainer.report import Reporter, continue_command, describe_peak_memory, describe_rank, describe_start
from tests.train.conftest import Starter

CPU = torch.device("cpu")
WORLD = World(0, 1, 0, 1, CPU, "gloo", "single process", host="gpu1")
DATA = Data(TokenSequences(torch.zeros(2001), 10), 199, "2.0k bytes of zeros", "")
LOST = re.compile("no more metrics")


def run_steps(folder: Path, names: str, first: int, last: int, *, exit_code: int = 0) -> None:
    reporter = Reporter(TrainConfig(save_dir=str(folder), track=names), WORLD, DATA, [], 8)
    reporter.open(first - 1)
    for step in range(first, last + 1):
        reporter.record_step(Position(step), 100.0 * first + step, 1.0, 0.1)
    reporter.close(exit_code)


def read_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_line_is_in_the_file_as_soon_as_it_is_logged(tmp_path: Path) -> None:
    reporter = Reporter(TrainConfig(save_dir=str(tmp_path)), WORLD, DATA, [], 8)
    reporter.open(0)
    reporter.record_step(Position(1), math.nan, math.inf, 0.5)
    (line,) = read_lines(tmp_path)
    assert (line["step"], line["epoch"], line["loss"], line["gradient_norm"], line["lr"]) == (1, 1, None, None, 0.5)
    assert {"tokens_per_s", "peak_memory_mb", "elapsed_s"} <= line.keys()
    reporter.record_validation(Position(1), 2.0)
    assert read_lines(tmp_path)[1]["validation_perplexity"] == pytest.approx(math.exp(2))


def test_a_resumed_run_appends_after_a_line_that_a_crash_cut_off(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"step": 2, "lo')
    run_steps(tmp_path, "", 2, 3)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert lines[:2] == ['{"step": 1}', '{"step": 2, "lo']
    assert [json.loads(line)["loss"] for line in lines[2:]] == [202, 203]


def test_a_full_disk_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    reporter = Reporter(TrainConfig(save_dir=str(tmp_path)), WORLD, DATA, [], 8)
    reporter.open(0)
    for step in (1, 2):
        reporter.record_step(Position(step), 1.0, 1.0, 0.1)
    reporter.close(0)
    assert (
        capsys.readouterr().err == "metrics.jsonl gets no more metrics: OSError: [Errno 28] No space left on device\n"
    )


def test_a_tracker_that_is_unknown_or_not_installed_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError) as unknown:
        run_steps(tmp_path, "wandb2", 1, 1)
    assert str(unknown.value) == "--track: unknown tracker 'wandb2', must be one of tensorboard, mlflow, wandb"
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError) as missing:
        run_steps(tmp_path, "wandb", 1, 1)
    assert str(missing.value) == (
        "--track wandb: import of wandb halted; None in sys.modules on rank 0's host; fix: run pip install wandb"
    )


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_steps(tmp_path, "tensorboard", 1, 4)
    run_steps(tmp_path, "tensorboard", 3, 5)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [
        (1, 101), (2, 102), (3, 303), (4, 304), (5, 305)
    ]  # fmt: skip
    (_, text) = events.Tensors("config/text_summary")
    assert b"    lr: 0.003\n" in text.tensor_proto.string_val[0]


def test_mlflow_goes_on_with_the_run_that_is_resumed(tmp_path: Path, use_mlflow: Callable[[Path], None]) -> None:
    use_mlflow(tmp_path / "store")
    from mlflow import MlflowClient

    run_steps(tmp_path, "mlflow", 1, 2, exit_code=143)
    run_id = (tmp_path / "mlflow_run_id").read_text()
    assert MlflowClient().get_run(run_id).info.status == "KILLED"
    run_steps(tmp_path, "mlflow", 3, 3)
    run = MlflowClient().get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["lr"] == "0.003"
    assert [(metric.step, metric.value) for metric in MlflowClient().get_metric_history(run_id, "loss")] == [
        (1, 101), (2, 102), (3, 303)
    ]  # fmt: skip
    run_steps(tmp_path, "mlflow", 1, 1, exit_code=1)
    other = (tmp_path / "mlflow_run_id").read_text()
    assert other != run_id
    assert MlflowClient().get_run(other).info.status == "FAILED"


def test_mlflow_whose_store_goes_does_not_end_the_training(
    tmp_path: Path, use_mlflow: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    use_mlflow(tmp_path / "no" / "store")
    (tmp_path / "no").touch()
    run_steps(tmp_path, "mlflow", 1, 2)
    assert len(read_lines(tmp_path)) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if LOST.search(line)] == said[-1:]
    assert said[-1].startswith("mlflow gets no more metrics: ")


@pytest.fixture
def use_mlflow(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Have MLflow keep its runs in a folder: what a server needs is in the large package only."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
    return lambda store: monkeypatch.setenv("MLFLOW_TRACKING_URI", store.as_uri())


WANDB_RUN = """
from pathlib import Path
from tests.train.test_trainer_report import run_steps
run_steps(Path.cwd(), "wandb", 1, 2)
"""


def test_wandb_offline_keeps_the_run_and_leaves_no_process(tmp_path: Path, starter: Starter) -> None:
    pytest.importorskip("wandb", reason="pip install wandb")
    tests = f"{Path(__file__).parents[2]}:{Path(__file__).parents[1]}"
    env = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_RUN_ID": "first", "TMPDIR": str(tmp_path)}
    rank = starter.start(["-c", WANDB_RUN], {**env, "PYTHONPATH": tests}, warm=True)
    assert rank.wait() == 0, rank.stderr
    assert not LOST.search(rank.stderr)
    assert (tmp_path / "wandb_run_id").read_text() == "first"
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")  # what `wandb sync` would send
    for name, values in ((b"loss", [b"101", b"102"]), (b"step", [b"1", b"2"])):  # in the history and the summary
        kept = re.findall(rb"\x04%s\x82\x01.(\d+)" % name, path.read_bytes())  # a Protocol Buffer with JSON in it
        assert [*dict.fromkeys(kept)] == values
    assert wait_until(lambda: not find_processes(str(tmp_path)), poll_s=CENSUS_POLL_S), find_processes(str(tmp_path))


def find_processes(word: str) -> list[str]:
    """Return the command lines of the processes that have `word` in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


@pytest.fixture
def single_rank() -> Any:
    yield distributed.init("gloo", timeout_s=DEADLINE_S)
    distributed.shutdown()


def test_the_start_report(single_rank: World) -> None:
    model = build_model(TrainConfig())
    world = replace(single_rank, job_id="4711", host="gpu1")
    dims = ParallelDims("ddp", 16, 1, 1, 0, 3)
    assert describe_start(TrainConfig(save_dir="out"), world, dims, DATA, model) == [
        "job     4711",
        "nodes   gpu1",
        "ranks   1, from single process",
        "device  cpu, gloo",
        "batch   ddp, 48 samples per step (batch size 3 x accumulate 1 x data parallel 16)",
        "data    2.0k bytes of zeros, 199 samples, 1 to validate",
        "model   137.0k parameters",
        "saves   out",
        f"rank 0  gpu1, cpu, pid {os.getpid()}",
    ]
    spread = ParallelDims("fsdp+tp", 1, 5, 4, 0, 3)
    lines = describe_start(TrainConfig(save_dir="out", accumulate=2), world, spread, DATA, model)
    assert lines[4] == "batch   fsdp+tp, 30 samples per step (batch size 3 x accumulate 2 x data parallel 5)"
    said = "warning some of the 4 ranks that share matrix products are on another node, which is slow"
    assert lines[8:] == [said, f"rank 0  gpu1, cpu, pid {os.getpid()}"]
    for option, said in (
        ({"nodes": 3}, "--nodes 3, but the ranks are on 1: gpu1"),
        ({"gpus_per_node": 8}, "--gpus-per-node 8, but the ranks on gpu1 are 1"),
    ):
        with pytest.raises(ConfigError) as caught:
            describe_start(TrainConfig(**option), world, dims, DATA, model)
        assert str(caught.value) == said


def test_the_peak_of_the_memory_in_words(single_rank: World) -> None:
    kind, most, unit = describe_peak_memory(single_rank).rsplit(" ", 2)
    assert (kind, 0.01 < float(most) < 100, unit) == ("peak memory", True, "GB")


def test_the_command_that_continues_a_run() -> None:
    argv = ["--lr", "1", "--resume", "none"]
    words = "--lr 1 --resume none --save-dir 'a b' --resume"
    assert read_config(shlex.split(words)) == TrainConfig(lr=1.0, save_dir="a b", resume="last")
    for typed in (argv, shlex.split(words)):
        assert continue_command(typed, "a b") == f"start it as before, with: {words}"


def test_a_line_says_where_a_rank_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe_rank(WORLD) == f"rank 0  gpu1, cpu, pid {os.getpid()}"
    monkeypatch.setenv("SLURMD_NODENAME", "gpu02")  # the name that people search a job's output for
    assert describe_rank(WORLD) == f"rank 0  SLURMD_NODENAME=gpu02, cpu, pid {os.getpid()}"
    on_gpu = replace(WORLD, device=torch.device("cuda", 1))
    h100 = SimpleNamespace(uuid="1f2e3d4c", total_memory=84_929_347_584)
    older = SimpleNamespace(total_memory=84_929_347_584)
    for gpu, device in ((h100, "cuda:1 GPU-1f2e3d4c, 79 GB"), (older, "cuda:1, 79 GB")):
        monkeypatch.setattr(torch.cuda, "get_device_properties", {on_gpu.device: gpu}.get)  # a fake: another torch
        assert describe_rank(on_gpu) == f"rank 0  SLURMD_NODENAME=gpu02, {device}, pid {os.getpid()}"
