"""Remove terminal control sequences from text that `launch` didn't write; only color stays. Pure.

A remote program, a file name or a server's message must not move the cursor, set a title, write the clipboard (OSC 52)
or make the terminal reply as if the user had typed. Sequences are those of ECMA-48, as xterm reads them.
Nor may it show its letters in another order than they have in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

# All but newline, tab and ESC. BEL too: a thousand ranks would ring.
_C0 = r"\x00-\x08\x0b-\x1a\x1c-\x1f\x7f"
_C0_BYTES = bytes([*range(0x09), *range(0x0B, 0x1B), *range(0x1C, 0x20), 0x7F])
# Bidirectional embeddings, overrides and isolates reorder what is shown, up to the end of the line: Trojan Source,
# CVE-2021-42574, and Unicode TR 36. Right-to-left text needs none of them.
_BIDI = r"\u202a-\u202e\u2066-\u2069"
_BIDI_BYTES = re.compile(rb"\xe2\x80[\xaa-\xae]|\xe2\x81[\xa6-\xa9]")
_CSI = r"[0-?]*[ -/]*[@-~]"  # cursor, screen, modes, questions
# Title, clipboard, pictures: an unterminated one ends with its line, so that it hides no other line.
_STRING = r"[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
_COLOR = re.compile(rb"\x1b\[[0-9;:]*m")
_ESCAPE = re.compile(rf"\x1b(?!\[[0-9;:]*m)(?:\[{_CSI}|[\]PX^_]{_STRING}|[ -/]*[0-~]?)")
_CONTROL = re.compile(rf"[{_C0}{_BIDI}\x80-\x9f](?:(?<=\x9b){_CSI}|(?<=[\x90\x98\x9d-\x9f]){_STRING})?")
_OPEN_COLOR = re.compile(r"(\x1b\[(?!0*m)[0-9;:]*m[^\x1b\n]*)$", re.MULTILINE)
_MAX_SHOWN = 200  # characters
_NOT_IN_A_LINE = re.compile(rf"[{_C0}{_BIDI}\n\x1b\x80-\x9f\u2028\u2029]")


def clean(text: bytes) -> bytes:
    """Return text that is safe for a terminal: UTF-8 with newlines, tabs, and color that ends with its line."""
    plain = _COLOR.sub(b"", text) if b"\x1b" in text else text
    has_c1_or_bidi = b"\xc2" in plain or (b"\xe2" in plain and _BIDI_BYTES.search(plain) is not None)
    if has_c1_or_bidi or b"\x1b" in plain or len(plain.translate(None, _C0_BYTES)) != len(plain):
        # As characters: the bytes around a removed part could form a new control sequence.
        found = _CONTROL.sub("", _ESCAPE.sub("", text.decode("utf-8", "replace")))
        return _close_colors(found).encode()
    if plain is text and text.isascii():
        return text
    return _close_colors(text.decode("utf-8", "replace")).encode()


def without_controls(text: str) -> str:
    """Return text of several lines without control sequences, color included."""
    return _COLOR.sub(b"", clean(text.encode("utf-8", "replace"))).decode()


def _close_colors(text: str) -> str:
    return _OPEN_COLOR.sub("\\1\x1b[0m", text) if "\x1b" in text else text


def one_line(text: str, limit: int) -> str:
    """Return foreign text as part of one line of `launch`: without control characters, at most `limit` characters."""
    plain = _NOT_IN_A_LINE.sub("?", text[:limit].replace("\t", " "))
    return plain if len(text) <= limit else f"{plain}..."


def shown(name: str | Path) -> str:
    """Return a name as part of one line; one with a newline or a byte that is no UTF-8 is quoted, with escapes."""
    text = str(name)
    text = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
    return text if text.isprintable() else repr(text)


def listed_names(names: Iterable[str], most: int = 3) -> str:
    """Return the first names as `a, b, c and 7 more`."""
    ordered = sorted(names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(map(shown, ordered[:most])) + more
