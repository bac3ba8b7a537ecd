"""The Python stacks of the ranks, taken while they run: by py-spy if it is permitted, else by faulthandler in the rank.

A dump never ends, suspends or disturbs a rank.
So py-spy reads without pausing it (`--nonblocking`): attaching would interrupt system calls, and a py-spy that is
killed meanwhile may leave its target suspended.
A hung process doesn't change, so what is read is consistent; if it is not, py-spy fails and is called again.
Yama's ptrace_scope=1 and a container without CAP_SYS_PTRACE deny py-spy access, since it isn't an ancestor of the rank.
Then a signal makes the rank write its stack itself, unless the run was started with --no-stacks.
The signal goes only to a process that is ready for it (see `faulthandler_stacks`); it would kill any other.
Like any signal, it may interrupt a C call that the kernel doesn't restart (sleep, poll), so py-spy is tried first.
"""

from __future__ import annotations

import base64
import os
import subprocess
import threading
import time
from functools import partial
from typing import Any

from launcher.node import messages
from launcher.node.loop import Loop
from launcher.node.processes import faulthandler_stacks, proc, py_spy
from launcher.node.programs.entry import SIGNAL
from launcher.node.send_queue import SendQueue
from launcher.node.system import read_text

# Together less than the launcher waits (ANSWER_S in runs/hangs.py).
PY_SPY_TIMEOUT_S = 2.0
SIGNAL_TIMEOUT_S = 2.0
_ANSWER_S = 4.5
_PY_SPY_TRIES = 3
_LOOK_S = 0.02
_LOOK_AGAIN_S = 0.1  # a page fault too is state D, for a moment


class NoStackError(Exception):
    """There is no stack, for a reason that the text tells."""


def send_stacks(
    loop: Loop,
    send_queue: SendQueue,
    number: int,
    ranks: dict[int, proc.Process],
    env: dict[str, str],
    armed_folder: str | None,
    suspended_starter: int | None,
) -> None:
    """Answer a STACKS with one STACK for each running rank; py-spy is also looked for on the PATH of `env`.

    armed_folder: what `faulthandler_stacks.arm` returned; None: the ranks can't write their stacks; empty: nobody may
    signal them. suspended_starter: the process id of what started the ranks, if it is suspended.
    """
    for local_rank, process in ranks.items():
        if proc.is_alive(process):

            def send(answer: dict[str, Any], local_rank: int = local_rank) -> None:
                text = base64.b64decode(answer.pop("text"))
                answer.update(number=number, local_rank=local_rank, starter=suspended_starter)
                send_queue.send(messages.STACK, text, **answer)

            nothing = _answer(process, reason="it can't be inspected")
            loop.ask(partial(take_stack, process, env, armed_folder), _ANSWER_S, nothing, send)


def take_stack(rank: proc.Process, env: dict[str, str], armed_folder: str | None) -> dict[str, Any]:
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
    else:
        try:
            text, answer["source"] = _find_text(python, env, armed_folder, is_suspended=answer["state"] == "T")
            answer["text"] = base64.b64encode(text).decode()
        except NoStackError as error:
            answer["reason"] = str(error)
    return answer


def _answer(process: proc.Process, reason: str | None = None) -> dict[str, Any]:
    return {"pid": process.pid, "text": "", "source": None, "state": None, "wchan": None, "reason": reason}


def _find_text(
    process: proc.Process, env: dict[str, str], armed_folder: str | None, *, is_suspended: bool
) -> tuple[bytes, str]:
    """Return the stacks of a Python, and who has written them."""
    try:
        return _call_py_spy(process.pid, env), "py-spy"
    except NoStackError as error:
        why = str(error)
    try:
        return _signal(process, _find_file(process.pid, armed_folder, is_suspended=is_suspended)), "faulthandler"
    except NoStackError as error:
        raise NoStackError("%s, and %s" % (why, error)) from None


# ---- py-spy ---------------------------------------------------------------------------------------------------------


def _call_py_spy(pid: int, env: dict[str, str]) -> bytes:
    program = py_spy.find_program(pid, env)
    if program is None:
        raise NoStackError("py-spy not found (fix: run pip install py-spy)")
    deadline = time.monotonic() + PY_SPY_TIMEOUT_S
    for _ in range(_PY_SPY_TRIES):
        data = _read_output(py_spy.dump_argv(program, pid), dict(env, RUST_BACKTRACE="0"), deadline)
        if py_spy.is_complete(data):
            return data
        if time.monotonic() >= deadline:
            raise NoStackError("py-spy can't read it (it took over %g s)" % PY_SPY_TIMEOUT_S)
        text = data.decode("utf-8", "replace")
        if py_spy.is_denied(text):
            break
        time.sleep(_LOOK_S)
    raise NoStackError("py-spy can't read it (%s)" % py_spy.shorten(text))


def _read_output(argv: list[str], env: dict[str, str], deadline: float) -> bytes:
    """Return what a program prints until the deadline, at most what a message may carry."""
    try:
        program = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError as error:
        raise NoStackError("py-spy can't be started (%s)" % error.strerror) from None
    timer = threading.Timer(max(0.0, deadline - time.monotonic()), program.kill)
    timer.start()
    assert program.stdout is not None  # it is a pipe
    data = program.stdout.read(messages.MAX_STACK_BYTES)
    program.kill()
    timer.cancel()
    return data


# ---- faulthandler in the rank ---------------------------------------------------------------------------------------


def _find_file(pid: int, armed_folder: str | None, *, is_suspended: bool) -> str:
    """Return where the process writes its stacks if it is signalled, which it must not be otherwise."""
    if armed_folder is None:
        raise NoStackError("the run was started with --no-stacks")
    if not armed_folder:
        raise NoStackError("only Ctrl-\\ and a hang that ends the run signal a rank")
    if is_suspended:
        raise NoStackError("a suspended process can't write its stack")
    path = faulthandler_stacks.find_file(pid, armed_folder)
    if path is None:
        raise NoStackError("this Python did not load launch's sitecustomize (-I, -E or -S, or PYTHONPATH replaced?)")
    if not faulthandler_stacks.catches_signal(pid):
        raise NoStackError("it no longer catches signal %d" % SIGNAL)
    return path


def _signal(process: proc.Process, path: str) -> bytes:
    old_bytes, blocking = faulthandler_stacks.size_of(path), faulthandler_stacks.find_blocking(process.pid)
    deadline = time.monotonic() + SIGNAL_TIMEOUT_S
    proc.send_signal(process, SIGNAL)
    has_begun = is_complete = False
    while not is_complete and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        has_begun = faulthandler_stacks.size_of(path) > old_bytes
        is_complete = has_begun and faulthandler_stacks.find_blocking(process.pid) <= blocking
    if not has_begun:
        raise NoStackError("it did not respond to signal %d in %g s" % (SIGNAL, SIGNAL_TIMEOUT_S))
    return faulthandler_stacks.read_from(path, old_bytes)


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
