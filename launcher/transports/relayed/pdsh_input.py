"""Input for relays under pdsh, which passes on no stdin: short calls of pdsh carry it, each for many hosts.

A task is the relay of one host, by the host's index in the long pdsh that runs the relays.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from launcher.concurrency import start_thread
from launcher.errors import LauncherError
from launcher.hosts.host import Host
from launcher.transports import bootstrap
from launcher.transports.relayed.framing import cut_blocks
from launcher.transports.relayed.pdsh_command import RANK, Call, Pdsh
from launcher.transports.relayed.pdsh_output import PdshOutput, whole_lines

Line = tuple[bytes, bytes | None]  # verb and numbers of an order, and its data, which travels in base64

# The command line is one argument of ssh and of the login shell, and Linux takes 128 KiB of one (MAX_ARG_STRLEN).
_MOST_CHARACTERS = 120_000
_GATHER_S = 0.02  # so that lines for all hosts go by one call
_PATIENCE_S = 0.5  # for a call that a host holds up, before the next one for other hosts starts
_KEPT_BYTES = 4096


def data_lines(channel: int, data: bytes) -> list[Line]:
    """Cut the input of a process into blocks, each of which is sent once to all hosts that get it."""
    return [(b"data %d" % channel, block) for block in cut_blocks(data)]


class RelayInput:
    """A queue of lines for the tasks of one pdsh, which sends them in order.

    At any time at most one call has lines for a task, so that they can't overtake each other; what is queued meanwhile
    goes with a later call. `on_lost` gets each task that has not confirmed its lines when its call ends.
    """

    def __init__(
        self, pdsh: Pdsh, hosts: Sequence[Host], pythons: Sequence[str], nonce: str, folder: str, timeout_s: float,
        on_lost: Callable[[int, str], None],
    ) -> None:  # fmt: skip
        """on_lost: gets a task that has not confirmed its lines, and the last line that was printed about it."""
        self._pdsh = pdsh
        self._hosts = hosts
        self._pythons = pythons
        self._nonce = nonce
        self._folder = folder
        self._timeout_s = timeout_s
        self._on_lost = on_lost
        self._waiting: dict[int, list[Line]] = {}  # by task
        self._on_the_way: set[int] = set()
        self._calls: set[Call] = set()
        self._changed = threading.Condition()
        self._is_closed = False
        start_thread(self._send_all, "send pdsh", self._break)

    def post(self, task: int, lines: Sequence[Line]) -> None:
        """Queue lines for a task; return at once."""
        with self._changed:
            self._waiting.setdefault(task, []).extend(lines)
            self._changed.notify_all()

    def close(self) -> None:
        """Send nothing more, and end the calls that are running."""
        with self._changed:
            self._is_closed = True
            for call in self._calls:
                call.end()
            self._changed.notify_all()

    # ---- in the thread --------------------------------------------------------------------------------------------

    def _send_all(self) -> None:
        while (batch := self._collect()) is not None:
            for tasks, command in self._split(batch):
                self._start_carrying(tasks, command)
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or not self._on_the_way, _PATIENCE_S)

    def _start_carrying(self, tasks: Sequence[int], command: str) -> None:
        lose = partial(self._lose, set(tasks))
        try:
            start_thread(partial(self._carry, tasks, command), "carry pdsh", lambda error: lose(repr(error)))
        except LauncherError as error:
            lose(error.message)

    def _break(self, error: Exception) -> None:
        """Lose all tasks after the sending thread has failed."""
        self._lose(set(range(len(self._hosts))), repr(error))

    def _collect(self) -> dict[int, list[Line]] | None:
        """Wait for lines of tasks for which no call is running; return them by task, or None after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._ready())
        time.sleep(_GATHER_S)
        with self._changed:
            if self._is_closed:
                return None
            batch = {task: self._waiting.pop(task) for task in self._ready()}
            self._on_the_way.update(batch)
            return batch

    def _ready(self) -> list[int]:
        return [task for task in self._waiting if task not in self._on_the_way]

    def _split(self, batch: Mapping[int, list[Line]]) -> Iterator[tuple[list[int], str]]:
        """Yield the tasks and the command line of each call; the length of a command line decides how many there are.

        Lines of one task that are too many for one call are queued again.
        """
        command = self._command(batch)
        if len(command) <= _MOST_CHARACTERS:
            yield list(batch), command
        elif len(batch) > 1:
            middle = len(batch) // 2
            yield from self._split(dict(list(batch.items())[:middle]))
            yield from self._split(dict(list(batch.items())[middle:]))
        else:
            ((task, lines),) = batch.items()
            middle = len(lines) // 2
            assert middle, "a line has a block of data at most"
            with self._changed:
                self._waiting[task] = lines[middle:] + self._waiting.get(task, [])
            yield from self._split({task: lines[:middle]})

    def _command(self, batch: Mapping[int, list[Line]]) -> str:
        texts: dict[bytes, int] = {}
        numbered = [
            (task, [(words, None if text is None else texts.setdefault(text, len(texts))) for words, text in lines])
            for task, lines in batch.items()
        ]
        return bootstrap.input_line(self._pythons, self._nonce, RANK, list(texts), numbered)

    # ---- in a thread for each call --------------------------------------------------------------------------------

    def _carry(self, tasks: Sequence[int], command: str) -> None:
        """Run one call to its end; a task that has confirmed its lines before can get more at once."""
        hosts = [self._hosts[task] for task in tasks]
        output = PdshOutput([host.name for host in hosts])
        missing, said = set(tasks), b""
        try:
            call = self._pdsh.call(hosts, command, self._timeout_s, self._folder, is_short=True)
        except OSError as error:
            self._lose(missing, f"pdsh can't be started: {error.strerror}")
            return
        with self._changed:
            self._calls.add(call)
            if self._is_closed:
                call.end()
        assert call.process.stdout is not None  # asked for
        with call.process.stdout as stdout:
            for line in whole_lines(stdout):
                names, text = output.split(line)
                taken = {task for task in missing if text == self._receipt(task) and self._hosts[task].name in names}
                if taken:
                    missing -= taken
                    self._settle(taken)
                else:
                    said = (said + line + b"\n")[-_KEPT_BYTES:]
        call.end()
        call.process.wait()
        with self._changed:
            self._calls.discard(call)
        self._lose(missing, _last_line(said))

    def _receipt(self, task: int) -> bytes:
        return b"~%s got %d" % (self._nonce.encode(), task)

    def _settle(self, tasks: set[int]) -> None:
        with self._changed:
            self._on_the_way -= tasks
            self._changed.notify_all()

    def _lose(self, tasks: set[int], said: str) -> None:
        if not self._is_closed:
            for task in tasks:
                self._on_lost(task, said)
        self._settle(tasks)


def _last_line(said: bytes) -> str:
    """Return the last line of a host, without its label; skip pdsh's own lines, which only say how an ssh ended."""
    lines = [line for line in said.decode("utf-8", "replace").splitlines() if not line.startswith("pdsh@")]
    return lines[-1].partition(": ")[2] if lines else ""
