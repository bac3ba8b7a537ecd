"""Check whether dumps of NCCL's flight recorder are safe to load: they are pickles, which can run code when loaded.

torchfrtrace unpickles every file below its directory whose name has the prefix (torch/distributed/flight_recorder/
components/loader.py, read_dir), on the launch host and as the user. The hosts sent these files.

A real dump is written in C++ by torch::jit::Pickler (pickle_str in c10d/TraceUtils.h, pickler.h), with protocol 2 and
from lists, dicts, tuples, strings, numbers, booleans and None alone. Only the opcodes for these are accepted here, so
nothing can be imported or called, and the size of the result is a small multiple of the file's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

MAX_FILE_BYTES = 32 << 20  # of all files of a host
MAX_STRINGS = 1 << 18  # the Pickler writes each text once; 2000 events have some hundreds
_PROTOCOL = b"\x80\x02"
_STRING, _STOP = b"X", b"."
_WITH_NUMBER, _NUMBER_BYTES = b"KMJGqhrj\x8a", 9
# None, booleans, containers; numbers of 1, 2, 4 and 8 bytes; the memo, whose index is how long a table gets.
_PLAIN = re.compile(
    rb"(?:[N\x88\x89()t\x85-\x87}\]aesu]|[Kqh].|M..|J.{4}|G.{8}|[rj]..[\x00-\x0f]\x00|\x8a\x08.{8}){1,4096}", re.DOTALL
)


def find_unsafe(paths: Iterable[Path]) -> dict[Path, str]:
    """Return the files that must not be unpickled, each with the reason."""
    reasons = ((path, _check_file(path)) for path in paths)
    return {path: reason for path, reason in reasons if reason}


def _check_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        return f"can't be read: {error.strerror}"
    return check_dump(content)


def check_dump(content: bytes) -> str:
    """Describe what is wrong with a dump; empty if unpickling it makes plain data and nothing else."""
    if len(content) > MAX_FILE_BYTES:
        return f"is larger than {MAX_FILE_BYTES >> 20} MiB"
    if not content.startswith(_PROTOCOL):
        return "isn't a dump of the flight recorder"
    place, strings = len(_PROTOCOL), 0
    while place < len(content):
        if found := _PLAIN.match(content, place):
            place = found.end()
        elif (opcode := content[place : place + 1]) == _STRING:
            place += 5 + int.from_bytes(content[place + 1 : place + 5], "little")
            strings += 1
            if strings > MAX_STRINGS:
                return f"holds more than {MAX_STRINGS} texts"
        else:
            if opcode in _WITH_NUMBER and len(content) - place <= _NUMBER_BYTES:
                return "is cut off"
            return "" if opcode == _STOP else f"holds more than plain data at byte {place} and could run code here"
    return "is cut off"
