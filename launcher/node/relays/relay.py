"""The relay: carries the streams of processes on this node over the streams of one task of srun or pdsh.

Both mix what their tasks write, in whole lines: srun's of less than 1,024 bytes, pdsh's of 128 KiB at most. So bytes
travel as lines of base64, and each line names a channel: one process that the launcher has started on one node.
srun gives what it reads to every task. pdsh gives a task no input, only its end: there the launcher's lines come by
another pdsh, whose task on this node brings them to the relay's socket (launcher/node/relays/relay_input.py).

    to all relays     open CHANNEL TASK COMMAND    data CHANNEL BYTES    again CHANNEL NUMBER
                      took CHANNEL SIZE            shut CHANNEL          hang TASK PID STARTED
    from each         here TASK NODE PID STARTED   out CHANNEL BYTES     err CHANNEL BYTES     exit CHANNEL CODE

This file and `relayed_process` are sent without the rest of the node's code: to srun as the first line on stdin, where
the loader has said `here`; to pdsh within the command line, with the three modules that are used there only.
"""

from __future__ import annotations

import os
import select
from binascii import a2b_base64, b2a_base64

from launcher.node.relays.relayed_process import RelayedProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as signals
    from socket import socket
    from typing import Any, Callable, Iterator, Tuple

    from launcher.node.relays.launcher_probe import Login

    Wanted = Tuple[int, int, Callable[..., object], Tuple[Any, ...]]
else:
    import _signal as signals  # signal itself brings enum along, as in launcher.node.signals

WINDOW_BYTES = 1 << 20  # of a channel's output may be on their way over srun: the launcher says what it has taken
SRUN_LINE_BYTES = 720  # before base64: 960 of the 1,023 that srun keeps together
PDSH_LINE_BYTES = 12 << 10  # before base64; longer ones are no faster
OUT_BYTES = 256 << 10  # while this much waits for srun or pdsh, no process is read
READ_BYTES = 64 << 10
START_S = 60.0  # without a first channel: the launcher died in between
LINGER_S = 2.0  # after the last one: srun tells nobody that it was killed, and the task would stay
NO_WINDOW = 1 << 62  # nobody says what was taken
LOOKS_PER_SILENCE = 3  # whether the launcher's machine answers

_STDIN, _STDOUT = 0, 1
# What would make a rank a task of our step, which it is not; and the login of who made the allocation.
_DROPPED = (
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_TASK_PID", "SLURM_STEP", "SLURM_NTASKS",
    "SLURM_NPROCS", "SLURM_TASKS_PER_NODE", "SLURM_SRUN_COMM", "PMI_", "PMI2_", "PMIX_", "SSH_CONNECTION",
    "SSH_CLIENT", "SSH_TTY",
)  # fmt: skip


class Relay:
    """All channels of this node.

    A process's exit is sent after all of its output, and once only. While `OUT_BYTES` wait for srun or pdsh, or the
    launcher has `window_bytes` of a process still to take, that process's pipes are not read. When the launcher is gone
    (`_is_cut`) all pipes are closed, and the relay stays until each process has ended by itself.
    """

    def __init__(self, nonce: str, task: int, env: dict[str, str], line_bytes: int, window_bytes: int) -> None:
        """Begin to catch signals; nonce: begins each line of ours, so that the launcher knows it; task: our number."""
        self._mark = b"~%s " % nonce.encode()
        self._task = b"%d" % task
        self._env = env
        self._line_bytes = line_bytes
        self._window_bytes = window_bytes
        self._block_characters = self._kept_blocks = 0
        self._children: dict[bytes, RelayedProcess] = {}  # by channel
        self._sources = {_STDIN: b""}  # where lines of the launcher come from, and the start of an unfinished one
        self._socket: socket | None = None
        self._senders: dict[int, socket] = {}  # by descriptor
        self._login: Login | None = None
        self._look_s = 0.0
        self._kept: dict[int, bytes] = {}
        self._kept_count = 0
        self._outgoing = bytearray()
        self._is_cut = False  # nobody is there any more
        self._patience_s = START_S
        self._looked_at = 0.0
        self._wake_read, wake_write = os.pipe()
        for fd in (self._wake_read, wake_write, _STDOUT):
            os.set_blocking(fd, False)
        signals.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        # Slurm signals every process of a step. The supervisor knows what a SIGTERM means; we carry its last words.
        for number in (signals.SIGCHLD, signals.SIGTERM, signals.SIGINT, signals.SIGHUP):
            signals.signal(number, lambda number, frame: None)

    def keep_blocks(self, block_bytes: int, kept_blocks: int) -> None:
        """Keep the last blocks of a size, of whatever channel: the launcher names one by number to send it again."""
        self._block_characters = (block_bytes + 2) // 3 * 4
        self._kept_blocks = kept_blocks

    def open_socket(self, nonce: str, silence_s: float) -> None:
        """Take the launcher's lines at a socket, since only the end of stdin comes from pdsh; send `here`."""
        from launcher.node.relays import launcher_probe, relay_socket

        self._login = launcher_probe.Login(self._env.get("SSH_CONNECTION", "").split(), silence_s)
        self._look_s = silence_s / LOOKS_PER_SILENCE
        self._socket = relay_socket.open_socket(nonce, int(self._task))
        pid = os.getpid()
        self._say(b"here", b"%s - %d %d" % (self._task, pid, _started(pid)))

    def run(self) -> None:
        """Serve until the launcher is gone and every process has ended."""
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
            self._look_at_login()
        self._write()

    def _wait_ms(self) -> float | None:
        if not self._children:
            return self._patience_s * 1000
        return self._look_s * 1000 if self._login is not None and not self._is_cut else None

    def _look_at_login(self) -> None:
        """Cut the channels if the launcher's machine is gone: under pdsh no heartbeat tells, but TCP does."""
        if self._login is None or self._is_cut:
            return
        from launcher.node import clock

        now = clock.boottime()
        if now - self._looked_at < self._look_s:
            return
        self._looked_at = now
        if self._login.is_dead():
            self._cut()

    def _wanted(self) -> Iterator[Wanted]:
        """Yield what is waited for now: descriptor, events, callback and its arguments."""
        yield self._wake_read, select.POLLIN, self._take_signals, ()
        if self._socket is not None:
            yield self._socket.fileno(), select.POLLIN, self._accept_sender, ()
        for source in self._sources:
            yield source, select.POLLIN, self._read_launcher, (source,)
        if self._outgoing:
            yield _STDOUT, select.POLLOUT, self._write, ()
        for channel, child in self._children.items():
            if child.backlog:
                yield child.stdin, select.POLLOUT, child.feed, ()
            if len(self._outgoing) < OUT_BYTES and child.untaken_bytes < self._window_bytes:
                for fd in child.streams:
                    yield fd, select.POLLIN, self._read_child, (fd, channel)

    # ---- what comes from the launcher -----------------------------------------------------------------------------

    def _accept_sender(self) -> None:
        from launcher.node.relays import relay_socket

        assert self._socket is not None  # it is watched
        sender = relay_socket.accept(self._socket)
        if sender is not None:
            self._senders[sender.fileno()] = sender
            self._sources[sender.fileno()] = b""

    def _read_launcher(self, source: int) -> None:
        try:
            data = os.read(source, READ_BYTES)
        except OSError:  # the sender was killed
            data = b""
        if not data:
            self._end_source(source)
            return
        *lines, self._sources[source] = (self._sources[source] + data).split(b"\n")
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

    def _end_source(self, source: int) -> None:
        """Confirm that all of a sender's lines were taken; at the end of stdin the launcher is gone, so cut."""
        if source == _STDIN:
            self._cut()
            return
        del self._sources[source]
        with self._senders.pop(source) as sender:
            try:
                sender.send(b"+")
            except OSError:
                pass  # it will be said that it was not taken, and the launcher hangs up

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
        """Close all pipes and drop what waits: the launcher is gone."""
        self._is_cut = True
        self._sources.pop(_STDIN, None)
        self._outgoing.clear()
        for channel, child in list(self._children.items()):
            self._hang_up(channel, child)

    def _hang_up(self, channel: bytes, child: RelayedProcess) -> None:
        """Close the pipes of a process, which may have ended before: nothing else would tell of it then."""
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
        """Send the exit of a process, once it has ended and all that it has written is on its way."""
        if child.exit_code is not None and not child.streams:
            self._say(b"exit", b"%s %d" % (channel, child.exit_code))
            child.hang_up()
            del self._children[channel]

    def _send(self, stream: bytes, channel: bytes, data: bytes) -> None:
        head = b"%s%s %s " % (self._mark, stream, channel)
        for start in range(0, len(data), self._line_bytes):
            self._outgoing += head
            self._outgoing += b2a_base64(data[start : start + self._line_bytes])  # with its newline

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
    """Return when a process was started, in clock ticks since boot, or 0 for one that is gone."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return int(file.read().rpartition(b") ")[2].split()[19])
    except OSError:
        return 0


def _hang_up_relay(pid: int, started: int) -> None:
    """Send SIGHUP to the relay of a step whose srun is gone, which Slurm does not tell it."""
    if started and _started(pid) == started:
        try:
            os.kill(pid, signals.SIGHUP)
        except OSError:
            pass


def main(nonce: str, block_bytes: int, kept_blocks: int) -> None:
    """Serve the launcher that knows this nonce, as a task of srun."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
    relay = Relay(nonce, int(os.environ["SLURM_PROCID"]), env, SRUN_LINE_BYTES, WINDOW_BYTES)
    relay.keep_blocks(block_bytes, kept_blocks)
    relay.run()
    os._exit(0)


def main_with_socket(nonce: str, task: int, silence_s: float) -> None:
    """Serve the launcher that knows this nonce, as a task of pdsh."""
    relay = Relay(nonce, task, dict(os.environ), PDSH_LINE_BYTES, NO_WINDOW)
    relay.open_socket(nonce, silence_s)
    relay.run()
    os._exit(0)
