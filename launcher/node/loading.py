"""Load launch's code on a host: the command line of a login carries this module, as text, and runs `main`.

The archive is kept in a directory that only this user can change, with the bytecode that a Python has made of it. So it
is sent once. Where there is no such directory, it is sent each time.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import stat
import sys
import zlib
from hashlib import sha256
from importlib import import_module
from importlib.util import MAGIC_NUMBER
from typing import Callable, NoReturn

from launcher.node.archive import Archive
from launcher.node.own_folders import make_own

MARKER = "~launch"
KEPT, MISSING = "kept", "missing"  # in the marker's line
_DISK_S = 3.0  # for the disk of that directory to respond
_MOST_S = 120  # for a process that a disk holds up
_HASH_BYTES = 32
_MOST_FDS = 4096  # a supervisor's, too, have smaller numbers
_MOST_BYTES = 64 << 20


def main(nonce: str, name: str, wait_s: int) -> NoReturn:
    """Print the marker, read the archive if it isn't here, and run the program that is named on stdin.

    name: of the archive; wait_s: SIGALRM ends this process if nothing comes for that long, as from a machine that has
    lost power: sshd may notice that hours later.
    """
    signal.alarm(wait_s)
    folder = os.fsdecode(in_time(lambda: _look(name)))
    archive = read_kept(folder, name) if folder else None
    print(MARKER, nonce, KEPT if archive else MISSING, "%d.%d" % sys.version_info[:2], flush=True)
    size, program = (b"".join(iter(lambda: os.read(0, 1).strip(b"\n"), b"")) or b"0 ").decode().split(" ")
    if not program:
        os._exit(0)
    sent = _read_all(int(size), wait_s)
    if archive is None:
        sent = zlib.decompress(sent)
        if sha256(sent).hexdigest() != name:
            sys.exit("launch's code came with another content")
        archive = Archive(sent, {})
    signal.alarm(0)
    archive.enter()
    if folder and not archive.bytecode:
        kept_archives = import_module("launcher.node.kept_archives")
        in_time(lambda: kept_archives.keep(folder, name, archive))
        archive.bytecode = (read_kept(folder, name) or archive).bytecode  # else modules are compiled when imported
    import_module(program).main(nonce, wait_s)
    os._exit(0)


def make_folder() -> str:
    """Return the directory of archives, and make it if it is missing; raise OSError if others may write to it."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    base = base if base.startswith("/") else os.path.join(os.path.expanduser("~"), ".cache")
    if not base.startswith("/"):
        raise OSError("nobody knows where this user's home directory is")
    folder = os.path.join(base, "launch", "code")
    make_own(os.path.dirname(folder))
    make_own(folder)
    return folder


def path_kept(folder: str, name: str) -> str:
    """Return where an archive is kept with what this Python makes of it."""
    return os.path.join(folder, "%s.%s" % (name, MAGIC_NUMBER.hex()))


def read_kept(folder: str, name: str) -> Archive | None:
    """Return an archive that is kept, with its bytecode; None if there is none with this content."""
    data = _read(path_kept(folder, name))
    if sha256(data[_HASH_BYTES:]).digest() != data[:_HASH_BYTES]:
        return None
    content, bytecode = marshal.loads(data[_HASH_BYTES:])
    return Archive(content, bytecode) if sha256(content).hexdigest() == name else None


def in_time(act: Callable[[], bytes]) -> bytes:
    """Return what `act` returns; nothing if that takes longer than a disk should.

    A process apart does it, which nobody waits for any longer: on a disk that hangs it can't even be killed.
    """
    found, answer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            if not os.fork():
                signal.alarm(_MOST_S)
                os.closerange(0, answer)  # the end of a login waits for all who have its streams
                os.closerange(answer + 1, _MOST_FDS)
                os.write(answer, act())
        finally:
            os._exit(0)
    os.close(answer)
    os.waitpid(pid, 0)
    with open(found, "rb", 0) as file:
        return (file.read(4096) or b"") if select.select([file], [], [], _DISK_S)[0] else b""


def _look(name: str) -> bytes:
    """Make the directory, and read what is there, so that the next who does needs no disk."""
    folder = make_folder()
    _read(path_kept(folder, name))
    return os.fsencode(folder)


def _read(path: str) -> bytes:
    """Return what a file of this user's holds, which nobody else may change; nothing if there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # nothing waits for a FIFO of that name
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            is_own = found.st_uid == os.geteuid() and not found.st_mode & 0o022 and found.st_nlink == 1
            return file.read(min(found.st_size, _MOST_BYTES)) if is_own and stat.S_ISREG(found.st_mode) else b""
    except OSError:
        return b""


def _read_all(size: int, wait_s: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        signal.alarm(wait_s)
        piece = os.read(0, size - len(data))
        if not piece:
            os._exit(1)
        data += piece
    return bytes(data)
