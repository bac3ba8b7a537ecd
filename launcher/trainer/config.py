"""The options: each field of `TrainConfig` is a flag of the command line and a key of a YAML or JSON file.

A flag wins over the file, and the file over the default.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

# The values of --resume that are not the path of a checkpoint.
NONE, AUTO, LAST = "none", "auto", "last"
SHAPE = ("layers", "heads", "dim", "context")
ALIASES = {"num_nodes": "nodes", "num_workers": "workers", "num_epochs": "epochs", "learning_rate": "lr"}
INT_LIMIT = 2**31  # far beyond any sensible count; sums of such numbers still fit into torch's 64 bits
ABOUT = "Train a small GPT, alone or under launch, torchrun or srun.\n--batch_size works as well as --batch-size."
EXAMPLES = """\
Examples:
  python -m launcher.trainer --epochs 2
  launch --hosts node1,node2 -m launcher.trainer --config config/local3.yaml
  python -m launcher.trainer.generate --model outputs/RUN --prompt ROMEO:"""


class ConfigError(ValueError):
    """A wrong option or environment, in one line; every rank raises the same one, and the exit code is 2."""


class RunError(Exception):
    """The one-line reason why a run failed after it had begun; the exit code is 1."""


def option(
    default: Any, text: str, *, group: str = "", minimum: float = 0, below: float = math.inf, **words: Any
) -> Any:
    """Describe a field, whose type is that of its default; words: of argparse's `add_argument`."""
    if type(default) in (int, float):
        words.setdefault("metavar", "N" if isinstance(default, int) else "X")
        words["type"] = number_type(type(default), minimum, below)
    return field(default=default, metadata={"help": text, "group": group, "words": words})


def number_type(kind: type, minimum: float, below: float) -> Callable[[str], Any]:
    """Return what reads a number within limits for argparse."""
    below = min(below, INT_LIMIT) if kind is int else below

    def read(text: str) -> Any:
        try:
            number = kind(text)
        except ValueError:
            number = math.nan
        if minimum <= number < below:
            return number
        name = "a whole number" if kind is int else "a number"
        limit = f" and below {below:g}" if below < INT_LIMIT else ""
        raise argparse.ArgumentTypeError(f"must be {name}, at least {minimum:g}{limit}, got {text!r}")

    return read


@dataclass(frozen=True)
class TrainConfig:
    """The options of a run."""

    data: str = option(
        "",
        "text file on rank 0's host; shakespeare: what prepare_data gets (default: the topics of Python's help())",
        metavar="FILE",
        group="Data",
    )
    data_size: int = option(0, "use only the first N samples; 0: the whole text")
    validation_fraction: float = option(0.1, "share of the data kept for validation; 0: none", below=1)
    workers: int = option(0, "processes per rank that load data ahead; 0: the rank itself")
    seed: int = option(1, "seed of the weights and of the order of the data")

    save_dir: str = option(
        "",
        "directory for checkpoints/, model.pt and metrics.jsonl (default: a new one in outputs)",
        metavar="DIR",
        group="Saving and resuming",
    )
    resume: str = option(
        NONE,
        "last, or no value: continue from the newest checkpoint in --save-dir; auto: if there is one; PATH: from it",
        metavar="last|auto|none|PATH",
        nargs="?",
        const=LAST,
    )
    save_every: int = option(0, "save a checkpoint every N steps too; 0: after each epoch only")
    keep: int = option(2, "newest checkpoints to keep", minimum=1)

    epochs: int = option(1, "epochs to train", minimum=1, group="Training")
    steps_per_epoch: int = option(0, "end each epoch after N steps; 0: after all of the data")
    batch_size: int = option(16, "samples per rank and pass", minimum=1)
    global_batch: int = option(0, "samples per step of all ranks together, instead of --batch-size")
    accumulate: int = option(1, "passes per step; their gradients are averaged", minimum=1)
    lr: float = option(3e-3, "peak learning rate of AdamW")
    warmup_steps: int = option(10, "steps in which the learning rate rises from 0")
    final_lr_fraction: float = option(0.1, "share of --lr at the end of the cosine decay; 1: no decay", below=1.1)
    weight_decay: float = option(0.1, "weight decay of AdamW")
    clip_norm: float = option(1.0, "clip the gradient to this norm; 0: no clipping")

    log_every: int = option(20, "print the loss every N steps", minimum=1, group="Validation and output")
    evaluate_every: int = option(0, "validate every N steps too; 0: after each epoch only")
    evaluate_on: str = option("all", "ranks that validate: all, a share each, or main, rank 0", choices=("all", "main"))
    track: str = option("", "send the metrics to tensorboard, mlflow or wandb too, or to several: a,b", metavar="NAMES")

    layers: int = option(2, "transformer blocks", minimum=1, group="Model")
    heads: int = option(2, "attention heads per block", minimum=1)
    dim: int = option(64, "width of the model", minimum=1)
    context: int = option(64, "tokens that the model can look back", minimum=1)
    dropout: float = option(0.0, "share of the values dropped after the embedding, attention and MLP", below=1)

    amp: str = option("off", "mixed precision", choices=("off", "bf16", "fp16"), group="Precision and parallelism")
    tf32: bool = option(True, "on a GPU, compute fp32 matrix products in TF32: faster, with 10 bits after the point")
    compile: bool = option(False, "compile the model with torch.compile")
    activation_checkpointing: bool = option(False, "compute each block twice: slower, but needs less memory")
    parallel: str = option(
        "auto",
        "ddp; fsdp: each rank has a part of the parameters; tp: ranks share each matrix product; fsdp+tp; "
        "auto: ddp, or tp or fsdp+tp with --tensor-parallel",
        choices=("auto", "ddp", "fsdp", "tp", "fsdp+tp"),
    )
    tensor_parallel: int = option(0, "ranks that share each matrix product; 0: all of them with tp, else 1")
    hsdp: int = option(0, "with fsdp, shard N replicas of the model, such as one per node; 0: one replica")
    distributed_backend: str = option("auto", "auto: nccl with GPUs, else gloo", choices=("auto", "nccl", "gloo"))
    timeout: float = option(
        600.0,
        "seconds that a rank waits for the others; six times as long for the disk",
        metavar="SECONDS",
        minimum=1,
        below=1e7,  # far more makes torch overflow
    )
    nodes: int = option(0, "refuse to run unless there are N nodes; 0: any number")
    gpus_per_node: int = option(0, "refuse to run unless each node has N ranks; 0: any number")


FIELDS = {one.name: one for one in fields(TrainConfig)}


def read_config(argv: Sequence[str]) -> TrainConfig:
    """Return the options of a command line; raise ConfigError with one line that says what is wrong."""
    flags = parse(argv)
    path = flags.pop("config", "")
    values = parse(read_file(path), f"{path}: ") if path else {}
    # A flag for one of the two ways to give the batch replaces the other in the file.
    for one, other in (("batch_size", "global_batch"), ("global_batch", "batch_size")):
        if one in flags:
            values.pop(other, None)
    values.update(flags)
    if "config" in values:
        raise ConfigError(f"{path}: a file can't name another one; fix: remove the key config")
    if "batch_size" in values and "global_batch" in values:
        raise ConfigError("batch_size and global_batch both set the batch; fix: give one of them")
    config = TrainConfig(**values)
    if config.dim % config.heads:
        raise ConfigError(f"dim must be a multiple of heads, got dim {config.dim} and heads {config.heads}")
    return config


def parse(words: Sequence[str], where: str = "") -> dict[str, Any]:
    """Return the values that were given; an error begins with `where`."""
    parser = build_parser()
    parser.where = where
    typed, others = parser.parse_known_args([as_flag(word[2:]) if word[:2] == "--" else word for word in words])
    if others:
        word = others[0].partition("=")[0]
        close = difflib.get_close_matches(word, map(as_flag, FIELDS), n=1, cutoff=0.8)
        raise ConfigError(f"{where}unknown option {word!r}" + (f", did you mean {close[0]!r}?" if close else ""))
    return vars(typed)


def read_file(path: str) -> list[str]:
    """Return the flags that mean the same as the `key: value` lines of a YAML file, or JSON if its name ends so."""
    try:
        text = Path(path).read_text("utf-8")
        if path.endswith(".json"):
            content = json.loads(text)
        else:
            import yaml

            content = yaml.safe_load(text) or {}
    except ImportError:
        fix = "run `pip install pyyaml`, or write the file as JSON (.json)"
        raise ConfigError(f"{path}: this Python has no PyYAML; fix: {fix}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except Exception as error:  # noqa: BLE001  # a broken file can raise anything
        raise ConfigError(f"{path}: can't be read: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected lines like 'lr: 0.003', got a {type(content).__name__}")
    words = []
    for key, value in content.items():
        flag = as_flag(str(key))
        if value is None or isinstance(value, (dict, list)):
            raise ConfigError(f"{path}: {key!r} must have one value, got {value!r}")
        if not isinstance(value, bool):
            words.append(f"{flag}={value}")
        elif isinstance(getattr(TrainConfig, str(key).replace("-", "_"), None), bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        else:
            words.append(f"{flag}={'on' if value else 'off'}")  # as booleans YAML 1.1 reads them
    return words


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises ConfigError, so that one rank can print one line."""

    where = ""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage on every rank."""
        raise ConfigError(self.where + re.sub("^argument ", "", message))


def build_parser() -> Parser:
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
    for name, described in FIELDS.items():
        rules, default, flag = described.metadata, described.default, as_flag(name)
        group = parser.add_argument_group(rules["group"]) if rules["group"] else group
        if isinstance(default, bool):
            shown = f"{rules['help']} (default: {'on' if default else 'off'}; --no-{flag[2:]}: off)"
            group.add_argument(flag, action="store_const", const=True, help=shown)
            group.add_argument(f"--no-{flag[2:]}", dest=name, action="store_const", const=False, help=argparse.SUPPRESS)
        else:
            shown = rules["help"] + (f" (default: {default})" if default != "" else "")
            group.add_argument(flag, help=shown, **rules["words"])
    return parser


def as_flag(name: str) -> str:
    """Spell a field as a flag: `batch_size` is `--batch-size`, and `batch_size=8` is `--batch-size=8`."""
    name, equals, value = name.partition("=")
    name = name.replace("-", "_")
    return f"--{ALIASES.get(name, name).replace('_', '-')}{equals}{value}"
