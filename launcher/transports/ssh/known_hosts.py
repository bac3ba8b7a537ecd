"""known_hosts files as sshd(8) describes them: names with wildcards or hashed, keys, markers.

A file is read and appended to while ssh, ssh-keygen, editors and other launches may write it.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import functools
import os
import re
import stat
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

AUTHORITY = "@cert-authority"
REVOKED = "@revoked"
_HASHED = "|1|"
_PATTERN = re.compile(r"[*?!]")
_State = tuple[int, int, int, int]


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


def read_signer(certificate: bytes, host: str) -> bytes | None:
    """Return the public key that signed a host's certificate; None if the certificate isn't valid for the host now."""
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm  # needs 50 ms
    from cryptography.hazmat.primitives import serialization

    kind = certificate[4 : 4 + int.from_bytes(certificate[:4], "big")].decode("utf-8", "replace")
    try:
        identity = serialization.load_ssh_public_identity(f"{kind} {base64.b64encode(certificate).decode()}".encode())
        assert isinstance(identity, serialization.SSHCertificate)  # by its type
        identity.verify_cert_signature()
    except (ValueError, UnsupportedAlgorithm, InvalidSignature):
        return None
    principals = [name.decode("utf-8", "replace").lower() for name in identity.valid_principals]
    is_good = (
        identity.type is serialization.SSHCertificateType.HOST
        and identity.valid_after <= time.time() < identity.valid_before
        and not identity.critical_options
        and (not principals or any(matches(host.lower(), principal) for principal in principals))
    )
    if not is_good:
        return None
    public = identity.signature_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return base64.b64decode(public.split()[1])


def fingerprint(blob: bytes) -> str:
    """Return a key's fingerprint as ssh prints it, `SHA256:...`."""
    import hashlib

    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


@dataclass(slots=True)
class KnownHostsFile:
    """One file and its keys.

    `keys` are those of the last read, so others may have changed the file since; `record` reads it again. Two threads
    must not call `record` at once: the caller has a lock for that. A lock on the file keeps other processes out.
    """

    path: Path
    keys: KnownKeys = field(default_factory=KnownKeys)
    _state: _State | None = None

    @classmethod
    def read(cls, path: Path) -> KnownHostsFile:
        """Read a file; one that doesn't exist, or can't be read, has no keys."""
        file = cls(path)
        with contextlib.suppress(OSError, ValueError):
            file.keys = KnownKeys(parse_known_hosts(path.read_text("utf-8", "replace")))
        return file

    def record(self, new: KnownKey) -> KnownKey | None:
        """Append a line and return None; if the file has keys for this name by now, return the same one, or another.

        Raise OSError. The file is locked meanwhile: of two launches that meet a new host at once, the second finds what
        the first has recorded.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(descriptor)
            self._read_again(descriptor)
            known = [key for key in self.keys.about(new.names) if key.marker is None]
            if not known:
                self._append(descriptor, new)
        finally:
            os.close(descriptor)
        return next((key for key in known if key.blob == new.blob), known[0]) if known else None

    def _read_again(self, descriptor: int) -> None:
        state = os.fstat(descriptor)
        if stat.S_ISREG(state.st_mode) and _state_of(state) != self._state:
            text = os.pread(descriptor, state.st_size, 0).decode("utf-8", "replace")
            self.keys = KnownKeys(parse_known_hosts(text))

    def _append(self, descriptor: int, new: KnownKey) -> None:
        """Write the line by one call, so that no other writer's gets into it; first end a last line without newline."""
        line = f"{new.names} {new.kind} {base64.b64encode(new.blob).decode()}\n".encode()
        rest = b"\n" * _is_cut(descriptor) + line
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        self.keys.add(new)
        self._state = _state_of(os.fstat(descriptor))


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


def _state_of(state: os.stat_result) -> _State:
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
