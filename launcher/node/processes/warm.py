"""The Python that imports torch before the ranks start (launcher.node.programs.warm), as the supervisor sees it."""

from __future__ import annotations

import json
import os
from typing import Any, Callable

from launcher.node.loop import Loop
from launcher.node.processes import lent_code, proc, workers
from launcher.node.processes.starter import KEEPERS_FD
from launcher.node.programs import entry
from launcher.node.programs.warm import ANSWER_FD, ORDER_FD

# What a plan may set after torch was imported: read when a process group is made, by the script, or by nobody else.
# torch/csrc/distributed/c10d: ProcessGroupGloo.cpp and ProcessGroupNCCL.cpp read theirs in their constructors, NCCL in
# ncclInit; the C library reads RES_OPTIONS with the first look-up of a name.
LATE_VARIABLES = frozenset((
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "LAUNCH_ATTEMPT", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
    "RES_OPTIONS", "PYTHONPATH", "TORCHELASTIC_ERROR_FILE",
))  # fmt: skip


class WarmPython:
    """A Python that imports torch, and waits for the order to start the ranks."""

    def __init__(
        self, argv: list[str], env: dict[str, str], cwd: str, output_fds: list[int], keepers_fd: int, armed_folder: str
    ) -> None:
        """Start it; raise OSError. armed_folder: with its sitecustomize; output_fds: its stdout and stderr."""
        code = lent_code.open_code(armed_folder)
        self._answer_fd, answer_write = os.pipe()
        order_read, self.order_fd = workers.make_channel()
        null = os.open(os.devnull, os.O_RDONLY)
        self._env = env
        self._argv = argv
        self._cwd = cwd
        fds = {0: null, 1: output_fds[0], 2: output_fds[1], ANSWER_FD: answer_write, ORDER_FD: order_read}
        fds.update({KEEPERS_FD: keepers_fd, entry.CODE_FD: code})
        try:
            self.child = workers.spawn(argv, lent_code.put_first(armed_folder, env), cwd, fds, proc.HOLD)
        finally:
            for fd in (null, answer_write, order_read, code):
                os.close(fd)

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
