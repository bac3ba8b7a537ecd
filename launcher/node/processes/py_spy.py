"""py-spy, which reads the stack of a process from outside: where it is, how it is called, what its answer means."""

from __future__ import annotations

import os

_REASON_CHARACTERS = 160


def find_program(pid: int, env: dict[str, str]) -> str | None:
    """Return the path of py-spy: beside the process's Python as it was called, else on PATH."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            called = os.fsdecode(file.read().split(b"\0")[0])
    except OSError:
        called = ""
    for folder in [os.path.dirname(called), *env.get("PATH", os.defpath).split(os.pathsep)]:
        path = os.path.join(folder, "py-spy")
        if os.path.isabs(path) and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def dump_argv(program: str, pid: int) -> list[str]:
    """Return what prints the stacks of all threads of a process; it is not paused meanwhile."""
    return [program, "dump", "--nonblocking", "--full-filenames", "--pid", str(pid)]


def is_complete(answer: bytes) -> bool:
    """Tell whether an answer holds stacks, and no thread's is missing."""
    return b"\nThread " in answer and b"\nError: " not in answer


def is_denied(text: str) -> bool:
    """Tell whether the kernel has refused the look, as it will refuse the next one."""
    return "ermission" in text or "not permitted" in text


def shorten(text: str) -> str:
    """Return the first line of what py-spy said, without its advice to use sudo."""
    if is_denied(text):
        return "permission denied"
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it said nothing"]
    chosen = [line for line in lines if line.startswith("Error: ")] or lines
    return chosen[0].replace("Error: ", "", 1)[:_REASON_CHARACTERS]
