"""The file of a FIDO key, whose token no machine of the tests has."""

from __future__ import annotations

import base64
from pathlib import Path

import paramiko

_KIND = "sk-ssh-ed25519@openssh.com"


def write_fido_key(path: Path) -> bytes:
    """Write the file as ssh-keygen would; return the public half."""
    public, private, file = paramiko.Message(), paramiko.Message(), paramiko.Message()
    for message in (public, private):
        if message is private:
            message.add_int(7)  # a check: the same number twice
            message.add_int(7)
        message.add_string(_KIND)
        message.add_string(b"p" * 32)
        message.add_string("ssh:")
    private.add_byte(b"\1")
    private.add_string(b"handle")
    private.add_string(b"")
    private.add_string("comment")
    padding = bytes(range(1, 1 + -len(private.asbytes()) % 8))
    for text in ("none", "none", ""):
        file.add_string(text)
    file.add_int(1)
    file.add_string(public.asbytes())
    file.add_string(private.asbytes() + padding)
    body = base64.encodebytes(b"openssh-key-v1\0" + file.asbytes()).decode()
    path.write_text(f"-----BEGIN OPENSSH PRIVATE KEY-----\n{body}-----END OPENSSH PRIVATE KEY-----\n")
    return public.asbytes()
