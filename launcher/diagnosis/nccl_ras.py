"""Read the answer of NCCL's RAS: its errors and warnings, without the tables above them."""

from __future__ import annotations

import re

_MOST_LINES = 15
_HEADING = re.compile(r"^(?P<name>\S.*)\n=+$", re.MULTILINE)
_READ = ("Errors", "Warnings")


def find_complaints(text: str) -> list[str]:
    """Return the lines below `Errors` and `Warnings`; empty if RAS has seen nothing unusual."""
    headings = list(_HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    lines = [
        line.rstrip()
        for heading, end in zip(headings, ends, strict=False)
        if heading["name"] in _READ
        for line in text[heading.end() : end].splitlines()
        if line.strip()
    ]
    left_out = len(lines) - _MOST_LINES
    return lines if left_out <= 0 else [*lines[:_MOST_LINES], f"... {left_out} more lines"]


def is_answer(text: str) -> bool:
    """Return whether this is a status of RAS, whoever listened on its port."""
    return any(heading["name"].startswith(("Job summary", "Communicators")) for heading in _HEADING.finditer(text))
