"""The logs of a run: each line begins with the time at which it arrived."""

from __future__ import annotations

import re

_LINE = re.compile(rb"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) ([^\n]*\n)", re.MULTILINE)


def without_stamps(log: bytes) -> bytes:
    """Return a log without its timestamps, after checking that every line has one and that they are in order."""
    stamps = [found[1] for found in _LINE.finditer(log)]
    assert len(stamps) == log.count(b"\n"), "a line without a stamp"
    assert stamps == sorted(stamps), "a stamp that steps back"
    return _LINE.sub(rb"\2", log)
