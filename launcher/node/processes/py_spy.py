"""py-spy, which reads the stack of a process from outside: find it, call it, and understand its output."""

from __future__ import annotations

import os
import shutil

_REASON_CHARACTERS = 160


def find_program(pid: int, env: dict[str, str]) -> str | None:
    """Return the path of py-spy: beside the Python that the process was started with, else on PATH; or None."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            called = os.fsdecode(file.read().split(b"\0")[0])
    except OSError:
        called = ""
    folders = [os.path.dirname(called), *env.get("PATH", os.defpath).split(os.pathsep)]
    return shutil.which("py-spy", path=os.pathsep.join(filter(os.path.isabs, folders)))


def dump_argv(program: str, pid: int) -> list[str]:
    """Return the command that prints the stacks of all threads of a process without pausing it."""
    return [program, "dump", "--nonblocking", "--full-filenames", "--pid", str(pid)]


def is_complete(answer: bytes) -> bool:
    """Tell whether py-spy's output has stacks, and lacks no thread."""
    return b"\nThread " in answer and b"\nError: " not in answer


def is_denied(text: str) -> bool:
    """Tell whether the kernel has denied access, as it would again."""
    return "ermission" in text or "not permitted" in text


def shorten(text: str) -> str:
    """Return py-spy's error, or else its first line, without its advice to use sudo."""
    if is_denied(text):
        return "permission denied"
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it printed nothing"]
    chosen = [line for line in lines if line.startswith("Error: ")] or lines
    return chosen[0].replace("Error: ", "", 1)[:_REASON_CHARACTERS]
