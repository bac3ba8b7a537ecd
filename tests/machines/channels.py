"""Read what comes from a process over a transport."""

from __future__ import annotations

from launcher.transports.base import STDERR, STDOUT, Channel


def read_all(channel: Channel) -> dict[int, bytes]:
    """Read to the end, which fails where the connection breaks."""
    streams = {STDOUT: b"", STDERR: b""}
    while True:
        stream, data = channel.read()
        if not stream:
            return streams
        streams[stream] += data


def read_line(channel: Channel) -> bytes:
    """Read one line of stdout, and nothing else."""
    text = b""
    while not text.endswith(b"\n"):
        stream, data = channel.read()
        assert stream == STDOUT, (stream, data)
        text += data
    return text
