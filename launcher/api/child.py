"""A `launch` in a process of its own, and what it says: objects of --json on stdout, messages on stderr.

It is started by posix_spawn or vfork, never by a plain fork: this process may have threads, or CUDA. It has a session
of its own, so a Ctrl-C in a terminal or of Jupyter reaches it once, from whoever started it; and if this process is
killed, it ends its run (`end_with` in launcher/cli/main.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from launcher.api.values import Line, make_error, read_error
from launcher.cli.main import OWNER
from launcher.cli.options.request import OPTIONS, Option
from launcher.concurrency import start_thread
from launcher.errors import EXIT_SIGNAL_BASE, LauncherError

MOST_BYTES = 32 << 20  # of lines that nobody has read yet
_LINE_BYTES = 500  # that a line takes besides its text
_BLOCK_BYTES = 1 << 18  # read at once: each time, whoever waits is woken
_MOST_MESSAGES = 10_000
_LAST_MESSAGES = 20  # of a launch that has crashed
# The package that was imported here, whatever the current directory or another installation has.
_ROOT = str(Path(__file__).parents[2])
# Its words come over stdin: other users see a command line, and `notify` or `env` may hold a secret.
_PROGRAM = (
    "import sys; sys.path[:] = [sys.argv[1], *filter(None, sys.path)]; import json, os; "
    "sys.argv[:] = ['launch', *json.load(sys.stdin)]; os.dup2(os.open(os.devnull, os.O_RDONLY), 0); "
    "from launcher.cli.main import main; main()"
)

Event = dict[str, Any]
Scalar = str | int | float | os.PathLike[str]
Word = str | os.PathLike[str]
Argv = Word | Sequence[Word]


class Child:
    """A `launch` and what it has said so far.

    Two threads read it, so it never waits for whoever uses it. What they change is guarded by `_changed`. Of the lines
    that nobody reads the oldest are dropped beyond 32 MB; the run's logs have all of them.
    """

    def __init__(self, words: Sequence[Word]) -> None:
        self._changed = threading.Condition()
        self._lines: deque[Line] = deque()
        self._bytes = 0
        self._messages: deque[str] = deque(maxlen=_MOST_MESSAGES)
        self._exit_code: int | None = None  # once everything that it said is here
        self.dropped_lines = 0
        self.events: dict[str, Event] = {}  # the last one of each kind, but lines
        self._process = start(words)
        # What is no JSON ends the reading, and then there is no result: `find_error` says that.
        begin = partial(start_thread, on_failure=lambda error: None)
        messages = begin(self._read_messages, "launch messages")
        begin(partial(self._read_events, messages), "launch events")

    @property
    def messages(self) -> list[str]:
        """The messages of `launch` so far, as the terminal shows them."""
        with self._changed:
            return [*self._messages]

    @property
    def has_ended(self) -> bool:
        """Whether it has exited, and everything that it said is here."""
        return self._exit_code is not None

    def wait_for(self, is_true: Callable[[], object], timeout_s: float | None = None) -> None:
        """Wait until something is true of what it said, or it has ended; raise TimeoutError if neither is in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: is_true() or self.has_ended, timeout_s):
                raise TimeoutError(f"the run has not ended after {timeout_s:g} s")

    def next_line(self) -> Line | None:
        """Wait for the next line and return it; None if no other one follows."""
        with self._changed:
            while not self._lines:
                if self.has_ended:
                    return None
                self._changed.wait()
            line = self._lines.popleft()
            self._bytes -= len(line.text) + _LINE_BYTES
            return line

    def end(self, *, may_raise: bool) -> None:
        """Do what Ctrl-C does in its terminal, and wait until it has ended, as `end` below does."""
        end(self._process, lambda: self.wait_for(lambda: False), may_raise=may_raise)

    def find_error(self) -> LauncherError:
        """Return why it has ended without a result."""
        if "error" in self.events:
            return read_error(self.events["error"])
        said = "\n".join(self.messages[-_LAST_MESSAGES:])
        code = _find_exit_code(self._exit_code or 0)
        text = f"launch ended with exit code {code} and no result"
        return make_error(f"{text}:\n{said}" if said else text, "", code)

    # ---- in the two threads -------------------------------------------------------------------------------------

    def _read_messages(self) -> None:
        assert self._process.stderr is not None  # `start` asks for it
        with self._process.stderr as stream:
            for data in stream:
                with self._changed:
                    self._messages.append(data.decode("utf-8", "replace").rstrip("\n"))

    def _read_events(self, messages: threading.Thread) -> None:
        assert self._process.stdout is not None
        try:
            with self._process.stdout as stream:
                rest = b""
                while block := os.read(stream.fileno(), _BLOCK_BYTES):
                    *whole, rest = (rest + block).split(b"\n")
                    self._take([*map(json.loads, whole)])
        finally:
            messages.join()
            code = self._process.wait()
            with self._changed:
                self._exit_code = code
                self._changed.notify_all()

    def _take(self, events: Sequence[Event]) -> None:
        with self._changed:
            for event in events:
                if event["event"] == "line":
                    line = Line(event["host"], event["rank"], event["stream"], event["text"], event["time"])
                    self._lines.append(line)
                    self._bytes += len(line.text) + _LINE_BYTES
                else:
                    self.events[event["event"]] = event
            while self._bytes > MOST_BYTES:
                self._bytes -= len(self._lines.popleft().text) + _LINE_BYTES
                self.dropped_lines += 1
            self._changed.notify_all()


def ask(command: str, words: Sequence[Word]) -> Any:
    """Return what a command prints with --json; raise the error with which it ends."""
    return json.loads(call([command, "--json", *words]))


def call(words: Sequence[Word]) -> bytes:
    """Return what a command prints on stdout; raise the error with which it ends, unless it has printed something."""
    process = start(words)
    try:
        output, said = process.communicate()
    except BaseException:
        end(process, process.communicate, may_raise=False)
        raise
    last = output.splitlines()[-1:]
    if last and last[0].startswith(b'{"event": "error"'):
        raise read_error(json.loads(last[0]))
    if process.returncode and not last:
        shown = said.decode("utf-8", "replace").strip().removeprefix("launch: ")
        code = _find_exit_code(process.returncode)
        raise make_error(shown or f"launch ended with exit code {code}", "", code)
    return output


def _find_exit_code(returncode: int) -> int:
    return returncode if returncode >= 0 else EXIT_SIGNAL_BASE - returncode


def start(words: Sequence[Word]) -> subprocess.Popen[bytes]:
    """Start a `launch` that ends with this process."""
    sent = json.dumps([os.fspath(word) for word in words]).encode("ascii")
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, _ROOT],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, OWNER: str(os.getpid())},
        start_new_session=True,
    )  # fmt: skip
    stdin, process.stdin = process.stdin, None
    assert stdin is not None
    with contextlib.suppress(BrokenPipeError), stdin:  # it has crashed, and its exit code says so
        stdin.write(sent)
    return process


def end(process: subprocess.Popen[bytes], wait: Callable[[], object], *, may_raise: bool) -> None:
    """Interrupt a `launch` and wait until it has ended; a Ctrl-C meanwhile is its second one, which kills the ranks.

    may_raise: raise KeyboardInterrupt afterwards if there was one, since no other exception is on its way.
    """
    # It ignores SIGINT if this process does, as in the background of a script.
    number = signal.SIGTERM if signal.getsignal(signal.SIGINT) == signal.SIG_IGN else signal.SIGINT
    again: KeyboardInterrupt | None = None
    while process.poll() is None:
        try:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.killpg(process.pid, number)  # as a terminal does
            wait()
        except KeyboardInterrupt as interrupt:  # noqa: PERF203 - it may come before the wait, too
            again = interrupt
    if again is not None and may_raise:
        raise again


# ---- its words -------------------------------------------------------------------------------------------------------


def as_words(options: Mapping[str, Any]) -> list[str]:
    """Return keyword arguments as words of a command line, `gpus=8` as `--gpus=8`: no value is read as an option.

    Whether there is such an option, and what it may be, the command itself says. Only what a bool or a list means
    depends on the declaration of the option.
    """
    return [word for name, value in options.items() for word in _as_words(name, value)]


def script_words(argv: Argv) -> list[Word]:
    """Return a script and its arguments as words, after which there are no options of `launch`."""
    return ["--", *list_words(argv)]


def list_words(given: Argv) -> Sequence[Word]:
    """Return one word, or several, as several."""
    return [given] if isinstance(given, (str, os.PathLike)) else given


def _as_words(name: str, value: Any) -> Iterator[str]:
    flag = "--" + name.rstrip("_").replace("_", "-")  # `for_`, which Python has as a keyword
    if value is None:
        return
    if isinstance(value, bool):
        yield from _switch(flag, _find(flag), is_on=value)
    elif isinstance(value, Mapping):  # a variable without a value is forwarded
        yield from (f"{flag}={key}" if each is None else f"{flag}={key}={_text(each)}" for key, each in value.items())
    elif isinstance(value, (str, int, float, os.PathLike)):
        yield f"{flag}={_text(value)}"
    else:
        texts, option = [*map(_text, value)], _find(flag)
        is_repeated = option is None or option.multiple
        yield from (f"{flag}={text}" for text in (texts if is_repeated else [",".join(texts)]))


def _switch(flag: str, option: Option | None, *, is_on: bool) -> Iterator[str]:
    if is_on and option is not None and not option.is_flag and not option.may_stand_alone:
        yield f"{flag}=True"  # which the command refuses as a value, and `--restarts` would take the next word as one
    elif is_on:
        yield flag
    elif option is not None:
        off = f"--no-{flag[2:]}"
        yield from (option.secondary_opts or [off] * (_find(off) is not None))[:1]


def _find(flag: str) -> Option | None:
    return next((option for option in OPTIONS.values() if flag in option.opts), None)


def _text(value: Scalar) -> str:
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
