"""Find Python tracebacks in a program's stderr, and shorten them to the lines that matter most.

Nothing here does I/O.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, takewhile

_TRACEBACK = "Traceback (most recent call last):"
# Also those of a data loader worker and of an exception group.
_STARTS = (_TRACEBACK, f"Original {_TRACEBACK}", f"Exception Group {_TRACEBACK}")
_GROUP_BORDER = re.compile(r"^  [+|] ")
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line \d+(?:, in |$)')
# For a script that Python can't parse, it prints no header, only the place and the error.
_SYNTAX_PLACE = re.compile(r'^  File "[^"]+", line \d+$')
_SYNTAX_ERROR = re.compile(r"^(?:Syntax|Indentation|Tab)Error\b")
_FOREIGN = ("site-packages/", "dist-packages/", "<frozen ", "/lib/python3")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
# What a progress bar or a logger has printed before it stays in its line.
_HEADER = re.compile(
    r"(?P<prefix>.*?)(?P<header>(?:Original |Exception Group )?Traceback \(most recent call last\)):\W*$"
)
# torch prints every line of an exception twice if torch.distributed is initialised: plain and with `[rank0]:`.
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
# How faulthandler reports a crash, the innermost frame first; the other threads come before.
_CRASH = "Fatal Python error: "
_STACK = re.compile(
    r"\s*(?:frame #\d+: |#\d+ .{0,80}::|Exception raised from |C\+\+ CapturedTraceback)"
    r'|(?:Current thread|Thread) 0x|  File "[^"]+", line \d+ in '
)
_CRASH_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line \d+ in ')
# What torch and Python may print between an exception and the end of the process.
_AFTERMATH = re.compile(r"\[rank\d+\]:|\[[WEIF]\d|\s|.{0,300}Warning: ")
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")
_FOLDERS = re.compile(r"/(?:[^\s/'\":]+/)+")  # of a path, which may differ on another host
_MOST_AFTER = 30  # lines of stdout; after more, the rank has survived it
_MAX_MESSAGE_LINES = 8  # of an error's message, after its first; NCCL gives the reason in the third


@dataclass(frozen=True, slots=True)
class _Block:
    """A traceback: its range of lines, and these lines without prefixes such as `[rank0]:`."""

    start: int
    end: int
    lines: tuple[str, ...]


def extract_traceback(stderr: str) -> list[str]:
    """Return the last Python traceback in a stream, with its error line, or an empty list."""
    last = _find_last(stderr)
    return list(last.lines) if last else []


def ends_in_traceback(stderr: str) -> bool:
    """Tell whether only warnings follow the last traceback of a stream, and the traceback has its error line."""
    last = _find_last(stderr)
    if last is None or _is_cut_off(last.lines):
        return False
    return all(is_stack(line) or _AFTERMATH.match(line) for line in stderr.splitlines()[last.end :])


def is_same_error(stderr: str, other: str) -> bool:
    """Tell whether two streams end in the same exception at the same place, except for numbers and directories.

    The second one may be cut off in the middle of its traceback.
    """
    mine, theirs = extract_traceback(stderr), extract_traceback(other)
    if len(mine) < 2 or len(theirs) < 2 or _is_cut_off(mine):
        return False
    if _is_cut_off(theirs):
        return "\n".join(map(mask, mine)).startswith("\n".join(map(mask, theirs)))
    return _identify(mine) == _identify(theirs)


def mask(line: str) -> str:
    """Return a line without what differs from rank to rank: numbers, and the directories of paths."""
    return _NUMBER.sub("N", _FOLDERS.sub("/", line))


def _identify(traceback: Sequence[str]) -> tuple[str, str]:
    """Return the innermost frame of the user's own code, and the error."""
    place, *_, error = shorten_traceback(traceback)
    return mask(place), mask(error)


def _is_cut_off(lines: Sequence[str]) -> bool:
    return lines[-1].startswith(" ")


def extract_errors(stderr: str) -> list[str]:
    """Return the last error's line and message, then those of the errors that it is chained to."""
    plain = _without_prefixes(stderr.splitlines())
    blocks = _last_group(plain)
    errors: list[str] = []
    for block in reversed(blocks):
        following = plain[block.end : block.end + _MAX_MESSAGE_LINES]
        ends = (place for place, line in enumerate(following) if not line.strip() or line.strip() in _STARTS)
        errors += [block.lines[-1], *following[: next(ends, len(following))]]
    return errors


def extract_crash(stderr: str) -> list[str]:
    """Return the user's innermost frame and the error of a crash that faulthandler reported, or an empty list."""
    lines = _without_prefixes(stderr.splitlines())
    errors = [place for place, line in enumerate(lines) if line.startswith(_CRASH)]
    if not errors:
        return []
    threads = [place for place, line in enumerate(lines) if line.startswith("Current thread 0x") and place > errors[-1]]
    frames = list(takewhile(_CRASH_FRAME.match, lines[threads[-1] + 1 :] if threads else ()))
    own = [line for line in frames if not any(part in line for part in _FOREIGN)] or frames
    return [*(line.strip() for line in own[:1]), lines[errors[-1]]]


def is_stack(line: str) -> bool:
    """Tell whether a line is empty, or part of the stack that C++ or faulthandler prints after a crash."""
    return not line.strip() or line.startswith((_CRASH, "Extension modules: ")) or bool(_STACK.match(line))


def last_said(lines: Sequence[str], count: int) -> list[str]:
    """Return the last lines except those of native stacks, which follow an error and would displace it."""
    return list(islice((line for line in reversed(lines) if not is_stack(line)), count))[::-1]


def cut_tracebacks(lines: Sequence[str]) -> list[str]:
    """Return the lines without the last traceback and the tracebacks that belong to it.

    These are the tracebacks it is chained to, and the second copy that torch prints with `[rank0]:`.
    """
    blocks = _last_group(_without_prefixes(lines))
    return [*lines[: blocks[0].start], *lines[blocks[-1].end :]] if blocks else list(lines)


def shorten_traceback(lines: Sequence[str]) -> list[str]:
    """Return the innermost frame of the user's own code, and the error line."""
    if not lines:
        return []
    frames = [index for index, line in enumerate(lines) if _FRAME.match(line)]
    own = [index for index in frames if not any(part in lines[index] for part in _FOREIGN)] or frames
    short = []
    if own:
        following = [index for index in frames if index > own[-1]] or [len(lines) - 1]
        short = [line for line in lines[own[-1] : following[0]] if line.strip()]
        if not _SYNTAX_ERROR.match(lines[-1]):  # its marker shows more than its line
            short = [line for line in short if not re.fullmatch(r"\s*[\^~]+\s*", line)]
    return [line[2:] if line.startswith("  ") else line for line in [*short, lines[-1]]]


def _without_prefixes(lines: Sequence[str]) -> list[str]:
    """Return the lines as Python prints them, without what torch or a logger adds to a traceback.

    Few lines have a prefix, so a cheap test comes before the patterns: a thousand ranks print many lines.
    """
    plain: list[str] = []
    prefix: re.Pattern[str] | None = None  # that the lines of a traceback have, with any numbers
    for line in lines:
        text = _GROUP_BORDER.sub("", _RANK_PREFIX.sub("", line)) if line.startswith(("[rank", "  ")) else line
        if "Traceback (" in text and (header := _HEADER.match(text)):
            text = f"{header['header']}:"
            prefix = (
                re.compile(re.sub(r"\d+", r"\\d+", re.escape(header["prefix"]))) if header["prefix"].strip() else None
            )
        elif prefix is not None and (found := prefix.match(text)):
            text = text[found.end() :]
        elif text.startswith('> File "'):  # loguru's mark of the frame that has caught it
            text = f" {text[1:]}"
        plain.append(text)
    return plain


def gather_traceback(stdout: str, stderr: str) -> tuple[str, str]:
    """Return both streams, with the traceback that ends stdout at the end of stderr if that has none."""
    lines = stdout.splitlines()
    blocks = [] if extract_traceback(stderr) or not extract_traceback(stdout) else _last_group(_without_prefixes(lines))
    if not blocks or len(lines) - blocks[-1].end > _MOST_AFTER:
        return stdout, stderr
    start = blocks[0].start
    return "\n".join(lines[:start]), "\n".join([*filter(None, [stderr]), *lines[start:]])


@lru_cache(maxsize=2048)  # enough for a thousand ranks, whose output is searched again and again
def _find_last(stderr: str) -> _Block | None:
    blocks = _find_blocks(_without_prefixes(stderr.splitlines()))
    return blocks[-1] if blocks else None


def _find_blocks(plain: Sequence[str]) -> list[_Block]:
    blocks: list[_Block] = []
    for start, line in enumerate(plain):
        has_header = line.strip() in _STARTS
        if not (has_header or _SYNTAX_PLACE.match(line)) or (blocks and start < blocks[-1].end):
            continue
        # The error itself is the first line at the margin.
        ends = (place + 1 for place in range(start + 1, len(plain)) if plain[place] and plain[place][0] != " ")
        end = next(ends, len(plain))
        if has_header or _SYNTAX_ERROR.match(plain[end - 1]):
            blocks.append(_Block(start, end, (_TRACEBACK, *plain[start + has_header : end])))
    return blocks


def _last_group(plain: Sequence[str]) -> list[_Block]:
    """Return the last tracebacks that belong together: chained, or torch's plain and `[rank0]:`."""
    blocks = _find_blocks(plain)
    group = blocks[-1:]
    for block in reversed(blocks[:-1]):
        between = [line.strip() for line in plain[block.end : group[0].start]]
        is_chained = all(not line or line.startswith(_CHAINED) for line in between)
        if not is_chained and block.lines[-1] != group[0].lines[-1]:
            break
        group.insert(0, block)
    return group
