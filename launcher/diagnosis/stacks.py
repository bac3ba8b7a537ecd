"""Compare the Python stacks of all ranks: which are at the same place, and which differ. Nothing here does I/O.

In a hang, usually one rank does something else while all others wait for it in a collective. So ranks with equal
stacks are folded into one group, and the group to look at comes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from launcher.hosts.ranges import fold_names
from launcher.wording import count, fold_ranks, listed

MAX_FRAMES = 8  # of a group, on the screen
_INNERMOST = 3  # what the rank is doing; then the user's own frames, which show why
_MAX_NAMED = 3
_MAX_GROUPS = 12
_MAX_LINES = 20_000  # read per rank: the event loop reads them, and every host's heartbeats wait meanwhile
_MAX_LINE = 1000  # a longer line isn't a frame of a running program; another machine sent it

_THREAD = re.compile(r"^(?:Thread|Current thread) .*")
# Of faulthandler: `  File "train.py", line 88 in step`, innermost first.
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d{1,9}|\?\?\?) in (?P<function>.*)$')
_LIBRARIES = re.compile(r".*/(?:site|dist)-packages/")
_STANDARD = re.compile(r".*/lib(?:64)?/python3\.\d+t?/")
# Wrappers of torch that appear between any two calls and show nothing.
_WRAPPERS = ("torch/distributed/c10d_logger.py", "torch/utils/_contextlib.py", "torch/nn/modules/module.py")
_WAITS = "torch/distributed/"
_MAIN = "MainThread"


@dataclass(frozen=True, slots=True)
class Frame:
    """One call of a stack; `file` lacks the leading directories, which differ from host to host."""

    file: str
    line: int | None
    function: str
    is_standard: bool = False  # of Python's own library
    is_own: bool = True  # the user's code: not in any library

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{where} in {self.function}"


@dataclass(frozen=True, slots=True)
class Stack:
    """Where one rank is, as far as known: its frames, its state in the kernel, or why there are none."""

    host: str
    rank: int
    frames: tuple[Frame, ...] = ()  # of the main thread, innermost first
    state: str | None = None  # D or T, or None
    wchan: str | None = None  # the kernel function that it waits in
    reason: str | None = None  # why there are no frames
    is_silent: bool = False  # its host did not respond in time

    @property
    def key(self) -> tuple[object, ...]:
        """The key that ranks at the same point share.

        Innermost frames of the standard library don't count: at which line of a wait a rank is, is chance.
        """
        start = next((place for place, frame in enumerate(self.frames) if not frame.is_standard), 0)
        return self.frames[start:], self.state, self.wchan, self.reason, self.is_silent

    @property
    def is_telling(self) -> bool:
        """Whether it shows where the rank is, or that it is stuck; others, as with --no-stacks, are never odd."""
        return bool(self.frames) or self.is_in_trouble

    @property
    def is_in_trouble(self) -> bool:
        """Whether the rank can't continue, whatever its stack is: state D or T, or its host doesn't respond."""
        return self.state is not None or self.is_silent

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for other ranks in a collective, as far as its Python frames show."""
        return any(_WAITS in frame.file for frame in self.frames[:MAX_FRAMES])


@dataclass(frozen=True, slots=True)
class SameStacks:
    """Ranks with equal stacks."""

    stacks: tuple[Stack, ...]

    @property
    def size(self) -> int:
        """The number of ranks in it."""
        return len(self.stacks)

    @property
    def first(self) -> Stack:
        """The stack that is shown for all of them."""
        return self.stacks[0]

    @property
    def name(self) -> str:
        """`gpu2 rank 11`, or `15 ranks on gpu1-gpu2 (0-10, 12-15)`."""
        if self.size == 1:
            return f"{self.first.host} rank {self.first.rank}"
        hosts = fold_names(list(dict.fromkeys(stack.host for stack in self.stacks)))
        return f"{self.size} ranks on {hosts} ({fold_ranks(stack.rank for stack in self.stacks)})"


@dataclass(frozen=True, slots=True)
class FoldedStacks:
    """The stacks of all ranks at one moment, in groups of equal stacks."""

    groups: tuple[SameStacks, ...]  # the smallest first: usually the one to look at
    odd: tuple[Stack, ...] = field(default=())  # those that are not where most ranks are

    @property
    def size(self) -> int:
        """The number of ranks in all groups."""
        return sum(group.size for group in self.groups)

    @property
    def verdict(self) -> str:
        """Which ranks differ from the others, in a few words; empty if that is unknown."""
        if self.odd:
            words = listed([f"{stack.host} rank {stack.rank}" for stack in self.odd])
            others = self.size - len(self.odd)
            return f"{words} {'differs' if len(self.odd) == 1 else 'differ'} from {count(others, 'other')}"
        telling = [group for group in self.groups if group.first.is_telling]
        if len(telling) > 1:
            return f"{len(telling)} different stacks"
        return "all are equal" if len(telling) == len(self.groups) == 1 and self.size > 1 else ""


def parse_stack(text: str, cwd: str = "") -> tuple[Frame, ...]:
    """Parse what faulthandler wrote: the main thread's frames, innermost first; cwd: the rank's."""
    threads: list[tuple[str, list[Frame]]] = []
    lines = text.splitlines()
    if len(lines) > _MAX_LINES:  # the main thread is the first or the last one
        lines = [*lines[: _MAX_LINES // 2], *lines[-_MAX_LINES // 2 :]]
    for line in lines:
        if _THREAD.match(line):
            threads.append((line, []))
            continue
        if len(line) > _MAX_LINE:
            continue
        found = _FRAME.match(line)
        if found is not None and threads:
            number = found["line"]
            threads[-1][1].append(_frame(found["file"], int(number) if (number or "?").isdigit() else None,
                                         found["function"], cwd))  # fmt: skip
    named = [frames for header, frames in threads if _MAIN in header]
    # faulthandler (before 3.14) names no thread: it lists the newest first and the main thread last.
    return tuple((named or [frames for _, frames in threads[-1:]] or [[]])[0])


def _frame(file: str, line: int | None, function: str, cwd: str) -> Frame:
    in_library, in_standard = _LIBRARIES.match(file), _STANDARD.match(file)
    prefix = in_library or in_standard
    if prefix is not None:
        file = file[prefix.end() :]
    elif cwd and file.startswith(cwd.rstrip("/") + "/"):
        file = file[len(cwd.rstrip("/")) + 1 :]
    is_frozen = file.startswith("<")
    is_standard = is_frozen or (in_standard is not None and in_library is None)
    return Frame(file, line, function, is_standard, is_own=prefix is None and not is_frozen)


def fold(stacks: Iterable[Stack]) -> FoldedStacks:
    """Group ranks with equal stacks, and find the few that differ from most."""
    by_key: dict[tuple[object, ...], list[Stack]] = {}
    for stack in stacks:
        by_key.setdefault(stack.key, []).append(stack)
    groups = [SameStacks(tuple(members)) for members in by_key.values()]
    odd = _find_odd([group for group in groups if group.first.is_telling])
    groups.sort(key=lambda group: (not group.first.is_telling, group.first not in odd, group.size))
    return FoldedStacks(tuple(groups), tuple(sorted(odd, key=lambda stack: stack.rank)))


def _find_odd(groups: Sequence[SameStacks]) -> list[Stack]:
    """Return the ranks outside the largest group; else those that are stuck, or that don't wait while others do.

    Empty if that would be more than three, or more than half of all.
    """
    total = sum(group.size for group in groups)
    choices = (
        [group for group in groups if 2 * group.size <= total],
        [group for group in groups if group.first.is_in_trouble],
        [group for group in groups if not group.first.is_waiting],
    )
    rest = next((choice for choice in choices if 0 < len(choice) < len(groups)), [])
    odd = [stack for group in rest for stack in group.stacks]
    return odd if len(odd) <= min(_MAX_NAMED, total // 2) else []


def folded_lines(folded: FoldedStacks) -> list[str]:
    """Return the lines that show the stacks: each group with its innermost calls, the most recent last."""
    hosts = {stack.host for group in folded.groups for stack in group.stacks}
    verdict = f" ({folded.verdict})" if folded.verdict else ""
    lines = [f"stacks of {count(folded.size, 'rank')} on {count(len(hosts), 'host')}{verdict}"]
    for group in folded.groups[:_MAX_GROUPS]:
        lines += [f"  {group.name}:", *(f"    {line}" for line in stack_lines(group.first))]
    more = len(folded.groups) - _MAX_GROUPS
    lines += [f"  and {more} more that differ"] if more > 0 else []
    return lines


def stack_lines(stack: Stack) -> list[str]:
    """Return where one rank is, in a few lines."""
    if stack.is_silent:
        return ["no response from its host"]
    lines = []
    if stack.state == "D":
        lines.append(f"state D: it waits in the kernel{_in(stack)}, where no signal reaches it")
    elif stack.state == "T":
        lines.append("state T: it is suspended (kill -STOP, or a debugger)")
    if not stack.frames and stack.state != "D":
        lines.append(f"no stack: {stack.reason or 'it has no Python frame'}")
    return lines + _shown_frames(stack.frames)


def _in(stack: Stack) -> str:
    return f" ({stack.wchan})" if stack.wchan else ""


def _shown_frames(frames: Sequence[Frame]) -> list[str]:
    """Return the innermost frames and the user's own, at most eight; `...` replaces omitted library calls."""
    frames = [
        frame
        for place, frame in enumerate(frames)
        if frame.file not in _WRAPPERS and (place < _INNERMOST or not frame.is_standard)
    ]
    places = range(len(frames))
    preferred = [*places[:_INNERMOST], *(place for place in places if frames[place].is_own), *places]
    wanted = sorted(list(dict.fromkeys(preferred))[:MAX_FRAMES], reverse=True)
    lines: list[str] = []
    for place, before in zip(wanted, [len(frames), *wanted], strict=False):
        if lines and place != before - 1:
            lines.append("...")
        lines.append(str(frames[place]))
    return lines
