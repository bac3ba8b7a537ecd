"""Start a Python on a host that waits for its code on stdin, and find its marker behind what the login shell prints."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from launcher.concurrency import start_timer
from launcher.errors import HostFailure, HostFailureKind
from launcher.hosts.host import Host
from launcher.transports import bootstrap
from launcher.transports.base import KILLED, STDOUT, Channel, Transport, TransportError

MARKER_TIMEOUT_S = 10.0
NOISE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class LoadedPython:
    """A Python that reads code from its stdin."""

    channel: Channel
    nonce: str
    magic: str  # the number of its bytecode, in hex
    rest: bytes  # what came after the marker


def open_python(transport: Transport, host: Host, pythons: Sequence[str], timeout_s: float) -> LoadedPython:
    """Start the first of `pythons` that is 3.8 or newer; raise TransportError if there is none, or no answer."""
    nonce = secrets.token_hex(8)
    noise = bytearray()
    for python in pythons:
        command = bootstrap.loader_command(python, nonce, max(MARKER_TIMEOUT_S, timeout_s))
        channel = transport.open(host, command, timeout_s)
        with _hanging_up(channel, max(MARKER_TIMEOUT_S, timeout_s)) as has_hung_up:
            found = await_marker(channel, nonce, host.name, noise.extend, noise.extend)
        if has_hung_up.is_set():
            raise TransportError(describe_silence(host.name, max(MARKER_TIMEOUT_S, timeout_s)))
        if found is not None:
            return LoadedPython(channel, nonce, *found)
        code = channel.exit_code()
        channel.close()
        if code != bootstrap.NO_PYTHON_EXIT_CODE:
            raise TransportError(describe_end(host.name, code, pythons, last_line(bytes(noise))))
    raise TransportError(bootstrap.no_python(host.name, pythons))


@contextlib.contextmanager
def _hanging_up(channel: Channel, timeout_s: float) -> Iterator[threading.Event]:
    """Close the channel if the block takes longer; the event tells whether that happened."""
    is_over, has_hung_up = threading.Event(), threading.Event()

    def hang_up() -> None:
        if not is_over.is_set():
            has_hung_up.set()
            channel.close()

    start_timer(timeout_s, hang_up, lambda error: None)
    try:
        yield has_hung_up
    finally:
        is_over.set()


def await_marker(
    channel: Channel, nonce: str, host: str, take_stderr: Callable[[bytes], object],
    keep_noise: Callable[[bytes], object],
) -> tuple[str, bytes] | None:  # fmt: skip
    """Return the bytecode number of the Python that has started, and what came after its marker; None at the end.

    Raise TransportError if its login shell never stops printing. keep_noise: gets what it printed on stdout.
    """
    marker = f"{bootstrap.MARKER} {nonce} ".encode()
    text = b""
    while True:
        stream, data = channel.read()
        if not stream:
            return None
        if stream != STDOUT:
            take_stderr(data)
            continue
        text += data
        start = text.find(marker)
        end = text.find(b"\n", start)
        if start >= 0 and end >= 0:
            keep_noise(text[:start])
            return text[start + len(marker) : end].decode("ascii", "replace"), text[end + 1 :]
        if len(text) > NOISE_BYTES:
            keep_noise(text)
            said = "its login shell never stops printing"
            raise TransportError(HostFailure(host, HostFailureKind.SHELL, said, "check its rc files"))


def describe_silence(host: str, timeout_s: float) -> HostFailure:
    """Return the failure of a host whose login shell has not started Python in time."""
    return HostFailure(
        host, HostFailureKind.SHELL, f"its login shell waits for input (no answer in {timeout_s:g} s)",
        "let its rc files prompt only in interactive shells; if they are slow, raise --connect-timeout",
    )  # fmt: skip


def describe_end(host: str, code: int | None, pythons: Sequence[str], last_line: str) -> HostFailure:
    """Return the failure of a host whose login shell has ended before the marker; last_line: what it said last."""
    if code == bootstrap.NO_PYTHON_EXIT_CODE:
        return bootstrap.no_python(host, pythons)
    if code == bootstrap.NOT_LINUX_EXIT_CODE:
        return bootstrap.not_linux(host)
    said = f": {last_line}" if last_line else ""
    if code is None:
        return HostFailure(host, HostFailureKind.SHELL, f"the connection was lost immediately{said}")
    text = "killed by a signal" if code == KILLED else f"exit code {code}"
    return HostFailure(host, HostFailureKind.SHELL, f"its login shell ended ({text}){said}")


def last_line(noise: bytes) -> str:
    """Return the last line of what a login shell printed."""
    lines = noise.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:200] if lines else ""
