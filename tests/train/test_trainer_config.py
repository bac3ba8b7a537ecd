"""The trainer's options: file, flags, and every error as the user reads it. No torch."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.trainer.config import FIELDS, TrainConfig, read_config
from launcher.trainer.options import ConfigError, UnreadableFileError, flag

SAMPLE = Path(__file__).parents[2] / "config" / "local3.yaml"


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def error_of(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_config(list(argv))
    return str(caught.value)


def test_no_options_are_the_defaults() -> None:
    assert read_config([]) == TrainConfig()


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


def test_checkpoints_are_saved_by_steps_or_by_epochs() -> None:
    Path("c.yaml").write_text("save_every: 50\n")
    Path("e.yaml").write_text("save_every: 2 epochs\n")
    lines = ([], ["--config", "c.yaml"], ["--config", "e.yaml"], ["--save-every=1epoch"], ["--save_every", "5epochs"])
    configs = [read_config(list(line)) for line in lines]
    assert [(config.save_steps, config.save_epochs) for config in configs] == [(0, 1), (50, 1), (0, 2), (0, 1), (0, 5)]
    for wrong in ("0epochs", "-1", "1.5", "5 steps", ""):
        assert error_of("--save-every", wrong) == f"--save-every must be N|Nepochs, got {wrong!r}"


def test_off_needs_no_quotes() -> None:
    Path("c.yaml").write_text("amp: off\n")
    assert read_config(["--config", "c.yaml"]) == TrainConfig(amp="off")


def test_a_batch_by_flag_wins_over_the_other_batch_in_the_file() -> None:
    Path("rank.yaml").write_text("batch_size: 8\n")
    Path("all.yaml").write_text("global_batch: 64\n")
    assert read_config(["--config", "rank.yaml", "--global-batch", "32"]) == TrainConfig(global_batch=32)
    assert read_config(["--config", "all.yaml", "--batch-size", "4"]) == TrainConfig(batch_size=4)


def test_the_line_that_is_promised() -> None:
    """This very line, with the sample as it stands."""
    line = (
        f"--config {SAMPLE} --distributed-backend nccl --save-dir outputs --epochs 20 --batch_size 64 "
        "--lr 1e-4 --data_size 5000"
    )
    config = read_config(line.split())
    assert (config.distributed_backend, config.epochs, config.batch_size) == ("nccl", 20, 64)
    assert (config.lr, config.data_size) == (1e-4, 5000)


def test_flags_win_over_the_file_and_the_file_over_defaults() -> None:
    Path("c.yaml").write_text("lr: 3e-4\nbatch-size: 8\nepochs: 5\n")
    assert read_config(["--config", "c.yaml", "--epochs", "2"]) == TrainConfig(lr=3e-4, batch_size=8, epochs=2)


def test_sections_and_names_of_others_are_read_and_one_line_tells_ours() -> None:
    Path("c.yaml").write_text(
        "train: {num_nodes: 2, batch_size: 32}\ndata: {num-workers: 4, data: a.txt}\nlr: 1e-4\nreport_ranks: off\n"
    )
    told: list[str] = []
    config = read_config(["--config", "c.yaml", "--num_epochs", "3"], told.append)
    expected = TrainConfig(nodes=2, batch_size=32, workers=4, data="a.txt", lr=1e-4, epochs=3, report_ranks="off")
    assert config == expected
    assert told == [
        "read --num-epochs as --epochs",
        "c.yaml: read train.num_nodes as nodes, train.batch_size as batch_size, data.num-workers as workers, "
        "data.data as data",
        "c.yaml: train.batch_size 32 is per rank here; if all ranks shared it in the trainer of this file, "
        "write global_batch: 32",
    ]
    keys = ("lr", "seed", "epochs", "keep", "layers", "heads", "dim", "context", "amp", "data")
    defaults = asdict(TrainConfig())
    Path("all.json").write_text(json.dumps({"a": {"b": {key: defaults[key] for key in keys}}}))
    assert read_config(["--config", "all.json"], told.append) == TrainConfig()
    assert told[3].endswith(", a.b.context as context and 2 more")


@pytest.mark.parametrize(
    ("text", "argv", "is_told"),
    [
        ("batch_size: 8\nlearning_rate: 1", [], True),
        ("batch_size: 8\nlr: 1", [], False),  # this trainer's own names: nothing shows that it was meant for another
        ("train: {batch_size: 8}", ["--batch-size", "4"], False),
        ("train: {batch_size: 8}", ["--global-batch", "16"], False),
        ("train: {global_batch: 8}", [], False),
    ],
)
def test_a_file_of_another_trainer_may_mean_the_batch_of_all_ranks(text: str, argv: list[str], is_told: bool) -> None:
    Path("c.yaml").write_text(text)
    told: list[str] = []
    read_config(["--config", "c.yaml", *argv], told.append)
    assert any(line.endswith("write global_batch: 8") for line in told) is is_told


def test_a_section_of_validation_sets_its_own_options() -> None:
    Path("c.yaml").write_text("eval: {evaluate_every: 5, validation_fraction: 0.2}\n")
    assert read_config(["--config", "c.yaml"]) == TrainConfig(evaluate_every=5, validation_fraction=0.2)


def test_the_report_of_the_ranks_needs_no_word() -> None:
    assert read_config(["--report-ranks"]).report_ranks == "on"
    for word in ("on", "off", "auto"):
        Path("c.yaml").write_text(f"report_ranks: {word}\n")  # to YAML 1.1 `on` is true
        assert read_config(["--config", "c.yaml"]) == read_config([f"--report-ranks={word}"])


def test_json_needs_no_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    Path("c.json").write_text(json.dumps({"lr": 1, "data": "text.txt"}))
    config = read_config(["--config", "c.json"])
    assert (config.lr, config.data) == (1.0, "text.txt")
    assert isinstance(config.lr, float)


def test_an_empty_file_changes_nothing() -> None:
    Path("c.yaml").write_text("# all of it is commented out\n")
    assert read_config(["--config", "c.yaml"]) == TrainConfig()


def test_the_sample_has_every_key() -> None:
    config = read_config(["--config", str(SAMPLE)])
    assert config == TrainConfig(epochs=3, steps_per_epoch=150, log_every=50)
    text = SAMPLE.read_text()
    assert [name for name in FIELDS if f"\n{name}:" not in text and f"\n# {name}:" not in text] == []


@pytest.mark.parametrize("name", ["fsdp.yaml", "tp_shakespeare.yaml"])
def test_the_other_samples_can_be_read(name: str) -> None:
    assert read_config(["--config", str(SAMPLE.with_name(name))]).global_batch > 0


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read_config(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    words = shown.replace(",", " ").split()
    assert [name for name in FIELDS if flag(name) not in words] == []
    assert "folder" not in shown.lower()  # one term for each thing: a directory


def test_help_is_in_groups_with_examples_and_fits_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        read_config(["-h"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "usage: python -m launcher.trainer [OPTIONS]"
    assert [line for line in lines if line.endswith(":") and not line.startswith(" ")] == [
        "General:", "Data:", "Saving and resuming:", "Training:", "Validation and output:", "Model:",
        "Precision and parallelism:", "Examples:",
    ]  # fmt: skip
    assert lines[-6:] == [
        "Examples:",
        "  python -m launcher.trainer --epochs 2",
        "  launch --hosts node1,node2 -m launcher.trainer --config config/local3.yaml",
        "  python -m launcher.trainer.generate --model outputs/RUN --prompt ROMEO:",
        "",
        "Underscores work as well as dashes: --batch_size 32.",
    ]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--lrr", "1"], "unknown option '--lrr', did you mean '--lr'?"),
        (["--batch_sise=1"], "unknown option '--batch-sise', did you mean '--batch-size'?"),
        (["--zzz"], "unknown option '--zzz'"),
        (["--num-node", "2"], "unknown option '--num-node', did you mean '--nodes'?"),
        (["--num_workers", "x"], "--workers must be a whole number, got 'x'"),
        (["input.txt"], "unexpected argument 'input.txt'"),
        (["--lr"], "argument --lr: expected one argument"),
        (["--lr", "fast"], "--lr must be a number, got 'fast'"),
        (["--lr", "nan"], "--lr must be a number, got 'nan'"),
        (["--lr", "-1"], "--lr must be at least 0, got -1"),
        (["--epochs", "2.5"], "--epochs must be a whole number, got '2.5'"),
        (["--epochs", "0"], "--epochs must be at least 1, got 0"),
        (["--validation-fraction", "1"], "--validation-fraction must be below 1, got 1"),
        (["--compile=yes"], "argument --compile/--no-compile: ignored explicit argument 'yes'"),
        (
            ["--batch-size", "8", "--global-batch", "64"],
            "batch_size and global_batch both set the batch; fix: give one of them",
        ),
        (["--dim", "64", "--heads", "3"], "dim must be a multiple of heads, got dim 64 and heads 3"),
        (
            ["--distributed_backend", "mpi"],
            "--distributed-backend must be one of auto, nccl, gloo, got 'mpi'",
        ),
        (["--config", "no/c.yaml"], "no/c.yaml: No such file or directory"),
    ],
)
def test_wrong_flags(argv: list[str], message: str) -> None:
    assert error_of(*argv) == message


def laughs(first: str, open_line: str, close_line: str) -> str:
    lines = [f"lr{n}: &a{n} {open_line}{','.join([f'*a{n - 1}'] * 9)}{close_line}" for n in range(1, 10)]
    return "\n".join([f"lr: &a0 {first}", *lines])


BILLION_LAUGHS = laughs("[x,x,x,x,x,x,x,x,x]", "[", "]")
MERGED_LAUGHS = laughs("{x: 1}", "{<<: [", "]}")
UNREAD = "a value in it can't be read: a wrong date, or too many digits or brackets"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.yaml", "lrr: 1e-3", "c.yaml: unknown key 'lrr', did you mean 'lr'?"),
        ("c.yaml", "qqqq: 1", "c.yaml: unknown key 'qqqq'"),
        ("c.yaml", "1: 1", "c.yaml: unknown key '1'"),
        ("c.yaml", "train: 1", "c.yaml: unknown key 'train'"),  # like track, and not meant
        ("c.yaml", "train: {shuffle: 1}", "c.yaml: unknown key 'train.shuffle'"),
        *(
            (
                "c.yaml",
                f"{name}: {{batch_size: 64}}",
                f"c.yaml: {name}.batch_size would set batch_size for training; fix: move it out of '{name}'",
            )
            for name in ("val", "validation", "eval", "evaluation", "test")
        ),
        ("c.yaml", "train:", "c.yaml: the section 'train' is empty; fix: remove it, or indent its keys below it"),
        (
            "c.json",
            '{"train": {}}',
            "c.json: the section 'train' is empty; fix: remove it, or indent its keys below it",
        ),
        ("c.yaml", "lr: 1\nseed: 2\nlr: 3", "c.yaml:3: the key 'lr' is given twice; fix: remove one of them"),
        ("c.yaml", "train: {batch_size: 0}", "c.yaml: train.batch_size must be at least 1, got 0"),
        ("c.yaml", "lr: 1\ntrain: {lr: 2}", "c.yaml: lr and train.lr are the same option; fix: give one of them"),
        ("c.yaml", "nodes: 1\nnum_nodes: 2", "c.yaml: nodes and num_nodes are the same option; fix: give one of them"),
        ("c.json", '{"a":' * 900 + "1" + "}" * 900, f"c.json: unknown key '{'a.' * 48}..."),
        ("c.yaml", "lr: fast", "c.yaml: lr must be a number, got 'fast'"),
        ("c.yaml", "lr: [1]", "c.yaml: lr must be a number, got [1]"),
        ("c.yaml", "lr:", "c.yaml: lr must be a number, got None"),
        ("c.yaml", "epochs: true", "c.yaml: epochs must be a whole number, got True"),
        ("c.yaml", "epochs: 2.5", "c.yaml: epochs must be a whole number, got 2.5"),
        ("c.yaml", "batch-size: 0", "c.yaml: batch-size must be at least 1, got 0"),
        ("c.yaml", "data: 5", "c.yaml: data must be text, got 5"),
        ("c.yaml", "compile: 1", "c.yaml: compile must be true or false, got 1"),
        ("c.yaml", "- lr", "c.yaml: expected lines like 'lr: 0.003', got a list"),
        ("c.yaml", "lr: 1\nepochs: [1", "c.yaml:2: not YAML: expected ',' or ']', but got '<stream end>'"),
        ("c.yaml", "lr: \x00", "c.yaml: not YAML: it holds characters that YAML doesn't allow"),
        # Aliases: each line holds nine of the one above, and a merge key copies them.
        ("c.yaml", BILLION_LAUGHS, "c.yaml:2: aliases (*a0) aren't supported; fix: write the value out"),
        ("c.yaml", MERGED_LAUGHS, "c.yaml:2: aliases (*a0) aren't supported; fix: write the value out"),
        ("c.yaml", "lr: &x 1\nseed: *x", "c.yaml:2: aliases (*x) aren't supported; fix: write the value out"),
        ("c.yaml", "x" * 200 + ": 1", f"c.yaml: unknown key '{'x' * 96}..."),
        ("c.yaml", f"lr: {'x' * 200}", f"c.yaml: lr must be a number, got '{'x' * 96}..."),
        ("c.yaml", "#" * (128 << 10) + "\nlr: 1", "c.yaml: larger than 128 KiB, too large for a configuration file"),
        ("c.json", '{\n"lr": }', "c.json:2: not JSON: Expecting value"),
        ("c.yaml", "lr: 2024-13-45", f"c.yaml: {UNREAD}"),
        ("c.yaml", "a: " + "[" * 5000, f"c.yaml: {UNREAD}"),
        ("c.json", "[" * 100_000, f"c.json: {UNREAD}"),
        ("c.yaml", "seed: 18446744073709551616", "c.yaml: seed must be below 2147483648, got 18446744073709551616"),
    ],
)
def test_wrong_files(name: str, text: str, message: str) -> None:
    Path(name).write_text(text)
    assert error_of("--config", name) == message


def test_a_file_that_is_no_text() -> None:
    Path("c.yaml").write_bytes(b"\xff\xfe\x80")
    assert error_of("--config", "c.yaml") == "c.yaml: not UTF-8 text"


def test_yaml_without_pyyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    Path("c.yaml").write_text("lr: 1")
    with pytest.raises(UnreadableFileError) as caught:
        read_config(["--config", "c.yaml"])
    assert str(caught.value) == (
        "c.yaml: this Python has no PyYAML; fix: run `pip install pyyaml`, or write the file as JSON (.json)"
    )


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


TEXTS = {name for name, field in FIELDS.items() if isinstance(field.default, str) and not field.metadata["choices"]}
BOOLEANS = {name for name, field in FIELDS.items() if isinstance(field.default, bool)}


@given(st.sampled_from(sorted(FIELDS.keys() - TEXTS - BOOLEANS)), st.text())
def test_any_text_behind_a_flag_is_a_config_or_an_error(name: str, text: str) -> None:
    try:
        config = read_config([f"{flag(name)}={text}"])
    except ConfigError as error:
        assert str(error).startswith((f"{flag(name)} must be", "dim must be"))
    else:
        assert type(getattr(config, name)) is type(FIELDS[name].default)
