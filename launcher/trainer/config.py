"""The trainer's options: defaults, then a YAML or JSON file, then flags; the later ones win.

Each field of `TrainConfig` is a key of the file and a flag of the command line, and is described only here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from launcher.trainer.options import ConfigError, option, read_values

# The values of --resume that are not the path of a checkpoint.
NONE, AUTO, LAST = "none", "auto", "last"
SHAPE = ("layers", "heads", "dim", "context")
ABOUT = """\
Train a small model: in one process, or in many under launch, torchrun or srun.

Examples:
  python -m launcher.trainer --epochs 2
  launch --hosts node1,node2 -m launcher.trainer --config config/local3.yaml
  python -m launcher.trainer.generate --model outputs/RUN --prompt ROMEO:"""


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
    workers: int = option(
        -1,
        "threads per rank that read data ahead; 0: none; -1: none while the data are small, else up to 4",
        minimum=-1,
        aliases=("num_workers",),
    )
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
    keep: int = option(
        2,
        "newest checkpoints to keep, next to the one with the best validation loss; older ones are removed, unless "
        "they were saved with a larger --keep",
        minimum=1,
    )

    epochs: int = option(1, "epochs to train", minimum=1, aliases=("num_epochs",), group="Training")
    steps_per_epoch: int = option(60, "end each epoch after N steps; 0: after all of the data")
    batch_size: int = option(
        16,
        "samples per rank and pass",
        minimum=1,
        instead_of="global_batch",
        elsewhere="is per rank here; if all ranks shared it in the trainer of this file, write global_batch: {}",
    )
    global_batch: int = option(
        0, "samples per step of all ranks together, instead of --batch-size", instead_of="batch_size"
    )
    accumulate: int = option(1, "passes per step; their gradients are averaged", minimum=1)
    lr: float = option(3e-3, "peak learning rate of AdamW", aliases=("learning_rate",))
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
    plot: str = option("", "draw the loss curve at the end, as .png or .svg (default: none)", metavar="FILE")

    layers: int = option(2, "transformer blocks", minimum=1, group="Model")
    heads: int = option(2, "attention heads per block", minimum=1)
    dim: int = option(64, "width of the model", minimum=1)
    context: int = option(64, "tokens that the model can look back", minimum=1)
    dropout: float = option(
        0.0, "share of the values dropped after the embedding, attention and MLP while training; 0: none", below=1
    )

    amp: str = option(
        "off",
        "mixed precision: off, bf16, or fp16 with a scaled loss (GPU only)",
        metavar="TYPE",
        choices=("off", "bf16", "fp16"),
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
    sync_every_pass: str = option(
        "auto",
        "on, or no value: reduce the gradients over the ranks in each pass of --accumulate; off: in the last pass "
        "only, until when fsdp keeps the whole gradient on every rank; auto: on with fsdp, else off",
        metavar="on|off|auto",
        choices=("auto", "on", "off"),
        bare="on",
    )
    distributed_backend: str = option(
        "auto",
        "nccl, gloo, or auto: nccl if there are GPUs, else gloo",
        metavar="NAME",
        choices=("auto", "nccl", "gloo"),
    )
    timeout: float = option(
        600.0,
        "seconds that a rank waits for the others, at the start and in each collective; validation and saving by "
        "rank 0 may take longer",
        metavar="SECONDS",
        minimum=1,
        below=1e7,  # far more makes torch overflow
    )
    nodes: int = option(0, "refuse to run unless there are N nodes; 0: any number", aliases=("num_nodes",))
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
    def kind(self) -> str:
        """Return what is learned: `text` or `regression`."""
        return "regression" if self.data == "regression" or (self.data_size and not self.data) else "text"


FIELDS = {field.name: field for field in fields(TrainConfig)}


def read_config(argv: list[str], tell: Callable[[str], None] = lambda line: None) -> TrainConfig:
    """Return the config for a command line, or raise `ConfigError` with one line that says what is wrong.

    tell: called with a line about options that were given under another name.
    """
    values = read_values(FIELDS, argv, ABOUT, tell)
    config = TrainConfig(**values)
    if config.dim % config.heads:
        raise ConfigError(f"dim must be a multiple of heads, got dim {config.dim} and heads {config.heads}")
    if config.global_batch and "batch_size" in values:
        raise ConfigError("batch_size and global_batch both set the batch; fix: give one of them")
    return config
