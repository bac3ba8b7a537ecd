"""The relay: carries the streams of processes on this node over the streams of one task of srun.

srun interleaves the output of its tasks, in whole lines of less than 1,024 bytes. So bytes are sent as lines of base64,
and each line names a channel: one process that the launcher has started on one node. srun passes its input to every
task.

    to all relays     open CHANNEL TASK COMMAND    data CHANNEL BYTES    again CHANNEL NUMBER
                      took CHANNEL SIZE            shut CHANNEL          hang TASK PID STARTED
    from each         here TASK NODE PID STARTED   out CHANNEL BYTES     err CHANNEL BYTES     exit CHANNEL CODE

This file and `relayed_process` are sent without the rest of the node's code, as the first line on stdin, after the
loader has printed `here`.
"""

from __future__ import annotations

import os
import select
from binascii import a2b_base64, b2a_base64

from launcher.node.relays.relayed_process import RelayedProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as signals
    from typing import Any, Callable, Iterator, Tuple

    Wanted = Tuple[int, int, Callable[..., object], Tuple[Any, ...]]
else:
    import _signal as signals  # the signal module imports enum

WINDOW_BYTES = 1 << 20  # how much of a channel's output may be in transit over srun; the launcher says what it took
LINE_BYTES = 720  # before base64: 960 of the 1,023 that srun keeps together
OUT_BYTES = 256 << 10  # while this much waits for srun, no process's output is read
READ_BYTES = 64 << 10
START_S = 60.0  # exit if no channel was opened by then: the launcher has died
LINGER_S = 2.0  # exit this long after the last channel: a killed srun tells nobody, and the task would stay

_STDIN, _STDOUT = 0, 1
# Variables that would make a rank look like a task of the relay's step, and those of the login that allocated the job.
_DROPPED = (
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_TASK_PID", "SLURM_STEP", "SLURM_NTASKS",
    "SLURM_NPROCS", "SLURM_TASKS_PER_NODE", "SLURM_SRUN_COMM", "PMI_", "PMI2_", "PMIX_", "SSH_CONNECTION",
    "SSH_CLIENT", "SSH_TTY",
)  # fmt: skip


class Relay:
    """All channels of this node.

    A process's exit is sent once, after all of its output. A process's pipes are not read while `OUT_BYTES` wait for
    srun, or while the launcher still has to take WINDOW_BYTES of that process. When the launcher is gone (`_is_cut`),
    all pipes are closed, and the relay stays until each process has exited by itself.
    """

    def __init__(self, nonce: str, task: int, env: dict[str, str], block_bytes: int, kept_blocks: int) -> None:
        """Begin to catch signals; nonce: starts each of this relay's lines; task: this relay's number.

        It keeps the last `kept_blocks` of `block_bytes`, of any channel: the launcher may reuse one by its number.
        """
        self._mark = b"~%s " % nonce.encode()
        self._task = b"%d" % task
        self._env = env
        self._block_characters = (block_bytes + 2) // 3 * 4
        self._kept_blocks = kept_blocks
        self._children: dict[bytes, RelayedProcess] = {}  # by channel
        self._rest = b""  # of the launcher's lines, the start of an unfinished one
        self._kept: dict[int, bytes] = {}
        self._kept_count = 0
        self._outgoing = bytearray()
        self._is_cut = False  # whether the launcher is gone
        self._patience_s = START_S
        self._wake_read, wake_write = os.pipe()
        for fd in (self._wake_read, wake_write, _STDOUT):
            os.set_blocking(fd, False)
        signals.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        # Slurm signals every process of a step. The supervisor acts on a SIGTERM; the relay carries its last messages.
        for number in (signals.SIGCHLD, signals.SIGTERM, signals.SIGINT, signals.SIGHUP):
            signals.signal(number, lambda number, frame: None)

    def run(self) -> None:
        """Serve until the launcher is gone and every process has exited."""
        while self._children or not self._is_cut:
            self._write()
            poll, callbacks = select.poll(), {}
            for fd, events, callback, words in self._wanted():
                poll.register(fd, events)
                callbacks[fd] = callback, words
            ready = poll.poll(self._wait_ms())
            if not ready and not self._children:
                return
            for fd, _ in ready:
                callback, words = callbacks[fd]
                callback(*words)
        self._write()

    def _wait_ms(self) -> float | None:
        return None if self._children else self._patience_s * 1000

    def _wanted(self) -> Iterator[Wanted]:
        """Yield each descriptor to wait for now, with its events, callback and the callback's arguments."""
        yield self._wake_read, select.POLLIN, self._take_signals, ()
        if not self._is_cut:
            yield _STDIN, select.POLLIN, self._read_launcher, ()
        if self._outgoing:
            yield _STDOUT, select.POLLOUT, self._write, ()
        for channel, child in self._children.items():
            if child.backlog:
                yield child.stdin, select.POLLOUT, child.feed, ()
            if len(self._outgoing) < OUT_BYTES and child.untaken_bytes < WINDOW_BYTES:
                for fd in child.streams:
                    yield fd, select.POLLIN, self._read_child, (fd, channel)

    # ---- what comes from the launcher -----------------------------------------------------------------------------

    def _read_launcher(self) -> None:
        data = os.read(_STDIN, READ_BYTES)
        if not data:
            self._cut()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            verb, name, *words = line.split(b" ")
            text = words[-1] if words else b""
            if verb == b"data" and len(text) == self._block_characters:
                self._keep(text)
            if verb == b"open":
                if words[0] == self._task:
                    self._open(name, a2b_base64(text).decode("utf-8", "surrogateescape"))
            elif verb == b"hang":
                if name == self._task:
                    _hang_up_relay(int(words[0]), int(words[1]))
            elif name in self._children:
                self._serve(verb, name, self._children[name], text)

    def _keep(self, text: bytes) -> None:
        self._kept[self._kept_count] = text
        self._kept.pop(self._kept_count - self._kept_blocks, None)
        self._kept_count += 1

    def _serve(self, verb: bytes, name: bytes, child: RelayedProcess, text: bytes) -> None:
        if verb == b"took":
            child.untaken_bytes -= int(text)
        elif verb == b"shut":
            self._hang_up(name, child)
        elif child.stdin >= 0:
            child.backlog += a2b_base64(self._kept[int(text)] if verb == b"again" else text)
            child.feed()

    def _open(self, channel: bytes, command: str) -> None:
        self._patience_s = LINGER_S
        try:
            self._children[channel] = RelayedProcess(command, self._env)
        except OSError as error:  # no process is left, or no descriptor
            self._send(b"err", channel, os.fsencode("%s: %s\n" % (command[:40], error.strerror)))
            self._say(b"exit", b"%s 126" % channel)

    def _cut(self) -> None:
        """Close all pipes and drop what waits, since the launcher is gone."""
        self._is_cut = True
        self._outgoing.clear()
        for channel, child in list(self._children.items()):
            self._hang_up(channel, child)

    def _hang_up(self, channel: bytes, child: RelayedProcess) -> None:
        """Close the pipes of a process, and send its exit if it has exited already: nothing else would."""
        child.hang_up()
        self._settle(channel, child)

    # ---- what comes from the processes ----------------------------------------------------------------------------

    def _read_child(self, fd: int, channel: bytes) -> None:
        child = self._children.get(channel)
        if child is None or fd not in child.streams:  # closed a moment ago
            return
        data = os.read(fd, READ_BYTES)
        if data:
            child.untaken_bytes += len(data)
            self._send(child.streams[fd], channel, data)
        else:
            os.close(fd)
            del child.streams[fd]
            self._settle(channel, child)

    def _take_signals(self) -> None:
        if signals.SIGHUP in os.read(self._wake_read, 4096):
            self._cut()
        for channel, child in list(self._children.items()):
            if child.exit_code is None:
                pid, status = os.waitpid(child.pid, os.WNOHANG)
                if pid:
                    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
                    child.exit_code = code
                    self._settle(channel, child)

    def _settle(self, channel: bytes, child: RelayedProcess) -> None:
        """Send the exit of a process once it has exited and all of its output is queued."""
        if child.exit_code is not None and not child.streams:
            self._say(b"exit", b"%s %d" % (channel, child.exit_code))
            child.hang_up()
            del self._children[channel]

    def _send(self, stream: bytes, channel: bytes, data: bytes) -> None:
        head = b"%s%s %s " % (self._mark, stream, channel)
        for start in range(0, len(data), LINE_BYTES):
            self._outgoing += head
            self._outgoing += b2a_base64(data[start : start + LINE_BYTES])  # with its newline

    def _say(self, verb: bytes, words: bytes) -> None:
        self._outgoing += b"%s%s %s\n" % (self._mark, verb, words)

    def _write(self) -> None:
        try:
            while self._outgoing:
                with memoryview(self._outgoing) as view:
                    written = os.write(_STDOUT, view[:READ_BYTES])
                del self._outgoing[:written]
        except BlockingIOError:
            pass
        except OSError:
            self._cut()


def _started(pid: int) -> int:
    """Return when a process was started, in clock ticks since boot, or 0 if it is gone."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return int(file.read().rpartition(b") ")[2].split()[19])
    except OSError:
        return 0


def _hang_up_relay(pid: int, started: int) -> None:
    """Send SIGHUP to the relay of a step whose srun is gone, since Slurm doesn't tell the relay."""
    if started and _started(pid) == started:
        try:
            os.kill(pid, signals.SIGHUP)
        except OSError:
            pass


def main(nonce: str, block_bytes: int, kept_blocks: int) -> None:
    """Serve the launcher that chose this nonce, as a task of srun."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
    Relay(nonce, int(os.environ["SLURM_PROCID"]), env, block_bytes, kept_blocks).run()
    os._exit(0)
