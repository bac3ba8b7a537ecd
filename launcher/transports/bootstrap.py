"""Load code on a host that has nothing but Python: a command line starts it, and the code itself follows on stdin.

A command line works in every shell (bash, dash, zsh, fish, tcsh): single quotes around text without single quotes,
backslash escapes that no shell touches, and no `!`. It holds `launcher.node.loading`, which prints a marker first: it
says whether the host has the archive of the code. `launch` sends nothing before it, since an rc file that reads stdin
would consume it.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import marshal
import math
import re
import secrets
import shlex
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from launcher.concurrency import start_thread, start_timer
from launcher.errors import HostFailure, HostFailureKind
from launcher.hosts.host import Host
from launcher.node.loading import KEPT, MARKER
from launcher.transports.archives import PackedCode, read_package, strip
from launcher.transports.base import KILLED, STDOUT, Channel, Transport, TransportError

WAIT_S = 60.0  # for the next bytes of the code
MARKER_TIMEOUT_S = 10.0
CODE_S = 120.0  # for the code to get there
NOISE_BYTES = 64 << 10
# Of each command line here: the first is also a shell's for a program that it doesn't find, the second nothing else's.
NO_PYTHON_EXIT_CODE = 127
NOT_LINUX_EXIT_CODE = 119
SUPERVISOR, AGENT, SENDER, LAUNCHER = (
    "launcher.node.guardian", "launcher.node.agents.agent", "launcher.node.file_sender", "launcher.cli.answer",
)  # fmt: skip
# Of a shell that doesn't find what --enter names: docker, podman, kubectl, apptainer, sudo.
_MISSING = re.compile(r"(?i)not found|no such file|unknown command|can't execute")
_NOT_RUN = 126  # a shell's, for what it finds and can't run
_RC_FILES = "~/.bashrc (bash), ~/.zshenv (zsh) or ~/.config/fish/config.fish"  # which these read without a terminal
_LOADER_MODULES = ("own_folders", "archive", "loading")
# A task of Slurm's step runs the first Python that is new enough.
_TASK_SHELL = (
    'for p; do "$p" -ISc "import sys; sys.exit(sys.version_info < (3, 8))" 2>/dev/null'
    ' && exec "$p" -X utf8 -ISc "$0"; done; exit 127'
)

# Ends a Python that is too old, and one on another system.
_CHECKS = 'import os,sys;sys.version_info<(3,8)and os._exit(127);sys.platform=="linux"or os._exit(119);'
# Makes modules, of which each imports only those before it, and calls the last one's `main` with `a`.
_RUN = (
    'import marshal,sys,zlib,binascii;m=marshal.loads(zlib.decompress(binascii.a2b_base64("%s")));'
    "[exec(s,sys.modules.setdefault(n,type(sys)(n)).__dict__)for n,s in m];sys.modules[m[-1][0]].main(*a)"
)


def no_python(host: str, pythons: Sequence[str]) -> HostFailure:
    """Return the failure of a host where none of these is a Python that is new enough."""
    text = f"no Python 3.8 or newer there (tried {', '.join(pythons)})"
    return HostFailure(host, HostFailureKind.NO_PYTHON, text, "name a newer one with --python PATH")


def not_linux(host: str) -> HostFailure:
    """Return the failure of a host that runs another system, such as a Mac."""
    fix = "name hosts that run Linux; a Mac can only be the launch host"
    return HostFailure(host, HostFailureKind.NOT_LINUX, "it doesn't run Linux", fix)


def loader_command(python: str, nonce: str, archive: PackedCode, wait_s: float = WAIT_S, enter: str = "") -> str:
    """Return the command line that prints the marker and takes the archive from stdin, unless the host has it.

    python: a program's name or path; wait_s: how long it waits while nothing comes; enter: that of the host.
    """
    # What enters a container passes on no variables, and this one has the address by which the host was reached.
    before = f'{enter} env SSH_CONNECTION="$SSH_CONNECTION" ' if enter else ""
    # -X utf8: under an 8-bit locale, arguments and paths would not arrive unchanged.
    return f"exec {before}{shlex.quote(python)} -X utf8 -ISc '{_loader_code(nonce, '', archive, wait_s)}'"


def task_argv(pythons: Sequence[str], nonce: str, archive: PackedCode, wait_s: float) -> list[str]:
    """Return the command that does the same as a task of srun; its marker has nonce, node and number of the task.

    wait_s: also for all other nodes to start their tasks, since srun passes on no input before.
    """
    task = '+" "+os.environ["SLURMD_NODENAME"]+" "+os.environ["SLURM_PROCID"]'
    return ["/bin/sh", "-c", _TASK_SHELL, _loader_code(nonce, task, archive, wait_s), *pythons]


def _loader_code(nonce: str, more: str, archive: PackedCode, wait_s: float) -> str:
    # Begins with what ps shows of it. What the loader is told isn't in sys.argv: a wrapper may pass on no arguments.
    told = f'a="{nonce}"{more},"{archive.name}",{math.ceil(wait_s)};'
    return f'"{MARKER} {nonce}";{_CHECKS}{told}{_loader()}'


@functools.cache
def _loader() -> str:
    """Return a line of Python that makes the modules of the loader, and calls it."""
    found = [(name, "") for name in ("launcher", "launcher.node")]
    for name in _LOADER_MODULES:
        path = f"launcher/node/{name}.py"
        found.append((f"launcher.node.{name}", strip(read_package((path,))[path])))
    return _RUN % base64.b64encode(zlib.compress(marshal.dumps(found, 2), 9)).decode()


def start_code(program: str, archive: PackedCode, *, is_kept: bool) -> bytes:
    """Return what to send on stdin after the marker: one of the programs above, and the archive unless it is there."""
    content = b"" if is_kept else archive.compress()
    return f"{len(content)} {program}\n".encode() + content


@dataclass(frozen=True, slots=True)
class LoadedPython:
    """A Python that reads code from its stdin."""

    host: str
    channel: Channel
    nonce: str
    archive: PackedCode
    is_kept: bool  # whether the host has the archive
    version: tuple[int, int]
    rest: bytes  # what came after the marker

    def start(self, program: str) -> None:
        """Start one of the programs above; reading tells why it has ended. Raise TransportError if it takes no code."""
        code = start_code(program, self.archive, is_kept=self.is_kept)
        writer = start_thread(lambda: self.channel.write(code), f"start {self.host}", lambda error: None)
        writer.join(CODE_S)
        if writer.is_alive():  # a write may block for ever, also after the channel is closed
            self.channel.close()
            fix = "log in there, and see whether it is overloaded"
            raise TransportError(
                HostFailure(self.host, HostFailureKind.SILENT, f"it has not taken launch's code in {CODE_S:g} s", fix)
            )


def open_python(
    transport: Transport, host: Host, pythons: Sequence[str], timeout_s: float, archive: PackedCode
) -> LoadedPython:
    """Start the first of `pythons` that is 3.8 or newer; raise TransportError if there is none, or no answer."""
    nonce = secrets.token_hex(8)
    noise = bytearray()
    for python in pythons:
        command = loader_command(python, nonce, archive, max(MARKER_TIMEOUT_S, timeout_s), host.enter)
        channel = transport.open(host, command, timeout_s)
        with hanging_up(channel, max(MARKER_TIMEOUT_S, timeout_s)) as has_hung_up:
            found = await_marker(channel, nonce, host.name, noise.extend, noise.extend)
        if has_hung_up.is_set():
            raise TransportError(describe_silence(host, max(MARKER_TIMEOUT_S, timeout_s)))
        if found is not None:
            return LoadedPython(host.name, channel, nonce, archive, found.is_kept, found.version, found.rest)
        code = channel.exit_code()
        channel.close()
        if not lacks_python(host, code, bytes(noise)):
            raise TransportError(describe_end(host, code, pythons, bytes(noise)))
    raise TransportError(no_python(host.name, pythons))


@contextlib.contextmanager
def hanging_up(channel: Channel, timeout_s: float) -> Iterator[threading.Event]:
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


@dataclass(frozen=True, slots=True)
class Marker:
    """What a loader says of itself."""

    is_kept: bool  # whether the host has the archive
    version: tuple[int, int]  # of its Python
    rest: bytes  # what came after it


def await_marker(
    channel: Channel, nonce: str, host: str, take_stderr: Callable[[bytes], object],
    keep_noise: Callable[[bytes], object],
) -> Marker | None:  # fmt: skip
    """Return the marker of the Python that has started; None if the channel ends before.

    Raise TransportError if its login shell prints too much. keep_noise: gets what it printed on stdout.
    """
    pattern = re.compile(f"{MARKER} {nonce} (\\w+) ([0-9]{{1,3}})\\.([0-9]{{1,3}})\n".encode())
    text, came_last = b"", STDOUT
    while True:
        stream, data = channel.read()
        if not stream:
            if came_last == STDOUT:  # what it said last may be why it has ended
                keep_noise(text)
            return None
        came_last = stream
        if stream != STDOUT:
            take_stderr(data)
            continue
        text += data
        if found := pattern.search(text):
            keep_noise(text[: found.start()])
            return Marker(found[1] == KEPT.encode(), (int(found[2]), int(found[3])), text[found.end() :])
        if len(text) > NOISE_BYTES:
            keep_noise(text)
            said = f"its login shell printed over {NOISE_BYTES >> 10} KiB and has not started Python"
            fix = f"let {_RC_FILES} print only in interactive shells"
            raise TransportError(HostFailure(host, HostFailureKind.SHELL, said, fix))


def describe_silence(host: Host, timeout_s: float) -> HostFailure:
    """Return the failure of a host whose login shell has not started Python in time."""
    who = host.enter or "its login shell"
    fix = f"look in {_RC_FILES} for a prompt, an exec, or output sent elsewhere; if it is slow, raise --connect-timeout"
    if host.enter:
        fix = f"{_try_by_hand(host.enter)}; if it is slow, raise --connect-timeout"
    text = f"{who} has not started Python in {timeout_s:g} s"
    return HostFailure(host.name, HostFailureKind.SHELL, text, fix)


def lacks_python(host: Host, code: int | None, noise: bytes) -> bool:
    """Tell whether a login shell has ended because this Python isn't there, or is too old."""
    return code == NO_PYTHON_EXIT_CODE and not _is_missing(host.enter, noise)


def describe_end(host: Host, code: int | None, pythons: Sequence[str], noise: bytes) -> HostFailure:
    """Return the failure of a host whose login shell has ended before the marker; noise: what it said."""
    if lacks_python(host, code, noise):
        return no_python(host.name, pythons)
    if code == NOT_LINUX_EXIT_CODE:
        return not_linux(host.name)
    said = f": {last_line(noise)}" if last_line(noise) else ""
    if code is None:
        return HostFailure(host.name, HostFailureKind.SHELL, f"the connection was lost immediately{said}")
    text = "killed by a signal" if code == KILLED else f"exit code {code}"
    if host.enter:
        fix = _try_by_hand(host.enter)
        return HostFailure(host.name, HostFailureKind.SHELL, f"{host.enter} has ended ({text}){said}", fix)
    fix = f"try by hand: ssh {host.name} true; it may take another user (USER@{host.name})"
    if pythons and pythons[0] != "python3" and (code == _NOT_RUN or not said):  # it was named by the user
        fix = f"check that --python {pythons[0]} is a Python there, or {fix}"
    return HostFailure(host.name, HostFailureKind.SHELL, f"its login shell ended ({text}){said}", fix)


def _is_missing(enter: str, noise: bytes) -> bool:
    """Tell whether exit code 127 is of a shell that doesn't find this command, and not of `env`, which it starts.

    A Python that is too old says nothing.
    """
    lines = noise.decode("utf-8", "replace").splitlines()
    return bool(enter) and any(_MISSING.search(line) and not line.startswith("env: ") for line in lines)


def _try_by_hand(enter: str) -> str:
    """Return what shows whether the command works."""
    return f"try it by hand there: {enter} true"


def describe_no_input(enter: str, host: str) -> HostFailure:
    """Return the failure of a host whose command closes stdin, over which the helper gets its messages."""
    return HostFailure(
        host, HostFailureKind.SHELL, f"{enter} passes on no input",
        "let it keep stdin open: docker, podman and kubectl exec need -i",
    )  # fmt: skip


def last_line(noise: bytes) -> str:
    """Return the last line of what a login shell printed."""
    lines = noise.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:200] if lines else ""
