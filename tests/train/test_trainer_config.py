"""The trainer's options: file, flags, and every error as the user reads it. No torch."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.trainer.config import FIELDS, ConfigError, TrainConfig, as_flag, read_config

SAMPLE = Path(__file__).parents[2] / "config" / "local3.yaml"


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def error_of(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_config(list(argv))
    return str(caught.value)


def test_underscores_dashes_and_equals_signs_are_the_same() -> None:
    expected = TrainConfig(batch_size=32, save_dir="my_out", lr=1e-4)
    assert read_config(["--batch_size", "32", "--save_dir", "my_out", "--lr=1e-4"]) == expected
    assert read_config(["--batch-size=32", "--save-dir=my_out", "--lr", "0.0001"]) == expected
    assert read_config(["--batch_size=32", "--save-dir", "my_out", "--lr", "1E-4"]) == expected


def test_a_boolean_is_a_flag_and_its_opposite() -> None:
    Path("c.yaml").write_text("compile: true\n")
    assert read_config(["--compile"]).compile
    assert read_config(["--config", "c.yaml"]).compile
    assert not read_config(["--config", "c.yaml", "--no-compile"]).compile


def test_a_batch_by_flag_wins_over_the_other_batch_in_the_file() -> None:
    Path("rank.yaml").write_text("batch_size: 8\n")
    Path("all.yaml").write_text("global_batch: 64\n")
    assert read_config(["--config", "rank.yaml", "--global-batch", "32"]) == TrainConfig(global_batch=32)
    assert read_config(["--config", "all.yaml", "--batch-size", "4"]) == TrainConfig(batch_size=4)


def test_flags_win_over_the_file_and_the_file_over_defaults() -> None:
    Path("c.yaml").write_text("lr: 3e-4\nbatch-size: 8\nepochs: 5\n")
    assert read_config(["--config", "c.yaml", "--epochs", "2"]) == TrainConfig(lr=3e-4, batch_size=8, epochs=2)


def test_names_of_others_are_read() -> None:
    Path("c.yaml").write_text("num_nodes: 2\nnum-workers: 4\nlearning_rate: 1e-4\n")
    config = read_config(["--config", "c.yaml", "--num_epochs", "3"])
    assert config == TrainConfig(nodes=2, workers=4, lr=1e-4, epochs=3)


def test_words_that_yaml_takes_for_booleans() -> None:
    for word in ("off", "bf16"):
        Path("c.yaml").write_text(f"amp: {word}\n")
        assert read_config(["--config", "c.yaml"]) == read_config([f"--amp={word}"])


def test_json_needs_no_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    Path("c.json").write_text(json.dumps({"lr": 1, "data": "text.txt"}))
    assert read_config(["--config", "c.json"]) == TrainConfig(lr=1.0, data="text.txt")
    Path("c.yaml").write_text("lr: 1")
    fix = "fix: run `pip install pyyaml`, or write the file as JSON (.json)"
    assert error_of("--config", "c.yaml") == f"c.yaml: this Python has no PyYAML; {fix}"


def test_the_sample_has_every_key() -> None:
    config = read_config(["--config", str(SAMPLE)])
    assert config == TrainConfig(epochs=3, steps_per_epoch=150, log_every=50)
    text = SAMPLE.read_text()
    assert [name for name in FIELDS if f"\n{name}:" not in text and f"\n# {name}:" not in text] == []


@pytest.mark.parametrize("name", ["fsdp.yaml", "tp_shakespeare.yaml"])
def test_the_other_samples_can_be_read(name: str) -> None:
    assert read_config(["--config", str(SAMPLE.with_name(name))]).global_batch > 0


def test_help_is_in_groups_with_examples_and_fits_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        read_config(["-h"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert [name for name in FIELDS if as_flag(name) not in shown.replace(",", " ").split()] == []
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "usage: python -m launcher.trainer [OPTIONS]"
    assert [line for line in lines if line.endswith(":") and not line.startswith(" ")] == [
        "General:", "Data:", "Saving and resuming:", "Training:", "Validation and output:", "Model:",
        "Precision and parallelism:", "Examples:",
    ]  # fmt: skip
    assert lines[-4:] == [
        "Examples:",
        "  python -m launcher.trainer --epochs 2",
        "  launch --hosts node1,node2 -m launcher.trainer --config config/local3.yaml",
        "  python -m launcher.trainer.generate --model outputs/RUN --prompt ROMEO:",
    ]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--lrr", "1"], "unknown option '--lrr', did you mean '--lr'?"),
        (["--zzz"], "unknown option '--zzz'"),
        (["--lr"], "--lr: expected one argument"),
        (["--lr", "nan"], "--lr: must be a number, at least 0, got 'nan'"),
        (["--epochs", "2.5"], "--epochs: must be a whole number, at least 1, got '2.5'"),
        (["--validation-fraction", "1"], "--validation-fraction: must be a number, at least 0 and below 1, got '1'"),
        (
            ["--batch-size", "8", "--global-batch", "64"],
            "batch_size and global_batch both set the batch; fix: give one of them",
        ),
        (["--dim", "64", "--heads", "3"], "dim must be a multiple of heads, got dim 64 and heads 3"),
        (["--config", "no/c.yaml"], "no/c.yaml: No such file or directory"),
    ],
)
def test_wrong_flags(argv: list[str], message: str) -> None:
    assert error_of(*argv) == message


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.yaml", "lrr: 1e-3", "unknown option '--lrr', did you mean '--lr'?"),
        ("c.yaml", "config: d.yaml", "a file can't name another one; fix: remove the key config"),
        ("c.yaml", "train: {lr: 1}", "'train' must have one value, got {'lr': 1}"),
        ("c.yaml", "epochs: true", "--epochs: must be a whole number, at least 1, got 'on'"),
        ("c.yaml", "compile: 1", "--compile: ignored explicit argument '1'"),
        ("c.yaml", "- lr", "expected lines like 'lr: 0.003', got a list"),
        ("c.yaml", "lr: 1\nepochs: [1", 'can\'t be read: while parsing a flow sequence in "<unicode string>", line 2'),
        ("c.json", '{\n"lr": }', "can't be read: Expecting value: line 2 column 7"),
        ("c.json", "[" * 100_000, "can't be read: maximum recursion depth exceeded"),
    ],
)
def test_wrong_files(name: str, text: str, message: str) -> None:
    Path(name).write_text(text)
    said = error_of("--config", name)
    assert said.startswith(f"{name}: {message}")
    assert len(said.splitlines()) == 1


def test_reading_options_costs_no_torch() -> None:
    import subprocess

    code = "import sys, launcher.trainer.config; sys.exit('torch' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)


KEYS = st.sampled_from(list(FIELDS)) | st.text(max_size=8)


@given(st.dictionaries(KEYS, VALUES | st.dictionaries(KEYS, VALUES, max_size=2), max_size=4))
def test_any_file_is_a_config_or_one_line(tmp_path_factory: pytest.TempPathFactory, content: object) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(content))
    try:
        config = read_config(["--config", str(path)])
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1
    else:
        defaults = asdict(TrainConfig())
        assert [type(value) for value in asdict(config).values()] == [*map(type, defaults.values())]
