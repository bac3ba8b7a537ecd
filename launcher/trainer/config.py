"""What the trainer can be told: defaults, then a YAML or JSON file, then flags; the later wins.

Each field of `TrainConfig` is a key of the file and a flag of the command line, and is described once, here.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn


class ConfigError(ValueError):
    """An option that makes no sense; every rank sees the same one."""


class UnreadableFileError(ConfigError):
    """The file can't be read on this machine, while another one may read it well."""


def option(default: Any, text: str, *, metavar: str = "", minimum: float = 0, choices: tuple[str, ...] = ()) -> Any:
    """Describe one field: its type is the default's, and a number is not below `minimum`."""
    metavar = metavar or ("N" if isinstance(default, int) else "X")
    return field(
        default=default,
        metadata={"help": text, "metavar": metavar, "minimum": minimum, "choices": choices},
    )


@dataclass(frozen=True)
class TrainConfig:
    """Everything a run depends on."""

    data: str = option(
        "", "text, read on rank 0's machine only (default: the topics of Python's help())", metavar="FILE"
    )
    save_dir: str = option("outputs", "where checkpoint.pt and metrics.jsonl go", metavar="FOLDER")
    seed: int = option(1, "seed of the weights and of the order of the data")

    epochs: int = option(1, "epochs; a checkpoint is saved after each", minimum=1)
    steps_per_epoch: int = option(60, "end an epoch after so many steps; 0: after the whole text")
    batch_size: int = option(16, "sequences per process and step", minimum=1)
    lr: float = option(3e-3, "learning rate of AdamW")
    weight_decay: float = option(0.1, "weight decay of AdamW")
    clip_norm: float = option(1.0, "clip the gradient to this norm")
    log_every: int = option(20, "print the loss every so many steps", minimum=1)

    layers: int = option(2, "transformer blocks", minimum=1)
    heads: int = option(2, "attention heads per block", minimum=1)
    dim: int = option(64, "width of the model", minimum=1)
    context: int = option(64, "bytes that the model looks back", minimum=1)

    distributed_backend: str = option(
        "auto",
        "nccl, gloo, or auto: nccl where there are GPUs",
        metavar="NAME",
        choices=("auto", "nccl", "gloo"),
    )


FIELDS = {field.name: field for field in fields(TrainConfig)}


def read_config(argv: list[str]) -> TrainConfig:
    """Turn a command line into a config, or raise `ConfigError` with one line that says what is wrong."""
    flags = parse_flags(argv)
    path = flags.pop("config", None)
    values = read_file(path) if path is not None else {}
    for name, text in flags.items():
        values[name] = convert(flag(name), name, text)
    config = TrainConfig(**values)
    if config.dim % config.heads:
        raise ConfigError(f"dim must be a multiple of heads, got dim {config.dim} and heads {config.heads}")
    return config


def parse_flags(argv: list[str]) -> dict[str, str]:
    """Return the flags that were given, as text; `--batch_size` and `--batch-size` are the same."""
    words = [flag(word[2:]) if word.startswith("--") else word for word in argv]
    known, others = build_parser().parse_known_args(words)
    if others:
        word = others[0].partition("=")[0]
        if not word.startswith("-"):
            raise ConfigError(f"unexpected argument {word!r}")
        names = ["--config", *map(flag, FIELDS)]
        raise ConfigError(f"unknown option {word!r}{_guess(word, names)}")
    return vars(known)


def read_file(path: str) -> dict[str, Any]:
    """Read a YAML or JSON file of `key: value` lines; errors begin with the file's name."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UnreadableFileError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    content = _parse_json(path, text) if path.endswith(".json") else _parse_yaml(path, text)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected lines like 'lr: 0.003', got a {type(content).__name__}")
    values = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in FIELDS:
            raise ConfigError(f"{path}: unknown key {str(key)!r}{_guess(name, list(FIELDS))}")
        values[name] = convert(f"{path}: {key}", name, value)
    return values


def convert(where: str, name: str, value: object) -> object:
    """Give `value` the type of the field `name`, and check its range; `where` begins the error.

    Text becomes a number where one is wanted: flags are text, and so is `3e-3` to YAML 1.1.
    """
    default, rules = FIELDS[name].default, FIELDS[name].metadata
    if isinstance(default, str):
        if not isinstance(value, str):
            raise ConfigError(f"{where} must be text, got {value!r}")
        if rules["choices"] and value not in rules["choices"]:
            raise ConfigError(f"{where} must be one of {', '.join(rules['choices'])}, got {value!r}")
        return value
    wanted: type[int] | type[float] = int if isinstance(default, int) else float
    number = _number(value, wanted)
    if number is None:
        kind = "a whole number" if wanted is int else "a number"
        raise ConfigError(f"{where} must be {kind}, got {value!r}")
    if number < rules["minimum"]:
        raise ConfigError(f"{where} must be at least {rules['minimum']}, got {value}")
    return number


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are ours: one line, printed by one rank."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage on every rank."""
        raise ConfigError(message)


def build_parser() -> argparse.ArgumentParser:
    """Make one flag of each field; what isn't given is absent from the result."""
    parser = Parser(
        prog="python -m launcher.trainer",
        description="Train a small byte-level language model on one process or, under torchrun, on many.",
        epilog="Underscores work as well as dashes: --batch_size 32.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="YAML or JSON file with any of the options below")
    for name, described in FIELDS.items():
        rules = described.metadata
        shown = f" (default: {described.default})" if described.default != "" else ""
        parser.add_argument(flag(name), dest=name, metavar=rules["metavar"], help=rules["help"] + shown)
    return parser


def flag(name: str) -> str:
    """Spell a field as a flag: `batch_size` is `--batch-size`, and `batch_size=8` is `--batch-size=8`."""
    name, equals, value = name.partition("=")
    return f"--{name.replace('_', '-')}{equals}{value}"


def _parse_json(path: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None


def _parse_yaml(path: str, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise UnreadableFileError(
            f"{path}: this Python has no PyYAML: `pip install pyyaml`, or write the file as JSON (.json)"
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: not YAML: {error.problem}") from None
    except yaml.YAMLError:
        raise ConfigError(f"{path}: not YAML: it holds characters that no text has") from None


def _number(value: object, wanted: type[int] | type[float]) -> int | float | None:
    """Return `value` as `wanted`, or None: True is no number here, and 2.5 isn't cut down to 2."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = wanted(value)
        exact = isinstance(value, str) or number == value
        return number if exact and math.isfinite(number) else None
    except (ValueError, OverflowError):
        return None


def _guess(word: str, names: list[str]) -> str:
    close = difflib.get_close_matches(word, names, n=1)
    return f", did you mean {close[0]!r}?" if close else ""
