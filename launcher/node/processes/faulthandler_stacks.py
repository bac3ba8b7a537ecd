"""Stacks that ranks write themselves, by `faulthandler`, in a run that was started with --stacks.

`arm` puts a sitecustomize.py first on the PYTHONPATH of the ranks.
In each Python it opens a file in the run's folder and registers a handler, written in C, that appends the stacks of
all threads to that file at every `SIGNAL`.
A process without this handler would die of the signal. So it may be sent only to one that has such a file open
(`find_file`) and catches the signal (`catches_signal`); a program may have changed either at any time.
"""

from __future__ import annotations

import os

from launcher.node import messages

# SIGRTMAX-3: nobody's by convention. Slurm's scripts use SIGUSR1 and 2, the C library 32 and 33, valgrind 64.
SIGNAL = 61
_FOLDER = "stacks"  # in the run's folder

# Site imports it at the start of every Python below the rank, before any code of the user's.
# It must be quick (os and sys are there already), must not raise, and hands over to the user's own sitecustomize.
SITECUSTOMIZE = """\
import os
import sys

FOLDER = os.path.dirname(__file__)


def listen():
    try:
        import faulthandler

        path = os.path.join(FOLDER, "stack.%%d" %% os.getpid())
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        faulthandler.register(%d, file=fd, all_threads=True, chain=False)
    except Exception:
        pass


def go_on():
    sys.path[:] = [entry for entry in sys.path if entry != FOLDER]
    ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours


listen()
go_on()
"""


def arm(run_folder: str, env: dict[str, str]) -> None:
    """Make every Python that is started with `env` ready to write its stack; what PYTHONPATH held stays in it."""
    folder = os.path.join(run_folder, _FOLDER)
    os.mkdir(folder, 0o700)
    with open(os.path.join(folder, "sitecustomize.py"), "w") as file:
        file.write(SITECUSTOMIZE % SIGNAL)
    users = env.get("PYTHONPATH")
    env["PYTHONPATH"] = folder + os.pathsep + users if users else folder


def find_armed_folder(run_folder: str) -> str | None:
    """Return where the ranks' files are, as /proc names it, or None if the run was started without --stacks."""
    folder = os.path.join(run_folder, _FOLDER)
    return os.path.realpath(folder) if os.path.isdir(folder) else None


def find_file(pid: int, armed_folder: str) -> str | None:
    """Return the path of the file that a process has open to write its stacks, or None."""
    fds = "/proc/%d/fd" % pid
    try:
        for name in os.listdir(fds):
            try:
                path = os.readlink(os.path.join(fds, name))
            except OSError:
                continue  # closed meanwhile
            if path.startswith(os.path.join(armed_folder, "stack.")):
                return path
    except OSError:
        pass
    return None


def catches_signal(pid: int) -> bool:
    """Tell whether a process has a handler for `SIGNAL`."""
    try:
        with open("/proc/%d/status" % pid) as file:
            masks = [line.split()[1] for line in file if line.startswith("SigCgt:")]
    except OSError:
        return False
    return bool(masks) and bool(int(masks[0], 16) >> (SIGNAL - 1) & 1)


def size_of(path: str) -> int:
    """Return how many bytes are in a file; 0 if it is gone."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def read_from(path: str, offset: int) -> bytes:
    """Return what a file holds from there on, as much of it as a message may carry; nothing if it is gone."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(messages.MAX_STACK_BYTES)  # the rank itself may write there without end
    except OSError:
        return b""
