"""Get Tiny Shakespeare: `python -m launcher.trainer.prepare_data`; without a network add --file COPY.

One megabyte of plays, which Andrej Karpathy collected for char-rnn (https://github.com/karpathy/char-rnn).
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import os
import sys
import urllib.request
from pathlib import Path

from launcher.trainer.config import ConfigError

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
PATH = Path("data/tinyshakespeare.txt")
SIZE_BYTES = 1_115_394
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SILENCE_TIMEOUT_S = 30.0
COMMAND = "python -m launcher.trainer.prepare_data"


def main(argv: list[str] | None = None) -> int:
    """Put the text in data/, or print in one line why that isn't possible."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Download Tiny Shakespeare, or copy it from a file.")
    parser.add_argument("--file", type=Path, help="copy this file instead of downloading")
    source = parser.parse_args(argv).file
    try:
        if PATH.exists():
            print(f"{find_shakespeare()} already exists")
            return 0
        text = source.read_bytes() if source else download()
        check(text, f"{source or URL} is not Tiny Shakespeare: {len(text)} bytes, expected {SIZE_BYTES}")
        PATH.parent.mkdir(parents=True, exist_ok=True)
        temporary = PATH.with_name(f"{PATH.name}.{os.getpid()}.tmp")
        temporary.write_bytes(text)
        temporary.replace(PATH)  # so it is complete or absent
    except (ConfigError, OSError) as error:
        print(f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error, file=sys.stderr)
        return 1
    print(f"{PATH} written, {len(text)} bytes; train on it with --data shakespeare")
    return 0


def find_shakespeare() -> Path:
    """Return the path of the text; without it raise ConfigError with the command that downloads it."""
    if not PATH.exists():
        raise ConfigError(f"{PATH} is missing on rank 0's host; fix: run {COMMAND}")
    check(PATH.read_bytes(), f"{PATH} on rank 0's host is not Tiny Shakespeare; fix: remove it, and run {COMMAND}")
    return PATH


def download() -> bytes:
    """Download the text, at most one byte more than its size."""
    try:
        with urllib.request.urlopen(URL, timeout=SILENCE_TIMEOUT_S) as answer:
            return answer.read(SIZE_BYTES + 1)  # type: ignore[no-any-return]  # bytes
    except (OSError, http.client.HTTPException) as error:
        fix = f"download it on another machine, then run {COMMAND} --file FILE"
        raise ConfigError(f"can't download {URL}: {error}; fix: {fix}") from None


def check(text: bytes, complaint: str) -> None:
    """Raise ConfigError unless `text` is Tiny Shakespeare to the last byte."""
    if hashlib.sha256(text).hexdigest() != SHA256:
        raise ConfigError(complaint)


if __name__ == "__main__":
    sys.exit(main())
