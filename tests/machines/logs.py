"""The logs of a run: each line begins with the time at which it arrived."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from launcher.output.log_writer import LogWriter
from launcher.output.write_queue import WriteQueue

_LINE = re.compile(rb"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) ([^\n]*\n)", re.MULTILINE)


def without_stamps(log: bytes) -> bytes:
    """Return a log without its timestamps, after checking that every line has one and that they are in order."""
    stamps = [found[1] for found in _LINE.finditer(log)]
    assert len(stamps) == log.count(b"\n"), "a line without a stamp"
    assert stamps == sorted(stamps), "a stamp that steps back"
    return _LINE.sub(rb"\2", log)


class PromptDisk(WriteQueue):
    """A disk that does everything at once, in the thread that asks for it."""

    def put(self, work: Callable[[], object], size: int = 0, *, is_kept: bool = False) -> bool:
        work()
        return True


def open_log(path: Path, complain: Callable[[Path, OSError], None], files: Path = Path("/dev/null")) -> LogWriter:
    """Return a log on a disk that never lets anybody wait; files: the directory for what ranks leave."""

    def fail(error: Exception) -> None:
        raise error

    disk = PromptDisk("disk", fail)
    return LogWriter(path, complain, files, disk)
