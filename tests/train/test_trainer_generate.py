"""Text from trained models: of one rank and of two, in bytes and in characters; and the validation of a checkpoint."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.trainer import __main__ as trainer
from launcher.trainer import generate

TEXT = "To be, or not to be: that is the question. " * 160
SMALL = ["--layers", "1", "--dim", "16", "--context", "16", "--batch-size", "8", "--lr", "1e-2", "--data", "text"]
CHARACTERS = [*SMALL, "--tokens", "characters", "--steps-per-epoch", "30"]

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Call one of the two programs in a folder with a text; return its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text(TEXT)

    def call(main: Callable[[list[str]], int], *words: str) -> tuple[int, str, str]:
        code = main(list(words))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def write(say: Say, model: str, *words: str) -> str:
    code, out, err = say(generate.main, "--model", model, "--prompt", "To be", "--seed", "3", *words)
    assert (code, err) == (0, "")
    return out


def test_what_was_trained_writes_text(say: Say) -> None:
    assert say(trainer.main, *CHARACTERS, "--epochs", "3", "--save-dir", "out")[0] == 0
    text = write(say, "out", "--length", "30")
    assert (len(text), text[:5], text[-1]) == (36, "To be", "\n")
    assert set(text) <= {*TEXT, "\n"}
    assert (
        text == write(say, "out/model.pt", "--length", "30") == write(say, "out/checkpoints/step_90", "--length", "30")
    )
    Path("out/model.pt").unlink()  # as if the run went on
    assert text == write(say, "out", "--length", "30")
    likeliest = write(say, "out", "--length", "30", "--temperature", "0")
    assert likeliest == write(say, "out", "--length", "30", "--top-k", "1", "--seed", "4")
    assert len({*likeliest.split()} & {*TEXT.split()}) >= 3  # it has learned words
    assert say(generate.main, "--model", "out", "--prompt", "Tö")[::2] == (
        2,
        "--prompt: the model doesn't know 'ö'; fix: use only characters of ' ,.:Tabehinoqrstu'\n",
    )


def test_ranks_that_share_the_matrices_learn_the_same_characters(say: Say, starter: Any, tmp_path: Path) -> None:
    """There are 17 of them, which two ranks can't share evenly."""
    few = [*CHARACTERS, "--steps-per-epoch", "10"]
    assert say(trainer.main, *few, "--save-dir", "alone")[0] == 0
    argv = ["-m", "launcher.trainer", *few, "--parallel", "tp", "--save-dir", "shared"]
    ranks = starter.start_ranks(2, lambda rank: argv)
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].stderr
    shards = re.findall(r"^rank \d .*, ([\d.]+k) of ([\d.]+k) parameters$", ranks[0].stdout, re.MULTILINE)
    assert len(shards) == 2
    assert all(float(own[:-1]) < 0.6 * float(whole[:-1]) for own, whole in shards)
    alone, shared = (
        re.findall(r'"loss": ([\d.]+)', (tmp_path / name / "metrics.jsonl").read_text()) for name in ("alone", "shared")
    )
    assert [*map(float, shared)] == pytest.approx([*map(float, alone)], rel=1e-4)
    for model in ("model.pt", "checkpoints/step_10"):
        text = write(say, f"shared/{model}", "--length", "20", "--temperature", "0")
        assert text == write(say, "alone", "--length", "20", "--temperature", "0")


def test_bytes_are_spelled_as_whole_characters(say: Say) -> None:
    assert generate.encode("é", "") == [0xC3, 0xA9]
    assert generate.clean("a\x1b[2J\n\tb\u202e") == "a\ufffd[2J\n\tb\ufffd"
    assert say(trainer.main, *SMALL, "--steps-per-epoch", "1", "--save-dir", "out")[0] == 0
    assert write(say, "out", "--length", "3").startswith("To be")
    assert write(say, "out", "--length", "0") == "To be\n"
    with pytest.raises(SystemExit):
        generate.main(["--model", "out", "--temperature", "nan"])


@pytest.mark.parametrize("temperature", [1e-300, 1.0, 1e300])
def test_no_temperature_overflows(temperature: float) -> None:
    logits = torch.tensor([1e4, -1e4, 9e3])
    drawn = generate.choose(logits, temperature, 2, torch.Generator().manual_seed(1))
    assert drawn == 0 if temperature < 1e300 else drawn in (0, 2)


def test_what_is_no_model_is_one_line(say: Say, tmp_path: Path) -> None:
    assert say(trainer.main, "--data-size", "50", "--steps-per-epoch", "1", "--save-dir", "numbers")[0] == 0
    torch.save({"model": Path("a")}, tmp_path / "code.pt")
    (tmp_path / "a").write_text("hello")
    for name, reason in {
        "numbers": "numbers/model.pt: a model of the made-up regression can't write text; fix: train on a text",
        "missing.pt": "missing.pt: No such file or directory; fix: name a model.pt, a run's directory or a checkpoint",
    }.items():
        assert say(generate.main, "--model", name) == (2, "", f"{reason}\n")
    for name in ("code.pt", "a"):
        code, out, err = say(generate.main, "--model", name)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"{name}: not a model of this trainer: ")


def test_a_checkpoint_is_validated_and_nothing_is_written(say: Say, tmp_path: Path) -> None:
    options = [*CHARACTERS, "--epochs", "4", "--keep", "4", "--save-every", "2epochs"]
    _, out, _ = say(trainer.main, *options, "--save-dir", "out")
    losses = dict(re.findall(r"step (\d+) validation loss ([\d.]+)", out))
    assert sorted(path.name for path in Path("out/checkpoints").iterdir()) == ["step_120", "step_60"]
    (tmp_path / "outputs").mkdir(exist_ok=True)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for words, epoch, step in ((["--save-dir", "out"], 4, "120"), (["--resume", "out/checkpoints/step_60"], 2, "60")):
        code, out, err = say(trainer.main, *options, *words, "--evaluate-only")
        assert (code, err) == (0, "")
        perplexity = f"perplexity {math.exp(float(losses[step])):.2f}"
        assert out.splitlines()[-1].startswith(
            f"epoch {epoch} step {step} validation loss {losses[step]} {perplexity[:14]}"
        )
        assert "\nsaves " not in out
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert say(trainer.main, *options, "--evaluate-only") == (
        2,
        "",
        "--resume and --evaluate-only need --save-dir DIR, because each run has its own directory\n",
    )
    bytes_instead = [word for word in options if word not in ("--tokens", "characters")]
    assert say(trainer.main, *bytes_instead, "--save-dir", "out", "--evaluate-only") == (
        2,
        "",
        "out/checkpoints/step_120: its tokens are 17 characters, but those of this run are bytes\n",
    )
