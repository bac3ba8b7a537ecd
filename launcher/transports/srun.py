"""--transport srun: the nodes of a Slurm job, by one srun with an agent on each (docs/decisions/0037)."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import random
import re
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from launcher.concurrency import start_thread
from launcher.errors import HostFailure, HostFailureKind, LauncherError
from launcher.hosts.host import Host
from launcher.job.slurm_allocation import Allocation
from launcher.node import messages
from launcher.node.loading import KEPT, MARKER
from launcher.transports import bootstrap
from launcher.transports.agents.channel import AgentChannel
from launcher.transports.agents.credentials import make_credentials
from launcher.transports.agents.hub import AgentTransport, Hub
from launcher.transports.archives import pack_node
from launcher.transports.base import KILLED, TransportError, failure_of
from launcher.transports.srun_output import SrunOutput

_MAX_LINE_BYTES = 64 << 10
_PATIENCE = 2.0  # times as long as a supervisor an agent waits for heartbeats, to carry its last messages
_ANSWER_S = 5.0  # for the answer of an agent that has dialled in vain
_WORD_S = 1.0  # after the end of a connection: what Slurm says about it may come later
_SETTLE_S = 0.2  # after the end of a process: Slurm kills one after another, and may say that a moment later
_CONFIG_S = 5.0  # for slurmctld to tell its configuration
_LEAVE_S = 1.0  # for agents, at the end
_END_S = 1.0  # for srun to end after that
_KILL_S = 0.5
_FIX_PORT = (
    "let the nodes connect to that port (if Slurm has an SrunPortRange, launch takes one of it), "
    "or use --transport fabric"
)
_PORTS = re.compile(r"^SrunPortRange\s*=\s*([1-9][0-9]*)-([0-9]+)", re.MULTILINE)


class SrunTransport:
    """Reaches the nodes of the allocation that `launch` runs in, with all CPUs, GPUs and memory that it has there.

    The first `open` starts one step for all hosts. A host that is lost later, or held up by others, gets another one.
    All steps last until the end of this process, or `close`.
    """

    name = "srun"

    def __init__(
        self, hosts: Sequence[Host], allocation: Allocation, pythons: Sequence[str], environ: Mapping[str, str],
        silence_s: float,
    ) -> None:  # fmt: skip
        """Start nothing yet; srun and the ranks get `environ` as their environment."""
        self._hosts = [host.name for host in hosts]
        self._allocation = allocation
        self._pythons = pythons
        self._environ = environ
        self._hub = StepHub(self._hosts, environ, silence_s)
        self._steps: dict[str, SrunStep] = {}  # the last one of each host
        self._started: list[SrunStep] = []
        self._is_closed = False
        self._lock = threading.Lock()
        atexit.register(self.close)

    def renew(self, hosts: Sequence[Host]) -> bool:
        """Tell whether these are among its hosts, for another attempt: nothing of the one before is alive by now.

        So the steps go that no host uses any more, since the host got another one.
        """
        with self._lock:
            left = [step for step in self._started if step not in self._steps.values()]
            self._started = [step for step in self._started if step not in left]
        _end(left)
        return {host.name for host in hosts} <= {*self._hosts}

    def open(self, host: Host, command: str, timeout_s: float) -> StepChannel:
        try:
            step = self._find_step(host.name, timeout_s)
            while (channel := step.open(host, command)) is None:
                step = self._go_on_without_others(host.name, step, timeout_s)
        except LauncherError as error:
            raise TransportError(failure_of(host.name, error)) from None
        except OSError as error:
            fix = "load Slurm's module, or use --transport fabric"
            failure = HostFailure(host.name, HostFailureKind.SLURM, f"srun can't be started: {error.strerror}", fix)
            raise TransportError(failure) from None
        return channel

    def own_messages(self, host: Host) -> Sequence[str]:
        step = self._steps.get(host.name)
        return () if step is None else step.output.lines(host.name)

    def close(self) -> None:
        """End all agents and steps, and wait a moment for that; none is started any more."""
        with self._lock:
            self._is_closed = True
        self._hub.close()
        _await_end(self._started, _END_S)
        _end(self._started)

    def _find_step(self, host: str, timeout_s: float) -> SrunStep:
        """Return a usable step: the one for all hosts, or another for this host alone after that one has lost it."""
        with self._lock:
            step = self._steps.get(host)
            if step is None:
                self._start(self._hosts, timeout_s)
            elif not step.is_usable(host):
                self._start([host], timeout_s)
            return self._steps[host]

    def _go_on_without_others(self, host: str, step: SrunStep, timeout_s: float) -> SrunStep:
        """Return a step without the nodes that could not start; the first host to give up the old one starts it."""
        with self._lock:
            if self._steps[host] is step:
                _end([step])
                self._start(step.present(), timeout_s)
            return self._steps[host]

    def _start(self, hosts: Sequence[str], timeout_s: float) -> None:
        if self._is_closed:
            raise LauncherError("launch ends, and starts no step of Slurm any more")
        options = srun_options(self._allocation, hosts)
        step = SrunStep(hosts, options, self._pythons, self._environ, self._hub, timeout_s)
        self._started.append(step)
        self._steps.update(dict.fromkeys(hosts, step))


def srun_options(allocation: Allocation, hosts: Sequence[str]) -> list[str]:
    """Return the options that start one task on each host, with all that the job has on it."""
    # A step gets all GPUs of a job with --gres, but not of one with --gpus or --gpus-per-task (22.05 gives one less).
    gpus = [f"--gres=gpu:{allocation.gpus_per_node}"] if allocation.gpus_per_node else []
    return [
        f"--jobid={allocation.job_id}",
        f"--nodelist={','.join(hosts)}",
        f"--nodes={len(hosts)}",
        f"--ntasks={len(hosts)}",
        "--ntasks-per-node=1",
        "--overlap",  # CPUs, memory and GPUs may be in use by the step that `launch` runs in (Slurm 20.11)
        "--mem=0",  # all that the job has
        *gpus,
        "--cpu-bind=none",
        "--mpi=none",
        # `launch` decides how a run ends, whatever the site's defaults are.
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--no-kill",
        "--input=all",
        "--chdir=/",  # the agent changes to the home directory, as a login does
        "--job-name=launch",
    ]


def find_ports(environ: Mapping[str, str]) -> Sequence[int]:
    """Return the ports to which Slurm's nodes can connect, in any order: a firewall may be open for these alone.

    (0,): any. The port is taken from SrunPortRange, from which srun takes its own.
    """
    try:
        argv = ["scontrol", "show", "config"]
        done = subprocess.run(argv, env=environ, capture_output=True, timeout=_CONFIG_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return (0,)
    found = _PORTS.search(done.stdout.decode("utf-8", "replace"))
    ports = range(int(found[1]), int(found[2]) + 1) if found else (0,)
    return random.sample(ports, len(ports))


class StepHub:
    """The hub that the agents of all steps dial, from the first order to `close`."""

    def __init__(self, hosts: Sequence[str], environ: Mapping[str, str], silence_s: float) -> None:
        self._hosts = hosts  # by the index of their agent
        self._environ = environ
        self._silence_s = silence_s
        self._lock = threading.Lock()
        self._changed = threading.Condition()  # an agent has come or gone
        self._order: dict[str, Any] = {}
        self._hub: Hub | None = None
        self._agents: AgentTransport | None = None

    def make_order(self, tasks: Sequence[str]) -> Mapping[str, Any]:
        """Return what the agents of a step are told; tasks: its hosts, by their numbers.

        Raise LauncherError if this machine has no port or thread left.
        """
        with self._lock:
            if self._hub is None:
                run, made = secrets.token_hex(8), make_credentials(1)
                # All agents have one token, since all get the same order.
                credentials = replace(made, tokens=made.tokens * len(self._hosts))
                hub = Hub(run, self._hosts, credentials, silence_s=self._silence_s, on_change=self._note_change)
                self._order = {
                    "run": run, "token": credentials.tokens[0], "fingerprint": credentials.fingerprint,
                    "port": hub.listen(find_ports(self._environ)), "silence_s": _PATIENCE * self._silence_s,
                }  # fmt: skip
                hub.go()
                self._hub, self._agents = hub, hub.open_transport()
            return {**self._order, "indexes": [self._hosts.index(host) for host in tasks]}

    def open(self, host: Host, command: str) -> AgentChannel:
        """Start a process by an agent that has dialled; raise TransportError if it is lost."""
        if self._agents is None:  # a task lies
            raise TransportError(HostFailure(host.name, HostFailureKind.PROTOCOL, "its agent can't have dialled yet"))
        return self._agents.open(host, command, _WORD_S)

    def has(self, host: str) -> bool:
        """Tell whether the agent of a host is connected."""
        return self._hub is not None and self._hub.has(host)

    def loses(self, host: str) -> bool:
        """Tell whether the agent of a host is lost, or is so in a moment."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.has(host), _SETTLE_S)

    def _note_change(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End all agents."""
        with self._lock:
            if self._hub is not None:
                self._hub.close(_LEAVE_S)


@dataclass(slots=True)
class _Task:
    """What is known about the agent on one node."""

    number: int | None = None  # Slurm's; None until it has started
    is_kept: bool = False  # whether the node has the code
    has_dialled: bool = False
    was_asked: bool = False  # a process was requested there
    was_hung_up: bool = False  # a channel was closed while its process ran: it gets no other process
    failure: HostFailure | None = None  # why it can't be used, if Slurm has not said it


class SrunStep:
    """One srun on some nodes of an allocation, and the agents that it starts there.

    srun passes on no input before each node has started its task, which says so by its loader's marker. Then all get
    one order, with the code if one of them lacks it. What goes between agents and hub needs srun no more: that is only
    heard for what Slurm says about the nodes.

    `_changed` guards all of it, and is notified of every change that somebody waits for.
    """

    def __init__(
        self, hosts: Sequence[str], options: Sequence[str], pythons: Sequence[str], environ: Mapping[str, str],
        hub: StepHub, timeout_s: float,
    ) -> None:  # fmt: skip
        """Start srun, or raise OSError or LauncherError; timeout_s: for all tasks, and for an agent to dial."""
        self.output = SrunOutput(hosts, pythons)
        self._hub = hub
        self._timeout_s = timeout_s
        self._archive = pack_node()
        self._nonce = secrets.token_hex(8)
        self._marker = re.compile(rf"{MARKER} {self._nonce} (\S+) ([0-9]+) (\w+) ")
        self._tasks = {host: _Task() for host in hosts}
        self._missing = len(self._tasks)  # counted, since every thread that waits asks after every change
        self._changed = threading.Condition()
        self._is_given_up = False  # another step is started without the nodes that this one waits for
        self._has_ended = False  # srun
        argv = bootstrap.task_argv(pythons, self._nonce, self._archive, bootstrap.WAIT_S + timeout_s)
        # In a session of its own: the terminal's Ctrl-C would make srun end all tasks before `launch` hears of it.
        self._process = subprocess.Popen(
            ["srun", *options, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, env=environ,
        )  # fmt: skip
        try:
            start_thread(self._read, "read srun", self._break)
            start_thread(self._give_order, "order srun", self._break)
        except LauncherError:
            self._process.terminate()
            raise

    def open(self, host: Host, command: str) -> StepChannel | None:
        """Start a process on a node; return None if the step can't begin, and this node is not to blame.

        Raise TransportError if this node can't be used.
        """
        name, task, patience_s = host.name, self._tasks[host.name], self._timeout_s + _ANSWER_S
        with self._changed:
            task.was_asked = True
            if not self._changed.wait_for(lambda: self._is_settled(name), self._timeout_s):
                for other_name, other in self._tasks.items():
                    if other.number is None:
                        other.failure = self.output.not_started(other_name, self._timeout_s)
            present = self.present()
            if name in present and (self._is_given_up or (self._missing and len(present) < len(self._tasks))):
                self._is_given_up = True
                self._changed.notify_all()
                return None
            self._changed.wait_for(lambda: task.has_dialled or self._why(name), patience_s)
            if not task.has_dialled:
                late = f"its agent has not reached this machine in {patience_s:g} s"
                raise TransportError(self._why(name) or HostFailure(name, HostFailureKind.NO_ROUTE, late, _FIX_PORT))
        try:
            return StepChannel(self._hub.open(host, command), self)
        except TransportError as error:
            raise TransportError(self.explain(error.failure)) from None

    def is_usable(self, host: str) -> bool:
        """Tell whether a process may be started on a node, or its failure isn't known to anybody yet."""
        with self._changed:
            task = self._tasks[host]
            is_there = self._hub.has(host) if task.has_dialled else self._why(host) is None
            return not task.was_asked or (is_there and not task.was_hung_up)

    def present(self) -> list[str]:
        """Return the nodes that are not to blame if the step has not begun."""
        never_started = self.output.never_started
        return [host for host, task in self._tasks.items() if task.failure is None and host not in never_started]

    def hang_up(self, host: str) -> None:
        """Start no other process on a node, since one hangs there; perhaps its agent does too."""
        with self._changed:
            self._tasks[host].was_hung_up = True

    def is_killed(self, host: str) -> bool:
        """Tell whether the agent of a node was killed with a process that it has started, or a moment later."""
        return self._hub.loses(host)

    def explain(self, failure: HostFailure) -> HostFailure:
        """Return what Slurm says about a connection that has ended, if it does so soon; else `failure`."""
        if failure.kind not in (HostFailureKind.CONNECTION, HostFailureKind.TIMED_OUT):
            return failure
        with self._changed:
            self._changed.wait_for(lambda: self._why(failure.host), _WORD_S)
            self._changed.wait_for(lambda: self._has_ended, _SETTLE_S)
            return self._why(failure.host) or failure

    def await_end(self, timeout_s: float) -> bool:
        """Wait for srun to end; return whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: self._has_ended, timeout_s)

    def signal(self, number: int) -> None:
        """Signal srun, unless it has ended."""
        self._process.send_signal(number)

    def _is_settled(self, host: str) -> bool:
        """Tell whether all tasks have started, or that isn't waited for any more."""
        return not self._missing or self._is_given_up or self._why(host) is not None

    def _why(self, host: str) -> HostFailure | None:
        """Return why a node can't be used, as far as is known."""
        exit_code = self._process.returncode if self._has_ended else None
        return self._tasks[host].failure or self.output.gone(host, exit_code)

    # ---- the threads ----------------------------------------------------------------------------------------------

    def _give_order(self) -> None:
        """Tell the agents what to dial, once srun passes it on."""
        with self._changed:
            self._changed.wait_for(lambda: not self._missing or self._is_given_up or self._has_ended)
            if self._missing or self._is_given_up:
                return
            hosts = sorted(self._tasks, key=lambda host: self._tasks[host].number or 0)
            is_kept = all(task.is_kept for task in self._tasks.values())
        order = messages.encode(messages.PLANT, connect_timeout_s=self._timeout_s, **self._hub.make_order(hosts))
        assert self._process.stdin is not None  # asked for
        with contextlib.suppress(OSError):  # srun is gone, which the reader sees
            self._process.stdin.write(bootstrap.start_code(bootstrap.AGENT, self._archive, is_kept=is_kept) + order)
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None and self._process.stdin is not None  # asked for
        with io.TextIOWrapper(self._process.stdout, "utf-8", "replace") as stdout:
            for line in iter(partial(stdout.readline, _MAX_LINE_BYTES), ""):
                with self._changed:
                    if self._take(line.rstrip("\n")):
                        self._changed.notify_all()
        self._process.wait()
        with contextlib.suppress(OSError):  # what it has not read is lost
            self._process.stdin.close()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _take(self, line: str) -> bool:
        """Take a line of a loader, an agent or srun; return whether somebody may wait for it."""
        if (marker := self._marker.search(line)) is not None:
            task = self._tasks.get(marker[1])
            if task is not None and task.number is None:
                task.number, task.is_kept = int(marker[2]), marker[3] == KEPT
                self._missing -= 1
            return not self._missing
        if not self._take_answer(line):
            self.output.take(line)
        return True

    def _take_answer(self, line: str) -> bool:
        """Take whether an agent has reached this machine; return False if a line says something else."""
        try:
            answer = json.loads(line)
            nonce, host, _ = answer["nonce"].split(" ")
            task = self._tasks[host]
        except (ValueError, TypeError, KeyError, AttributeError):
            return False
        if nonce != self._nonce:
            return False
        task.has_dialled = answer.get("type") == messages.DIALLED
        if not task.has_dialled:
            text = f"it can't connect to this machine at {answer.get('why')}"
            task.failure = HostFailure(host, HostFailureKind.NO_ROUTE, text, _FIX_PORT)
        return True

    def _break(self, error: Exception) -> None:
        """Lose all hosts after a thread has failed: what srun says is no longer heard, or it has no order."""
        with self._changed:
            for host, task in self._tasks.items():
                task.failure = task.failure or failure_of(host, error)
            self._changed.notify_all()
        self._process.terminate()


def _await_end(steps: Sequence[SrunStep], timeout_s: float) -> list[SrunStep]:
    """Wait for all of these steps to end; return those that have not."""
    deadline = time.monotonic() + timeout_s
    return [step for step in steps if not step.await_end(deadline - time.monotonic())]


def _end(steps: Sequence[SrunStep]) -> None:
    """End each srun, and with it every task that is left."""
    for step in steps:
        step.signal(signal.SIGTERM)
    for step in _await_end(steps, _KILL_S):
        step.signal(signal.SIGKILL)


class StepChannel:
    """A process's streams by an agent that srun has started; a Channel of launcher.transports.base."""

    def __init__(self, channel: AgentChannel, step: SrunStep) -> None:
        self._channel = channel
        self._step = step

    def read(self) -> tuple[int, bytes]:
        try:
            stream, data = self._channel.read()
        except TransportError as error:
            raise TransportError(self._step.explain(error.failure)) from None
        code, host = self._channel.exit_code(), self._channel.host
        if not stream and code is not None and code >= KILLED and self._step.is_killed(host):
            lost = HostFailure(host, HostFailureKind.CONNECTION, "the connection to its agent was lost")
            raise TransportError(self._step.explain(lost))
        return stream, data

    def write(self, data: bytes) -> None:
        self._channel.write(data)

    def close(self) -> None:
        if not self._channel.is_over:
            self._step.hang_up(self._channel.host)
        self._channel.close()

    def exit_code(self) -> int | None:
        return self._channel.exit_code()
