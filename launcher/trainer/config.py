"""The options: each field of `TrainConfig` is a flag of the command line and a key of a YAML or JSON file.

A flag wins over the file, and the file over the default.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import re
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

# The values of --resume that are not the path of a checkpoint.
NONE, AUTO, LAST = "none", "auto", "last"
SHAPE = ("layers", "heads", "dim", "context")
AMP = ("off", "bf16", "fp16")
ALIASES = {"num_nodes": "nodes", "num_workers": "workers", "num_epochs": "epochs", "learning_rate": "lr"}
INT_LIMIT = 2**31  # far beyond any sensible count; sums of such numbers still fit into torch's 64 bits
SHOWN = 100  # characters of a wrong value
ABOUT = "Train a small model: in one process, or in many under launch, torchrun or srun."
EXAMPLES = """\
Examples:
  python -m launcher.trainer --epochs 2
  launch --hosts node1,node2 -m launcher.trainer --config config/local3.yaml
  python -m launcher.trainer.generate --model outputs/RUN --prompt ROMEO:

Underscores work as well as dashes: --batch_size 32."""


class ConfigError(ValueError):
    """A wrong option or environment, in one line; every rank raises the same one, and the exit code is 2."""


class RunError(Exception):
    """The one-line reason why a run failed after it had begun; the exit code is 1."""


def option(
    default: Any,
    text: str,
    *,
    group: str = "",
    metavar: str = "",
    choices: tuple[str, ...] = (),
    minimum: float = 0,
    below: float = math.inf,
    pattern: str = "",
    bare: str = "",
) -> Any:
    """Describe a field, whose type is that of its default; a flag without a value means `bare`, if there is one."""
    if isinstance(default, int) and not isinstance(default, bool):
        below = min(below, INT_LIMIT)
    metavar = metavar or ("N" if isinstance(default, int) else "X")
    rules = {"choices": choices, "minimum": minimum, "below": below, "pattern": pattern, "bare": bare}
    return field(default=default, metadata={"help": text, "group": group, "metavar": metavar, **rules})


@dataclass(frozen=True)
class TrainConfig:
    """The options of a run."""

    data: str = option(
        "",
        "text file to train on; only rank 0's host must have it; shakespeare: the text that prepare_data downloads; "
        "regression: made-up numbers (default: the topics of Python's help(), or regression with --data-size)",
        metavar="FILE",
        group="Data",
    )
    data_size: int = option(0, "use only the first N samples; 0: the whole text, 10000 for the regression")
    tokens: str = option(
        "bytes",
        "what the model reads and writes: bytes, which fit any file, or the characters that occur in the text",
        metavar="KIND",
        choices=("bytes", "characters"),
    )
    validation_fraction: float = option(0.1, "share of the data kept for validation; 0: none", below=1)
    workers: int = option(0, "processes per rank that load data ahead; 0: the rank itself")
    seed: int = option(1, "seed of the weights and of the order of the data")

    save_dir: str = option(
        "",
        "directory for checkpoints/, model.pt and metrics.jsonl (default: a new one in outputs, named after the run)",
        metavar="DIR",
        group="Saving and resuming",
    )
    resume: str = option(
        NONE,
        "last, or no value: continue from the newest checkpoint in --save-dir; auto: the same, or start from scratch "
        "if there is none; none: start from scratch; PATH: continue from this checkpoint",
        metavar="last|auto|none|PATH",
        bare=LAST,
    )
    save_every: str = option(
        "0",
        "save a checkpoint every N steps too, or, as in 5epochs, after every fifth epoch instead of each one; 0: after "
        "each epoch only",
        metavar="N|Nepochs",
        pattern=r"\d{1,9}|[1-9]\d{0,8} ?epochs?",
    )
    async_save: bool = option(
        False, "save checkpoints while the training continues, one at a time; takes a copy of the state in memory"
    )
    keep: int = option(2, "newest checkpoints to keep, beside the one with the best validation loss", minimum=1)

    epochs: int = option(1, "epochs to train", minimum=1, group="Training")
    steps_per_epoch: int = option(0, "end each epoch after N steps; 0: after all of the data")
    batch_size: int = option(16, "samples per rank and pass", minimum=1)
    global_batch: int = option(0, "samples per step of all ranks together, instead of --batch-size")
    accumulate: int = option(1, "passes per step; their gradients are averaged", minimum=1)
    lr: float = option(3e-3, "peak learning rate of AdamW")
    warmup_steps: int = option(10, "steps in which the learning rate rises from 0")
    final_lr_fraction: float = option(
        0.1, "share of --lr that is left at the end of the cosine decay; 1: no decay", below=1.1
    )
    weight_decay: float = option(0.1, "weight decay of AdamW")
    clip_norm: float = option(1.0, "clip the gradient to this norm; 0: no clipping")

    log_every: int = option(20, "print the loss every N steps", minimum=1, group="Validation and output")
    evaluate_every: int = option(0, "validate every N steps too; 0: after each epoch only")
    evaluate_on: str = option(
        "all",
        "all: each rank validates a share of the samples; main: rank 0 validates all of them",
        metavar="RANKS",
        choices=("all", "main"),
    )
    evaluate_only: bool = option(
        False, "validate a checkpoint, and end: that of --resume PATH, or the newest one in --save-dir"
    )
    report_ranks: str = option(
        "auto",
        "on, or no value: print at the start where each rank runs (host, GPU and its UUID, pid), a line per rank; "
        "auto: with at most 16 ranks",
        metavar="on|off|auto",
        choices=("auto", "on", "off"),
        bare="on",
    )
    track: str = option(
        "", "send the metrics to tensorboard, mlflow or wandb too, or to several: a,b (default: none)", metavar="NAMES"
    )

    layers: int = option(2, "transformer blocks", minimum=1, group="Model")
    heads: int = option(2, "attention heads per block", minimum=1)
    dim: int = option(64, "width of the model", minimum=1)
    context: int = option(64, "tokens that the model can look back", minimum=1)
    dropout: float = option(
        0.0, "share of the values dropped after the embedding, attention and MLP while training; 0: none", below=1
    )

    amp: str = option(
        "off",
        "mixed precision: off, bf16, or fp16 with a scaled loss",
        metavar="TYPE",
        choices=AMP,
        group="Precision and parallelism",
    )
    tf32: bool = option(
        True, "on a GPU, compute fp32 matrix products in TF32: several times faster, with 10 bits after the point"
    )
    compile: bool = option(False, "compile the model with torch.compile")
    activation_checkpointing: bool = option(
        False, "keep only each block's input for the backward pass, and compute the rest again: slower, less memory"
    )
    parallel: str = option(
        "auto",
        "ddp: each rank has the whole model; fsdp: each rank has a part of the parameters; tp: ranks share each "
        "matrix product; fsdp+tp: both; auto: ddp, or tp or fsdp+tp with --tensor-parallel",
        metavar="KIND",
        choices=("auto", "ddp", "fsdp", "tp", "fsdp+tp"),
    )
    tensor_parallel: int = option(0, "ranks that share each matrix product; 0: all of them with tp, else 1")
    hsdp: int = option(
        0,
        "with fsdp, hold N replicas of the model, each sharded over 1/N of the ranks, such as one replica per node; "
        "0: one replica, sharded over all ranks",
    )
    reshard: bool = option(
        True, "with fsdp, free a block's gathered parameters after its forward pass; off: faster, but more memory"
    )
    distributed_backend: str = option(
        "auto",
        "nccl, gloo, or auto: nccl if there are GPUs, else gloo",
        metavar="NAME",
        choices=("auto", "nccl", "gloo"),
    )
    timeout: float = option(
        600.0,
        "seconds that a rank waits for the others, at the start and in each collective; six times as long for the disk",
        metavar="SECONDS",
        minimum=1,
        below=1e7,  # far more makes torch overflow
    )
    nodes: int = option(0, "refuse to run unless there are N nodes; 0: any number")
    gpus_per_node: int = option(0, "refuse to run unless each node has N ranks; 0: any number")

    @property
    def save_steps(self) -> int:
        """Return after how many steps a checkpoint is saved, beside those at the ends of epochs; 0: none."""
        return int(self.save_every) if self.save_every.isdecimal() else 0

    @property
    def save_epochs(self) -> int:
        """Return after how many epochs a checkpoint is saved."""
        return 1 if self.save_every.isdecimal() else int(self.save_every.rstrip("epochs "))

    @property
    def is_regression(self) -> bool:
        """Return whether made-up numbers are learned, and not a text."""
        return self.data == "regression" or bool(self.data_size and not self.data)


FIELDS = {one.name: one for one in fields(TrainConfig)}


def read_config(argv: list[str]) -> TrainConfig:
    """Return the options of a command line; raise ConfigError with one line that says what is wrong."""
    typed, others = build_parser().parse_known_args([as_flag(word[2:]) if word[:2] == "--" else word for word in argv])
    if others:
        word = others[0].partition("=")[0]
        raise ConfigError(f"unknown option {word!r}{guess(word, [as_flag(name) for name in FIELDS])}")
    flags = vars(typed)
    values = read_file(flags.pop("config")) if "config" in flags else {}
    for name, value in flags.items():
        values[name] = convert(name, as_flag(name), value)
        # A flag for one of the two ways to give the batch replaces the other in the file.
        other = {"batch_size": "global_batch", "global_batch": "batch_size"}.get(name, "")
        if other not in flags:
            values.pop(other, None)
    config = TrainConfig(**values)
    if config.dim % config.heads:
        raise ConfigError(f"dim must be a multiple of heads, got dim {config.dim} and heads {config.heads}")
    if config.global_batch and "batch_size" in values:
        raise ConfigError("batch_size and global_batch both set the batch; fix: give one of them")
    return config


def read_file(path: str) -> dict[str, Any]:
    """Return the values in a YAML or JSON file of `key: value` lines."""
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}") from None
    content = parse(path, text)
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected lines like 'lr: 0.003', got a {type(content).__name__}")
    values: dict[str, Any] = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        name = ALIASES.get(name, name)
        if isinstance(value, dict):
            raise ConfigError(f"{path}: {shorten(key)} is a section; fix: write its keys at the left margin")
        if name not in FIELDS:
            raise ConfigError(f"{path}: unknown key {shorten(key)}{guess(name, list(FIELDS))}")
        if name in values:
            raise ConfigError(f"{path}: {key} is given twice; fix: remove one of them")
        values[name] = convert(name, f"{path}: {key}", value)
    return values


def parse(path: str, text: str) -> Any:
    """Return the content of a JSON file, if its name ends so, else of a YAML file."""
    if path.endswith(".json"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}:{getattr(error, 'lineno', 1)}: not JSON") from None
    try:
        import yaml
    except ImportError:
        fix = "run `pip install pyyaml`, or write the file as JSON (.json)"
        raise ConfigError(f"{path}: this Python has no PyYAML; fix: {fix}") from None
    try:
        return yaml.safe_load(text) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise ConfigError(f"{path}:{mark.line + 1 if mark else 1}: not YAML") from None


def convert(name: str, where: str, value: Any) -> Any:
    """Return a value in the type of the option, or raise ConfigError, which begins with `where`.

    Text is converted to a number if the option is one: flags are text, and so is `3e-3` to YAML 1.1.
    """
    default, rules = FIELDS[name].default, FIELDS[name].metadata
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ConfigError(f"{where} must be true or false, got {shorten(value)}")
        return value
    if isinstance(default, str):
        return convert_text(where, value, FIELDS[name])
    try:
        number: float = (int if isinstance(default, int) else float)(value)
        is_right = not isinstance(value, bool) and (isinstance(value, str) or number == value) and math.isfinite(number)
    except (TypeError, ValueError, OverflowError):
        is_right = False
    if not is_right:
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise ConfigError(f"{where} must be {kind}, got {shorten(value)}")
    if number < rules["minimum"]:
        raise ConfigError(f"{where} must be at least {rules['minimum']}, got {value}")
    if number >= rules["below"]:
        raise ConfigError(f"{where} must be below {rules['below']}, got {value}")
    return number


def convert_text(where: str, value: object, described: Field[Any]) -> str:
    """Return the value of an option that is text."""
    rules = described.metadata
    if isinstance(value, bool) and "on" in rules["choices"]:
        value = "on" if value else "off"  # as booleans YAML 1.1 reads them
    elif isinstance(value, bool) and "off" in rules["choices"] and not value:
        value = "off"
    elif isinstance(value, int) and rules["pattern"]:
        value = str(value)
    if not isinstance(value, str):
        raise ConfigError(f"{where} must be text, got {shorten(value)}")
    if rules["pattern"] and not re.fullmatch(rules["pattern"], value):
        raise ConfigError(f"{where} must be {rules['metavar']}, got {shorten(value)}")
    if rules["choices"] and value not in rules["choices"]:
        raise ConfigError(f"{where} must be one of {', '.join(rules['choices'])}, got {shorten(value)}")
    return value


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises ConfigError, so that one rank can print one line."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage on every rank."""
        raise ConfigError(message)


def build_parser() -> argparse.ArgumentParser:
    """Build a parser with a flag for each field; one that isn't typed is absent from the result."""
    parser = Parser(
        prog="python -m launcher.trainer",
        usage="%(prog)s [OPTIONS]",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        add_help=False,
    )
    group = parser.add_argument_group("General")
    group.add_argument("-h", "--help", action="help", help="show this message and exit")
    group.add_argument("--config", metavar="FILE", help="YAML or JSON file with any of the options below")
    for alias, name in ALIASES.items():
        parser.add_argument(as_flag(alias), dest=name, help=argparse.SUPPRESS)
    for name, described in FIELDS.items():
        rules, default = described.metadata, described.default
        group = parser.add_argument_group(rules["group"]) if rules["group"] else group
        if isinstance(default, bool):
            shown = f"{rules['help']} (default: {'on' if default else 'off'}; --no-{as_flag(name)[2:]}: off)"
            group.add_argument(as_flag(name), dest=name, action="store_const", const=True, help=shown)
            group.add_argument(f"--no-{as_flag(name)[2:]}", dest=name, action="store_const", const=False,
                               help=argparse.SUPPRESS)  # fmt: skip
            continue
        shown = rules["help"] + (f" (default: {default})" if default != "" else "")
        bare: dict[str, Any] = {"nargs": "?", "const": rules["bare"]} if rules["bare"] else {}
        group.add_argument(as_flag(name), dest=name, metavar=rules["metavar"], help=shown, **bare)
    return parser


def as_flag(name: str) -> str:
    """Spell a field as a flag: `batch_size` is `--batch-size`, and `batch_size=8` is `--batch-size=8`."""
    name, equals, value = name.partition("=")
    return f"--{name.replace('_', '-')}{equals}{value}"


def guess(word: str, names: list[str]) -> str:
    """Suggest the name that a word may be a typo of."""
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.8)
    return f", did you mean {close[0]!r}?" if close else ""


def shorten(value: object) -> str:
    """Return a wrong value as Python writes it, if it isn't long."""
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
