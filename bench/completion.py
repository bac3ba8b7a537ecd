"""How long a Tab takes: the answer to a shell, for each kind of word, in a home directory as a busy user has it."""

from __future__ import annotations

import base64
import json
import os
import statistics
import tempfile
from pathlib import Path

from bench.timing import Row, run, spread_of, take_turns
from bench.ways import LAUNCH

_LIMIT_S = 0.1
_TURNS = 11
_QUESTIONS = {
    "a command": ["launch", ""],
    "an option": ["launch", "--re"],
    "a value": ["launch", "--transport", ""],
    "a run, of 60": ["launch", "attach", ""],
    "a host, of 400 that SSH knows": ["launch", "--hosts", ""],
    "a host, of 64 in a hostfile": ["launch", "--hostfile", "{home}/hosts", "--exclude", ""],
}


def completion() -> list[Row]:
    """Measure one Tab of each kind, without the shell's own part."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        _furnish(home)
        env = {"HOME": folder, "PATH": os.environ["PATH"]}

        def ask(words: list[str]) -> float:
            question = [word.format(home=home) for word in words]
            return run([*LAUNCH, "__complete", "fish", *question], env=env).seconds

        ask(["launch", ""])  # the first Tab after an update keeps the words of all commands
        turns = take_turns(_TURNS, *(lambda words=words: ask(words) for words in _QUESTIONS.values()))
    return [
        Row(f"Tab: {kind}", statistics.median(seconds), "s", _LIMIT_S, f"median of {_TURNS}", spread=spread_of(seconds))
        for kind, seconds in zip(_QUESTIONS, turns, strict=True)
    ]


def _furnish(home: Path) -> None:
    """Write 100 hosts into ssh_config, 300 into known_hosts and 64 into a hostfile, and list 60 runs."""
    kind = b"ssh-ed25519"
    key = base64.b64encode(len(kind).to_bytes(4, "big") + kind + (32).to_bytes(4, "big") + bytes(32)).decode()
    (home / ".ssh").mkdir()
    blocks = (f"Host gpu{number}\n  HostName 10.0.0.{number}\n  User me\n" for number in range(100))
    (home / ".ssh/config").write_text("".join(blocks))
    (home / ".ssh/known_hosts").write_text("".join(f"node{number} {kind.decode()} {key}\n" for number in range(300)))
    (home / "hosts").write_text("".join(f"h{number} slots=8\n" for number in range(64)))
    for number in range(60):
        place = home / f".local/state/launch/runs/20261120-0912{number:02d}"
        place.mkdir(parents=True)
        (place / "controller.json").write_text(json.dumps({"name": f"run{number}"}))
