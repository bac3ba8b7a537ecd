"""The trainer as real processes: alone, on two ranks, under torchrun from a zip, and stopped."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import socket
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from machines.patience import slowed
from machines.ports import free_port
from machines.processes import wait_until

from launcher.trainer import __main__ as trainer
from launcher.trainer import train as training
from launcher.trainer.config import TrainConfig
from launcher.trainer.model import build_model

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SIXTY = ["--steps-per-epoch", "60"]
STEP_LINE = r"epoch 1 step (1|20|40|60) loss \d\.\d{3} gradient norm [\d.]+ [\d.]+[kM]? tokens/s"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def check_default_run(lines: list[str], folder: Path) -> None:
    assert lines[0] == f"nodes   {socket.gethostname()}"
    assert lines[1:4] == [
        "ranks   1, from single process",
        "device  cpu, gloo",
        "batch   single, 16 samples per step (batch size 16 x accumulate 1 x data parallel 1)",
    ]
    data = r"data    [\d.]+[kM] bytes of the topics of Python's help\(\), [\d.]+k samples, \d+ to validate"
    assert re.fullmatch(data, lines[4])
    host = socket.gethostname()
    assert lines[5:9] == [
        "model   137.0k parameters",
        "saves   out",
        f"rank 0  {host}, cpu, pid {os.getpid()}",
        "train   1 epoch of 60 steps, learning rate 0.003",
    ]
    assert [re.fullmatch(STEP_LINE, line) is not None for line in lines[9:13]] == [True] * 4
    metrics = read_metrics(folder)
    assert [(line["epoch"], line["step"]) for line in metrics] == [(1, 1), (1, 20), (1, 40), (1, 60), (1, 60)]
    first, final, validation = metrics[0]["loss"], metrics[3]["loss"], metrics[4]["validation_loss"]
    assert first > 5.3
    assert final < 3.2
    assert {"gradient_norm", "peak_memory_mb"} <= metrics[0].keys()
    assert metrics[4]["validation_perplexity"] == pytest.approx(math.exp(validation))
    peak = lines[14].split(", ")[1]
    assert lines[13:] == [
        f"epoch 1 step 60 validation loss {validation:.3f} perplexity {math.exp(validation):.4g}",
        f"final loss {final:.3f} (first {first:.3f}), {peak}, model in {folder.name}/model.pt",
    ]


def test_a_single_process_learns_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert trainer.main([*SIXTY, "--save-dir", "out"]) == 0
    captured = capsys.readouterr()
    check_default_run(captured.out.splitlines(), tmp_path / "out")
    assert captured.err == ""
    state = torch.load(tmp_path / "out" / "model.pt", weights_only=True)
    model = build_model(TrainConfig(**state["config"])).to_empty(device="cpu")
    model.load_state_dict(state["model"])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        ".lock",
        "checkpoints",
        "metrics.jsonl",
        "model.pt",
    ]
    assert [path.name for path in (tmp_path / "out" / "checkpoints").iterdir()] == ["step_60"]

    assert trainer.main([*SIXTY, "--save-dir", "out", "--resume", "auto"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing left to train, model in out/model.pt"


def test_the_line_that_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a machine without a GPU; less of it, so that it ends soon."""
    monkeypatch.chdir(tmp_path)
    line = f"--config {ROOT}/config/local3.yaml --save-dir outputs --batch_size 64 --lr 1e-2 --data_size 1000"
    assert trainer.main([*line.split(), "--distributed-backend", "nccl", "--epochs", "20"]) == 2
    assert capsys.readouterr().err == (
        "backend nccl needs a GPU, but torch sees none here; fix: use gloo to run on the CPU\n"
    )
    assert trainer.main([*line.split(), "--epochs", "2", "--evaluate-on", "main"]) == 0
    assert "64.0k bytes of the topics of Python's help(), 900 samples, 100 to validate" in capsys.readouterr().out
    losses = [line["validation_loss"] for line in read_metrics(tmp_path / "outputs") if "validation_loss" in line]
    assert losses[1] < losses[0]


def test_torchrun_runs_the_zip_where_there_is_no_launcher(starter: Any, tmp_path: Path) -> None:
    sources = [
        *ROOT.glob("launcher/trainer/**/*.py"),
        ROOT / "launcher/__init__.py",
        ROOT / "launcher/distributed.py",
        ROOT / "launcher/exchange.py",
    ]
    with zipfile.ZipFile(tmp_path / "trainer.pyz", "w") as archive:
        for source in sources:
            archive.write(source, source.relative_to(ROOT).as_posix())
        archive.writestr(
            "__main__.py",
            "import sys\nimport launcher\nassert 'trainer.pyz' in launcher.__file__\n"
            "from launcher.trainer.__main__ import main\nsys.exit(main())\n",
        )
    run = starter.start_torchrun("--nproc-per-node", "2", "trainer.pyz", "--save_dir", "out", "--steps_per_epoch", "2")
    assert run.wait() == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[1] == "ranks   2, from torchrun"
    assert lines[3] == "batch   ddp, 32 samples per step (batch size 16 x accumulate 1 x data parallel 2)"
    where = rf"{re.escape(socket.gethostname())}, cpu, pid \d+"
    assert re.fullmatch(rf"rank 0  {where}\nrank 1  {where}", "\n".join(lines[7:9]))
    assert lines[-1].endswith("model in out/model.pt")
    assert (tmp_path / "out" / "model.pt").exists()


# A small model, whose epochs still take many steps.
SMALL = ["--layers", "1", "--dim", "16", "--context", "8", "--log-every", "5"]
ENDLESS = ["-m", "launcher.trainer", "--epochs", "1000", "--steps-per-epoch", "0", *SMALL, "--save-dir", "out"]


def saved_step(folder: Path) -> int:
    (path,) = (folder / "out" / "checkpoints").glob("step_*")
    return int(json.loads((path / "progress.json").read_text())["step"])


def test_sigterm_to_all_saves_and_ends_all_with_143(starter: Any, tmp_path: Path) -> None:
    """As Slurm sends it, to all processes; one of the two ranks gets it later."""
    ranks = starter.start_ranks(2, lambda rank: [*ENDLESS, "--workers", "1"])
    ranks[0].wait_for("step 5 ")
    for rank in reversed(ranks):
        os.killpg(rank.process.pid, signal.SIGTERM)
    assert [rank.wait() for rank in ranks] == [143, 143], ranks[1].stderr
    assert [rank.stderr for rank in ranks] == ["", ""]
    step = saved_step(tmp_path)
    assert step >= 5
    typed = f"--epochs 1000 --steps-per-epoch 0 {' '.join(SMALL)} --save-dir out --workers 1"
    assert ranks[0].stdout.splitlines()[-3:] == [
        f"SIGTERM: step {step} saved in out/checkpoints/step_{step}",
        f"newest checkpoint: out/checkpoints/step_{step}",
        f"to continue: start it as before, with: {typed} --save-dir out --resume",
    ]
    assert wait_until(lambda: all(rank.is_empty() for rank in ranks))


def test_rank_0_names_the_newest_checkpoint_when_a_peer_is_gone(starter: Any) -> None:
    ranks = starter.start_ranks(2, lambda rank: [*ENDLESS, "--save-every", "5"])
    ranks[0].wait_for("step 10 ")
    ranks[1].process.send_signal(signal.SIGSTOP)  # no vote is held any more
    ranks[0].process.send_signal(signal.SIGTERM)
    ranks[1].process.kill()
    assert [rank.wait() for rank in ranks] == [143, -signal.SIGKILL], ranks[0].stderr
    lines = r"SIGTERM: step \d+ not saved, because a rank has ended\nnewest checkpoint: out/checkpoints/step_\d+\nto "
    assert re.search(lines, ranks[0].stdout)


# The ranks of `runs_in_turn.py`; in the second run rank 0 validates slowly, and its disk is slow.
SLOW_MAIN_RANK = f"""
import os, runpy, sys, time
import torch
fsync, train, delay_s = os.fsync, torch.nn.Module.train, float(sys.argv.pop())
def delay(wanted):
    time.sleep(delay_s if wanted and sys.argv[1] == "0" and os.path.exists("fast/model.pt") else 0)
def slow_fsync(file):
    delay(os.readlink(f"/proc/self/fd/{{file}}").endswith("state.pt"))
    fsync(file)
def slow_train(module, mode=True):
    delay(not mode and hasattr(module, "blocks"))
    return train(module, mode)
os.fsync, torch.nn.Module.train = slow_fsync, slow_train
runpy.run_path({str(HERE / "runs_in_turn.py")!r}, run_name="__main__")
"""


def test_work_of_rank_0_may_take_longer_than_the_time_limit(starter: Any, tmp_path: Path) -> None:
    """Validation and saving by rank 0. In the first run the ranks import all that takes long."""
    limit_s = slowed(1.5)  # a busy machine may hold up a rank for a second
    delay_s = 1.2 * limit_s
    argv = [*SMALL, "--steps-per-epoch", "2", "--evaluate-on", "main"]
    turns = [(2, free_port(), ".", ["--save-dir", "fast", *argv])]
    turns.append((2, free_port(), ".", ["--save-dir", "slow", *argv, "--timeout", str(limit_s)]))
    argv = ["-c", SLOW_MAIN_RANK]
    ranks = [starter.start([*argv, str(rank), json.dumps(turns), str(delay_s)], warm=True) for rank in range(2)]
    assert [(rank.wait(), rank.stderr) for rank in ranks] == [(0, "")] * 2
    times_s = [line["elapsed_s"] for line in read_metrics(tmp_path / "slow")]
    assert times_s[-1] - times_s[-2] >= delay_s  # of the validation
    progress = json.loads((tmp_path / "slow" / "checkpoints" / "step_2" / "progress.json").read_text())
    assert (tmp_path / "slow" / "model.pt").stat().st_mtime - progress["saved_at"] >= delay_s


def test_what_rank_0_can_not_read_ends_every_rank_and_is_said_once(starter: Any) -> None:
    ranks = starter.start_ranks(2, lambda rank: ["-m", "launcher.trainer", "--data", "none.txt", "--num-workers", "0"])
    assert [rank.wait() for rank in ranks] == [2, 2]
    assert [rank.stderr for rank in ranks] == [
        "none.txt: No such file or directory on rank 0's host\n",
        "",
    ]


def test_a_wrong_option_is_said_by_rank_0_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trainer.main(["--lrr", "1"]) == 2
    assert capsys.readouterr().err == "unknown option '--lrr', did you mean '--lr'?\n"
    place = {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": 29500}
    for name, value in {**place, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(training, "SILENT_EXIT_S", 0)
    assert trainer.main(["--lrr", "1"]) == 2
    assert capsys.readouterr().err == ""
