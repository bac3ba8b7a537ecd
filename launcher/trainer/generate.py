"""Write text with a trained model: `python -m launcher.trainer.generate --model outputs/RUN --prompt ROMEO:`.

The model is a model.pt, or a checkpoint with the weights of any number of ranks. Like a resume, it is read as data.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from launcher.trainer.config import ConfigError, TrainConfig

COMMAND = "python -m launcher.trainer.generate"


def main(argv: list[str] | None = None) -> int:
    """Print the prompt and what the model makes of it; return 2, with one line on stderr, if that isn't possible."""
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description="Write text with a model that the built-in trainer has trained.",
        epilog=f"Example:\n  {COMMAND} --model outputs/RUN --prompt ROMEO: --temperature 0.8",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", metavar="PATH", required=True, help="model.pt, the directory of a run, or a checkpoint of it")
    add("--prompt", metavar="TEXT", default="", help="text to continue (default: a new line)")
    add("--length", metavar="N", type=int, default=500, help="tokens to write (default: 500)")
    add("--temperature", metavar="X", type=float, default=1.0, help="0: the likeliest token; more: bolder (default: 1)")
    add("--top-k", metavar="K", type=int, default=0, help="choose from the K likeliest tokens (default: all)")
    add("--seed", metavar="N", type=int, help="write the same text each time (default: another one)")
    options = parser.parse_args(argv)
    if min(options.length, options.top_k) < 0 or not 0 <= options.temperature < math.inf:
        parser.error("--length, --top-k and --temperature must be at least 0")
    import torch

    try:
        model, vocabulary, context = load_model(Path(options.model))
        tokens = encode(options.prompt or "\n", vocabulary)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    generator = torch.Generator()
    generator.manual_seed(generator.seed() if options.seed is None else options.seed % 2**63)
    prompt_length, device = len(tokens), next(model.parameters()).device
    for _ in range(options.length):
        with torch.no_grad():
            logits = model.predict(torch.tensor([tokens[-context:]], device=device))[0, -1]
        tokens.append(choose(logits.float().cpu(), options.temperature, options.top_k, generator))
    written = tokens[prompt_length:]
    text = "".join(vocabulary[token] for token in written) if vocabulary else bytes(written).decode("utf-8", "replace")
    print(clean(options.prompt + text))
    return 0


def encode(prompt: str, vocabulary: str) -> list[int]:
    """Return the tokens of a prompt; raise ConfigError for a character that the model has never seen."""
    if not vocabulary:
        return list(prompt.encode("utf-8", "surrogateescape"))
    unknown = "".join(dict.fromkeys(character for character in prompt if character not in vocabulary))
    if unknown:
        known = "".join(filter(str.isprintable, vocabulary))
        raise ConfigError(f"--prompt: the model doesn't know {unknown!r}; fix: use only characters of {known!r}")
    return [vocabulary.index(character) for character in prompt]


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


def clean(text: str) -> str:
    """Return text without what would control the terminal; a model may write anything."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text)


def load_model(path: Path) -> tuple[Any, str, int]:
    """Return a model that writes text, the characters that its tokens stand for, and how many of them it looks back.

    The directory of a run that has not finished stands for its newest checkpoint. Raise ConfigError for another file.
    """
    import torch

    from launcher.trainer.checkpoint import METADATA, PROGRESS, STATE, explain, find_whole, read_shards
    from launcher.trainer.model import build_model

    if path.is_dir() and not (path / PROGRESS).exists():
        is_over = (path / "model.pt").exists()
        path = path / "model.pt" if is_over else [path / "model.pt", *find_whole(path / "checkpoints")][-1]
    try:
        is_export = not path.is_dir()
        saved = torch.load(path, weights_only=True) if is_export else json.loads((path / PROGRESS).read_text())
        names = {field.name for field in fields(TrainConfig)}  # another version may have others
        config = TrainConfig(**{name: value for name, value in saved["config"].items() if name in names})
        model = build_model(config, saved["vocabulary"]).to_empty(device="cpu")
        if is_export:
            weights = saved["model"]
        elif (path / METADATA).exists():
            weights = read_shards(path, {"model": model.state_dict()})["model"]
        else:
            weights = torch.load(path / STATE, weights_only=True)["model"]
        model.load_state_dict(weights)
    except OSError as error:
        fix = "name a model.pt, a run's directory or a checkpoint"
        raise ConfigError(f"{path}: {error.strerror}; fix: {fix}") from None
    except Exception as error:  # noqa: BLE001  # a broken file can raise anything
        raise ConfigError(f"{path}: not a model of this trainer: {explain(error)}") from None
    if config.is_regression:
        raise ConfigError(f"{path}: a model of the made-up regression can't write text; fix: train on a text")
    model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    return model, saved["vocabulary"], config.context


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGPIPE):  # end silently after Ctrl-C, and under `| head`
        signal.signal(number, signal.SIG_DFL)
    sys.exit(main())
