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
    parser.add_argument(
        "--folder", metavar="DIR", type=Path, default=Path("data"), help="directory to put the text in (default: data)"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--file", type=Path, help="copy this file instead of downloading")
    source.add_argument("--url", default=URL, help=f"download this URL (default: {URL})")
    options = parser.parse_args(argv)
    path = options.folder / NAME
    if is_whole(path):
        print(f"{path} already exists")
        return 0
    try:
        text = read_file(options.file) if options.file else download(options.url)
        check(text, str(options.file or options.url))
        refuse_other(path, text)
        write(path, text)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{path} written, {len(text)} bytes; train on it with --data {path}")
    return 0


def find_shakespeare(folder: Path) -> Path:
    """Return the path of the text in `folder`; without it raise ConfigError with the command that downloads it."""
    path = folder / NAME
    if not is_whole(path):
        state = "is not complete" if path.exists() else "is missing"
        raise ConfigError(f"{path} {state} on rank 0's host; fix: run {COMMAND} --folder {folder}")
    return path


def is_whole(path: Path) -> bool:
    """Return whether the file exists and holds the right text."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == SHA256
    except OSError:
        return False


def read_file(path: Path) -> bytes:
    """Read a copy of the text; raise ConfigError if that fails."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def download(url: str) -> bytes:
    """Download `url`, at most one byte more than the size of the right text."""
    try:
        with urllib.request.urlopen(url, timeout=SILENCE_TIMEOUT_S) as answer:
            content: bytes = answer.read(SIZE_BYTES + 1)
            return content
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ConfigError(
            f"can't download {url}: {error}; fix: download it on another machine, then run {COMMAND} --file FILE"
        ) from None


def check(text: bytes, source: str) -> None:
    """Raise ConfigError unless `text` is Tiny Shakespeare to the last byte."""
    found = hashlib.sha256(text).hexdigest()
    if found != SHA256:
        size = f"{len(text)} bytes" if len(text) <= SIZE_BYTES else f"more than {SIZE_BYTES} bytes"
        raise ConfigError(
            f"{source} is not Tiny Shakespeare: {size}, SHA-256 {found}, "
            f"expected {SIZE_BYTES} bytes, SHA-256 {SHA256}; nothing was written"
        )


def refuse_other(path: Path, text: bytes) -> None:
    """Raise ConfigError for a file at `path` that isn't a truncated copy of the text, so it may be the user's own."""
    if path.exists() and not text.startswith(read_file(path)):
        raise ConfigError(f"{path} already exists and is another text; fix: move it, or name another --folder")


def write(path: Path, text: bytes) -> None:
    """Make the directory and write the file, which is complete or absent."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(text)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: can't write it: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
