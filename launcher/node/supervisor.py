"""Owns the processes of a run on this node, and talks to the launcher over stdin and stdout.

Its life hangs on a lease that the launcher's messages renew: at end of file, at silence, at a signal and at the
guardian's death it ends the run by itself.
"""

from __future__ import annotations

import os
import sys
import time

from launcher.node import ladder, messages, notation, processes, signals, workers
from launcher.node.loop import Loop
from launcher.node.outlet import Outlet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket
    from typing import Any, Callable, Dict, Generator, List

    from launcher.node.loop import Timer
    from launcher.node.pythons import Search

    Handler = Callable[[Dict[str, Any], bytes], None]
    Ladder = Generator[float, None, List[processes.Process]]

BEATS_PER_SILENCE = 2.5  # two may be lost
FACTS_TIMEOUT_S = 15.0
COALESCE_S = 0.002  # a writer's small pieces gather in its pipe for so long, so a flood costs few messages


class Supervisor:
    """One conversation: prepare, facts, route, start, output and exits, stop, census."""

    def __init__(self, life_fd: int, ledger_fd: int, guardian: int) -> None:
        self._loop = Loop()
        self._life_fd = life_fd  # at its end when the guardian dies
        self._ledger_fd = ledger_fd
        self._keepers = [os.getpid(), guardian]
        self._owned = processes.Owned("", self._keepers)
        self._decoder = messages.Decoder(max_header_bytes=1 << 30)
        self._seen: set[int] = set()  # local ranks that have been there, if for a moment only
        self._outlet = Outlet(self._loop, self._seen.__contains__)
        self._silence_s = 15.0
        self._stop_timeout_s = 15.0
        self._heard_at = time.monotonic()
        self._folder: str | None = None
        self._lost_folder: str | None = None  # of the supervisor whose run we sweep up
        self._lost_keepers: list[list[int]] = []  # itself and its guardian
        self._env = dict(os.environ)
        self._facts: dict[str, Any] | None = None
        self._python: dict[str, Any] | None = None
        self._search: Search | None = None
        self._torchrun: workers.Child | None = None  # also while it only imports
        self._exited: set[int] = set()
        self._held_port: socket | None = None
        self._reason: str | None = None  # why the run is being ended, where the launcher did not say so
        self._steps: Ladder | None = None  # once the run is being ended
        self._step_timer: Timer | None = None
        self._lease_timer: Timer | None = None
        self._is_short = False  # a command that ends the conversation when it ends
        self._is_done = False

    # ---- life ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the census is sent, or nobody is left to send it to."""
        self._catch_signals()
        os.set_blocking(self._ledger_fd, False)  # it is small, and must not stop us if the guardian sleeps
        self._loop.watch(0, self._read_launcher)
        self._loop.watch(self._life_fd, lambda: self._end_run("its guardian was killed"))
        self._check_lease()
        while not self._is_done:
            self._loop.run_once()
            self._outlet.push()
            if self._outlet.has_read:
                self._outlet.has_read = False
                time.sleep(COALESCE_S)
        self._outlet.flush()

    def _catch_signals(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signals.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signals.signal(signals.SIGCHLD, lambda number, frame: None)
        signals.signal(signals.SIGINT, signals.SIG_IGN)
        for number in (signals.SIGTERM, signals.SIGHUP):
            signals.signal(number, lambda number, frame: None)

        def wake() -> None:  # the numbers of the signals that came; acting in the handlers would interrupt ourselves
            numbers = os.read(wake_read, 4096)
            self._reap()
            for number in {signals.SIGTERM, signals.SIGHUP}.intersection(numbers):
                self._end_run("its supervisor got signal %d" % number)

        self._loop.watch(wake_read, wake)

    def _check_lease(self) -> None:
        left = self._heard_at + self._silence_s - time.monotonic()
        if left <= 0:
            self._outlet.close()
            self._end_run("no word from the launcher for %g s" % self._silence_s)
        else:
            self._lease_timer = self._loop.call_later(left, self._check_lease)

    def _beat(self) -> None:
        period = self._silence_s / BEATS_PER_SILENCE
        if time.monotonic() - self._outlet.sent_at >= period * 0.9:
            self._outlet.send(messages.BEAT)
        self._loop.call_later(period, self._beat)

    # ---- the launcher's messages --------------------------------------------------------------------------------

    def _read_launcher(self) -> None:
        try:
            data = os.read(0, 1 << 18)
        except BlockingIOError:  # sshd may give one socket for both directions, and stdout does not block
            return
        except OSError:
            data = b""
        if not data:
            self._loop.forget(0)
            self._outlet.close()
            self._end_run("the launcher is gone")
            return
        self._heard_at = time.monotonic()
        handlers = {
            messages.PREPARE: self._prepare,
            messages.ROUTE: self._find_route,
            messages.START: self._start,
            messages.STOP: self._stop,
        }
        for header, payload in self._decoder.feed(data):
            handler = handlers.get(header["type"])
            if handler is not None and not self._is_done:
                self._serve(handler, header, payload)

    def _serve(self, handler: Handler, header: dict[str, Any], payload: bytes) -> None:
        try:
            handler(header, payload)
        except OSError as error:  # no room for the run's folder, no process left: the launcher shall say so
            self._outlet.send(messages.FAILED, text="%s: %s" % (header["type"], error))
            # Without folder and mark nothing may start, though START may lie in the same piece.
            self._is_done = self._folder is None

    def _prepare(self, header: dict[str, Any], _: bytes) -> None:
        self._silence_s = header["silence_s"]
        self._stop_timeout_s = header["stop_timeout_s"]
        self._owned.mark = header["mark"]
        own = processes.read_process(os.getpid())
        self._lost_folder = header.get("lost_folder")
        self._lost_keepers = header.get("lost_keepers", [])
        if self._lost_folder and not os.path.basename(self._lost_folder).startswith("launch-%s-" % header["run"]):
            raise OSError("%s is no folder of this run" % self._lost_folder)
        if own is not None and self._lost_folder is None:
            self._owned.born = own.started
        self._folder = workers.make_folder(header["run"])
        self._note(mark=header["mark"], folder=self._folder, stop_timeout_s=self._stop_timeout_s)
        self._env.update(header["env"])
        # setproctitle overwrites the environment, where the mark is, unless it is told not to.
        self._env.update({processes.MARK: header["mark"], "SPT_NOENV": "1"})
        self._loop.cancel(self._lease_timer)
        self._check_lease()
        self._beat()
        self._outlet.send(
            messages.HELLO,
            version=messages.VERSION,
            pid=os.getpid(),
            python="%d.%d.%d" % sys.version_info[:3],
            folder=self._folder,
            keepers=[[keeper.pid, keeper.started] for keeper in map(processes.read_process, self._keepers) if keeper],
        )
        if header.get("facts"):
            self._gather_facts(header)

    def _gather_facts(self, header: dict[str, Any]) -> None:
        from launcher.node import facts

        facts_read, facts_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            signals.set_wakeup_fd(-1)
            facts.write_facts_and_exit(facts_write, header)
        os.close(facts_write)
        # On a dead file system or GPU driver the child hangs in state D, and can't even be killed.
        self._loop.read_all(facts_read, self._keep_facts, FACTS_TIMEOUT_S)
        if not header["pythons"]:  # what will run needs no torch
            self._python = {}
            return
        from launcher.node import pythons

        output_fds = self._open_torchrun_pipes()
        self._search = pythons.Search(self._loop, header["pythons"], self._env, output_fds, self._keep_python)
        self._search.try_next()

    def _open_torchrun_pipes(self) -> list[int]:
        write_ends = []
        for stream in (workers.STDOUT, workers.STDERR):
            read_end, write_end = os.pipe()
            self._outlet.watch(read_end, None, stream)
            write_ends.append(write_end)
        return write_ends

    def _keep_facts(self, data: bytes) -> None:
        silence = {"error": "gathered no facts in %g s: a dead file system or GPU driver?" % FACTS_TIMEOUT_S}
        self._facts = notation.loads(data.decode()) if data else silence
        self._send_facts()

    def _keep_python(self, status: dict[str, Any] | None) -> None:
        assert self._search is not None  # it calls this
        self._python = status or {"python": None, "tried": self._search.tried}
        if status:
            self._torchrun = self._search.child
            self._own_torchrun()
        self._send_facts()

    def _send_facts(self) -> None:
        if self._facts is not None and self._python is not None:
            self._outlet.send(messages.FACTS, **dict(self._facts, search=self._python))

    def _find_route(self, header: dict[str, Any], _: bytes) -> None:
        from launcher.node import facts

        answer: dict[str, Any] = {"interface": None, "address": None, "port": None, "error": None}
        try:
            answer.update(facts.find_route(header["master"]))
            if header.get("port") is not None:
                self._held_port = facts.hold_port(header["port"])
                answer["port"] = self._held_port.getsockname()[1]
        except (OSError, UnicodeError) as error:  # the latter: a name that can be none
            answer["error"] = getattr(error, "strerror", None) or str(error)
        self._outlet.send(messages.ROUTED, **answer)

    def _start(self, header: dict[str, Any], payload: bytes) -> None:
        if payload:
            assert self._folder is not None  # PREPARE comes first
            with open(os.path.join(self._folder, header["payload_name"]), "wb") as file:
                file.write(payload)
        if header["cwd"] is not None:
            header["cwd"] = os.path.expanduser(header["cwd"])
        if header.get("processes"):
            self._start_processes(header)
        else:
            self._start_torchrun(header)

    def _start_processes(self, header: dict[str, Any]) -> None:
        self._is_short = header.get("is_short", False)
        self._release_port()
        null = os.open(os.devnull, os.O_RDONLY)
        for entry in header["processes"]:
            fds = {0: null}
            for stream in (workers.STDOUT, workers.STDERR):
                read_end, fds[stream] = os.pipe()
                workers.widen(read_end)
                self._outlet.watch(read_end, entry["rank"], stream)
            child = workers.spawn(entry["argv"], dict(self._env, **entry["env"]), header["cwd"], fds)
            for stream in (workers.STDOUT, workers.STDERR):
                os.close(fds[stream])
            self._seen.add(entry["rank"])
            self._own_rank(entry["rank"], child.process)
        os.close(null)

    def _start_torchrun(self, header: dict[str, Any]) -> None:
        assert self._folder is not None  # PREPARE comes first
        reports, streams = workers.Fifos(self._folder).make(header["local_ranks"])
        for (local_rank, stream), fd in streams.items():
            self._outlet.watch(fd, local_rank, stream)
        self._loop.watch(reports, lambda: self._read_reports(reports))
        env = dict(self._env, **header["env"])
        order = {"argv": header["torchrun_args"], "env": env, "cwd": header["cwd"]}
        assert self._search is not None  # the plan names the Python that it found, which waits
        self._search.give_order(order, os.path.join(self._folder, "order"))

    def _read_reports(self, fd: int) -> None:
        for line in os.read(fd, 1 << 16).split(b"\n"):
            words = line.split()
            if len(words) == 2:
                self._release_port()
                self._seen.add(int(words[0]))
                self._own_rank(int(words[0]), processes.read_process(int(words[1])))

    def _release_port(self) -> None:
        if self._held_port is not None:
            self._held_port.close()
            self._held_port = None

    # ---- the run's processes ------------------------------------------------------------------------------------

    def _note(self, **entry: object) -> None:
        """Write down for the guardian what it needs if we are killed."""
        try:
            os.write(self._ledger_fd, notation.dumps(entry).encode() + b"\n")
        except OSError:
            pass  # it is dead, and we are about to notice

    def _own_torchrun(self) -> None:
        process = self._torchrun.process if self._torchrun is not None else None
        if process is not None:
            self._owned.set_torchrun(process)
            self._note(rank=None, pid=process.pid, started=process.started)

    def _own_rank(self, local_rank: int, process: processes.Process | None) -> None:
        if process is None:
            return
        self._owned.add_rank(local_rank, process)
        self._note(rank=local_rank, pid=process.pid, started=process.started)
        self._outlet.send(messages.STARTED, local_rank=local_rank, pid=process.pid)
        if self._torchrun is None:
            return  # our own child: the kernel tells us
        pidfd = workers.open_pidfd(process)
        if pidfd is None:
            self._look_again(local_rank, process)
        else:
            self._loop.watch(pidfd, lambda: self._meet_end(local_rank, process, pidfd))

    def _look_again(self, local_rank: int, process: processes.Process) -> None:
        if processes.is_alive(process):
            self._loop.call_later(0.05, lambda: self._look_again(local_rank, process))
        else:
            self._report_exit(local_rank, workers.read_exit_status(process))

    def _meet_end(self, local_rank: int, process: processes.Process, pidfd: int) -> None:
        self._loop.forget(pidfd)
        os.close(pidfd)
        self._reap()
        self._report_exit(local_rank, workers.read_exit_status(process))

    def _report_exit(self, local_rank: int, status: int | None) -> None:
        if local_rank in self._exited:
            return
        self._exited.add(local_rank)
        ended_at = time.monotonic()
        if status and self._owned.torchrun is not None:
            # torchrun would print its page and kill the others; what happens next is the launcher's to say.
            processes.send_signal(self._owned.torchrun, signals.SIGSTOP)
        self._outlet.drain(lambda rank: rank == local_rank)
        age_s = round(time.monotonic() - ended_at, 4)
        self._outlet.send(messages.EXIT, local_rank=local_rank, age_s=age_s, **workers.describe_status(status))

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._torchrun is not None and pid == self._torchrun.pid:
                self._outlet.drain()
                self._outlet.send(messages.ENDED, **workers.describe_status(status))
            for local_rank, process in self._owned.ranks.items():
                if process.pid == pid:  # our own child, or inherited from a torchrun that was killed
                    self._report_exit(local_rank, status)
                    self._check_all_exited(status)

    def _check_all_exited(self, status: int) -> None:
        if self._torchrun is None and len(self._exited) == len(self._owned.ranks):
            self._outlet.send(messages.ENDED, **workers.describe_status(status))
            if self._is_short:
                self._end_run("all is done", self._stop_timeout_s)

    # ---- the end ------------------------------------------------------------------------------------------------

    def _stop(self, header: dict[str, Any], _: bytes) -> None:
        self._end_run("the launcher says so", header["timeout_s"], header.get("wait_s", 0))

    def _end_run(self, reason: str, timeout_s: float | None = None, wait_s: float = 0) -> None:
        """Go down the ladder; a second call may only hurry it."""
        self._loop.forget(self._life_fd)
        if timeout_s is None:
            timeout_s = self._stop_timeout_s
            self._reason = self._reason or reason
            workers.complain("ending the run: %s" % reason)
        if self._is_done or (self._steps is not None and timeout_s > 0):
            return
        self._steps = ladder.descend(self._owned, processes, timeout_s, wait_s)
        self._loop.cancel(self._step_timer)
        self._step()

    def _step(self) -> None:
        assert self._steps is not None  # the ladder goes on
        try:
            pause = next(self._steps)
        except StopIteration as end:
            self._report_census(end.value)
        else:
            self._step_timer = self._loop.call_later(pause, self._step)

    def _kill_lost_keepers(self) -> None:
        """A supervisor that was stopped (SIGSTOP) would stay for ever, with nothing left to keep."""
        for pid, started in self._lost_keepers:
            keeper = processes.read_process(pid)
            if keeper is not None and keeper.started == started:
                processes.send_signal(keeper, signals.SIGKILL)

    def _report_census(self, left: list[processes.Process]) -> None:
        self._reap()
        self._outlet.drain()
        self._kill_lost_keepers()
        for folder in (self._folder, self._lost_folder):
            if folder is not None:
                workers.remove_folder(folder)
        found = [[process.pid, process.name, process.state] for process in left]
        self._outlet.send(messages.CENSUS, left=found, reason=self._reason)
        self._is_done = True
