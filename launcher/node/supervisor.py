"""The supervisor: the process on a node that starts a run's processes, watches them and stops them.

It serves the launcher over stdin and stdout, in the messages of `launcher.node.messages`. `facts/` answers what the
launcher asks before the run, `code/` takes the code of --sync, and `processes/` does the work during the run.
"""

from __future__ import annotations

import gc
import os
import sys
import time

from launcher.node import clock, messages, signals
from launcher.node.facts.responder import Responder
from launcher.node.loop import Loop
from launcher.node.processes import proc, run_owner, stop_steps, workers
from launcher.node.processes.handover_log import HandoverLog
from launcher.node.processes.ranks import Ranks
from launcher.node.processes.run_processes import RunProcesses
from launcher.node.send_queue import SendQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Generator, List

    from launcher.node.claims import ClaimHolder, OwnClaim
    from launcher.node.code.code_process import CodeProcess
    from launcher.node.loop import Timer
    from launcher.node.processes.warm import WarmPython
    from launcher.node.sampler import Sampler

    Handler = Callable[[Dict[str, Any], bytes], object]
    StopSteps = Generator[float, None, List[proc.Process]]

REMOVAL_TIMEOUT_S = 60.0  # for directories and boot units of earlier runs
COALESCE_S = 0.002  # how long a writer's small pieces collect in its pipe, so that a flood takes few messages


class Supervisor:
    """One attempt on a connection to the launcher: prepare, facts, route, start, output and exits, stop, census.

    The run lives on a lease, which everything that the launcher sends renews. If the lease expires, stdin closes, the
    guardian dies, or SIGTERM or SIGHUP arrives, the supervisor stops the run by itself, as if a STOP had come. It goes
    through the stop's steps once: a later reason to stop changes nothing, unless it gives the ranks no time; then they
    start over with the kill. Once the census is queued, the connection is over (`_is_done`), and no more messages are
    served here; if a Python that has imported torch waits for the next attempt, `serve` makes the supervisor of that.

    Everything is a callback of one loop, on one thread, and none of them may wait: a blocked supervisor sends no
    heartbeats, and does not notice that its own lease has expired. What can block is asked by `Loop.ask`. Only the end
    may take its time: reading the files that ranks left, removing directories, and sending the last messages.

    Do not assume that the launcher received what was sent, that the guardian lives, or that there are a directory and a
    mark before PREPARE was served. A rank may also start while the run is being stopped; the next step finds it.
    """

    def __init__(
        self, life_fd: int, handover_fd: int, guardian: int, keepers_fds: tuple[int, int], strangers: dict[int, int],
        take_modules: Callable[[bytes], object], inherited: Kept | None = None,
    ) -> None:  # fmt: skip
        """Take what the guardian made before the fork, and what the attempt before this one has left.

        life_fd: closes when the guardian dies; handover_fd: where the `HandoverLog` is written; keepers_fds: both ends
        of a pipe that closes once guardian and supervisor are gone; strangers: start times, by process id, of the
        children that the guardian had before it started anything; take_modules: makes more modules importable here,
        but not in the guardian.
        """
        self._loop = Loop()
        self._life_fd = life_fd
        self._take_modules = take_modules
        self._keepers_fds = keepers_fds  # the reading end is for torchrun or the shim, which then stop the ranks
        self._handover_log = HandoverLog(handover_fd)
        self._keepers = [os.getpid(), guardian]
        self._owned = RunProcesses(None, self._keepers)
        self._owned.strangers = strangers
        self._inherited = inherited
        self._decoder = inherited.decoder if inherited is not None else messages.Decoder(max_header_bytes=1 << 30)
        self._send_queue = SendQueue(self._loop, lambda rank: rank in self._ranks.seen)
        self._ranks = Ranks(self._loop, self._send_queue, self._handover_log, self._owned, self._end_if_short)
        self._responder = Responder(
            self._loop, self._send_queue, self._ranks.set_torchrun, self._ranks.await_exit, keepers_fds[0]
        )
        self._tree: CodeProcess | None = None  # if launch sends the code
        self._claims: ClaimHolder | None = None  # if the run uses GPUs
        self._last_claim = inherited.claim if inherited is not None else None  # until this attempt takes it over
        self._reserve_s = 0.0  # after the end, for the next attempt
        self._sampler: Sampler | None = None  # if the launcher wants to know what GPUs and host do
        self._warm: WarmPython | None = None  # if it is to start the ranks
        self._why_cold = "its Python ignores PYTHONPATH"  # if a run that starts warm has none
        self._workdir: str | None = None  # in that code
        self._silence_s = 15.0
        self._echo: tuple[float, float] | None = None  # of launch's last beat: its time, and when it came
        self._hears_beats = True  # otherwise only the end of stdin shows that the launcher is gone
        self._stop_timeout_s = 15.0
        self._clock = clock.boottime  # the launcher keeps running while this machine is suspended
        self._heard_at = self._clock()
        self._folder: str | None = None
        self._files: list[tuple[str, bytes]] | None = None  # what ranks left there, once they have ended
        self._uncopied: list[tuple[str, str]] = []  # what else they left there, with the reasons
        self._stacks_folder: str | None = None  # where the ranks' sitecustomize is
        self._leftover_folders: list[str] | None = None  # of earlier runs, to be removed at the end
        self._leftover_units: list[str] = []  # the same
        self._lost_folder: str | None = None  # of another supervisor that lost its launcher; this one stops its run
        self._lost_keepers: list[proc.Process] = []  # that supervisor and its guardian; of a cleaner, suspended ones
        if os.path.expanduser("~") == "~":  # neither HOME nor passwd names a home directory, as in some containers
            os.environ["HOME"] = "/"
        self._env = dict(os.environ)
        self._cwd = "."  # of the ranks
        self._started_at = time.time()  # they were
        self._ranks_env: dict[str, str] = {}  # what they got beside this process's environment
        self.reason: str | None = None  # why the run is being stopped, if the launcher did not ask for it
        self._steps: StopSteps | None = None  # set once the run is being stopped
        self._step_timer: Timer | None = None
        self._lease_timer: Timer | None = None
        self._is_short = False  # the run is a command, at whose end the connection is over
        self._stays = False  # for another attempt, if there is something that it can go on with
        self._keeps_successor = False  # for that attempt
        self._is_counted = False
        self._is_done = False
        self.kept: Kept | None = None  # for that attempt

    # ---- life ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the census is sent or nobody reads it, or until PREPARE fails."""
        self._catch_signals()
        self._loop.watch(0, self._read_launcher)
        self._loop.watch(self._life_fd, lambda: self._end_run("its parent process was killed"))
        self._check_lease()
        while not self._is_done:
            try:
                self._loop.run_once()
            except OSError as error:  # such as no more processes
                if self._steps is not None:  # the guardian ends the run
                    raise
                self._end_run("its helper failed: %s" % error)
            self._send_queue.push()
            if self._send_queue.has_read:
                self._send_queue.has_read = False
                time.sleep(COALESCE_S)
        self._send_queue.flush()

    def _catch_signals(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signals.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signals.signal(signals.SIGCHLD, lambda number, frame: None)
        signals.signal(signals.SIGINT, signals.SIG_IGN)
        for number in (signals.SIGTERM, signals.SIGHUP):
            signals.signal(number, lambda number, frame: None)
        signals.pthread_sigmask(signals.SIG_UNBLOCK, workers.CAUGHT)  # `serve` may have blocked them

        def wake() -> None:  # handle signals here: handlers would interrupt other callbacks
            numbers = os.read(wake_read, 4096)
            self._ranks.reap()
            for number in {signals.SIGTERM, signals.SIGHUP}.intersection(numbers):
                self._end_run(messages.GOT_SIGNAL % number)

        self._loop.watch(wake_read, wake)

    def _check_lease(self) -> None:
        if not self._hears_beats:
            return
        left = self._heard_at + self._silence_s - self._clock()
        if left <= 0:
            self._send_queue.close()
            # The ranks may save until a fixed time after the last heartbeat, however long this machine was suspended:
            # the launcher waits for that time before it starts the run again elsewhere, where it may save as well.
            self._stop_timeout_s = max(0.0, self._stop_timeout_s + left)
            self._end_run("%s %g s" % (messages.NO_WORD, self._silence_s))
        else:
            # The loop's timers stop while this machine is suspended, so check more than once per lease.
            self._lease_timer = self._loop.call_later(
                min(left, self._silence_s / messages.BEATS_PER_SILENCE), self._check_lease
            )

    def _beat(self) -> None:
        period = self._silence_s / messages.BEATS_PER_SILENCE
        if self._echo is not None:  # shows how long a message takes, whatever the clocks here and there say
            (at, came_at), self._echo = self._echo, None
            self._send_queue.send(messages.BEAT, echo=at, held_s=round(time.monotonic() - came_at, 4))
        elif time.monotonic() - self._send_queue.sent_at >= period * 0.9:
            self._send_queue.send(messages.BEAT)
        self._loop.call_later(period, self._beat)

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
            self._end_run("the connection to launch closed")
            return
        self._heard_at = self._clock()
        handlers: dict[str, Handler] = {
            messages.MODULES: lambda _, payload: self._take_modules(payload),
            messages.PREPARE: self._prepare,
            messages.ROUTE: lambda header, _: self._responder.find_route(header),
            messages.PROBE: lambda header, _: self._responder.probe(header),
            messages.SHARE: self._share,
            messages.SHARE_OVER: lambda header, _: self._responder.end_share(),
            messages.LISTING: self._take_code,
            messages.PIECE: self._take_code,
            messages.MEET: self._take_code,
            messages.JOIN: self._take_code,
            messages.PLACE: self._take_code,
            messages.LIST_CODE: lambda header, _: self._responder.list_code(header),
            messages.ADOPT: self._adopt,
            messages.CLAIM: self._claim,
            messages.WARM: self._warm_up,
            messages.START: self._start,
            messages.STACKS: self._send_stacks,
            messages.LOOK: self._look,
            messages.SAMPLE: self._sample,
            messages.RAS: self._ask_ras,
            messages.STOP: self._stop,
            messages.BEAT: self._hear_beat,
        }
        for header, payload in self._decoder.feed(data):
            handler = handlers.get(header["type"])
            if handler is not None and not self._is_done:
                self._serve(handler, header, payload)

    def _serve(self, handler: Handler, header: dict[str, Any], payload: bytes) -> None:
        try:
            handler(header, payload)
        except OSError as error:  # such as no space for the run's directory, or no more processes: tell the launcher
            self._send_queue.send(messages.FAILED, text="%s: %s" % (header["type"], error))
            # Nothing may start without directory and mark, though START may be in the same piece of input.
            self._is_done = self._folder is None

    def _prepare(self, header: dict[str, Any], _: bytes) -> None:
        self._silence_s = header["silence_s"]
        self._hears_beats = header.get("beats", True)
        self._stop_timeout_s = header["stop_timeout_s"]
        self._owned.marks.add(header["mark"])
        own = proc.read_process(os.getpid())
        self._lost_folder = header.get("lost_folder")
        self._take_over(header.get("lost_keepers", []))
        if self._lost_folder and not os.path.basename(self._lost_folder).startswith("launch-%s-" % header["run"]):
            raise OSError("%s is not a directory of this run" % self._lost_folder)
        if own is not None and self._lost_folder is None:
            self._owned.born = own.started
        self._folder = workers.make_folder(
            header["run"], self._inherited.run_folder if self._inherited is not None else None
        )
        run_owner.sign(self._folder, self._keepers)
        os.mkdir(os.path.join(self._folder, workers.FILES), 0o700)
        self._handover_log.note(mark=header["mark"], folder=self._folder, stop_timeout_s=self._stop_timeout_s)
        self._env.update(header["env"])
        # setproctitle overwrites the environment, which holds the mark, unless SPT_NOENV is set.
        proc.mark_environment(self._env, header["mark"])
        self._env["SPT_NOENV"] = "1"
        self._env[proc.FILES] = os.path.join(self._folder, workers.FILES)
        sleeps_along = header.get("boot_id") is not None and header["boot_id"] == clock.boot_id()
        if sleeps_along:  # the launcher is on this machine, so time in which both are suspended is not silence
            self._clock = time.monotonic
            self._heard_at = self._clock()
        self._loop.cancel(self._lease_timer)
        self._check_lease()
        self._beat()
        self._send_queue.send(
            messages.HELLO,
            pid=os.getpid(),
            python="%d.%d.%d" % sys.version_info[:3],
            folder=self._folder,
            sleeps_along=sleeps_along,
            keepers=[[keeper.pid, keeper.started] for keeper in map(proc.read_process, self._keepers) if keeper],
        )
        if header.get("tree"):
            self._keep_tree(header)
        elif header.get("facts"):
            self._responder.gather_facts(header, self._env, self._folder)

    def _keep_tree(self, header: dict[str, Any]) -> None:
        """Let the code be put in its place; the facts are gathered there."""
        from launcher.node.code.code_process import CodeProcess

        def enter(root: str) -> None:
            self._workdir = os.path.join(root, header["tree"]["sub"])
            if header.get("facts") and self._steps is None:
                assert self._folder is not None  # made before
                self._responder.gather_facts(dict(header, workdir=self._workdir), self._env, self._folder)

        self._tree = CodeProcess(self._loop, self._send_queue, enter)
        self._tree.start(header["tree"], header["run"], self._env)
        if header.get("facts") and not header.get("setup"):
            assert self._folder is not None  # made before
            self._responder.search_python(header, self._env, self._folder)

    def _take_over(self, keepers: list[list[int]]) -> None:
        """Count what these keepers, by process id and start time, have started as part of the run that is to end."""
        for pid, started in keepers:
            keeper = proc.read_process(pid)
            if keeper is not None and keeper.started == started:
                self._lost_keepers.append(keeper)
                self._owned.keepers.add(pid)  # its helpers have no mark

    def _take_code(self, header: dict[str, Any], payload: bytes) -> None:
        if self._tree is not None:
            self._tree.forward(header, payload)

    def _hear_beat(self, header: dict[str, Any], _: bytes) -> None:
        self._echo = (header["at"], time.monotonic()) if "at" in header else None

    def _share(self, header: dict[str, Any], _: bytes) -> None:
        header = dict(header, workdir=self._workdir or header["workdir"])
        self._responder.share(header, lambda path: self._handover_log.note(token=path))

    def _adopt(self, header: dict[str, Any], _: bytes) -> None:
        """Count the leftover processes of earlier runs as this run's, so that the next STOP stops them too.

        After that, the directories of these runs, and boot units, are removed.
        """
        self._owned.marks.update(header["marks"])
        self._owned.born = 0
        self._leftover_folders = header.get("folders", [])
        for folder in self._leftover_folders:
            self._take_over(run_owner.read_keepers(folder))
        self._leftover_units = header.get("units", [])

    def _claim(self, header: dict[str, Any], _: bytes) -> None:
        from launcher.node.claims import ClaimHolder

        if self._steps is None:
            if self._claims is None:
                self._claims = ClaimHolder(self._loop, self._send_queue, self._responder.gpus, self._last_claim)
                self._last_claim = None
            self._claims.answer(header)

    def _start(self, header: dict[str, Any], payload: bytes) -> None:
        self._started_at = time.time()
        self._responder.stop_listening()
        if payload:
            assert self._folder is not None  # PREPARE comes first
            with open(os.path.join(self._folder, header["payload_name"]), "wb") as file:
                file.write(payload)
        self._enter_code(header)
        self._end_inherited()
        if header.get("with_stacks"):
            self._arm_stacks()
        processes = header.get("processes") or [{}]
        self._owned.global_ranks = {each["rank"]: each["env"].get("RANK") for each in header.get("processes", ())}
        self._ranks_env = dict(header.get("env") or {}, **processes[0].get("env", {}))
        if not header.get("is_short"):
            from launcher.node.facts import nccl_ras  # it imports socket, which takes 6 ms

            nccl_ras.give_address(self._env, self._ranks_env)
        if any(gpu is not None for gpu in header.get("near_gpus") or ()):
            from launcher.node.processes import numa

            self._ranks.bind = numa.Binding(header["near_gpus"], self._responder.gpus).bind
        samples_s = header.get("samples_s")
        if samples_s is not None:  # later: the start shall have all of the machine
            self._loop.call_later(samples_s, lambda: self._begin_samples(samples_s, self._send_queue.hold))
        if header.get("processes"):
            self._is_short = header.get("is_short", False)
            if self._warm is not None:
                self._start_warm(self._warm, header)
            elif self._responder.warm_folder is not None:
                self._start_cold(header, self._why_cold)
            else:
                self._start_processes(header)
        else:
            self._start_torchrun(header)

    def _enter_code(self, header: dict[str, Any]) -> None:
        """Take the directory of the ranks (and its name, as a shell does), and Python's path for the code of --sync."""
        if header.get("python_path"):
            self._env["PYTHONPATH"] = header["python_path"]  # what is armed puts its own directory before it
        if header["cwd"] is not None:
            self._cwd = self._env["PWD"] = header["cwd"] = os.path.expanduser(header["cwd"])

    def _warm_up(self, header: dict[str, Any], _: bytes) -> None:
        """Import torch in the Python that was found, in the environment of the ranks as far as it is known."""
        from launcher.node.processes.warm import WarmPython

        if self._steps is not None or self._responder.warm_folder is None or self._responder.search is None:
            return
        self._enter_code(header)
        argv, env = header["argv"], dict(self._env, **header["env"])
        inherited = self._inherited.python if self._inherited is not None else None
        if self._inherited is not None and inherited is not None and inherited.is_for(argv, env, self._cwd):
            self._warm, self._inherited.python = inherited, None
        else:
            self._end_inherited()
            output_fds = self._responder.search.output_fds
            try:
                self._warm = WarmPython(
                    argv, env, self._cwd, output_fds, self._keepers_fds[0], self._responder.warm_folder
                )
            except OSError as error:  # such as no more processes
                self._why_cold = str(error)
                return
        self._ranks.await_warm(self._warm)

    def _end_inherited(self) -> None:
        """End the Python that the attempt before this one has left, if this one doesn't use it."""
        if self._inherited is not None and self._inherited.python is not None:
            self._inherited.python.end()
            self._inherited.python = None

    def _start_warm(self, python: WarmPython, header: dict[str, Any]) -> None:
        """Let the Python that has imported torch start the ranks; if it can't, say why, and let a shim start them."""
        assert self._folder is not None  # PREPARE comes first
        folder, processes = self._folder, header["processes"]
        difference = python.find_difference(processes, self._env, self._cwd)
        if difference is not None:
            python.end()
            self._start_cold(header, difference)
            return

        timeout_s = header["import_timeout_s"]

        def give_up() -> None:
            if self._steps is None:
                text = "the Python that imports torch has not answered for %g s (--rdzv-timeout)" % timeout_s
                self._send_queue.send(messages.FAILED, text=text)

        timer = self._loop.call_later(timeout_s, give_up)

        def start() -> None:
            self._loop.cancel(timer)
            if self._steps is None:
                self._responder.release_port()
                self._ranks.start_warm(python, folder, header["local_ranks"])

        envs = [dict(self._env, **each["env"]) for each in processes]
        order = {
            "ranks": [
                {"rank": each["rank"], "env": python.find_changes(env)} for each, env in zip(processes, envs)
            ],
            "world": {name: envs[0][name] for name in ("GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")},
            "folder": folder, "stop_timeout_s": self._stop_timeout_s, "hold_signal": signals.HOLD,
            "lock": self._tree.find_lock() if self._tree is not None else None,
            "first_on_path": [self._stacks_folder] if self._stacks_folder is not None else [],
            "wants_successor": header.get("keeps_python", False),
        }  # fmt: skip

        def start_cold(reason: str) -> None:
            self._loop.cancel(timer)
            self._start_cold(header, reason)

        python.give_order(self._loop, order, start, start_cold)

    def _start_cold(self, header: dict[str, Any], reason: str) -> None:
        if self._steps is None:
            self._send_queue.send(messages.COLD, reason=reason)
            self._start_processes(header)

    def _start_processes(self, header: dict[str, Any]) -> None:
        from launcher.node.processes import shim

        assert self._folder is not None  # PREPARE comes first
        self._responder.release_port()
        order = shim.ShimSpec(
            header["processes"], self._env, header["cwd"],
            marks=self._owned.marks, folder=self._folder, stop_timeout_s=self._stop_timeout_s,
        )  # fmt: skip
        self._ranks.start_processes(order, self._keepers_fds[0])

    def _start_torchrun(self, header: dict[str, Any]) -> None:
        assert self._folder is not None and self._responder.search is not None  # the plan names the Python, which waits
        self._ranks.await_torchrun(self._folder, header["local_ranks"], self._responder.release_port)
        order = {"argv": header["torchrun_args"], "env": dict(self._env, **header["env"]), "cwd": header["cwd"]}
        order["lock"] = self._tree.find_lock() if self._tree is not None else None
        self._responder.search.give_order(order)

    def _arm_stacks(self) -> None:
        from launcher.node.processes import faulthandler_stacks

        assert self._folder is not None  # PREPARE comes first
        self._stacks_folder = faulthandler_stacks.arm(self._folder, self._env)

    def _send_stacks(self, header: dict[str, Any], _: bytes) -> None:
        from launcher.node.processes import stacks

        if self._steps is None:
            number, ranks = header["number"], self._owned.ranks
            folder = "" if header.get("is_gentle") and self._stacks_folder else self._stacks_folder
            starter = self._owned.find_starter()
            suspended = starter.pid if starter is not None and starter.state in proc.SUSPENDED else None
            stacks.send_stacks(self._loop, self._send_queue, number, ranks, self._env, folder, suspended)

    def _sample(self, header: dict[str, Any], _: bytes) -> None:
        self._begin_samples(header["period_s"], self._send_queue.send, with_processes=True)

    def _begin_samples(self, period_s: float, send: Callable[..., None], *, with_processes: bool = False) -> None:
        from launcher.node.sampler import Sampler

        if self._steps is not None or self._sampler is not None:
            return
        try:
            self._sampler = Sampler(self._loop, send, period_s, self._cwd, with_processes=with_processes)
        except OSError as error:  # the run needs none
            send(messages.SAMPLED, host=None, gpus=[], error="its GPUs can't be read: %s" % error)
            return
        process = self._sampler.process
        if process is not None:  # it may hang, so nothing waits for it
            self._owned.strangers[process.pid] = process.started
            self._handover_log.note(sampler=[process.pid, process.started])

    def _ask_ras(self, header: dict[str, Any], _: bytes) -> None:
        self._responder.ask_ras(dict(self._env, **self._ranks_env))

    def _look(self, header: dict[str, Any], _: bytes) -> None:
        folder = os.path.join(self._cwd, os.path.expanduser(header["folder"]))
        self._responder.look_for_save(folder, self._started_at, header["least_s"])

    def _end_if_short(self) -> None:
        if self._is_short:
            self._end_run("the command has exited", self._stop_timeout_s)

    # ---- the end ------------------------------------------------------------------------------------------------

    def _stop(self, header: dict[str, Any], _: bytes) -> None:
        self._stays, self._reserve_s = header.get("stays", False), header.get("reserve_s", 0.0)
        if self._stays:
            self._ranks.settle()
            successor = self._ranks.successor
            if successor is not None:
                self._keeps_successor = True
                self._owned.strangers = {**self._owned.strangers, successor.pid: successor.started}
        self._end_run("launch requested it", header["timeout_s"], header.get("wait_s", 0))

    def _end_run(self, reason: str, timeout_s: float | None = None, wait_s: float = 0) -> None:
        """Begin to stop the run; later calls change nothing, except that a `timeout_s` of 0 kills at once.

        timeout_s: how long the ranks may take to save. None: take PREPARE's value, and tell the launcher the reason.
        """
        self._loop.forget(self._life_fd)
        self._end_inherited()
        if timeout_s is None:
            timeout_s = self._stop_timeout_s
            self.reason = self.reason or reason
            workers.complain("stopping the run: %s" % reason)
            if self._steps is None and not self._is_done:  # sent before the exits that it causes
                self._send_queue.send(messages.FAILED, text=reason)
        if self._is_counted or self._is_done or (self._steps is not None and timeout_s > 0):
            return
        self._responder.cancel()
        if self._sampler is not None:
            self._sampler.end()
        self._ranks.ending_since = self._ranks.ending_since or time.monotonic()
        self._steps = stop_steps.stop_run(self._owned, timeout_s, self._take_files, wait_s, self._clock)
        self._loop.cancel(self._step_timer)
        self._step()

    def _step(self) -> None:
        assert self._steps is not None  # the stop has begun
        try:
            pause = next(self._steps)
        except StopIteration as end:
            self._count(end.value)
        else:
            self._step_timer = self._loop.call_later(pause, self._step)

    def _kill_lost_keepers(self) -> None:
        """Kill the supervisor that lost its launcher, and its guardian: stopped by SIGSTOP, they would never exit."""
        for keeper in self._lost_keepers:
            proc.send_signal(keeper, signals.SIGKILL)

    def _wake_guardian(self) -> None:
        """Continue this supervisor's guardian: if stopped by SIGSTOP, it would never exit."""
        guardian = self._keepers[1]
        if os.getppid() == guardian:  # otherwise it is dead, and its process id may be reused
            os.kill(guardian, signals.SIGCONT)

    def _count(self, left: list[proc.Process]) -> None:
        """Remove what is over, and report the census; what was adopted may take long to remove."""
        self._is_counted = True
        # Keep the directory if something is left of the run: `launch clean` needs it. A cleaner's own is never kept.
        self._take_files((self._lost_folder or self._folder) if left and self._leftover_folders is None else None)
        self._send_queue.drain()
        self._wake_guardian()
        if self._leftover_folders is None:
            self._report_census(left, {})
            return
        folders, units = self._leftover_folders, self._leftover_units

        def remove() -> list[list[str]]:
            from launcher.node.processes import run_folders

            remaining = run_folders.remove_folders(folders)
            if units:
                from launcher.node import boot_units

                reasons = [[name, boot_units.end(name)] for name in units]
                remaining += [[name, reason] for name, reason in reasons if reason]
            return remaining

        late = [[name, "it could not be removed in %g s" % REMOVAL_TIMEOUT_S] for name in [*folders, *units]]
        self._loop.ask(remove, REMOVAL_TIMEOUT_S, late, lambda found: self._report_census(left, {"folders": found}))

    def _report_census(self, left: list[proc.Process], cleaned: dict[str, Any]) -> None:
        self._end_claim(is_over=not self._stays or bool(left) or self.reason is not None)
        if self._tree is not None and self._tree.root:
            cleaned["tree"], cleaned["written"] = self._tree.root, self._tree.find_written()
        if self._owned.unfinished:
            cleaned["unfinished"] = self._owned.unfinished
        if self._uncopied:
            cleaned.update(uncopied=self._uncopied[: messages.MOST_NAMES], uncopied_count=len(self._uncopied))
        found = [[process.pid, process.name, process.state] for process in left]
        files = self._files or []
        self._send_queue.send(messages.CENSUS, left=found, reason=self.reason, files=len(files), **cleaned)
        for name, content in files:
            self._send_queue.send(messages.FILE, content, name=name)
        python = self._keep_successor(is_clean=not left and self.reason is None)
        claim = self._claims.leave() if self._claims is not None else self._last_claim
        if self._folder is not None and (python is not None or claim is not None):
            self._handover_log.note(folder=None)  # it is removed: anybody may make one of that name now
            self.kept = Kept(self._decoder, self._folder, python, claim)
            self._send_queue.send(messages.IDLE)
        self._is_done = True

    def _take_files(self, kept: str | None = None) -> None:
        """Take in what the ranks have left, and remove the run's directories but the one to be kept; only once."""
        if self._files is not None:
            return
        self._ranks.settle()  # torchrun reports exits through the directory
        self._kill_lost_keepers()
        self._files = []
        if self._folder is not None:
            self._files, self._uncopied = workers.read_files(os.path.join(self._folder, workers.FILES))
        for folder in (self._folder, self._lost_folder):
            if folder is not None and folder != kept:
                workers.remove_folder(folder)

    def _end_claim(self, *, is_over: bool) -> None:
        """End the claim before others can hear that the run has ended, if this process doesn't wait for an attempt."""
        if not is_over:
            return
        if self._claims is not None:
            self._claims.end(self._reserve_s if self.reason is None else None)
        if self._last_claim is not None:
            self._last_claim.end(self._reserve_s)
            self._last_claim = None

    def _keep_successor(self, *, is_clean: bool) -> WarmPython | None:
        """Let the Python that the next attempt may start from wait for it, if all is well; otherwise end it."""
        successor, python = self._ranks.successor, self._warm
        if not self._keeps_successor or successor is None or python is None:
            return None
        now = proc.read_process(successor.pid)
        # Without prctl it is the child of another process by now, which would be told how it ends.
        is_ours = now is not None and now.started == successor.started and now.ppid == os.getpid()
        if not is_clean or not is_ours:
            proc.send_signal(successor, signals.SIGKILL)
            return None
        python.child = workers.Child(successor.pid)
        return python


class Kept:
    """What an attempt leaves to the next one on the same connection."""

    def __init__(
        self, decoder: messages.Decoder, run_folder: str, python: WarmPython | None, claim: OwnClaim | None
    ) -> None:
        """decoder: may have the first bytes of a message; run_folder: a path that is in the environment."""
        self.decoder = decoder
        self.run_folder = run_folder
        self.python = python  # it has imported torch
        self.claim = claim  # of GPUs


def serve(
    life_fd: int, handover_fd: int, guardian: int, keepers_fds: tuple[int, int], strangers: dict[int, int],
    take_modules: Callable[[bytes], object],
) -> None:  # fmt: skip
    """Serve a connection: one attempt, or several if something waits for the next."""
    inherited: Kept | None = None
    while True:
        supervisor = Supervisor(life_fd, handover_fd, guardian, keepers_fds, strangers, take_modules, inherited)
        supervisor.run()
        inherited = supervisor.kept
        if inherited is None:
            return
        if supervisor.reason is not None:  # a signal, or the end of the connection, came after the census
            if inherited.python is not None:
                inherited.python.end()
            if inherited.claim is not None:
                inherited.claim.end()
            return
        # Nothing of the attempt may remain open here; a signal that comes meanwhile is for the next one.
        signals.pthread_sigmask(signals.SIG_BLOCK, workers.CAUGHT)
        signals.set_wakeup_fd(-1)
        del supervisor
        gc.collect()
        python, claim = inherited.python, inherited.claim
        used = {0, 1, 2, life_fd, handover_fd, *keepers_fds}
        used |= {python.report_fd, python.order_fd} if python is not None else set()
        workers.close_all_but(used | {claim.fd} if claim is not None else used)
