"""known_hosts files as sshd(8) describes them: names with wildcards or hashed, keys, markers.

A file is read and appended to while ssh, ssh-keygen, editors and other launches may write it. What a marked line means
for a host key is left to ssh (see `openssh_needs`).
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

AUTHORITY = "@cert-authority"
REVOKED = "@revoked"
_DEFAULT_FILES = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_DEFAULT_GLOBAL_FILES = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_HASHED = "|1|"
_RSA_SIGNATURES = ("rsa-sha2-256", "rsa-sha2-512")  # ssh takes them for types of keys as well
_PATTERN = re.compile(r"[*?!]")


@dataclass(frozen=True, slots=True)
class KnownKey:
    """One line: the hosts whose key it is, the key, and its marker: @cert-authority, @revoked or None."""

    names: str
    kind: str
    blob: bytes
    marker: str | None

    def is_of(self, name: str) -> bool:
        """Tell whether the line is about `name`: a host, `[host]:port` or a HostKeyAlias."""
        name = name.lower()
        if self.names.startswith(_HASHED):
            return self._is_hash_of(name)
        patterns = [(word[:1] == "!", word.removeprefix("!").lower()) for word in self.names.split(",")]
        matched = [is_negated for is_negated, pattern in patterns if matches(name, pattern)]
        return bool(matched) and not any(matched)

    @property
    def plain_names(self) -> Sequence[str] | None:
        """The names, in lower case, if the line is about exactly these: none is a pattern, negated or hashed."""
        return None if self.names.startswith(_HASHED) or _PATTERN.search(self.names) else self.names.lower().split(",")

    def _is_hash_of(self, name: str) -> bool:
        import hashlib  # with OpenSSL it needs 5 ms
        import hmac

        try:
            salt, digest = (base64.b64decode(part) for part in self.names[len(_HASHED) :].split("|"))
        except ValueError:
            return False
        return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)


class KnownKeys:
    """The lines of a file, in its order. Those about a name are found without a look at each: most have plain names."""

    def __init__(self, lines: Iterable[KnownKey] = ()) -> None:
        self.lines = [*lines]
        self._plain: dict[str, list[int]] = {}
        self._others: list[int] = []
        for at, line in enumerate(self.lines):
            names = line.plain_names
            for places in [self._others] if names is None else [self._plain.setdefault(name, []) for name in names]:
                places.append(at)

    def about(self, name: str) -> list[KnownKey]:
        """Return the lines for which `is_of` is true."""
        found = {*self._plain.get(name.lower(), ()), *(at for at in self._others if self.lines[at].is_of(name))}
        return [self.lines[at] for at in sorted(found)]


def matches(name: str, pattern: str) -> bool:
    """Tell whether a name matches a pattern with `*` and `?`; unlike in a shell, brackets mean themselves."""
    if "*" not in pattern and "?" not in pattern:
        return name == pattern
    return _expression(pattern).fullmatch(name) is not None


@functools.cache
def _expression(pattern: str) -> re.Pattern[str]:
    wild = {"*": ".*", "?": "."}
    return re.compile("".join(wild.get(character) or re.escape(character) for character in pattern), re.DOTALL)


def parse_known_hosts(text: str) -> Iterator[KnownKey]:
    """Yield the lines that hold a key; others are skipped without a message, as ssh does."""
    for line in text.splitlines():
        words = line.split()
        marker = words.pop(0) if words and words[0] in (AUTHORITY, REVOKED) else None
        if len(words) < 3 or words[0].startswith(("#", "@")):
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except ValueError:  # not base64, or not even ASCII
            continue
        kind = "ssh-rsa" if words[1] in _RSA_SIGNATURES else words[1]
        if _is_whole(kind, blob):
            yield KnownKey(words[0], kind, blob, marker)


def _is_whole(kind: str, blob: bytes) -> bool:
    """Tell whether a key is complete, by its fields with their lengths: whoever wrote it may have been interrupted."""
    fields = []
    while len(blob) >= 4:
        end = 4 + int.from_bytes(blob[:4], "big")
        if end > len(blob):
            return False
        fields.append(blob[4:end])
        blob = blob[end:]
    return not blob and len(fields) > 1 and fields[0] == kind.encode()


def fingerprint(blob: bytes) -> str:
    """Return a key's fingerprint as ssh prints it, `SHA256:...`."""
    import hashlib

    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def find_files(settings: Mapping[str, str]) -> list[Path]:
    """Return the files that UserKnownHostsFile and GlobalKnownHostsFile name, of which the first is written.

    settings: as `ssh -G` prints them, with their tokens replaced.
    """
    words = " ".join(_values(settings)).split()
    return [Path(word).expanduser() for word in words if word != "none"]


def find_unclear(settings: Mapping[str, str]) -> str:
    """Return the value of which it isn't clear what files it names; an empty text if both are clear.

    `ssh -G` prints no quotes: `"/a b/kh"` is `/a b/kh`. It may also leave a token, a variable or `~ann` to ssh itself.
    """
    for value in _values(settings):
        are_paths = all(word.startswith(("/", "~/")) for word in value.split())
        if value.strip() != "none" and (not are_paths or "%" in value or "${" in value):
            return value
    return ""


def _values(settings: Mapping[str, str]) -> tuple[str, str]:
    own = settings.get("userknownhostsfile", _DEFAULT_FILES)
    return own, settings.get("globalknownhostsfile", _DEFAULT_GLOBAL_FILES)


def read(path: Path) -> KnownKeys:
    """Read a file; one that doesn't exist, or can't be read, has no keys."""
    try:
        return KnownKeys(parse_known_hosts(path.read_text("utf-8", "replace")))
    except (OSError, ValueError):
        return KnownKeys()


def append(path: Path, new: KnownKey) -> None:
    """Append a line by one call, so that no other writer's gets into it; end a last line that has no newline first.

    Raise OSError.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _lock(fd)
        line = f"{new.names} {new.kind} {base64.b64encode(new.blob).decode()}\n".encode()
        rest = b"\n" * _is_cut(fd) + line
        while rest:
            rest = rest[os.write(fd, rest) :]
    finally:
        os.close(fd)


def end_last_line(path: Path) -> None:
    """End a last line that lacks its newline: ssh would append a new key to that line, and both keys would be lost.

    Nothing happens to a file that can't be written: ssh can't write it either.
    """
    if not lacks_newline(path):
        return
    with contextlib.suppress(OSError), path.open("ab+", buffering=0) as file:
        _lock(file.fileno())
        if _is_cut(file.fileno()):
            file.write(b"\n")


def lacks_newline(path: Path) -> bool:
    """Tell whether the file's last line lacks its newline, so that `>>` would append to that line."""
    try:
        if not path.is_file():  # opening a pipe would wait for a writer
            return False
        with path.open("rb") as file:
            return _is_cut(file.fileno())
    except (OSError, ValueError):
        return False


def _lock(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _is_cut(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size  # 0 for anything but a file
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
