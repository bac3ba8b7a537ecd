"""Answer what a shell asks at each Tab: the words that may come, in the form that its script reads.

    launch __complete bash COMMAND PART LINE      PART: what bash replaces; LINE: all up to the cursor
    launch __complete zsh|fish COMMAND WORD...    the last word up to the cursor, maybe empty

The first line of the answer is `file` or `directory` if one may come too, `list` if no space follows what comes, or
else `word`. Each line after it is a word, in zsh and fish with what is to be said about it.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from launcher.cli.completion.names import find_names
from launcher.cli.completion.typed_line import Place, find_place
from launcher.cli.completion.vocabulary import DIRECTORY, FILE, LISTS, read_vocabulary

_MOST_S = 5.0  # a file system that hangs must not hang the shell; the first Tab after an update takes long
_PLAIN = re.compile(r"[\w.:@,=/+\[\]-]*", re.ASCII)
_ENDS = ("", '"', "'")  # of a line: the quote that is still open


def answer(question: Sequence[str]) -> NoReturn:
    """Print the answer and exit with 0.

    Whatever goes wrong, nothing is offered: a message would be printed into the line that is being typed.
    """
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, _MOST_S)
    try:
        sys.stdout.buffer.write(describe_answer(question).encode("utf-8", "replace"))
        sys.stdout.buffer.flush()
    except Exception:  # noqa: BLE001 - as above
        pass
    os._exit(0)  # without taking the interpreter apart, which needs 5 ms


def describe_answer(question: Sequence[str]) -> str:
    """Return the answer as the shell reads it; it is empty if bash reads the word at the cursor in another way."""
    shell, program, *words = question
    cut = 0
    if shell == "bash":
        part, line = words
        words = _split(line)[1:]
        if not words[-1].endswith(part):
            return ""
        cut = len(words[-1]) - len(part)
    vocabulary = read_vocabulary()
    place = find_place(vocabulary, "test-distributed" if Path(program).name == "test-distributed" else "launch", words)
    found = {place.kept + word: text for word, text in _find_words(place).items()}
    kind = place.value.kind
    what = kind if kind in (FILE, DIRECTORY) else "list" if kind in LISTS else "word"
    return "".join(f"{line}\n" for line in (what, *(_as_line(shell, word[cut:], text) for word, text in found.items())))


def _split(line: str) -> list[str]:
    """Return the words of a line up to the cursor, the last one maybe empty; one of them is the command itself."""
    for end in _ENDS:
        try:
            *words, last = shlex.split(f"{line}|{end}")
        except ValueError:
            continue
        return [*words, last[:-1]]
    raise ValueError(line)


def _find_words(place: Place) -> Mapping[str, str]:
    """Return the words and names that begin as the one at the cursor; a host that a list has comes no more.

    None after what needs quoting, such as `$(x),gp`: bash would put it into the line without its quotes.
    """
    if not _PLAIN.fullmatch(place.kept):
        return {}
    named = re.split("[=,@]", place.kept)
    words = {**place.words, **find_names(place.value.kind, place.typed)}
    return {word: text for word, text in words.items() if word.startswith(place.begun) and word not in named}


def _as_line(shell: str, word: str, text: str) -> str:
    if shell == "zsh":
        word, text = word.replace(":", "\\:"), f":{text}"
    elif shell == "fish":
        text = f"\t{text}"
    return word if shell == "bash" or len(text) == 1 else word + text
