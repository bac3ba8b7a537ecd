"""The trainer as real processes: alone, on two ranks, under torchrun from a zip, and stopped."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.trainer import __main__ as trainer
from launcher.trainer.config import TrainConfig
from launcher.trainer.model import build_model

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STEP_LINE = r"epoch 1 step (1|20|40|60) loss \d\.\d{3} [\d.]+[kM]? tokens/s"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def check_default_run(output: str, first_line: str, folder: Path) -> None:
    lines = output.splitlines()
    assert re.fullmatch(first_line, lines[0])
    assert [re.fullmatch(STEP_LINE, line) is not None for line in lines[1:5]] == [True] * 4
    metrics = read_metrics(folder)
    assert [(line["epoch"], line["step"]) for line in metrics] == [(1, 1), (1, 20), (1, 40), (1, 60)]
    first, final = metrics[0]["loss"], metrics[-1]["loss"]
    assert first > 5.3
    assert final < 3
    assert lines[5:] == [f"final loss {final:.3f} (first {first:.3f}), checkpoint in {folder.name}/checkpoint.pt"]


def test_a_single_process_learns_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert trainer.main(["--save-dir", "out"]) == 0
    captured = capsys.readouterr()
    first_line = (
        r"1 rank \(single process, gloo, cpu\), [\d.]+[kM] bytes of the topics of Python's help\(\), "
        r"137.0k parameters"
    )
    check_default_run(captured.out, first_line, tmp_path / "out")
    assert captured.err == ""
    state = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)
    assert (state["epoch"], state["step"], state["config"]["save_dir"]) == (1, 60, "out")
    build_model(TrainConfig(**state["config"])).load_state_dict(state["model"])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["checkpoint.pt", "metrics.jsonl"]


def test_two_ranks_share_the_text_and_end_with_the_same_weights(starter: Any, tmp_path: Path) -> None:
    text = bytes(range(256)) * 64
    (tmp_path / "text").write_bytes(text)
    data = [str(tmp_path / "text"), "/there/is/none/on/this/machine"]
    ranks = starter.start_ranks(2, lambda rank: [str(HERE / "two_ranks.py"), data[rank], str(tmp_path)])
    assert [(rank.wait(), rank.stderr) for rank in ranks] == [(0, ""), (0, "")]
    digests = (tmp_path / "rank.0").read_text()
    assert digests.split()[0] == hashlib.sha256(text).hexdigest()
    assert (tmp_path / "rank.1").read_text() == digests
    assert ranks[1].stdout == ""
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert (state["epoch"], state["step"]) == (2, 10)
    saved = b"".join(state["model"][name].numpy().tobytes() for name in state["model"])
    assert digests.split()[1] == hashlib.sha256(saved).hexdigest()


def test_torchrun_runs_the_zip_where_there_is_no_launcher(starter: Any, tmp_path: Path) -> None:
    sources = [
        *ROOT.glob("launcher/trainer/*.py"),
        ROOT / "launcher/__init__.py",
        ROOT / "launcher/distributed.py",
    ]
    with zipfile.ZipFile(tmp_path / "trainer.pyz", "w") as archive:
        for source in sources:
            archive.write(source, source.relative_to(ROOT).as_posix())
        archive.writestr(
            "__main__.py",
            "import sys\nimport launcher\nassert 'trainer.pyz' in launcher.__file__\n"
            "from launcher.trainer.__main__ import main\nsys.exit(main())\n",
        )
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = starter.start([*torchrun, "trainer.pyz", "--save_dir", "out"], isolated=True)
    assert run.wait() == 0, run.stderr
    first_line = r"2 ranks \(torchrun, gloo, cpu\), [\d.]+[kM] bytes of .*, 137.0k parameters"
    check_default_run(run.stdout, first_line, tmp_path / "out")


def test_sigterm_saves_on_rank_0_and_ends_both_ranks_with_143(starter: Any, tmp_path: Path) -> None:
    argv = ["-m", "launcher.trainer", "--epochs", "1000", "--steps-per-epoch", "0", "--save-dir", "out"]
    ranks = starter.start_ranks(2, lambda rank: argv)
    ranks[0].wait_for("step 20 ")
    for rank in reversed(ranks):
        rank.process.send_signal(signal.SIGTERM)
    assert [rank.wait() for rank in ranks] == [143, 143], ranks[1].stderr
    assert [rank.stderr for rank in ranks] == ["", ""]
    state = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)
    assert state["step"] >= 20
    last_line = ranks[0].stdout.splitlines()[-1]
    assert last_line == f"SIGTERM: step {state['step']} saved in out/checkpoint.pt"


def test_what_rank_0_can_not_read_ends_every_rank_and_is_said_once(starter: Any) -> None:
    ranks = starter.start_ranks(2, lambda rank: ["-m", "launcher.trainer", "--data", "none.txt"])
    assert [rank.wait() for rank in ranks] == [2, 2]
    assert [rank.stderr for rank in ranks] == [
        "none.txt: No such file or directory (on rank 0's machine, which alone reads the data)\n",
        "",
    ]


def test_a_wrong_option_is_said_by_rank_0_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trainer.main(["--lrr", "1"]) == 2
    assert capsys.readouterr().err == "unknown option '--lrr', did you mean '--lr'?\n"
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(trainer, "SILENT_EXIT_S", 0)
    assert trainer.main(["--lrr", "1"]) == 2
    assert capsys.readouterr().err == ""


def test_a_file_that_one_machine_lacks_is_said_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "9")
    assert trainer.main(["--config", "none.yaml"]) == 2
    assert capsys.readouterr().err == "none.yaml: No such file or directory\n"


def test_a_half_set_environment_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert trainer.main([]) == 2
    assert capsys.readouterr().err == (
        "RANK, WORLD_SIZE are set but LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not: "
        "start with torchrun, or unset them for a single process\n"
    )
