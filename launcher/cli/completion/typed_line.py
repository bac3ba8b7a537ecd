"""What may be typed at the cursor, found from the words before it.

click can answer this too, but only after it has imported the command, which takes longer than a Tab may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from launcher.cli.completion.vocabulary import FILE, LISTS, CommandWords, OptionWords, Value, Vocabulary

_TOP_OPTIONS = {"--help": "Show the commands and exit.", "--version": "Show the version and exit."}
_HELP = "help"  # `launch help COMMAND`
_NONE: Mapping[str, str] = MappingProxyType({})
_LIST_BREAKS = ",@"  # a host begins after these: as in user@host, and in a:0,1@b of --include


class Place(NamedTuple):
    """What may be typed at the cursor.

    kept: what stays of the word at the cursor, such as `--hosts=a,` of `--hosts=a,gp`; begun: the rest of it.
    words: what may come, with a line about each; value: what else may come.
    typed: the values of the options before the cursor, by the longest of their names.
    """

    kept: str
    begun: str
    words: Mapping[str, str]
    value: Value = Value()
    typed: Mapping[str, str] = _NONE


def find_place(vocabulary: Vocabulary, program: str, words: Sequence[str]) -> Place:
    """Return what may be typed in place of the last word, of which only what is before the cursor counts."""
    *before, last = words
    if program != "launch":
        return _Reader(vocabulary.find(program)).read(before, last)
    if not before and not last.startswith("-"):
        return Place("", last, vocabulary.helps(), Value(FILE))  # of the default command, the script comes first
    if before[:1] == [_HELP]:
        return Place("", last, vocabulary.helps())
    name, rest = (before[0], before[1:]) if before and before[0] in vocabulary.helps() else (vocabulary.default, before)
    place = _Reader(vocabulary.find(name)).read(rest, last)
    return place if before or "=" in last else place._replace(words={**_TOP_OPTIONS, **place.words})


class _Reader:
    """Reads the words of one command; it keeps which options were typed, and how many arguments."""

    def __init__(self, command: CommandWords) -> None:
        self._command = command
        self._options = {name: option for option in command.options for name in option.names}
        self._typed: dict[str, str] = {}
        self._arguments = 0
        self._has_ended = False  # the options

    def read(self, before: Sequence[str], last: str) -> Place:
        words = list(before)
        while words:
            word = words.pop(0)
            if self._has_ended or not word.startswith("-") or word == "-":
                self._arguments += 1
                self._has_ended = self._has_ended or self._command.ends_with_script
            elif word == "--":
                self._has_ended = True
            elif (option := self._options.get(word.partition("=")[0])) is not None:
                if option.value is not None and not option.may_lack_value and "=" not in word and not words:
                    return self._complete_value("", last, option.value)
                self._typed[option.name] = self._take_value(option, word, words)
        if self._has_ended or not last.startswith("-"):
            return self._complete_argument(last)
        name, equals, begun = last.partition("=")
        option = self._options.get(name)
        if equals and option is not None and option.value is not None:
            return self._complete_value(name + equals, begun, option.value)
        return Place("", last, self._find_options(), typed=self._typed)

    def _take_value(self, option: OptionWords, word: str, words: list[str]) -> str:
        """Return the value of an option before the cursor, and remove it from the words if it is the next one."""
        _, equals, value = word.partition("=")
        if equals or option.value is None or (option.may_lack_value and not (words and Path(words[0]).is_dir())):
            return value
        return words.pop(0)

    def _complete_argument(self, begun: str) -> Place:
        arguments, at = self._command.arguments, self._arguments
        if at >= len(arguments) and not (arguments and self._command.repeats_argument):
            return Place("", begun, self._find_options(), typed=self._typed)
        value = arguments[min(at, len(arguments) - 1)]
        return self._complete_value("", begun, value)

    def _complete_value(self, kept: str, begun: str, value: Value) -> Place:
        if value.kind in LISTS:
            at = max(map(begun.rfind, _LIST_BREAKS)) + 1
            kept, begun = kept + begun[:at], begun[at:]
        return Place(kept, begun, dict.fromkeys(value.words, ""), value, self._typed)

    def _find_options(self) -> dict[str, str]:
        """Return the options that may come; one that was typed comes again only if its values add up."""
        free = [each for each in self._command.options if each.is_repeatable or each.name not in self._typed]
        return {name: option.help for option in free for name in option.names}
