"""The agent: starts processes on this node for a controller elsewhere, and carries their streams over TLS.

It is started by the loader, and its first message comes on stdin. As a task of srun, it serves a `launch` in the same
Slurm job. Messages are those of launcher.node.messages:

    stdin              beat    plant {run, index, token, addresses, fingerprint, silence_s, redial_s, connect_timeout_s,
                       is_after_go}
    stdout             dialled {address}, refused {why} or present, once; with the loader's nonce
    to controller      hello {run, index, token}    out, err {channel} + bytes    exit {channel, code}
                       took {channel, bytes}    beat
    from controller    welcome    gone    go    notify {variables} + command
                       open {channel, command}    data {channel} + bytes
                       took {channel, bytes}    shut {channel}    beat    end

Before `go` it ends with its login, since nothing was started. At `go` it leaves the login: its own process exits with
0, and a fork with a session of its own continues. From then on it depends on the controller alone. One that is started
for a run that has its `go` (is_after_go), as after a reboot of its host, leaves at once; its answer follows.

A connection that is lost ends what was started through it. The agent dials again for `redial_s`; a controller whose
port refuses is gone, and its run with it.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
from contextlib import suppress
from functools import partial
from typing import Any, Iterator, NoReturn, Optional, Tuple

from launcher.node import messages
from launcher.node.agents.children import Children, Wanted
from launcher.node.agents.controller_link import ControllerLink, Dials
from launcher.node.agents.notice import run_notice
from launcher.node.processes import proc, workers
from launcher.node.system import boottime

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_READ_BYTES = 64 << 10
MIN_PAUSE_S, MAX_PAUSE_S = 1.0, 5.0  # between the beginnings of two dials
_DIAL_S = 5.0  # for all addresses
# Variables that would make a rank look like a task of this step, and those of the login that allocated the job.
_OF_TASK = (
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_TASK_PID", "SLURM_STEP", "SLURM_NTASKS",
    "SLURM_NPROCS", "SLURM_TASKS_PER_NODE", "SLURM_SRUN_COMM", "PMI_", "PMI2_", "PMIX_", "SSH_CONNECTION",
    "SSH_CLIENT", "SSH_TTY",
)  # fmt: skip


class Agent:
    """One loop around the login, the connection to the controller and the processes of this node.

    While there is no connection, no process has pipes: whatever was started through a lost one was hung up, and ends
    by itself. The agent exits only when no process that it has started is left.

    Before GO nothing was started, so whatever goes wrong ends it. After GO it ends when the controller says so, or when
    it could not connect for `redial_s`. `_exit_code` is None until it ends, and then never changes.
    """

    def __init__(self, nonce: str, plant: dict[str, Any]) -> None:
        """Begin to catch signals; plant: the first message."""
        self._nonce = nonce
        self._plant = plant
        self._silence_s: float = plant["silence_s"]
        self._redial_s: float = plant["redial_s"]  # 0: it never dials again
        self._has_started = False  # GO has come
        self._exit_code: Optional[int] = None
        self._has_given_up = False  # it ends since no controller could be reached
        # Of a clock that includes suspend; None while it is connected, or ends.
        self._dial_at: Optional[float] = boottime()
        self._give_up_at: Optional[float] = self._dial_at + plant["connect_timeout_s"]
        self._pauses = 0  # since it was last connected
        addresses = [(str(host), int(port)) for host, port in plant["addresses"]]
        self._dials = Dials(addresses, plant["fingerprint"])
        self._children = Children(dict(os.environ), self._send)
        self._link: Optional[ControllerLink] = None
        self._notice: Optional[Tuple[bytes, dict[str, Any]]] = None  # of --notify, if this agent is to run it
        self._has_answered = False
        self._is_task = "indexes" in plant  # Slurm's step lasts as long as this process
        self._wake_read = workers.watch_signals()
        # A handler, unlike SIG_IGN, is not inherited by what is started here; it does nothing about the end of a login.
        # Slurm signals every process of a step: the supervisors act on it, and a task carries their last messages.
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, *proc.NOTICES, *[signal.SIGTERM] * self._is_task):
            signal.signal(number, lambda number, frame: None)
        if plant["is_after_go"]:
            self._leave_login()

    def run(self) -> int:
        """Serve until the agent may exit; return its exit code."""
        self._check_time()
        while not self._is_done():
            poll, callbacks = select.poll(), {}
            for fd, events, callback in self._wanted():
                poll.register(fd, events)
                callbacks[fd] = callback
            ready = poll.poll(self._wait_ms())
            # First, since what waits in the socket may have come before this machine or process was suspended.
            self._check_time()
            for fd, _ in ready:
                callbacks[fd]()
            self._flush()
        self._answer(messages.REFUSED, why=self._dials.describe_faults())
        if self._notice is not None and self._has_given_up:
            command, variables = self._notice
            run_notice(command, {**os.environ, **{name: str(value) for name, value in variables.items()}})
        return self._exit_code or 0

    def _is_done(self) -> bool:
        is_flushed = self._link is None or self._link.is_flushed
        return self._exit_code is not None and not self._children and is_flushed

    def _wanted(self) -> Iterator[Wanted]:
        """Yield each descriptor to wait for now, with its events and callback."""
        yield self._wake_read, select.POLLIN, self._take_signals
        if not self._has_started and self._exit_code is None:
            yield _STDIN, select.POLLIN, self._read_login
        if self._link is not None:
            yield self._link.fileno(), self._link.events(), partial(self._serve, self._link)
            yield from self._children.wanted(is_full=self._link.is_full)

    def _wait_ms(self) -> Optional[int]:
        times = [at for at in (self._dial_at, self._give_up_at) if at is not None]
        if self._link is not None:
            times.append(self._link.heard_at + self._silence_s)
        return max(0, int((min(times) - boottime()) * 1000) + 1) if times else None

    def _check_time(self) -> None:
        now = boottime()
        if self._link is not None and now - self._link.heard_at >= self._silence_s:
            self._lose_link("no heartbeat for %g s" % self._silence_s)
        if self._dials.is_refused() or (self._give_up_at is not None and now >= self._give_up_at):
            self._has_given_up |= self._exit_code is None  # what it has started may still end
            self._end(1)
        if self._dial_at is not None and now >= self._dial_at:
            self._dial(now)

    def _plan_dial(self) -> None:
        """Plan the next dial, after a pause that grows."""
        if self._exit_code is None:
            self._pauses += 1
            self._dial_at = boottime() + min(self._pauses * MIN_PAUSE_S, MAX_PAUSE_S)

    def _dial(self, now: float) -> None:
        """Dial, which blocks: without a connection nothing else is to be done."""
        self._plan_dial()
        assert self._give_up_at is not None  # as long as it dials
        found = self._dials.connect(min(_DIAL_S, self._give_up_at - now))
        if found is not None:
            self._link = ControllerLink(*found)
            fields = {name: self._plant[name] for name in ("run", "index", "token")}
            self._send(messages.HELLO, **fields)
            self._dial_at = None  # the controller was found, which may still refuse this agent

    def _end(self, exit_code: int) -> None:
        """End, with this exit code unless it ends already."""
        if self._exit_code is None:
            self._exit_code = exit_code
            self._dial_at = self._give_up_at = None

    # ---- the login ------------------------------------------------------------------------------------------------

    def _read_login(self) -> None:
        try:
            data = os.read(_STDIN, _READ_BYTES)
        except OSError:
            data = b""
        if not data and not self._has_started:
            self._end(1)

    def _answer(self, kind: str, **fields: Any) -> None:
        """Tell the launch host how dialing went, once; it may be gone."""
        if not self._has_answered:
            self._has_answered = True
            _tell(kind, self._nonce, **fields)
            if self._has_started:
                workers.silence(_STDOUT)

    def _leave_login(self) -> None:
        """Let the process that the login knows exit with 0, and continue in a session of its own.

        If the answer is not given yet, stdout is kept for it. A task stays.
        """
        if self._is_task:
            self._has_started = True
            return
        try:
            if os.fork():
                os._exit(0)
        except OSError:  # no process is left, so nothing could be started either
            self._end(1)
            return
        os.setsid()
        os.chdir("/")
        workers.silence(_STDIN, _STDERR, *([_STDOUT] if self._has_answered else []))
        self._has_started = True

    # ---- the connection -------------------------------------------------------------------------------------------

    def _serve(self, link: ControllerLink) -> None:
        if link is not self._link:  # it was lost a moment ago
            return
        for header, payload in link.receive():
            self._obey(link, header, payload)

    def _flush(self) -> None:
        if self._link is not None:
            self._link.flush()
            if self._link.is_lost:
                self._lose_link("it closed the connection")

    def _send(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        if self._link is not None:
            self._link.send(kind, payload, **fields)

    def _lose_link(self, why: str) -> None:
        """Hang up whatever was started through the connection, and plan the next dial."""
        assert self._link is not None  # the callers look
        link, self._link = self._link, None
        link.close()
        self._children.lose_all()
        if not link.is_welcome:
            self._dials.note_fault(link.name, why)
        elif not self._has_started or not self._redial_s:
            self._end(1)
        elif self._exit_code is None:
            self._give_up_at = boottime() + self._redial_s
        self._plan_dial()

    def _obey(self, link: ControllerLink, header: dict[str, Any], payload: bytes) -> None:
        kind = header["type"]
        if kind == messages.BEAT:
            link.send(messages.BEAT)  # the answer is this side's heartbeat: one wake-up does for both
        elif kind == messages.DATA:
            self._children.add_input(header["channel"], payload)
        elif kind == messages.TOOK:
            self._children.note_taken(header["channel"], header["bytes"])
        elif kind == messages.OPEN:
            self._children.open(header["channel"], header["command"])
        elif kind == messages.SHUT:
            self._children.shut(header["channel"])
        elif kind == messages.WELCOME:
            self._pauses, self._give_up_at = 0, None
            link.is_welcome = True
            self._answer(messages.DIALLED, address=link.name)
        elif kind == messages.GO and not self._has_started:
            self._leave_login()
        elif kind == messages.NOTIFY:
            self._notice = (payload, header["variables"]) if payload else None
        elif kind == messages.GONE:
            self._answer(messages.REFUSED, why="GONE")
            self._end(1)
        elif kind == messages.END:
            self._end(0)
            self._children.shut_all()

    def _take_signals(self) -> None:
        os.read(self._wake_read, 4096)
        self._children.reap()


def _tell(kind: str, nonce: str, **fields: Any) -> None:
    """Write an answer for who has started this process, who may be gone."""
    with suppress(OSError):
        os.write(_STDOUT, messages.encode(kind, nonce=nonce, **fields))


def _read_plant(wait_s: int) -> Optional[dict[str, Any]]:
    """Return the first message on stdin but heartbeats, or None if stdin ends before.

    SIGALRM ends this process if nothing comes for `wait_s`: the launch host is gone.
    """
    decoder = messages.Decoder()
    while True:
        signal.alarm(wait_s)
        data = os.read(_STDIN, _READ_BYTES)
        signal.alarm(0)
        if not data:
            return None
        for header, _ in decoder.feed(data):
            if header["type"] != messages.BEAT:
                return header


def main(nonce: str, wait_s: int) -> NoReturn:
    """Serve the controller that the first message names; wait_s: for that message. Never returns."""
    proc.name_process("launch-agent")
    plant = _read_plant(wait_s)
    if plant is None:
        os._exit(1)
    if "indexes" in plant:
        plant = _become_task(plant)
    elif not _take_lock(plant):
        _tell(messages.PRESENT, nonce)
        os._exit(0)
    os._exit(Agent(nonce, plant).run())


def _become_task(plant: dict[str, Any]) -> dict[str, Any]:
    """Return what of the order for all tasks of srun is for this one, which its environment tells.

    srun sends its input to each. Its own connections go to the address of its machine that Slurm has put there.
    """
    address, task = os.environ["SLURM_LAUNCH_NODE_IPADDR"], int(os.environ["SLURM_PROCID"])
    for name in [name for name in os.environ if name.startswith(_OF_TASK)]:
        del os.environ[name]
    own = {"index": plant["indexes"][task], "addresses": [[address, plant["port"]]]}
    return {**plant, **own, "redial_s": 0.0, "is_after_go": False}


def _take_lock(plant: dict[str, Any]) -> bool:
    """Take what one agent of an order can hold at a time, until its process is gone; tell whether none has it.

    That is an abstract socket, as of a claim. Two runs from two launch hosts may have one id; their certificates, of
    which `fingerprint` is the hash, differ. Without such sockets, the newer agent takes the place of the older one.
    """
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind("\0launch-agent-%s.%s.%d" % (plant["run"], plant["fingerprint"][:8], plant["index"]))
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    lock.detach()  # it stays open
    return True
