"""The Python stacks of the ranks, which they write themselves, with `faulthandler`, unless --no-stacks was given.

A sitecustomize.py (launcher.node.programs.entry) is first on the PYTHONPATH of the ranks. In each Python, it opens an
unnamed file, in memory if possible, and registers a handler, written in C, that appends the stacks of all threads to
that file at every `SIGNAL`. So even a long run leaves no files behind.

A dump never ends or suspends a rank. The signal kills a process without this handler, so it goes only to one that has
such a file open and catches the signal; a program may change either at any time. Like any signal, it may interrupt a C
call that the kernel doesn't restart (sleep, poll).
"""

from __future__ import annotations

import base64
import os
import time
from contextlib import suppress
from functools import partial
from typing import Any

from launcher.node import messages
from launcher.node.loop import Loop
from launcher.node.processes import proc
from launcher.node.programs.entry import MEMORY, SIGNAL
from launcher.node.send_queue import SendQueue
from launcher.node.system import read_text

# Less than the launcher waits (ANSWER_S in runs/hangs.py).
SIGNAL_TIMEOUT_S = 2.0
_ANSWER_S = 3.0
_LOOK_S = 0.02
_LOOK_AGAIN_S = 0.1  # a page fault too is state D, for a moment


def send_stacks(
    loop: Loop, send_queue: SendQueue, number: int, ranks: dict[int, proc.Process], armed_folder: str | None
) -> None:
    """Answer a STACKS with one STACK for each running rank.

    armed_folder: where that sitecustomize is; None: the ranks can't write their stacks.
    """
    for local_rank, process in ranks.items():
        if proc.is_alive(process):

            def send(answer: dict[str, Any], local_rank: int = local_rank) -> None:
                text = base64.b64decode(answer.pop("text"))
                answer.update(number=number, local_rank=local_rank)
                send_queue.send(messages.STACK, text, **answer)

            nothing = _answer(process, reason="it can't be inspected")
            loop.ask(partial(take_stack, process, armed_folder), _ANSWER_S, nothing, send)


def take_stack(rank: proc.Process, armed_folder: str | None) -> dict[str, Any]:
    """Return what is found about one rank: its stack, or the reason why there is none; this may take seconds."""
    python = find_python(rank)
    process = python or rank
    state: str | None = _read_state(process)
    if state == "D":
        time.sleep(_LOOK_AGAIN_S)
        state = _read_state(process)
    answer = _answer(process)
    if state in ("D", "T", "t"):  # which says more than any stack
        answer.update(state=state.upper(), wchan=_read_wchan(process.pid))
    if state == "D":
        answer["reason"] = "it is blocked in the kernel"
    elif python is None:
        now = proc.read_process(rank.pid) or rank  # the name recorded so far is from before its exec
        answer["reason"] = "the rank runs %s, not Python" % now.name
    elif answer["state"] == "T":
        answer["reason"] = "a suspended process can't write its stack"
    else:
        stack, answer["reason"] = _write_stack(python, armed_folder)
        answer["text"] = base64.b64encode(stack).decode()
    return answer


def _answer(process: proc.Process, reason: str | None = None) -> dict[str, Any]:
    return {"pid": process.pid, "text": "", "state": None, "wchan": None, "reason": reason}


def _find_file(pid: int, armed_folder: str) -> str | None:
    """Return a path for reading the file that a process has open to write its stacks, or None."""
    fds = "/proc/%d/fd" % pid
    with suppress(OSError):
        for name in os.listdir(fds):
            path = os.path.join(fds, name)
            with suppress(OSError):  # closed meanwhile
                if os.readlink(path).startswith(("/memfd:" + MEMORY, armed_folder + os.sep)):
                    return path
    return None


def _write_stack(process: proc.Process, armed_folder: str | None) -> tuple[bytes, str | None]:
    """Let a process write its stacks; return them, or the reason why there are none.

    It isn't signalled unless it has a file for them.
    """
    if armed_folder is None:
        return b"", "the run was started with --no-stacks"
    path = _find_file(process.pid, armed_folder)
    if path is None:
        return b"", "this Python did not load launch's sitecustomize (-I, -E or -S, or PYTHONPATH replaced?)"
    if not _has_signal("/proc/%d/status" % process.pid, "SigCgt:"):
        return b"", "it no longer catches signal %d" % SIGNAL
    old_bytes, blocking = _size_of(path), _find_blocking(process.pid)
    deadline = time.monotonic() + SIGNAL_TIMEOUT_S
    proc.send_signal(process, SIGNAL)
    has_begun = is_complete = False
    while not is_complete and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        has_begun = _size_of(path) > old_bytes
        is_complete = has_begun and _find_blocking(process.pid) <= blocking
    if not has_begun:
        return b"", "it did not respond to signal %d in %g s" % (SIGNAL, SIGNAL_TIMEOUT_S)
    return read_from(path, old_bytes), None


def _find_blocking(pid: int) -> set[str]:
    """Return the threads of a process that block `SIGNAL`, as one does while it writes the stacks.

    Its handler is registered without `chain`, so the kernel holds another signal of that kind back meanwhile
    (Modules/faulthandler.c sets SA_NODEFER only with it).
    """
    try:
        threads = os.listdir("/proc/%d/task" % pid)
    except OSError:
        return set()
    return {thread for thread in threads if _has_signal("/proc/%d/task/%s/status" % (pid, thread), "SigBlk:")}


def _has_signal(status: str, mask: str) -> bool:
    """Tell whether a mask in a status file of /proc has `SIGNAL`; False if the file can't be read."""
    masks = [line.split()[1] for line in read_text(status).splitlines() if line.startswith(mask)]
    return bool(masks) and bool(int(masks[0], 16) >> (SIGNAL - 1) & 1)


def _size_of(path: str) -> int:
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


def find_python(rank: proc.Process) -> proc.Process | None:
    """Return the first Python among the rank's process and its descendants: a shell may have started the trainer."""
    level = [rank]
    everything: dict[int, proc.Process] = {}
    while level:
        for process in level:
            if _is_python(process):
                return process
        everything = everything or proc.read_all()
        parents = {process.pid for process in level}
        level = sorted(
            (process for process in everything.values() if process.ppid in parents), key=lambda process: process.started
        )
    return None


def _is_python(process: proc.Process) -> bool:
    try:
        return "python" in os.path.basename(os.readlink("/proc/%d/exe" % process.pid))
    except OSError:
        return process.name.startswith("python")


def _read_state(process: proc.Process) -> str:
    now = proc.read_process(process.pid)
    return now.state if now is not None and now.started == process.started else "X"


def _read_wchan(pid: int) -> str | None:
    name = read_text("/proc/%d/wchan" % pid).strip()
    return name if name not in ("", "0") else None
