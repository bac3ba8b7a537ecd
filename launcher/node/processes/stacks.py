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

import os
import time
from typing import Callable

from launcher.node import messages
from launcher.node.loop import Loop
from launcher.node.processes import faulthandler_stacks, proc, py_spy, workers
from launcher.node.programs.entry import SIGNAL
from launcher.node.send_queue import SendQueue
from launcher.node.system import read_text

# Together less than the launcher waits (ANSWER_S in runs/hangs.py).
PY_SPY_TIMEOUT_S = 2.0
SIGNAL_TIMEOUT_S = 2.0
_PY_SPY_TRIES = 3
_LOOK_S = 0.02
_LOOK_AGAIN_S = 0.1  # a page fault too is state D, for a moment


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

            def send(answer: RankStack, local_rank: int = local_rank) -> None:
                send_queue.send(
                    messages.STACK, answer.text, number=number, local_rank=local_rank, pid=answer.pid,
                    source=answer.source, state=answer.state, wchan=answer.wchan, reason=answer.reason,
                    starter=suspended_starter,
                )  # fmt: skip

            _Dump(loop, process, env, armed_folder, send).begin()


class RankStack:
    """What was found about one rank: its stack as `text`, or the `reason` why there is none."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.text = b""
        self.source: str | None = None  # py-spy or faulthandler
        self.state: str | None = None  # D or T, which says more than any stack
        self.wchan: str | None = None  # the kernel function in which it waits, if this user may read it
        self.reason: str | None = None  # why there is no text


class _Dump:
    """The search for one rank's stack: steps that the loop calls, none of which blocks.

    `on_done` gets one answer, whatever happens. A run may hang because processes or descriptors have run out, so an
    OSError in any step must end the dump, never the supervisor: call each step through `_do`, which ensures that.
    """

    def __init__(
        self,
        loop: Loop,
        rank: proc.Process,
        env: dict[str, str],
        armed_folder: str | None,
        on_done: Callable[[RankStack], None],
    ) -> None:
        self._loop = loop
        self._env = env
        self._folder = armed_folder
        self._on_done = on_done
        self._has_python = False
        self._process = rank
        self._answer = RankStack(rank.pid)
        self._py_spy_reason = "py-spy not found (fix: run pip install py-spy)"
        self._tries = 0
        self._path = ""
        self._old_bytes = 0
        self._blocking: set[str] = set()
        self._deadline = 0.0

    def begin(self) -> None:
        """Begin with the state of the process; one that is blocked in the kernel (D) is not waited for."""
        self._do(self._find_process)

    def _do(self, step: Callable[..., object], *args: object) -> None:
        try:
            step(*args)
        except OSError as error:
            self._finish(reason="it can't be inspected (%s)" % error.strerror)

    def _do_later(self, delay_s: float, step: Callable[[], object]) -> None:
        self._loop.call_later(delay_s, lambda: self._do(step))

    def _find_process(self) -> None:
        python = find_python(self._process)
        if python is not None:
            self._has_python = True
            self._process = python
            self._answer.pid = python.pid
        if _read_state(self._process) == "D":
            self._do_later(_LOOK_AGAIN_S, self._judge_state)
        else:
            self._judge_state()

    def _judge_state(self) -> None:
        state = _read_state(self._process)
        if state in ("D", "T", "t"):
            self._answer.state = state.upper()
            self._answer.wchan = _read_wchan(self._process.pid)
        if state == "D":
            self._finish(reason="it is blocked in the kernel")
        elif not self._has_python:
            # The name recorded so far is from before its exec.
            now = proc.read_process(self._process.pid) or self._process
            self._finish(reason="the rank runs %s, not Python" % now.name)
        else:
            self._deadline = time.monotonic() + PY_SPY_TIMEOUT_S
            self._try_py_spy()

    # ---- py-spy -------------------------------------------------------------------------------------------------

    def _try_py_spy(self) -> None:
        program = py_spy.find_program(self._process.pid, self._env)
        if program is None:
            self._try_signal()
            return
        self._tries += 1
        argv = py_spy.dump_argv(program, self._process.pid)
        try:
            child, read_end = workers.spawn_piped(argv, dict(self._env, RUST_BACKTRACE="0"))
        except OSError as error:  # faulthandler in the rank needs no new process
            self._py_spy_reason = "py-spy can't be started (%s)" % error.strerror
            self._try_signal()
            return
        left = max(0.0, self._deadline - time.monotonic())
        self._loop.read_all(
            read_end, lambda data: self._do(self._judge_py_spy, data), left, lambda: workers.kill(child),
            most_bytes=messages.MAX_STACK_BYTES,
        )  # fmt: skip

    def _judge_py_spy(self, data: bytes) -> None:
        if py_spy.is_complete(data):
            self._answer.source = "py-spy"
            self._finish(data)
            return
        text = data.decode("utf-8", "replace")
        is_late = time.monotonic() >= self._deadline
        if not is_late and self._tries < _PY_SPY_TRIES and not py_spy.is_denied(text):
            self._do_later(_LOOK_S, self._try_py_spy)
            return
        why = "it took over %g s" % PY_SPY_TIMEOUT_S if is_late else py_spy.shorten(text)
        self._py_spy_reason = "py-spy can't read it (%s)" % why
        self._try_signal()

    # ---- faulthandler in the rank -------------------------------------------------------------------------------

    def _try_signal(self) -> None:
        obstacle = self._find_obstacle()
        if obstacle is not None:
            self._finish(reason="%s, and %s" % (self._py_spy_reason, obstacle))
            return
        self._old_bytes = faulthandler_stacks.size_of(self._path)
        self._blocking = faulthandler_stacks.find_blocking(self._process.pid)
        self._deadline = time.monotonic() + SIGNAL_TIMEOUT_S
        proc.send_signal(self._process, SIGNAL)
        self._do_later(_LOOK_S, self._look_for_text)

    def _find_obstacle(self) -> str | None:
        """Return why the process must not be signalled, or None."""
        if self._folder is None:
            return "the run was started with --no-stacks"
        if not self._folder:
            return "only Ctrl-\\ and a hang that ends the run signal a rank"
        if self._answer.state == "T":
            return "a suspended process can't write its stack"
        path = faulthandler_stacks.find_file(self._process.pid, self._folder)
        if path is None:
            return "this Python did not load launch's sitecustomize (-I, -E or -S, or PYTHONPATH replaced?)"
        if not faulthandler_stacks.catches_signal(self._process.pid):
            return "it no longer catches signal %d" % SIGNAL
        self._path = path
        return None

    def _look_for_text(self) -> None:
        has_begun = faulthandler_stacks.size_of(self._path) > self._old_bytes
        is_complete = has_begun and faulthandler_stacks.find_blocking(self._process.pid) <= self._blocking
        if not is_complete and time.monotonic() < self._deadline:
            self._do_later(_LOOK_S, self._look_for_text)
        elif has_begun:
            self._answer.source = "faulthandler"
            self._finish(faulthandler_stacks.read_from(self._path, self._old_bytes))
        else:
            why = "it did not respond to signal %d in %g s" % (SIGNAL, SIGNAL_TIMEOUT_S)
            self._finish(reason="%s, and %s" % (self._py_spy_reason, why))

    def _finish(self, text: bytes = b"", reason: str | None = None) -> None:
        self._answer.text = text
        self._answer.reason = reason
        self._on_done(self._answer)


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
