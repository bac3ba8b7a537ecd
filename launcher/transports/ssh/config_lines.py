"""ssh_config files as lines, each `Include` with the lines of its files, by the rules of ssh_config(5) and readconf.c.

Only the options that `launch` uses are kept. Values that OpenSSH would refuse, or that its versions read differently,
are left to `ssh -G`. All other options are skipped, even if this machine's ssh would refuse them: many files have
`UseKeychain`, which only macOS's ssh knows.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

USER_FILE = Path("~/.ssh/config")
SYSTEM_FILE = Path("/etc/ssh/ssh_config")
OPTIONS = {
    "hostname", "user", "port", "proxyjump", "proxycommand", "connecttimeout", "identityfile", "certificatefile",
    "identityagent", "identitiesonly", "pubkeyauthentication", "gssapiauthentication", "hostkeyalias",
    "userknownhostsfile", "globalknownhostsfile", "stricthostkeychecking", "knownhostscommand",
}  # fmt: skip
_KEYWORDS = OPTIONS | {"host", "match", "include", "canonicalizehostname"}
_WITHOUT_WORDS = {"match", "proxycommand", "proxyjump", "knownhostscommand"}
_LINE = re.compile(r"[ \t\r]*(\w+)(?:[ \t\r]*=[ \t\r]*|[ \t\r]+)(.+)", re.DOTALL)
_WORD_PART = re.compile(
    r"""\\(["'\\ ])|"((?:\\["'\\]|[^"])*)"|'((?:\\["'\\]|[^'])*)'|([^\s"'])"""  # \s: no other space occurs in a word
)
_ESCAPED = re.compile(r"""\\(["'\\])""")
_FOR_SSH_ALONE = re.compile(r"%|\$\{|\\|\[[:.=]")  # in a pattern of Include
MAX_DEPTH = 16  # READCONF_MAX_DEPTH
_OTHERS_MAY_WRITE = 0o022


class LeftToSsh(Exception):
    """Something that only `ssh -G` can interpret or refuse: `message` names it, `fix` helps if there is no ssh."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class WrongLine(LeftToSsh):
    """A line for which ssh refuses every host."""


class SharedFile(LeftToSsh):
    """A file that ssh may refuse since others own it or can write to it; some versions accept its owner's own group."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a relative Include of these files is looked up, and whether it may begin with `~`.

    checked_from: from this depth of Include on, a file that others may write is a SharedFile.
    """

    folder: Path
    is_users: bool
    checked_from: int


@dataclass(frozen=True, slots=True)
class ConfigLine:
    """An option with its value as written in the file.

    words: the words of the value, without quotes and comment; empty for a Match line, a command or ProxyJump.
    files: for an Include, the lines of each file that exists.
    """

    place: str
    keyword: str  # in lower case
    value: str
    words: tuple[str, ...]
    files: tuple[tuple[ConfigLine, ...], ...] = ()


def read_lines(path: Path, origin: Origin, depth: int = 0) -> tuple[ConfigLine, ...]:
    """Return the lines of a file; none if there is no file. Raise LeftToSsh, or OSError if it can't be read."""
    if depth > MAX_DEPTH:
        raise LeftToSsh(f"{path}: Include is nested more than {MAX_DEPTH} files deep", "check if one includes itself")
    lines = []
    for number, text in enumerate(_read(path, is_checked=depth >= origin.checked_from), 1):
        if not text or text.isspace() or text.lstrip().startswith("#"):
            continue
        line = _parse(text, f"{path}:{number}")
        if line.keyword == "include":
            lines.append(replace(line, files=tuple(_included(line, origin, depth + 1))))
        elif line.keyword in _KEYWORDS:
            lines.append(line)
    return tuple(lines)


def every_line(files: Iterable[Iterable[ConfigLine]]) -> Iterator[ConfigLine]:
    """Yield all lines; those of included files follow their Include line."""
    for file in files:
        for line in file:
            yield line
            yield from every_line(line.files)


def split_words(value: str) -> tuple[str, ...] | None:
    """Split a value into words up to a comment, like argv_split in OpenSSH's misc.c; None if a quote has no end."""
    words: list[str] = []
    position, in_word = 0, False
    while position < len(value):
        if value[position] in " \t\r\f\n":
            in_word = False
            position += 1
            continue
        if not in_word and value[position] == "#":
            break
        if not in_word:
            words.append("")
            in_word = True
        part = _WORD_PART.match(value, position)
        if part is None:
            return None
        escaped, *quoted, plain = part.groups()
        words[-1] += escaped or plain or _ESCAPED.sub(r"\1", next(filter(None, quoted), ""))
        position = part.end()
    return tuple(words)


def _read(path: Path, *, is_checked: bool) -> list[str]:
    try:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            status = os.fstat(file.fileno())
            if is_checked and (status.st_uid not in (0, os.getuid()) or status.st_mode & _OTHERS_MAY_WRITE):
                raise SharedFile(f"{path}: other users own it or can write to it", f"chmod go-w {path}, or chown it")
            return file.read().split("\n")
    except (FileNotFoundError, IsADirectoryError):
        return []


def _parse(text: str, place: str) -> ConfigLine:
    found = _LINE.fullmatch(text.rstrip(" \t\r\f"))
    if found is None:
        raise WrongLine(f"{place}: {text.strip()!r} is not an option with a value", "correct that line")
    keyword, value = found[1].lower(), found[2]
    if keyword not in _KEYWORDS:
        return ConfigLine(place, keyword, value, ())
    words = split_words(value)
    if keyword in _WITHOUT_WORDS and words is not None:
        return ConfigLine(place, keyword, value, ())
    if not words or "" in words:
        raise WrongLine(f"{place}: {keyword}: no value, or a quote that is not closed", "correct that line")
    return ConfigLine(place, keyword, value, words)


def _included(line: ConfigLine, origin: Origin, depth: int) -> Iterator[tuple[ConfigLine, ...]]:
    for pattern in line.words:
        # OpenSSH before 9.9 takes % and ${ literally, as Python's glob does a backslash or a class such as [:alpha:].
        if _FOR_SSH_ALONE.search(pattern):
            raise LeftToSsh(f"{line.place}: Include: only ssh can expand {pattern}", "install openssh-client")
        if pattern.startswith("~") and not origin.is_users:
            raise LeftToSsh(f"{line.place}: Include: the system's file can't name {pattern}", "write the full path")
        home = os.path.expanduser(pattern)  # noqa: PTH111 - Path raises for a user who isn't there
        found = glob.glob(str(origin.folder.expanduser() / home))  # noqa: PTH207 - absolute ones too
        yield from (_read_included(Path(path), line, origin, depth) for path in sorted(found, key=os.fsencode))


def _read_included(path: Path, line: ConfigLine, origin: Origin, depth: int) -> tuple[ConfigLine, ...]:
    try:
        return read_lines(path, origin, depth)
    except OSError as error:
        raise LeftToSsh(f"{line.place}: Include: {path}: {error.strerror}", "make it readable") from None
