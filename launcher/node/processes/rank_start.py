"""The start of an attempt's ranks: by torchrun, by a Python that has imported torch, or as plain commands."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Callable

from launcher.node import messages
from launcher.node.ending import Ending
from launcher.node.facts.responder import Responder
from launcher.node.loop import Loop
from launcher.node.processes import lent_code, numa, stacks, starter, workers
from launcher.node.processes.ranks import Ranks
from launcher.node.processes.run_processes import RunProcesses
from launcher.node.processes.starter import Starter
from launcher.node.programs.entry import STACKS
from launcher.node.send_queue import SendQueue

# What a plan may set after torch was imported: read when a process group is made, by the script, or by nobody else.
# torch/csrc/distributed/c10d: ProcessGroupGloo.cpp and ProcessGroupNCCL.cpp read theirs in their constructors, NCCL in
# ncclInit; the C library reads RES_OPTIONS with the first look-up of a name.
LATE_VARIABLES = frozenset((
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "LAUNCH_ATTEMPT", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
    "RES_OPTIONS", "PYTHONPATH", "TORCHELASTIC_ERROR_FILE",
))  # fmt: skip


class RankStart:
    """Starts the ranks as WARM and START say, in the environment that PREPARE and the setup have made.

    A warm Python begins to import torch before it is known that it can start the ranks. If it can't, a shim does, and
    the launcher is told why. Once the attempt is being stopped, nothing is started any more.
    """

    def __init__(
        self, loop: Loop, send_queue: SendQueue, ranks: Ranks, owned: RunProcesses, responder: Responder,
        ending: Ending, keepers_fd: int,
    ) -> None:  # fmt: skip
        """keepers_fd: closes when guardian and supervisor are gone."""
        self._loop = loop
        self._send_queue = send_queue
        self._ranks = ranks
        self._owned = owned
        self._responder = responder
        self._keepers_fd = keepers_fd
        self._ending = ending
        self.env = dict(os.environ)  # of this node, the setup and --env; of each rank comes more
        self.find_claims: Callable[[], list[int]] = list  # the sockets of the run's claim, for what starts the ranks
        self.cwd = "."  # of the ranks
        self.began_at = time.time()
        self.is_short = False  # the run is a command, at whose end the connection is over
        self.warm: WarmPython | None = None  # if it is to start the ranks
        self._why_cold = "its Python ignores PYTHONPATH"  # if a run that starts warm has none
        self._stacks_folder: str | None = None  # where the ranks' sitecustomize is

    def warm_up(self, header: dict[str, Any], _: bytes) -> None:
        """Import torch in the Python that was found, in the environment of the ranks as far as it is known."""
        search = self._responder.search
        if self._ending.has_begun or search is None or search.warm_folder is None:
            return
        self._enter_code(header)
        argv, env = header["argv"], dict(self.env, **header["env"])
        try:
            self.warm = WarmPython(argv, env, self.cwd, search.output_fds, self._keepers_fd, search.warm_folder)
        except OSError as error:  # such as no more processes
            self._why_cold = str(error)
            return
        self._ranks.set_starter(self.warm.child)

    def start(self, header: dict[str, Any], payload: bytes) -> None:
        """Serve a START; payload: of a file in the run's directory."""
        self.began_at = time.time()
        self._responder.stop_listening()
        if payload:
            with open(os.path.join(self._ending.folder, header["payload_name"]), "wb") as file:
                file.write(payload)
        self._enter_code(header)
        if header.get("with_stacks"):
            self._stacks_folder = lent_code.make_folder(self._ending.folder, STACKS)
            self.env = lent_code.put_first(self._stacks_folder, self.env)
        if any(gpu is not None for gpu in header.get("near_gpus") or ()):
            self._ranks.cpus = numa.choose_cpus(header["near_gpus"], self._responder.gpus)
        if not header.get("processes"):
            self._start_torchrun(header)
            return
        self.is_short = header.get("is_short", False)
        if self.warm is not None:
            self._start_warm(self.warm, header)
        elif self._responder.search is not None and self._responder.search.warm_folder is not None:
            self._start_cold(header, self._why_cold)
        else:
            self._start_processes(header)

    def _enter_code(self, header: dict[str, Any]) -> None:
        """Take the directory of the ranks (and its name, as a shell does), and Python's path for the code of --sync."""
        if header.get("python_path"):
            self.env["PYTHONPATH"] = header["python_path"]  # what is armed puts its own directory before it
        if header["cwd"] is not None:
            self.cwd = self.env["PWD"] = header["cwd"] = os.path.expanduser(header["cwd"])

    def _start_warm(self, python: WarmPython, header: dict[str, Any]) -> None:
        """Let the Python that has imported torch start the ranks; if it can't, say why, and let a shim start them."""
        processes = header["processes"]
        difference = python.find_difference(processes, self.env, self.cwd)
        if difference is not None:
            python.end()
            self._start_cold(header, difference)
            return

        timeout_s = header["import_timeout_s"]

        def give_up() -> None:
            if not self._ending.has_begun:
                text = "the Python that imports torch has not answered for %g s (--rdzv-timeout)" % timeout_s
                self._send_queue.send(messages.FAILED, text=text)

        timer = self._loop.call_later(timeout_s, give_up)

        def start() -> None:
            self._loop.cancel(timer)
            if not self._ending.has_begun:
                self._responder.release_port()
                self._ranks.expect(self._ending.folder, header["local_ranks"])
                python.go(self.find_claims())

        envs = [dict(self.env, **each["env"]) for each in processes]
        order = {
            "ranks": [
                {"rank": each["rank"], "env": python.find_changes(env)} for each, env in zip(processes, envs)
            ],
            "world": {name: envs[0][name] for name in ("GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")},
            "stop_timeout_s": self._ending.stop_timeout_s,
            "first_on_path": [self._stacks_folder] if self._stacks_folder is not None else [],
        }  # fmt: skip

        def start_cold(reason: str) -> None:
            self._loop.cancel(timer)
            self._start_cold(header, reason)

        python.give_order(self._loop, order, start, start_cold)

    def _start_cold(self, header: dict[str, Any], reason: str) -> None:
        if not self._ending.has_begun:
            self._send_queue.send(messages.COLD, reason=reason)
            self._start_processes(header)

    def _start_processes(self, header: dict[str, Any]) -> None:
        self._responder.release_port()
        folder, processes = self._ending.folder, header["processes"]
        self._ranks.expect(folder, [each["rank"] for each in processes])

        def make() -> Starter:
            return Starter(self._owned.marks, folder, self._ending.stop_timeout_s, self._keepers_fd)

        self._ranks.set_starter(starter.start_shim(make, processes, self.env, header["cwd"], self.find_claims()))

    def _start_torchrun(self, header: dict[str, Any]) -> None:
        assert self._responder.search is not None  # the plan names the Python, which waits
        self._ranks.expect(self._ending.folder, header["local_ranks"], self._responder.release_port)
        order = {"argv": header["torchrun_args"], "env": dict(self.env, **header["env"]), "cwd": header["cwd"]}
        self._responder.search.give_order(order, self.find_claims())

    def send_stacks(self, header: dict[str, Any], _: bytes) -> None:
        """Answer a STACKS."""
        if self._ending.has_begun:
            return
        stacks.send_stacks(self._loop, self._send_queue, header["number"], self._owned.ranks, self._stacks_folder)

    def look_for_save(self, header: dict[str, Any], _: bytes) -> None:
        """Answer a LOOK: whether the ranks have saved since they were started."""
        folder = os.path.join(self.cwd, os.path.expanduser(header["folder"]))
        self._responder.look_for_save(folder, self.began_at, header["least_s"])


class WarmPython:
    """A Python that imports torch (launcher.node.programs.warm), and waits for the order to start the ranks."""

    def __init__(
        self, argv: list[str], env: dict[str, str], cwd: str, output_fds: list[int], keepers_fd: int, armed_folder: str
    ) -> None:
        """Start it; raise OSError. armed_folder: with its sitecustomize; output_fds: its stdout and stderr."""
        self._env = env
        self._argv = argv
        self._cwd = cwd
        self.child, self._answer_fd, self.order_fd = lent_code.start_python(
            argv, lent_code.put_first(armed_folder, env), cwd, armed_folder, output_fds, keepers_fd
        )

    def find_difference(self, processes: list[dict[str, Any]], env: dict[str, str], cwd: str | None) -> str | None:
        """Return what of the ranks differs from what this Python was started for, or None."""
        for process in processes:
            if process["argv"] != self._argv or cwd != self._cwd:
                return "the plan has changed since torch was imported"
            after = dict(env, **process["env"])
            names = {name for name in {*after, *self._env} if after.get(name) != self._env.get(name)} - LATE_VARIABLES
            if names:
                return "%s was set after torch was imported" % ", ".join(sorted(names))
        return None

    def find_changes(self, env: dict[str, str]) -> dict[str, str]:
        """Return the variables that this Python wasn't started with, or not with this value."""
        return {name: value for name, value in env.items() if self._env.get(name) != value}

    def give_order(
        self, loop: Loop, order: dict[str, Any], on_ready: Callable[[], object], on_refusal: Callable[[str], object]
    ) -> None:
        """Send the order; once torch is imported call `on_ready`, or `on_refusal` with the reason against it."""

        def take() -> None:
            data = os.read(self._answer_fd, 1 << 16)  # one line, written at once
            loop.forget(self._answer_fd)
            obstacle = json.loads(data.decode())["obstacle"] if data else "the Python that imports torch has ended"
            if obstacle is None:
                on_ready()
            else:
                self.end()
                on_refusal(obstacle)

        loop.watch(self._answer_fd, take)
        loop.write_all(os.dup(self.order_fd), json.dumps(order).encode() + b"\n")

    def go(self, claim_fds: list[int]) -> None:
        """Let it start the ranks, with the sockets of the run's claim."""
        workers.pass_on(self.order_fd, claim_fds)  # if it was killed, its reports end

    def end(self) -> None:
        """Kill it: no rank needs it."""
        workers.kill(self.child)
        os.close(self.order_fd)
        os.close(self._answer_fd)
