"""What a Python of the ranks gets of launch's code, which begins with `launcher.node.programs.entry`."""

from __future__ import annotations

import marshal
import os
from importlib.util import MAGIC_NUMBER

from launcher.node import archive
from launcher.node.processes import proc, workers
from launcher.node.programs import entry

_ENTRY, _ARCHIVE = "launcher/node/programs/entry.py", "launcher/node/archive.py"


def read_entry() -> bytes:
    """Return the text with which it begins."""
    return _find_own().files[_ENTRY]


def open_unnamed(folder: str) -> int:
    """Return a descriptor of a new file without a name, in memory; in this directory if this Python has none there."""
    try:
        return os.memfd_create("launch")
    except (AttributeError, OSError):
        path = os.path.join(folder, "unnamed-" + os.urandom(4).hex())
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.unlink(path)
        return fd


def open_code(folder: str) -> int:
    """Return a descriptor of a new file without a name that has the archive; raise OSError."""
    own = _find_own()
    data = marshal.dumps((own.files[_ARCHIVE], own.content, MAGIC_NUMBER, own.bytecode), 2)
    fd = open_unnamed(folder)
    try:
        with open(os.dup(fd), "wb") as file:
            file.write(data)
        os.lseek(fd, 0, os.SEEK_SET)
    except OSError:
        os.close(fd)
        raise
    return fd


def start_python(
    argv: list[str], env: dict[str, str], cwd: str | None, folder: str, output_fds: list[int], keepers_fd: int
) -> tuple[workers.Child, int, int]:
    """Start a Python that has the archive; return it, where it answers, and where to write its order; raise OSError.

    output_fds: its stdout and stderr; keepers_fd: closes when guardian and supervisor are gone.
    """
    passed = {entry.CODE_FD: open_code(folder)}
    try:
        passed[0] = os.open(os.devnull, os.O_RDONLY)
        passed[entry.ORDER_FD], order_write = workers.make_channel()
        answer_read, passed[entry.ANSWER_FD] = os.pipe()
        fds = {**passed, 1: output_fds[0], 2: output_fds[1], entry.KEEPERS_FD: keepers_fd}
        try:
            return workers.spawn(argv, env, cwd, fds, proc.HOLD), answer_read, order_write
        except OSError:  # there may be no room for another process
            os.close(answer_read)
            os.close(order_write)
            raise
    finally:
        for fd in passed.values():
            os.close(fd)


def _find_own() -> archive.Archive:
    own = archive.find_own()
    assert own is not None  # no supervisor runs from anything else
    return own


def make_folder(run_folder: str, purpose: str) -> str:
    """Make a directory with a sitecustomize of launch's own, and return it; purpose: `entry.STACKS` or `entry.WARM`."""
    # Its name must not be guessable: a job that a rank submits to Slurm inherits PYTHONPATH, and after the run any user
    # could create a directory of that name in /tmp, from which that job's Python would import.
    folder = os.path.join(os.path.realpath(run_folder), purpose + "-" + os.urandom(16).hex())
    os.mkdir(folder, 0o700)
    with open(os.path.join(folder, "sitecustomize.py"), "wb") as file:
        file.write(read_entry())
    return folder


def put_first(folder: str, env: dict[str, str]) -> dict[str, str]:
    """Return the environment with a directory first on Python's path."""
    users = env.get("PYTHONPATH")
    return dict(env, PYTHONPATH=folder + os.pathsep + users if users else folder)
