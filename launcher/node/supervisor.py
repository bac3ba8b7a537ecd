"""The supervisor: the process on a node that starts a run's processes, watches them and stops them.

It serves the launcher over stdin and stdout, in the messages of `launcher.node.messages`. `facts/` answers what the
launcher asks before the run, `code/` takes the code of --sync, and `processes/` does the work during the run.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any, Callable, Dict

from launcher.node import messages, system
from launcher.node.claims import ClaimHolder
from launcher.node.code.code_process import CodeProcess
from launcher.node.ending import Ending
from launcher.node.facts.responder import Responder
from launcher.node.loop import Loop, Timer
from launcher.node.processes import proc, run_folders, workers
from launcher.node.processes.rank_start import RankStart
from launcher.node.processes.ranks import HandoverLog, Ranks
from launcher.node.processes.run_processes import RunProcesses
from launcher.node.send_queue import SendQueue

if TYPE_CHECKING:  # it needs ctypes, which some Pythons lack
    from launcher.node.sampler import Sampler

Handler = Callable[[Dict[str, Any], bytes], object]


_OF_CODE = (messages.LISTING, messages.PIECE)
COALESCE_S = 0.002  # how long a writer's small pieces collect in its pipe, so that a flood takes few messages


class Lease:
    """The time for which a run continues without anything from the launcher; all that arrives renews it.

    `on_expired` is called once, with the number of seconds since the end of the lease: this machine may have been
    suspended. `clock` counts such times unless the launcher is suspended with it, on the same machine.
    """

    def __init__(self, loop: Loop, send_queue: SendQueue, on_expired: Callable[[float], object]) -> None:
        """Begin the lease of a launcher that has not said yet how long it is."""
        self.clock = system.boottime  # the launcher keeps running while this machine is suspended
        self.silence_s = 15.0
        self._loop = loop
        self._send_queue = send_queue
        self._on_expired = on_expired
        self._heard_at = self.clock()
        self._timer: Timer | None = None
        self._check()

    def renew(self) -> None:
        """Note that something has come."""
        self._heard_at = self.clock()

    def grant(self, header: dict[str, Any]) -> bool:
        """Take what PREPARE says of the lease, and begin to send beats; tell whether both machines sleep as one."""
        self.silence_s = header["silence_s"]
        sleeps_along = header.get("boot_id") is not None and header["boot_id"] == system.boot_id()
        if sleeps_along:  # time in which both are suspended is not silence
            self.clock = time.monotonic
            self.renew()
        self._loop.cancel(self._timer)
        self._check()
        self._beat()
        return sleeps_along

    def _check(self) -> None:
        left = self._heard_at + self.silence_s - self.clock()
        if left <= 0:
            self._on_expired(-left)
        else:
            # The loop's timers stop while this machine is suspended, so check more than once per lease.
            pause = min(left, self.silence_s / messages.BEATS_PER_SILENCE)
            self._timer = self._loop.call_later(pause, self._check)

    def _beat(self) -> None:
        period = self.silence_s / messages.BEATS_PER_SILENCE
        if time.monotonic() - self._send_queue.sent_at >= period * 0.9:
            self._send_queue.send(messages.BEAT)
        self._loop.call_later(period, self._beat)


class Supervisor:
    """One attempt on a connection to the launcher: prepare, facts, route, start, output and exits, stop, census.

    The run lives on a `Lease`. If that expires, stdin closes, the guardian dies, or SIGTERM or SIGHUP arrives, the
    supervisor stops the run by itself, as if a STOP had come; `Ending` goes through the stop's steps once. Once the
    census is queued, the attempt is over. If the run has claimed GPUs and may be restarted, the supervisor then holds
    them until that of the next attempt takes them, or until another STOP.

    Everything is a callback of one loop, on one thread, and none of them may wait: a blocked supervisor sends no
    heartbeats, and does not notice that its own lease has expired. What can block is asked by `Loop.ask`. Only the end
    may take its time: reading the files that ranks left, removing directories, and sending the last messages. A
    callback that fails, such as for want of processes or descriptors, is told to the launcher, and ends the run.

    Do not assume that the launcher received what was sent, that the guardian lives, or that there are a directory and a
    mark before PREPARE was served. A rank may also start while the run is being stopped; the next step finds it.
    """

    def __init__(
        self, life_fd: int, handover_fd: int, guardian: int, keepers_fds: tuple[int, int], strangers: dict[int, int]
    ) -> None:
        """Take what the guardian made before the fork.

        life_fd: closes when the guardian dies; handover_fd: where the `HandoverLog` is written; keepers_fds: both ends
        of a pipe that closes once guardian and supervisor are gone; strangers: start times, by process id, of the
        children that the guardian had before it started anything.
        """
        if os.path.expanduser("~") == "~":  # neither HOME nor passwd names a home directory, as in some containers
            os.environ["HOME"] = "/"
        self._loop = Loop()
        self._life_fd = life_fd
        self._handover_log = HandoverLog(handover_fd)
        self._keepers = [os.getpid(), guardian]
        self._owned = RunProcesses(None, self._keepers)
        self._owned.strangers = strangers
        self._decoder = messages.Decoder(max_header_bytes=1 << 30)
        self._send_queue = SendQueue(self._loop, lambda rank: rank in self._ranks.seen)
        self._ranks = Ranks(self._loop, self._send_queue, self._handover_log, self._owned, self._end_if_short)
        self._responder = Responder(self._loop, self._send_queue, self._ranks, keepers_fds[0])
        self._lease = Lease(self._loop, self._send_queue, self._expire)
        self._ending = Ending(
            self._loop, self._send_queue, self._ranks, self._owned, guardian, lambda: self._lease.clock,
            self._let_go, self._conclude,
        )  # fmt: skip
        self._starting = RankStart(
            self._loop, self._send_queue, self._ranks, self._owned, self._responder, self._ending,
            keepers_fds[0],  # it is for torchrun or the shim, which then stop the ranks
        )  # fmt: skip
        self._tree: CodeProcess | None = None  # if launch sends the code
        self._workdir: str | None = None  # in that code
        self._claims: ClaimHolder | None = None  # if the run uses GPUs
        self._is_idle = False  # only the claims are left, for the next attempt
        self._sampler: Sampler | None = None  # if the launcher wants to know what GPUs and host do
        self._handlers: dict[str, Handler] = {
            messages.PREPARE: self._prepare,
            messages.ROUTE: lambda header, _: self._responder.find_route(header),
            messages.PROBE: lambda header, _: self._responder.probe(header),
            messages.SHARE: self._share,
            messages.CLAIM: self._claim,
            messages.WARM: self._starting.warm_up,
            messages.START: self._start,
            messages.STACKS: self._starting.send_stacks,
            messages.LOOK: self._starting.look_for_save,
            messages.SAMPLE: self._sample,
            messages.ADOPT: self._ending.adopt,
            messages.STOP: self._stop,
            **dict.fromkeys(_OF_CODE, self._take_code),
        }

    # ---- life ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the census is sent or nobody reads it, or until PREPARE fails."""
        self._catch_signals()
        self._loop.watch(0, self._read_launcher)
        self._loop.watch(self._life_fd, self._note_orphaned)
        while not self._ending.is_over:
            try:
                self._loop.run_once()
            except OSError as error:
                self._ending.fail(error)
            self._send_queue.push()
            if self._send_queue.has_read:
                self._send_queue.has_read = False
                time.sleep(COALESCE_S)
        self._send_queue.flush()

    def _note_orphaned(self) -> None:
        self._ending.begin("its parent process was killed")

    def _catch_signals(self) -> None:
        wake_read = workers.watch_signals()
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP, *proc.NOTICES):
            signal.signal(number, lambda number, frame: None)

        def wake() -> None:  # handle signals here: handlers would interrupt other callbacks
            numbers = os.read(wake_read, 4096)
            self._ranks.reap()
            for number in {signal.SIGTERM, signal.SIGHUP}.intersection(numbers):
                self._ending.begin(messages.GOT_SIGNAL % number)

        self._loop.watch(wake_read, wake)

    # ---- the launcher's messages --------------------------------------------------------------------------------

    def _read_launcher(self) -> None:
        try:
            data = os.read(0, 1 << 18)
        except BlockingIOError:  # sshd may use one socket for both directions, and stdout is non-blocking
            return
        except OSError:
            data = b""
        if not data:
            self._loop.forget(0)
            self._send_queue.close()
            self._ending.begin("the connection to launch closed")
            return
        self._lease.renew()
        for header, payload in self._decoder.feed(data):
            handler = self._handlers.get(header["type"])
            if handler is not None and not self._ending.is_over:
                self._serve(handler, header, payload)

    def _serve(self, handler: Handler, header: dict[str, Any], payload: bytes) -> None:
        try:
            handler(header, payload)
        except OSError as error:  # such as no space for the run's directory, or no more processes: tell the launcher
            if self._ending.has_begun:
                raise
            self._send_queue.send(messages.FAILED, text="%s: %s" % (header["type"], error))
            # Nothing may start without directory and mark, though START may be in the same piece of input.
            if not self._ending.folder:
                self._ending.finish()

    def _prepare(self, header: dict[str, Any], _: bytes) -> None:
        lost_folder = header.get("lost_folder")
        if lost_folder and not os.path.basename(lost_folder).startswith("launch-%s-" % header["run"]):
            raise OSError("%s is not a directory of this run" % lost_folder)
        self._owned.marks.add(header["mark"])
        self._ending.take_over(lost_folder, header.get("lost_keepers", []))
        own = proc.read_process(os.getpid())
        if own is not None and lost_folder is None:
            self._owned.born = own.started
        folder = run_folders.make_folder(header["run"])
        self._ending.folder, self._ending.stop_timeout_s = folder, header["stop_timeout_s"]
        files = os.path.join(folder, workers.FILES)
        os.mkdir(files, 0o700)
        self._handover_log.note(mark=header["mark"], folder=folder, stop_timeout_s=header["stop_timeout_s"])
        # setproctitle overwrites the environment, which holds the mark, unless SPT_NOENV is set.
        env = self._starting.env
        env.update(header["env"], SPT_NOENV="1")
        proc.mark_environment(env, header["mark"])
        env[proc.FILES] = files
        sleeps_along = self._lease.grant(header)
        self._send_queue.send(
            messages.HELLO,
            folder=folder,
            sleeps_along=sleeps_along,
            keepers=[[keeper.pid, keeper.started] for keeper in map(proc.read_process, self._keepers) if keeper],
        )
        if header.get("tree"):
            self._keep_tree(header)
        elif header.get("facts"):
            self._responder.gather_facts(header, env, folder)

    def _keep_tree(self, header: dict[str, Any]) -> None:
        """Let the code be put in its place; the facts are gathered there."""
        env, folder = self._starting.env, self._ending.folder

        def enter(root: str) -> None:
            self._workdir = os.path.join(root, header["tree"]["sub"])
            if header.get("facts") and not self._ending.has_begun:
                self._responder.gather_facts(dict(header, workdir=self._workdir), env, folder)

        self._tree = CodeProcess(self._loop, self._send_queue, enter)
        self._tree.start(header["tree"], header["run"], env)
        if header.get("facts") and not header.get("setup"):
            self._responder.search_python(header, env, folder)

    def _take_code(self, header: dict[str, Any], payload: bytes) -> None:
        if self._tree is not None:
            self._tree.forward(header, payload)

    def _share(self, header: dict[str, Any], _: bytes) -> None:
        self._responder.share(dict(header, workdir=self._workdir or header["workdir"]))

    def _claim(self, header: dict[str, Any], _: bytes) -> None:
        if self._ending.has_begun:
            return
        claims = self._claims = self._claims or ClaimHolder(self._loop, self._send_queue)
        self._starting.find_claims = lambda: claims.fds
        claims.answer(header, self._responder.gpus)

    def _start(self, header: dict[str, Any], payload: bytes) -> None:
        self._starting.start(header, payload)
        samples_s = header.get("samples_s")
        if samples_s is not None:  # later: the start shall have all of the machine
            self._loop.call_later(samples_s, lambda: self._begin_samples(samples_s))

    def _sample(self, header: dict[str, Any], _: bytes) -> None:
        self._begin_samples(header["period_s"], with_processes=True)

    def _begin_samples(self, period_s: float, *, with_processes: bool = False) -> None:
        from launcher.node.sampler import Sampler

        if self._ending.has_begun or self._sampler is not None:
            return
        send = self._send_queue.send
        try:
            self._sampler = Sampler(self._loop, send, period_s, self._starting.cwd, with_processes=with_processes)
        except OSError as error:  # the run needs none
            send(messages.SAMPLED, host=None, gpus=[], error="its GPUs can't be read: %s" % error)
            return
        process = self._sampler.process
        if process is not None:  # it may hang, so nothing waits for it
            self._owned.strangers[process.pid] = process.started
            self._handover_log.note(sampler=[process.pid, process.started])

    # ---- the end ------------------------------------------------------------------------------------------------

    def _end_if_short(self) -> None:
        if self._starting.is_short:
            self._ending.begin("the command has exited", self._ending.stop_timeout_s)

    def _expire(self, late_s: float) -> None:
        self._send_queue.close()
        # The ranks may save until a fixed time after the last heartbeat, however long this machine was suspended: the
        # launcher waits for that time before it starts the run again elsewhere, where it may save as well.
        self._ending.stop_timeout_s = max(0.0, self._ending.stop_timeout_s - late_s)
        self._ending.begin("%s %g s" % (messages.NO_WORD, self._lease.silence_s))

    def _stop(self, header: dict[str, Any], payload: bytes) -> None:
        if self._is_idle:
            self._leave_claims()
        else:
            self._ending.stop(header, payload)

    def _let_go(self) -> None:
        """Start, answer and watch nothing any more that isn't part of the end."""
        self._loop.forget(self._life_fd)
        self._responder.cancel()
        if self._sampler is not None:
            self._sampler.end()
        if self._is_idle:
            self._leave_claims()

    def _conclude(self, left: list[proc.Process], fields: dict[str, Any]) -> None:
        """Send the census, and the files that the ranks have left; hold the claims if an attempt may follow."""
        is_clean, files = not left and self._ending.reason is None, self._ending.files or []
        claims = self._claims
        self._is_idle = self._ending.stays and is_clean and claims is not None and claims.held is not None
        if claims is not None and not self._is_idle:  # before others can hear of the end
            claims.end()
        if self._tree is not None and self._tree.root:
            fields["tree"], fields["written"] = self._tree.root, self._tree.find_written()
        found = [[process.pid, process.name, process.state] for process in left]
        self._send_queue.send(messages.CENSUS, left=found, reason=self._ending.reason, files=len(files), **fields)
        for name, content in files:
            self._send_queue.send(messages.FILE, content, name=name)
        if self._is_idle:
            assert claims is not None  # it holds something
            claims.reserve(self._ending.finish)
            self._loop.watch(self._life_fd, self._note_orphaned)
            self._handover_log.note(folder=None)  # it is removed: anybody may make one of that name now
            self._send_queue.send(messages.IDLE)
        else:
            self._ending.finish()

    def _leave_claims(self) -> None:
        assert self._claims is not None  # of which nothing else waits
        self._claims.end()
        self._ending.finish()
