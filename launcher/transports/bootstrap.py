"""Load code on a host that has nothing but Python: a command line starts it, and the code itself follows on stdin.

A command line is small and works in every shell (bash, dash, zsh, fish, tcsh): single quotes around text without
single quotes, backslash escapes that no shell touches, and no `!`.
It prints a marker first. `launch` sends nothing before it, since an rc file that reads stdin would
consume it.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import marshal
import math
import secrets
import shlex
import sys
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.abc import InspectLoader
from importlib.util import MAGIC_NUMBER, find_spec
from types import CodeType
from typing import TYPE_CHECKING, Any, cast

from launcher.concurrency import start_timer
from launcher.errors import HostFailure, HostFailureKind
from launcher.hosts.host import Host
from launcher.node import messages
from launcher.transports.base import KILLED, STDOUT, Channel, Transport, TransportError

if TYPE_CHECKING:
    from importlib.abc import Traversable

MARKER = "~launch"
WAIT_S = 60.0  # for the next bytes of the code
MARKER_TIMEOUT_S = 10.0
NOISE_BYTES = 64 << 10
# Of each command line here: the first is also a shell's for a program that it doesn't find, the second nothing else's.
NO_PYTHON_EXIT_CODE = 127
NOT_LINUX_EXIT_CODE = 119
_NOT_RUN = 126  # a shell's, for what it finds and can't run
_RC_FILES = "~/.bashrc (bash), ~/.zshenv (zsh) or ~/.config/fish/config.fish"  # which these read without a terminal
# Of launcher.node: what every session needs, and what may have to end a run when the connection is gone.
_FIRST_MODULES = (
    "clock", "guardian", "kernel_log", "loop", "messages", "own_folders", "send_queue", "signals",
    "ending", "lease", "supervisor", "system", "facts.responder", "facts.shared_directory",
    *(f"processes.{name}" for name in (
        "handover_log", "oom_kills", "proc", "rank_start", "ranks", "run_folders", "run_owner", "run_processes", "shim",
        "stop_steps", "workers",
    )),
)  # fmt: skip
# The rest goes with the first message that needs it (see find_parts), and the parts of one message together.
_PARTS: Mapping[str, Sequence[str]] = {
    "network": ("facts.network",),
    "facts": (
        *(f"facts.{name}" for name in (
            "code", "gathering", "gpus", "leftovers", "machine", "nccl_ras", "packages", "pythons", "saves",
            "slurm", "visible_gpus",
        )),
        "processes.numa", "processes.torchrun",
    ),
    "setup": ("facts.setup",),
    "code": tuple(f"code.{name}" for name in (
        "code_process", "folders", "listing", "missing_pieces", "proof", "store",
    )),
    "boot_units": ("boot_units",),
    "claims": ("claims",),
    "samples": ("nvml", "sampler"),
    "sitecustomize": ("processes.sitecustomize",),
    "warm": ("processes.warm",),
    "arming": ("processes.faulthandler_stacks",),
    "stacks": ("processes.py_spy", "processes.stacks"),
}  # fmt: skip
_LOCK = threading.Lock()
# Of the location tables of these Pythons: the kinds of entries for instructions of a line, and of none.
_HAS_COLUMNS = (3, 11) <= sys.version_info < (3, 15)
_NO_COLUMNS, _NO_LINE = 13, 15
_AGENT_MODULES = (
    "boot_units", "clock", "logind", "messages", "own_folders", "signals", "system", "relays.relayed_process",
    "processes.proc", "processes.run_owner", "processes.workers",
    *(f"agents.{name}" for name in ("agent", "agent_unit", "children", "controller_link", "notice")),
)  # fmt: skip
_RELAY_MODULES = ("relays.relayed_process", "relays.relay")
_CONTROLLER_MODULES = ("own_folders", "controller_code")
_SENDER_MODULES = ("file_sender",)

# Reads one line, byte by byte, and runs it; at end of file it runs nothing and ends. SIGALRM ends it if nothing comes
# for too long, as from a machine that has lost power: sshd may notice that hours later. A process that it forks, and
# the program behind it, hear nothing of that.
_LOADER = (
    "import os,sys,_signal as s,_frozen_importlib_external as f;"
    "w={wait_s};s.alarm(w);"
    "sys.version_info<(3,8)and os._exit(127);"
    'sys.platform=="linux"or os._exit(119);'
    'print("{marker} {nonce}",f.MAGIC_NUMBER.hex(),flush=True);'
    'exec(b"".join(iter(lambda:os.read(0,1).strip(b"\\n"),b"")))'
)

# The one line that the loader reads byte by byte: it reads the modules that follow.
_READER = "d=bytearray();exec('while len(d)<{size}:d+=os.read(0,{size}-len(d))or os._exit(1);s.alarm(w)');s.alarm(0);"
# Unpacks the modules, one of which, without a name, makes the others importable.
_UNPACKER = 'import marshal,sys,zlib;m=marshal.loads(zlib.decompress(d));exec(m.pop(""));'
_IMPORTER = """\
from _frozen_importlib import ModuleSpec
class Importer:
    modules = m
    @staticmethod
    def take(data):
        Importer.modules.update(marshal.loads(zlib.decompress(data)))
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in Importer.modules:
            return ModuleSpec(name, Importer, is_package=not Importer.modules[name])
    create_module = staticmethod(lambda spec: None)
    @staticmethod
    def exec_module(module):
        code = Importer.modules[module.__name__]
        code = marshal.loads(code) if isinstance(code, bytes) else compile(code, module.__name__, "exec")
        exec(code, module.__dict__)
del d
sys.meta_path.insert(0, Importer)
"""


def no_python(host: str, pythons: Sequence[str]) -> HostFailure:
    """Return the failure of a host where none of these is a Python that is new enough."""
    text = f"no Python 3.8 or newer there (tried {', '.join(pythons)})"
    return HostFailure(host, HostFailureKind.NO_PYTHON, text, "name a newer one with --python PATH")


def not_linux(host: str) -> HostFailure:
    """Return the failure of a host that runs another system, such as a Mac."""
    fix = "name hosts that run Linux; a Mac can only be the launch host"
    return HostFailure(host, HostFailureKind.NOT_LINUX, "it doesn't run Linux", fix)


def loader_command(python: str, nonce: str, wait_s: float = WAIT_S) -> str:
    """Return the command line that prints the marker and runs one line from stdin; python: a program's name or path.

    wait_s: how long it waits while nothing comes.
    """
    # -X utf8: under an 8-bit locale, arguments and paths would not arrive unchanged.
    code = _LOADER.format(marker=MARKER, nonce=nonce, wait_s=math.ceil(wait_s))
    return f"exec {shlex.quote(python)} -X utf8 -ISc '{code}'"


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
        command = loader_command(python, nonce, max(MARKER_TIMEOUT_S, timeout_s))
        channel = transport.open(host, command, timeout_s)
        with hanging_up(channel, max(MARKER_TIMEOUT_S, timeout_s)) as has_hung_up:
            found = await_marker(channel, nonce, host.name, noise.extend, noise.extend)
        if has_hung_up.is_set():
            raise TransportError(describe_silence(host.name, max(MARKER_TIMEOUT_S, timeout_s)))
        if found is not None:
            return LoadedPython(channel, nonce, *found)
        code = channel.exit_code()
        channel.close()
        if code != NO_PYTHON_EXIT_CODE:
            raise TransportError(describe_end(host.name, code, pythons, last_line(bytes(noise))))
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


def await_marker(
    channel: Channel, nonce: str, host: str, take_stderr: Callable[[bytes], object],
    keep_noise: Callable[[bytes], object],
) -> tuple[str, bytes] | None:  # fmt: skip
    """Return the bytecode number of the Python that has started, and what came after its marker; None at the end.

    Raise TransportError if its login shell prints too much. keep_noise: gets what it printed on stdout.
    """
    marker = f"{MARKER} {nonce} ".encode()
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
        start = text.find(marker)
        end = text.find(b"\n", start)
        if start >= 0 and end >= 0:
            keep_noise(text[:start])
            return text[start + len(marker) : end].decode("ascii", "replace"), text[end + 1 :]
        if len(text) > NOISE_BYTES:
            keep_noise(text)
            said = f"its login shell printed over {NOISE_BYTES >> 10} KiB and has not started Python"
            fix = f"let {_RC_FILES} print only in interactive shells"
            raise TransportError(HostFailure(host, HostFailureKind.SHELL, said, fix))


def describe_silence(host: str, timeout_s: float) -> HostFailure:
    """Return the failure of a host whose login shell has not started Python in time."""
    return HostFailure(
        host, HostFailureKind.SHELL, f"its login shell has not started Python in {timeout_s:g} s",
        f"look in {_RC_FILES} for a prompt, an exec, or output sent elsewhere; if it is slow, raise --connect-timeout",
    )  # fmt: skip


def describe_end(host: str, code: int | None, pythons: Sequence[str], last_line: str) -> HostFailure:
    """Return the failure of a host whose login shell has ended before the marker; last_line: what it said last."""
    if code == NO_PYTHON_EXIT_CODE:
        return no_python(host, pythons)
    if code == NOT_LINUX_EXIT_CODE:
        return not_linux(host)
    said = f": {last_line}" if last_line else ""
    if code is None:
        return HostFailure(host, HostFailureKind.SHELL, f"the connection was lost immediately{said}")
    text = "killed by a signal" if code == KILLED else f"exit code {code}"
    fix = f"try by hand: ssh {host} true; it may take another user (USER@{host})"
    if pythons and pythons[0] != "python3" and (code == _NOT_RUN or not last_line):  # it was named by the user
        fix = f"check that --python {pythons[0]} is a Python there, or {fix}"
    return HostFailure(host, HostFailureKind.SHELL, f"its login shell ended ({text}){said}", fix)


def last_line(noise: bytes) -> str:
    """Return the last line of what a login shell printed."""
    lines = noise.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:200] if lines else ""


# ---- relays, which srun starts ---------------------------------------------------------------------------------------


# The loader for a task of Slurm, whose marker is the line `here` of launcher.node.relays.relay: srun passes on no
# input before every node has started its task, so each task reports first.
_RELAY_LOADER = (
    "import os,_signal as s;"
    "w=0;"  # no alarm: it waits until all nodes have started their tasks
    'print("~{nonce} here",os.environ["SLURM_PROCID"],os.environ["SLURMD_NODENAME"],os.getpid(),'
    'open("/proc/self/stat").read().rpartition(") ")[2].split()[19],flush=True);'
    'exec(b"".join(iter(lambda:os.read(0,1).strip(b"\\n"),b"")))'
)
# The first Python that is new enough.
_RELAY_SHELL = (
    'for p; do "$p" -ISc "import sys; sys.exit(sys.version_info < (3, 8))" 2>/dev/null'
    ' && exec "$p" -X utf8 -ISc "$0"; done; exit 127'
)


def relay_argv(pythons: Sequence[str], nonce: str) -> list[str]:
    """Return the command that starts a relay as a task of srun; the relay's code is the first line that it reads."""
    return ["/bin/sh", "-c", _RELAY_SHELL, _RELAY_LOADER.format(nonce=nonce), *pythons]


def relay_code(nonce: str, block_bytes: int, kept_blocks: int) -> bytes:
    """Return the code of a relay, which its loader reads; it is the same for every node and Python."""
    arguments = f"{nonce!r}, {block_bytes}, {kept_blocks}"
    return _program(_RELAY_MODULES, "", f"import launcher.node.relays.relay as program;program.main({arguments})")


# ---- the code that a Python reads from stdin -------------------------------------------------------------------------


class NodeCode:
    """The code of guardian and supervisor for one node: its beginning, and the parts that the node doesn't have yet.

    The first of these calls must be `begin`, and what each returns must be sent in the order of the calls.
    """

    def __init__(self, magic: str) -> None:
        """magic: the number of the host's bytecode in hex, "" for any Python."""
        self._magic = magic
        self._sent: set[str] = set()

    def begin(self, nonce: str) -> bytes:
        """Return what to send on stdin after the marker."""
        start = f"import launcher.node.guardian as program;program.main({nonce!r},Importer.take)"
        return _program(_FIRST_MODULES, self._magic, start)

    def add_for(self, header: Mapping[str, Any]) -> bytes:
        """Return what to send before a message to the supervisor; empty if the node has all that this one needs."""
        missing = [part for part in find_parts(header) if part not in self._sent]
        if not missing:
            return b""
        self._sent.update(missing)
        names = tuple(name for part in missing for name in _PARTS[part])
        return messages.encode(messages.MODULES, _pack_modules(names, self._magic, is_program=False))


def find_parts(header: Mapping[str, Any]) -> list[str]:
    """Return which of _PARTS a supervisor needs to serve a message."""
    kind = header["type"]
    facts = header.get("facts") or kind in (
        messages.LIST_CODE, messages.ADOPT, messages.LOOK, messages.RAS, messages.SAMPLE,
    )  # fmt: skip
    facts = facts or (kind == messages.START and not header.get("is_short"))
    arming = header.get("with_stacks") or kind == messages.STACKS
    wanted = {
        "network": facts or header.get("tree") or kind in (messages.ROUTE, messages.PROBE, messages.SHARE),
        "facts": facts,
        "setup": header.get("setup"),
        "code": header.get("tree"),
        "boot_units": header.get("planted") or header.get("units"),
        "claims": kind == messages.CLAIM,
        "samples": kind == messages.SAMPLE or header.get("samples_s"),
        "sitecustomize": header.get("warm") or arming,
        "warm": header.get("warm"),
        "arming": arming,
        "stacks": kind == messages.STACKS,
    }
    return [part for part in _PARTS if wanted[part]]


def agent_code(nonce: str, magic: str) -> bytes:
    """Return what to send on stdin after the marker for an agent; its first message (messages.PLANT) follows it."""
    return _program(_AGENT_MODULES, magic, f"import launcher.node.agents.agent as program;program.main({nonce!r},w)")


def boot_code() -> str:
    """Return source for the file with which a host starts an agent after a boot: as `program`, its module.

    It is for any Python: that of the host may be a newer one by then.
    """
    modules = base64.b64encode(_pack_modules(_AGENT_MODULES, "", is_program=True)).decode()
    start = "import launcher.node.agents.agent as program"
    return f'import base64\nd = base64.b64decode("{modules}")\n{_UNPACKER}\n{start}\n'


def controller_code(name: str) -> bytes:
    """Return what to send on stdin after the marker, to start the launcher's own code.

    name: the hash of its archive, which launcher.node.controller_code takes in place of the modules that were sent.
    """
    start = (
        f"import launcher.node.controller_code as code;code.main({name!r},w);Importer.modules.clear();"
        "from launcher.controller import orders;orders.main(os.environ,w)"
    )
    return _program(_CONTROLLER_MODULES, "", start)


def sender_code() -> bytes:
    """Return what to send on stdin after the marker, to start what sends files of a run."""
    return _program(_SENDER_MODULES, "", "import launcher.node.file_sender as program;program.main(w)")


def _program(names: tuple[str, ...], magic: str, start: str) -> bytes:
    """Return these modules of launcher.node behind the line that reads them and then runs `start`.

    That may use what the loader knows: `w`, its time to wait, and `Importer`.
    """
    modules = _pack_modules(names, magic, is_program=True)
    return f"{_READER.format(size=len(modules))}{_UNPACKER}{start}\n".encode() + modules


def _pack_modules(names: tuple[str, ...], magic: str, *, is_program: bool) -> bytes:
    """Return modules of launcher.node: compiled for a Python of `launch`'s minor version; is_program: as the first."""
    with _LOCK:  # hosts connect in threads, and the modules are compiled once for all
        return _compress(names, is_program=is_program, is_compiled=magic == MAGIC_NUMBER.hex())


@functools.cache
def _compress(names: tuple[str, ...], *, is_program: bool, is_compiled: bool) -> bytes:
    return zlib.compress(marshal.dumps(_gather(names, is_program=is_program, is_compiled=is_compiled), 2))


def _gather(names: tuple[str, ...], *, is_program: bool, is_compiled: bool) -> dict[str, str | bytes]:
    """Return modules by their names, and the empty packages that hold them.

    Marshalled code saves 12 ms of compiling; a node unmarshals what it imports.
    """
    found: dict[str, str | bytes] = {"": _IMPORTER} if is_program else {}
    for name in names:
        folders = f"launcher.node.{name}".split(".")[:-1]
        found |= dict.fromkeys((".".join(folders[:end]) for end in range(1, len(folders) + 1)), "")
    for name in names:
        module = f"launcher.node.{name}"
        found[module] = marshal.dumps(_code_of(module)) if is_compiled else _source_of(name)
    return found


@functools.cache
def _source_of(module: str) -> str:
    return (resources.files("launcher.node") / f"{module.replace('.', '/')}.py").read_text("utf-8")


def _code_of(name: str) -> CodeType:
    """Return a module's code, from its .pyc file if there is one."""
    spec = find_spec(name)
    assert spec is not None  # it is part of this package
    code = cast(InspectLoader, spec.loader).get_code(name)  # which a zip's loader is without being registered as one
    assert code is not None  # it is no built-in module
    return drop_columns(code) if _HAS_COLUMNS else code


def drop_columns(code: CodeType) -> CodeType:
    """Return the code without the columns of each instruction, a quarter of its bytes; tracebacks keep their lines.

    The format is that of CPython's Objects/locations.md.
    """
    table, before = bytearray(), code.co_firstlineno
    for start, end, line in code.co_lines():
        for units in range((end - start) // 2, 0, -8):
            table.append(0x80 | (_NO_LINE if line is None else _NO_COLUMNS) << 3 | min(units, 8) - 1)
            if line is not None:
                delta, before = line - before, line
                rest = (-delta << 1 | 1) if delta < 0 else delta << 1
                while rest > 0x3F:
                    table.append(0x40 | rest & 0x3F)
                    rest >>= 6
                table.append(rest)
    inner = (drop_columns(value) if isinstance(value, CodeType) else value for value in code.co_consts)
    return code.replace(co_linetable=bytes(table), co_consts=tuple(inner))


# ---- archives --------------------------------------------------------------------------------------------------------


def trainer_archive() -> bytes:
    """Return the built-in programs (`launcher.trainer`, `launcher.collectives`) as a zip that Python can run.

    The first argument names the module to run.
    """
    package = resources.files("launcher")
    names = ["__init__.py", "distributed.py", "exchange.py", "node/__init__.py", "node/nvml.py"]
    for folder in ("collectives", "trainer"):
        names += sorted(_list_modules(package / folder, folder))
    main = "import runpy, sys\nrunpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)\n"
    files = [("__main__.py", main.encode()), *((f"launcher/{name}", (package / name).read_bytes()) for name in names)]
    return write_archive(files, zipfile.ZIP_DEFLATED)


def write_archive(files: Iterable[tuple[str, bytes]], compression: int) -> bytes:
    """Return files as a zip with a fixed date, so that equal code gives an equal archive."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", compression) as file:
        for name, content in files:
            file.writestr(zipfile.ZipInfo(name, date_time=(2000, 1, 1, 0, 0, 0)), content, compression)
    return archive.getvalue()


def _list_modules(folder: Traversable, name: str) -> Iterator[str]:
    """Yield the files with modules in a package and the packages below it, as `trainer/loop.py`."""
    for entry in folder.iterdir():
        if entry.name.endswith(".py"):
            yield f"{name}/{entry.name}"
        elif entry.is_dir() and entry.name != "__pycache__":
            yield from _list_modules(entry, f"{name}/{entry.name}")
