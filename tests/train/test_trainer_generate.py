"""Text from trained models; that of shards is in test_trainer_steps.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from launcher.trainer import __main__ as trainer
from launcher.trainer import generate

TEXT = "To be, or not to be: that is the question. " * 160
SMALL = ["--layers", "1", "--dim", "16", "--context", "16", "--batch-size", "8", "--lr", "1e-2", "--data", "text"]
THIRTY = [*SMALL, "--steps-per-epoch", "30"]

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
    assert say(trainer.main, *THIRTY, "--epochs", "3", "--save-dir", "out")[0] == 0
    text = write(say, "out", "--length", "30")
    assert (len(text), text[:5], text[-1]) == (36, "To be", "\n")
    assert (
        text == write(say, "out/model.pt", "--length", "30") == write(say, "out/checkpoints/step_90", "--length", "30")
    )
    Path("out/model.pt").unlink()  # as if the run went on
    assert text == write(say, "out", "--length", "30")
    likeliest = write(say, "out", "--length", "30", "--temperature", "0")
    assert likeliest == write(say, "out", "--length", "30", "--top-k", "1", "--seed", "4")
    assert len({*likeliest.split()} & {*TEXT.split()}) >= 3  # it has learned words


def test_bytes_are_spelled_as_whole_characters(say: Say) -> None:
    assert say(trainer.main, *SMALL, "--steps-per-epoch", "1", "--save-dir", "out")[0] == 0
    assert write(say, "out", "--length", "3").startswith("To be")
    assert write(say, "out", "--length", "0", "--prompt", "é\x1b[2J\n\tb\u202e") == "é\ufffd[2J\n\tb\ufffd\n"
    with pytest.raises(SystemExit):
        generate.main(["--model", "out", "--temperature", "nan"])


@pytest.mark.parametrize("temperature", [1e-300, 1.0, 1e300])
def test_no_temperature_overflows(temperature: float) -> None:
    logits = torch.tensor([1e4, -1e4, 9e3])
    drawn = generate.choose(logits, temperature, 2, torch.Generator().manual_seed(1))
    assert drawn == 0 if temperature < 1e300 else drawn in (0, 2)


def test_what_is_no_model_is_one_line(say: Say, tmp_path: Path) -> None:
    torch.save({"model": Path("a")}, tmp_path / "code.pt")
    torch.save({"weights": {}}, tmp_path / "other.pt")
    (tmp_path / "a").write_text("hello")
    for name, reason in {
        "missing.pt": "can't be read: FileNotFoundError: [Errno 2] No such file or directory",
        "code.pt": "can't be read: UnpicklingError: ",
        "a": "can't be read: ",
        "other.pt": "not a model of this trainer: ",
    }.items():
        code, out, err = say(generate.main, "--model", name)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"{name}: {reason}"), err
