"""The Python stacks of the ranks, taken while they run: by py-spy where it may, else by faulthandler in the rank.

A dump must never end, stop or disturb a rank.
So py-spy reads without pausing (`--nonblocking`): attaching would interrupt system calls, and a py-spy that is killed
in the middle may leave its target stopped.
A hung process stands still, so what is read is consistent; where it is not, py-spy fails and is asked again.
Yama's ptrace_scope=1 and a container without CAP_SYS_PTRACE deny py-spy, since it is no ancestor of the rank.
Then a signal makes the rank write its stack itself, if the run was started with --stacks.
The signal goes to a process only that holds our file open and catches the signal: by default it would end it.
It may cut short a C call that the kernel does not restart (sleep, poll), as any signal does; so py-spy goes first.
"""

from __future__ import annotations

import os
import time

from launcher.node import messages
from launcher.node.processes import proc, workers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from launcher.node.loop import Loop
    from launcher.node.send_queue import SendQueue

# SIGRTMAX-3: nobody's by convention. Slurm's scripts use SIGUSR1 and 2, the C library 32 and 33, valgrind 64.
SIGNAL = 61
FOLDER = "stacks"  # in the run's folder
# All together less than the launcher waits (hangs.ANSWER_S there).
PY_SPY_TIMEOUT_S = 2.0
SIGNAL_TIMEOUT_S = 2.0
_PY_SPY_TRIES = 3
_LOOK_S = 0.02
_SETTLED_LOOKS = 3  # faulthandler writes no end mark: a text that stands still for so many looks is complete
_LOOK_AGAIN_S = 0.1  # a page fault is state D for a moment as well
_REASON_CHARACTERS = 160

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
    folder = os.path.join(run_folder, FOLDER)
    os.mkdir(folder, 0o700)
    with open(os.path.join(folder, "sitecustomize.py"), "w") as file:
        file.write(SITECUSTOMIZE % SIGNAL)
    users = env.get("PYTHONPATH")
    env["PYTHONPATH"] = folder + os.pathsep + users if users else folder


def send_stacks(
    loop: Loop, send_queue: SendQueue, number: int, ranks: dict[int, proc.Process], env: dict[str, str], run_folder: str
) -> None:
    """Answer a STACKS with one STACK for each rank that lives; env: where py-spy is looked for, by its PATH."""
    folder = os.path.join(run_folder, FOLDER)
    armed = os.path.realpath(folder) if os.path.isdir(folder) else None
    for local_rank, process in ranks.items():
        if proc.is_alive(process):

            def send(answer: Answer, local_rank: int = local_rank) -> None:
                send_queue.send(
                    messages.STACK, answer.text, number=number, local_rank=local_rank, pid=answer.pid,
                    source=answer.source, state=answer.state, wchan=answer.wchan, reason=answer.reason,
                )  # fmt: skip

            _Dump(loop, process, env, armed, send).begin()


class Answer:
    """What was found out about one rank."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.text = b""
        self.source: str | None = None  # py-spy or faulthandler
        self.state: str | None = None  # D or T, where that says more than any stack
        self.wchan: str | None = None  # the function of the kernel that it waits in, where we may know
        self.reason: str | None = None  # why there is no text


class _Dump:
    """One rank's stack: a few steps, each called by the loop, which is never blocked.

    A run hangs where processes or descriptors have run out, too: what a step is refused ends the dump, never the run.
    """

    def __init__(
        self,
        loop: Loop,
        rank: proc.Process,
        env: dict[str, str],
        armed_folder: str | None,
        on_done: Callable[[Answer], None],
    ) -> None:
        self._loop = loop
        self._env = env
        self._folder = armed_folder
        self._on_done = on_done
        self._has_python = False
        self._process = rank
        self._answer = Answer(rank.pid)
        self._py_spy_reason = "py-spy is not there (pip install py-spy)"
        self._tries = 0
        self._path = ""
        self._seen_bytes = self._old_bytes = 0
        self._still_looks = 0
        self._deadline = 0.0

    def begin(self) -> None:
        """Look what the process is at; one that the kernel holds is not waited for."""
        self._do(self._find_process)

    def _do(self, step: Callable[..., object], *args: object) -> None:
        try:
            step(*args)
        except OSError as error:
            self._finish(reason="it can't be looked at (%s)" % error.strerror)

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
            self._finish(reason="the kernel holds it")
        elif not self._has_python:
            # The name that is known is from before its exec.
            now = proc.read_process(self._process.pid) or self._process
            self._finish(reason="no Python process there, it is %s" % now.name)
        else:
            self._deadline = time.monotonic() + PY_SPY_TIMEOUT_S
            self._try_py_spy()

    # ---- py-spy -------------------------------------------------------------------------------------------------

    def _try_py_spy(self) -> None:
        program = find_py_spy(self._process.pid, self._env)
        if program is None:
            self._try_signal()
            return
        self._tries += 1
        argv = [program, "dump", "--nonblocking", "--full-filenames", "--pid", str(self._process.pid)]
        env = dict(self._env, RUST_BACKTRACE="0")
        try:
            child, read_end = workers.spawn_piped(argv, env)
        except OSError as error:  # the rank itself needs no process more
            self._py_spy_reason = "py-spy can't be started (%s)" % error.strerror
            self._try_signal()
            return
        left = max(0.0, self._deadline - time.monotonic())
        self._loop.read_all(
            read_end, lambda data: self._do(self._judge_py_spy, data), left, lambda: workers.kill(child),
            most_bytes=messages.MAX_STACK_BYTES,
        )  # fmt: skip

    def _judge_py_spy(self, data: bytes) -> None:
        if b"\nThread " in data and b"\nError: " not in data:
            self._answer.source = "py-spy"
            self._finish(data)
            return
        text = data.decode("utf-8", "replace")
        is_late = time.monotonic() >= self._deadline
        if not is_late and self._tries < _PY_SPY_TRIES and not _is_denied(text):
            self._do_later(_LOOK_S, self._try_py_spy)
            return
        why = "it took over %g s" % PY_SPY_TIMEOUT_S if is_late else _shorten(text)
        self._py_spy_reason = "py-spy can't read it (%s)" % why
        self._try_signal()

    # ---- faulthandler in the rank -------------------------------------------------------------------------------

    def _try_signal(self) -> None:
        obstacle = self._find_obstacle()
        if obstacle is not None:
            self._finish(reason="%s, and %s" % (self._py_spy_reason, obstacle))
            return
        self._old_bytes = self._seen_bytes = _size_of(self._path)
        self._deadline = time.monotonic() + SIGNAL_TIMEOUT_S
        proc.send_signal(self._process, SIGNAL)
        self._do_later(_LOOK_S, self._look_for_text)

    def _find_obstacle(self) -> str | None:
        """Return why the process must not be signalled, or None."""
        if self._folder is None:
            return "the run was started without --stacks"
        if self._answer.state == "T":
            return "a stopped process can't write it"
        path = find_open_file(self._process.pid, os.path.join(self._folder, "stack."))
        if path is None:
            return "this Python did not take our sitecustomize (-I, -E or -S, or PYTHONPATH set anew?)"
        if not catches(self._process.pid, SIGNAL):
            return "it does not catch signal %d any more" % SIGNAL
        self._path = path
        return None

    def _look_for_text(self) -> None:
        size = _size_of(self._path)
        self._still_looks = self._still_looks + 1 if size == self._seen_bytes > self._old_bytes else 0
        self._seen_bytes = size
        is_late = time.monotonic() >= self._deadline
        if self._still_looks < _SETTLED_LOOKS and not is_late:
            self._do_later(_LOOK_S, self._look_for_text)
        elif size > self._old_bytes:
            self._answer.source = "faulthandler"
            self._finish(_read_from(self._path, self._old_bytes))
        else:
            why = "it did not answer signal %d in %g s" % (SIGNAL, SIGNAL_TIMEOUT_S)
            self._finish(reason="%s, and %s" % (self._py_spy_reason, why))

    def _finish(self, text: bytes = b"", reason: str | None = None) -> None:
        self._answer.text = text
        self._answer.reason = reason
        self._on_done(self._answer)


def find_python(rank: proc.Process) -> proc.Process | None:
    """Return the rank's process, or the first below it (a shell may have started the trainer), that is a Python."""
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


def find_py_spy(pid: int, env: dict[str, str]) -> str | None:
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


def find_open_file(pid: int, prefix: str) -> str | None:
    """Return the path of an open file of a process that begins with `prefix`, or None."""
    folder = "/proc/%d/fd" % pid
    try:
        for name in os.listdir(folder):
            try:
                path = os.readlink(os.path.join(folder, name))
            except OSError:
                continue  # closed meanwhile
            if path.startswith(prefix):
                return path
    except OSError:
        pass
    return None


def catches(pid: int, number: int) -> bool:
    """Tell whether a process has a handler for a signal."""
    try:
        with open("/proc/%d/status" % pid) as file:
            masks = [line.split()[1] for line in file if line.startswith("SigCgt:")]
    except OSError:
        return False
    return bool(masks) and bool(int(masks[0], 16) >> (number - 1) & 1)


def _read_state(process: proc.Process) -> str:
    now = proc.read_process(process.pid)
    return now.state if now is not None and now.started == process.started else "X"


def _read_wchan(pid: int) -> str | None:
    try:
        with open("/proc/%d/wchan" % pid) as file:
            name = file.read().strip()
    except OSError:
        return None
    return name if name not in ("", "0") else None


def _is_denied(text: str) -> bool:
    return "ermission" in text or "not permitted" in text


def _shorten(text: str) -> str:
    """Return the first line of what py-spy said, without its advice to use sudo."""
    if _is_denied(text):
        return "permission denied"
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it said nothing"]
    chosen = [line for line in lines if line.startswith("Error: ")] or lines
    return chosen[0].replace("Error: ", "", 1)[:_REASON_CHARACTERS]


def _size_of(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _read_from(path: str, offset: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(messages.MAX_STACK_BYTES)  # the rank itself may write there without end
    except OSError:
        return b""
