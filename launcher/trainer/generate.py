"""Write text with a trained model: `python -m launcher.trainer.generate --model outputs/RUN --prompt ROMEO:`.

The model is a model.pt, or a checkpoint with the weights of any number of ranks. Like a resume, it is read as data.
"""

from __future__ import annotations

import argparse
import codecs
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from launcher.trainer.config import ConfigError, TrainConfig

COMMAND = "python -m launcher.trainer.generate"
NEWLINE = "\n"


@dataclass(frozen=True)
class Writer:
    """A model that continues a text, and what its tokens stand for: these characters, or bytes if there are none."""

    model: Any
    vocabulary: str
    context: int

    def read(self, prompt: str) -> list[int]:
        """Return the tokens of a prompt; raise ConfigError for a character that the model has never seen."""
        if not self.vocabulary:
            return list(prompt.encode("utf-8", "surrogateescape"))
        numbers = {character: number for number, character in enumerate(self.vocabulary)}
        unknown = "".join(dict.fromkeys(character for character in prompt if character not in numbers))
        if unknown:
            known = "".join(filter(str.isprintable, self.vocabulary))
            raise ConfigError(f"--prompt: the model doesn't know {unknown!r}; fix: use only characters of {known!r}")
        return [numbers[character] for character in prompt]

    def spell(self, tokens: Iterator[int]) -> Iterator[str]:
        """Yield the text of the tokens as soon as it is complete: a character may take several bytes."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in tokens:
            yield self.vocabulary[token] if self.vocabulary else decoder.decode(bytes([token]))
        yield decoder.decode(b"", final=True)

    def continue_tokens(
        self, prompt: Sequence[int], length: int, *, temperature: float, top_k: int, seed: int | None
    ) -> Iterator[int]:
        """Yield `length` more tokens; the same ones for the same seed, on a CPU and nearly always on a GPU."""
        import torch

        generator = torch.Generator()
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed % 2**63)
        device = next(self.model.parameters()).device
        tokens = list(prompt)
        for _ in range(length):
            with torch.no_grad():
                seen = torch.tensor([tokens[-self.context :]], device=device)
                logits = self.model.predict(seen)[0, -1].float().cpu()
            tokens.append(choose(logits, temperature, top_k, generator))
            yield tokens[-1]


def main(argv: list[str] | None = None) -> int:
    """Print the prompt and what the model makes of it; return 2, with one line on stderr, if that isn't possible."""
    parser = build_parser()
    options = parser.parse_args(argv)
    try:
        writer = load_writer(Path(options.model))
        prompt = writer.read(options.prompt or NEWLINE)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    print(clean(options.prompt), end="", flush=True)
    tokens = writer.continue_tokens(
        prompt, options.length, temperature=options.temperature, top_k=options.top_k, seed=options.seed
    )
    for text in writer.spell(tokens):
        print(clean(text), end="", flush=True)
    print()
    return 0


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description="Write text with a model that the built-in trainer has trained.",
        epilog=f"Example:\n  {COMMAND} --model outputs/RUN --prompt ROMEO: --temperature 0.8",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", metavar="PATH", required=True, help="model.pt, the directory of a run, or a checkpoint of it")
    add("--prompt", metavar="TEXT", default="", help="text to continue (default: a new line)")
    add("--length", metavar="N", type=count_of(1), default=500, help="tokens to write (default: 500)")
    add(
        "--temperature",
        metavar="X",
        type=temperature,
        default=1.0,
        help="0: the likeliest token; more: bolder (default: 1)",
    )
    add("--top-k", metavar="K", type=count_of(0), default=0, help="choose from the K likeliest tokens (default: all)")
    add("--seed", metavar="N", type=int, help="write the same text each time (default: another one)")
    return parser


def count_of(least: int) -> Any:
    """Return what reads a whole number of at least that."""

    def read(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {text}")
        return number

    read.__name__ = "whole number"  # argparse puts it into its errors
    return read


def temperature(text: str) -> float:
    """Read a temperature."""
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be 0 or more, got {text}")
    return number


def choose(logits: Any, temperature: float, top_k: int, generator: Any) -> int:
    """Draw one token: the likeliest one at temperature 0, otherwise the more evenly, the higher the temperature."""
    import torch

    if top_k and top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], float("-inf"))
    if not temperature:
        return int(logits.argmax())
    # In this form no temperature overflows: the largest exponent is 0.
    shares = torch.softmax((logits - logits.max()).double() / temperature, dim=-1)
    return int(torch.multinomial(shares, 1, generator=generator))


def clean(text: str) -> str:
    """Return text without what would control the terminal; a model may write anything."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text)


def load_writer(path: Path) -> Writer:
    """Read a model from model.pt, a checkpoint or a run's directory; raise ConfigError if it can't write text.

    Of a run that has not finished, the newest checkpoint. All are read as data, like a resume.
    """
    import torch

    from launcher.trainer.checkpoint import METADATA, PROGRESS, STATE, explain, find_whole, read_shards
    from launcher.trainer.model import build_model

    if path.is_dir() and not (path / PROGRESS).exists() and not (path / "model.pt").exists():
        path = ([path / "model.pt", *find_whole(path / "checkpoints")])[-1]
    elif path.is_dir() and not (path / PROGRESS).exists():
        path = path / "model.pt"
    try:
        is_export = not path.is_dir()
        saved = torch.load(path, weights_only=True) if is_export else json.loads((path / PROGRESS).read_text())
        names = {field.name for field in fields(TrainConfig)}  # another version may have others
        config = TrainConfig(**{name: value for name, value in saved["config"].items() if name in names})
        model = build_model(config, saved["vocabulary"]).to_empty(device="cpu")
        if is_export:
            weights = saved["model"]
        elif (path / METADATA).exists():
            weights = read_shards(path, model.state_dict())
        else:
            weights = torch.load(path / STATE, weights_only=True)["model"]
        model.load_state_dict(weights)
    except OSError as error:
        fix = "name a model.pt, a run's directory or a checkpoint"
        raise ConfigError(f"{path}: {error.strerror}; fix: {fix}") from None
    except BaseException as error:  # noqa: BLE001  # a broken file can raise anything, and CheckpointException
        raise ConfigError(f"{path}: not a model of this trainer: {explain(error)}") from None
    if config.is_regression:
        raise ConfigError(f"{path}: a model of the made-up regression can't write text; fix: train on a text")
    model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    return Writer(model, saved["vocabulary"], config.context)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGPIPE):  # end silently after Ctrl-C, and under `| head`
        signal.signal(number, signal.SIG_DFL)
    sys.exit(main())
