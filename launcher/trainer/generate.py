"""Write text with a trained model: `python -m launcher.trainer.generate --model outputs/RUN --prompt ROMEO:`.

The model is a model.pt, or a checkpoint with the weights of any number of ranks. Like a resume, it is read as data.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from launcher.trainer.config import ConfigError, TrainConfig, number_type


def main(argv: list[str] | None = None) -> int:
    """Print the prompt and what the model makes of it; return 2, with one line on stderr, if that isn't possible."""
    parser = argparse.ArgumentParser("python -m launcher.trainer.generate", description="Write text with a model.")
    add, whole = parser.add_argument, number_type(int, 0, math.inf)
    add("--model", metavar="PATH", required=True, help="model.pt, the directory of a run, or a checkpoint of it")
    add("--prompt", metavar="TEXT", default="", help="text to continue (default: a new line)")
    add("--length", metavar="N", type=whole, default=500, help="bytes to write (default: 500)")
    add("--temperature", metavar="X", type=number_type(float, 0, math.inf), default=1.0,
        help="0: the likeliest byte; more: bolder (default: 1)")  # fmt: skip
    add("--top-k", metavar="K", type=whole, default=0, help="choose from the K likeliest bytes (default: all)")
    add("--seed", metavar="N", type=whole, help="write the same text each time (default: another one)")
    options = parser.parse_args(argv)
    import torch

    try:
        model, context = load_model(Path(options.model))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    generator = torch.Generator()
    generator.manual_seed(generator.seed() if options.seed is None else options.seed)
    tokens, device = list((options.prompt or "\n").encode("utf-8", "surrogateescape")), next(model.parameters()).device
    for _ in range(options.length):
        with torch.no_grad():
            logits = model.predict(torch.tensor([tokens[-context:]], device=device))[0, -1]
        tokens.append(choose(logits.float().cpu(), options.temperature, options.top_k, generator))
    text = bytes(tokens).decode("utf-8", "replace")
    # Without what would control the terminal; a model may write anything.
    print("".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text))
    return 0


def choose(logits: Any, temperature: float, top_k: int, generator: Any) -> int:
    """Draw one token: the likeliest one at temperature 0, otherwise the more evenly, the higher the temperature."""
    import torch

    if top_k and top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], -math.inf)
    if not temperature:
        return int(logits.argmax())
    # In this form no temperature overflows: the largest exponent is 0.
    shares = torch.softmax((logits - logits.max()).double() / temperature, dim=-1)
    return int(torch.multinomial(shares, 1, generator=generator))


def load_model(path: Path) -> tuple[Any, int]:
    """Return a model that writes text, and how many bytes it looks back.

    The directory of a run that has not finished stands for its newest checkpoint. Raise ConfigError for another file.
    """
    import torch

    from launcher.trainer.checkpoint import (
        METADATA,
        PROGRESS,
        STATE,
        find_whole,
        load_tensors,
        read_progress,
        read_shards,
    )
    from launcher.trainer.model import build_model

    if path.is_dir() and not (path / PROGRESS).exists():
        is_over = (path / "model.pt").exists()
        path = path / "model.pt" if is_over else [path / "model.pt", *find_whole(path / "checkpoints")][-1]
    saved = read_progress(path) if path.is_dir() else load_tensors(path)
    try:
        names = {field.name for field in fields(TrainConfig)}  # another version may have others
        config = TrainConfig(**{name: value for name, value in saved["config"].items() if name in names})
        model = build_model(config).to_empty(device="cpu")
        if (path / METADATA).exists():
            weights = read_shards(path, {"model": model.state_dict()})["model"]
        else:
            weights = (load_tensors(path / STATE) if path.is_dir() else saved)["model"]
        model.load_state_dict(weights)
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ConfigError(f"{path}: not a model of this trainer: {str(error).partition(chr(10))[0]}") from None
    model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    return model, config.context


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGPIPE):  # end silently after Ctrl-C, and under `| head`
        signal.signal(number, signal.SIG_DFL)
    sys.exit(main())
