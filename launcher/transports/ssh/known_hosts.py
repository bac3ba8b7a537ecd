"""The lines of known_hosts files as sshd(8) describes them: names with wildcards or hashed, keys, markers. Pure."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

AUTHORITY = "@cert-authority"
REVOKED = "@revoked"
_HASHED = "|1|"
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
        try:
            salt, digest = (base64.b64decode(part) for part in self.names[len(_HASHED) :].split("|"))
        except ValueError:
            return False
        return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)


class KnownKeys:
    """The lines of a file, in its order. Those about a name are found without a look at each: most have plain names."""

    def __init__(self, lines: Iterable[KnownKey] = ()) -> None:
        self.lines: list[KnownKey] = []
        self._plain: dict[str, list[int]] = {}
        self._others: list[int] = []
        for line in lines:
            self.add(line)

    def add(self, line: KnownKey) -> None:
        """Append a line."""
        at, names = len(self.lines), line.plain_names
        self.lines.append(line)  # first: another thread may look meanwhile
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
        if _is_whole(words[1], blob):
            yield KnownKey(words[0], words[1], blob, marker)


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


def is_revoked(lines: Iterable[KnownKey], shown: Container[bytes]) -> bool:
    """Tell whether a key that a host shows, or one that signed such a key, is marked as revoked."""
    return any(line.marker == REVOKED and line.blob in shown for line in lines)


def is_vouched_for(lines: Iterable[KnownKey], key: bytes, signer: bytes | None) -> bool:
    """Tell whether the lines contain this host key, or `signer`, the key of the authority that signed it."""
    return any(
        line.blob == key if line.marker is None else line.marker == AUTHORITY and line.blob == signer for line in lines
    )


def fingerprint(blob: bytes) -> str:
    """Return a key's fingerprint as ssh prints it, `SHA256:...`."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
