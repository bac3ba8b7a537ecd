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
NAME = "tinyshakespeare.txt"
SIZE_BYTES = 1_115_394
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SILENCE_TIMEOUT_S = 30.0
COMMAND = "python -m launcher.trainer.prepare_data"


def main(argv: list[str] | None = None) -> int:
    """Put the text in the directory, or print in one line why that isn't possible."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Download Tiny Shakespeare, or copy it from a file.")
    add = parser.add_argument
    add("--folder", metavar="DIR", type=Path, default=Path("data"), help="directory to put it in (default: data)")
    add("--file", type=Path, help="copy this file instead of downloading")
    options = parser.parse_args(argv)
    path, source = options.folder / NAME, options.file or URL
    temporary = path.with_name(f"{NAME}.{os.getpid()}.tmp")
    try:
        if path.exists():
            print(f"{find_shakespeare(options.folder)} already exists")
            return 0
        text = options.file.read_bytes() if options.file else download()
        check(text, f"{source} is not Tiny Shakespeare: {len(text)} bytes, expected {SIZE_BYTES} with SHA-256 {SHA256}")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(text)
        temporary.replace(path)  # so it is complete or absent
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"{path} written, {len(text)} bytes; train on it with --data {path}")
    return 0


def find_shakespeare(folder: Path) -> Path:
    """Return the path of the text in `folder`; without it raise ConfigError with the command that downloads it."""
    path = folder / NAME
    if not path.exists():
        raise ConfigError(f"{path} is missing on rank 0's host; fix: run {COMMAND} --folder {folder}")
    fix = f"fix: remove it, and run {COMMAND} --folder {folder}"
    check(path.read_bytes(), f"{path} on rank 0's host is not Tiny Shakespeare; {fix}")
    return path


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
