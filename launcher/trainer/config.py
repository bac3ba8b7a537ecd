"""What the trainer can be told: defaults, then a YAML or JSON file, then flags; the later wins.

Each field of `TrainConfig` is a key of the file and a flag of the command line, and is described once, here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from launcher.trainer.options import ConfigError, option, read_values

# What --resume may say besides the path of a checkpoint.
NONE, AUTO, LAST = "none", "auto", "last"
SHAPE = ("layers", "heads", "dim", "context")


@dataclass(frozen=True)
class TrainConfig:
    """Everything a run depends on."""

    data: str = option(
        "",
        "a text, read on rank 0's machine only; shakespeare: what prepare_data got; regression: made-up numbers "
        "(default: the topics of Python's help(), with --data-size regression)",
        metavar="FILE",
    )
    data_size: int = option(0, "take so many samples; 0: the whole text, 10000 for the regression")
    validation_fraction: float = option(0.1, "keep this part of the data for validation; 0: none", below=1)
    workers: int = option(
        -1,
        "processes that load data, per rank; -1: none while the data are small",
        minimum=-1,
        aliases=("num_workers",),
    )
    seed: int = option(1, "seed of the weights and of the order of the data")

    save_dir: str = option(
        "",
        "where checkpoints/, model.pt and metrics.jsonl go (default: a new directory in outputs, named like the run)",
        metavar="DIR",
    )
    resume: str = option(
        NONE,
        "last, or no word: go on from the newest checkpoint in --save-dir; auto: the same, or begin anew if there is "
        "none; none: begin anew; or the path of a checkpoint",
        metavar="last|auto|none|PATH",
        bare=LAST,
    )
    save_every: int = option(0, "save a checkpoint every so many steps too; 0: after each epoch only")
    keep: int = option(
        2, "checkpoints to keep; the oldest goes first, unless it was saved under a larger number", minimum=1
    )

    epochs: int = option(1, "epochs", minimum=1, aliases=("num_epochs",))
    steps_per_epoch: int = option(60, "end an epoch after so many steps; 0: after all of the data")
    batch_size: int = option(16, "samples per rank and pass", minimum=1, instead_of="global_batch")
    global_batch: int = option(
        0, "samples per step of all ranks together, instead of --batch-size", instead_of="batch_size"
    )
    accumulate: int = option(1, "passes per step; their gradients are averaged", minimum=1)
    lr: float = option(3e-3, "learning rate of AdamW, at its highest", aliases=("learning_rate",))
    warmup_steps: int = option(10, "let the learning rate rise from 0 for so many steps")
    final_lr_fraction: float = option(
        0.1, "let it fall along a cosine to this part at the end; 1: let it be", below=1.1
    )
    weight_decay: float = option(0.1, "weight decay of AdamW")
    clip_norm: float = option(1.0, "clip the gradient to this norm; 0: don't")
    log_every: int = option(20, "print the loss every so many steps", minimum=1)
    evaluate_every: int = option(0, "validate every so many steps too; 0: after each epoch only")
    evaluate_on: str = option(
        "all",
        "all ranks share the validation, or main: rank 0 does it alone",
        metavar="RANKS",
        choices=("all", "main"),
    )

    report_ranks: str = option(
        "auto",
        "on, or no word: a line per rank in the start report that says where it runs (host, GPU and its UUID, pid); "
        "auto: with at most 16 ranks",
        metavar="on|off|auto",
        choices=("auto", "on", "off"),
        bare="on",
    )
    track: str = option("", "send the figures to tensorboard, mlflow or wandb too, or to several: a,b", metavar="NAMES")
    plot: str = option("", "draw the loss curve at the end, as .png or .svg", metavar="FILE")

    layers: int = option(2, "transformer blocks", minimum=1)
    heads: int = option(2, "attention heads per block", minimum=1)
    dim: int = option(64, "width of the model", minimum=1)
    context: int = option(64, "bytes that the model looks back", minimum=1)

    amp: str = option(
        "off",
        "mixed precision: off, bf16, or fp16 with a scaled loss (GPU only)",
        metavar="TYPE",
        choices=("off", "bf16", "fp16"),
    )
    compile: bool = option(False, "compile the model with torch.compile")
    parallel: str = option(
        "auto",
        "ddp: every rank has the model; fsdp: ranks share its parts; tp: ranks share each matrix product; "
        "fsdp+tp: both; auto: ddp, or what --tensor-parallel asks for",
        metavar="KIND",
        choices=("auto", "ddp", "fsdp", "tp", "fsdp+tp"),
    )
    tensor_parallel: int = option(0, "ranks that share each matrix product; 0: all with tp, else 1")
    distributed_backend: str = option(
        "auto",
        "nccl, gloo, or auto: nccl where there are GPUs",
        metavar="NAME",
        choices=("auto", "nccl", "gloo"),
    )
    nodes: int = option(0, "refuse to run on another number of nodes; 0: any", aliases=("num_nodes",))
    gpus_per_node: int = option(0, "refuse to run with another number of ranks on a node; 0: any")

    @property
    def kind(self) -> str:
        """Say what is learned: a text, or a regression."""
        return "regression" if self.data == "regression" or (self.data_size and not self.data) else "text"


FIELDS = {field.name: field for field in fields(TrainConfig)}


def read_config(argv: list[str], tell: Callable[[str], None] = lambda line: None) -> TrainConfig:
    """Turn a command line into a config, or raise `ConfigError` with one line that says what is wrong.

    tell: what takes a line about options that have another name here.
    """
    about = "Train a small model on one process or, under torchrun or Slurm, on many."
    values = read_values(FIELDS, argv, about, tell)
    config = TrainConfig(**values)
    if config.dim % config.heads:
        raise ConfigError(f"dim must be a multiple of heads, got dim {config.dim} and heads {config.heads}")
    if config.global_batch and "batch_size" in values:
        raise ConfigError("batch_size and global_batch say the same in two ways: give one of them")
    return config
