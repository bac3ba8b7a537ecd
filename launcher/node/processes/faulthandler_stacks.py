"""Stacks that ranks write themselves, with `faulthandler`, unless the run was started with --no-stacks.

`arm` puts a sitecustomize.py (launcher.node.programs.entry) first on the PYTHONPATH of the ranks. In each Python, it
opens an unnamed file, in memory if possible, and registers a handler, written in C, that appends the stacks of all
threads to that file at every `SIGNAL`. So even a long run leaves no files behind.
The signal kills a process without this handler. So send it only to a process that has such a file open (`find_file`)
and catches the signal (`catches_signal`); a program may change either at any time.
"""

from __future__ import annotations

import os

from launcher.node import messages
from launcher.node.processes import lent_code
from launcher.node.programs.entry import MEMORY, SIGNAL, STACKS


def arm(run_folder: str, env: dict[str, str]) -> str:
    """Change PYTHONPATH in `env` so that every Python started with it can write its stack; keep its other entries.

    Return the directory that was made for this.
    """
    folder = lent_code.make_folder(run_folder, STACKS)
    env.update(lent_code.put_first(folder, env))
    return folder


def find_file(pid: int, armed_folder: str) -> str | None:
    """Return a path for reading the file that a process has open to write its stacks, or None."""
    fds = "/proc/%d/fd" % pid
    try:
        for name in os.listdir(fds):
            path = os.path.join(fds, name)
            try:
                target = os.readlink(path)
            except OSError:
                continue  # closed meanwhile
            if target.startswith(("/memfd:" + MEMORY, armed_folder + os.sep)):
                return path
    except OSError:
        pass
    return None


def catches_signal(pid: int) -> bool:
    """Tell whether a process has a handler for `SIGNAL`."""
    return _has_signal("/proc/%d/status" % pid, "SigCgt:")


def find_blocking(pid: int) -> set[str]:
    """Return the threads of a process that block `SIGNAL`, as one does while it writes the stacks.

    Its handler is registered without `chain`, so the kernel holds another signal of that kind back meanwhile
    (Modules/faulthandler.c sets SA_NODEFER only with it).
    """
    found = set()
    try:
        for thread in os.listdir("/proc/%d/task" % pid):
            if _has_signal("/proc/%d/task/%s/status" % (pid, thread), "SigBlk:"):
                found.add(thread)
    except OSError:
        pass
    return found


def size_of(path: str) -> int:
    """Return how many bytes are in a file; 0 if it is gone."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def read_from(path: str, offset: int) -> bytes:
    """Return a file's content from `offset` on, at most what a message may carry; empty if the file is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # the program may have replaced it by a pipe
        with os.fdopen(fd, "rb") as file:
            file.seek(offset)
            return file.read(messages.MAX_STACK_BYTES)  # the rank may keep writing to it
    except OSError:
        return b""


def _has_signal(status: str, mask: str) -> bool:
    """Tell whether a mask in a status file of /proc has `SIGNAL`; False if the file can't be read."""
    try:
        with open(status) as file:
            masks = [line.split()[1] for line in file if line.startswith(mask)]
    except OSError:
        return False
    return bool(masks) and bool(int(masks[0], 16) >> (SIGNAL - 1) & 1)
