"""Load launch's code on a host: the command line of a login carries this module, as text, and runs `main`.

The archive is kept in a directory that only this user can change, with the bytecode that a Python has made of it. So it
is sent once. Where there is no such directory, it is sent each time.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import sys
import zlib
from hashlib import sha256
from importlib import import_module
from importlib.util import MAGIC_NUMBER
from typing import NoReturn

from launcher.node.archive import Archive
from launcher.node.own_folders import make_own

MARKER = "~launch"
KEPT, MISSING = "kept", "missing"  # in the marker's line
_LOOK_S = 3.0  # for the disk of that directory to respond
_HASH_BYTES = 32
_MOST_BYTES = 64 << 20


def main(nonce: str, name: str, wait_s: int) -> NoReturn:
    """Print the marker, read the archive if it isn't here, and run the program that is named on stdin.

    name: of the archive; wait_s: SIGALRM ends this process if nothing comes for that long, as from a machine that has
    lost power: sshd may notice that hours later.
    """
    signal.alarm(wait_s)
    folder = _make_folder_in_time()
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
    archive.enter()
    if folder and not archive.bytecode:
        archive.bytecode = import_module("launcher.node.kept_archives").keep(folder, name, archive)
    signal.alarm(0)
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


def name_bytecode(name: str) -> str:
    """Return the file's name for what this Python makes of an archive."""
    return "%s.%s" % (name, MAGIC_NUMBER.hex())


def read_kept(folder: str, name: str) -> Archive | None:
    """Return an archive that is kept, with its bytecode if it has one; None if there is none with this content."""
    content = _read(os.path.join(folder, name))
    if sha256(content).hexdigest() != name:
        return None
    data = _read(os.path.join(folder, name_bytecode(name)))
    is_whole = sha256(data[_HASH_BYTES:]).digest() == data[:_HASH_BYTES]
    return Archive(content, marshal.loads(data[_HASH_BYTES:]) if is_whole else {})


def _make_folder_in_time() -> str:
    """Make the directory in a fork, since its disk may hang, and return it; "" if there is none that may be used."""
    found, answer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.closerange(0, 3)  # the end of a login waits for all who have its streams
            os.write(answer, os.fsencode(make_folder()))
        finally:
            os._exit(0)
    os.close(answer)
    is_answered = select.select([found], [], [], _LOOK_S)[0]
    folder = os.fsdecode(os.read(found, 4096)) if is_answered else ""
    os.close(found)
    if is_answered:
        os.waitpid(pid, 0)
    return folder


def _read(path: str) -> bytes:
    """Return what is there, and note that it was used; nothing if that is no file that can be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # nothing waits for a FIFO of that name
        with open(fd, "rb") as file:
            content = file.read(_MOST_BYTES)
    except OSError:
        return b""
    try:
        os.utime(path)
    except OSError:
        pass  # on a disk that takes nothing, nothing is removed either
    return content


def _read_all(size: int, wait_s: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        signal.alarm(wait_s)
        piece = os.read(0, size - len(data))
        if not piece:
            os._exit(1)
        data += piece
    return bytes(data)
