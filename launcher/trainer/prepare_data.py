"""Get Tiny Shakespeare: `python -m launcher.trainer.prepare_data`, or with --file where there is no network.

One megabyte of plays, as Andrej Karpathy put them together for char-rnn (https://github.com/karpathy/char-rnn).
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import os
import sys
import urllib.request
from pathlib import Path

from launcher.trainer.options import ConfigError

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
NAME = "tinyshakespeare.txt"
SIZE_BYTES = 1_115_394
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SILENCE_TIMEOUT_S = 30.0
COMMAND = "python -m launcher.trainer.prepare_data"


def main(argv: list[str] | None = None) -> int:
    """Put the text in the directory, or say in one line why it can't be had."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Download Tiny Shakespeare, or take it from a file.")
    parser.add_argument(
        "--folder", metavar="DIR", type=Path, default=Path("data"), help="where to put it (default: data)"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--file", type=Path, help="take this copy, where there is no network")
    source.add_argument("--url", default=URL, help=f"download from there (default: {URL})")
    options = parser.parse_args(argv)
    path = options.folder / NAME
    if is_whole(path):
        print(f"{path} is there already")
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
    """Return the path of the text in `folder`; raise ConfigError with the command that gets it."""
    path = folder / NAME
    if not is_whole(path):
        state = "is not whole" if path.exists() else "is not there"
        raise ConfigError(f"{path} {state} on rank 0's machine; get it with: {COMMAND} --folder {folder}")
    return path


def is_whole(path: Path) -> bool:
    """Say whether the file is there and is the right one."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == SHA256
    except OSError:
        return False


def read_file(path: Path) -> bytes:
    """Read the copy that somebody has."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def download(url: str) -> bytes:
    """Fetch `url`, and no more of it than the right text is long and one byte."""
    try:
        with urllib.request.urlopen(url, timeout=SILENCE_TIMEOUT_S) as answer:
            content: bytes = answer.read(SIZE_BYTES + 1)
            return content
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ConfigError(
            f"can't download {url}: {error}; fetch it on another machine and name the copy: {COMMAND} --file FILE"
        ) from None


def check(text: bytes, source: str) -> None:
    """Raise ConfigError unless `text` is Tiny Shakespeare to the last byte."""
    found = hashlib.sha256(text).hexdigest()
    if found != SHA256:
        size = f"{len(text)} bytes" if len(text) <= SIZE_BYTES else f"more than {SIZE_BYTES} bytes"
        raise ConfigError(
            f"{source} is not Tiny Shakespeare: {size}, SHA-256 {found}, "
            f"want {SIZE_BYTES} bytes, SHA-256 {SHA256}; nothing was written"
        )


def refuse_other(path: Path, text: bytes) -> None:
    """Raise ConfigError for a file at `path` that is no cut-off copy of the text, so somebody's own."""
    if path.exists() and not text.startswith(read_file(path)):
        raise ConfigError(f"{path} is there already and is another text: move it, or name another --folder")


def write(path: Path, text: bytes) -> None:
    """Make the directory and the file, which is whole or not there."""
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
