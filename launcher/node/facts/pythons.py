"""The search for a Python that has torch; the one that is found imports torchrun at once.

The import takes a second, which passes while the launcher still compares the nodes. Then torchrun waits for its
arguments, which come over a pipe. If the ranks are started without torchrun, the Python exits instead.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import Any, Callable

from launcher.node import messages
from launcher.node.loop import Loop
from launcher.node.processes import lent_code, proc, workers
from launcher.node.programs import entry
from launcher.node.send_queue import SendQueue

LOGIN_SHELL_TIMEOUT_S = 10


class Search:
    """Tries one candidate after the other, without blocking: the supervisor's loop reads their answers.

    `on_found` is called once, with the answer of the first Python that has torch, or with None. By then `child` is the
    process that imports torchrun, and `tried` says why each candidate before it was not taken.
    """

    def __init__(
        self, loop: Loop, send_queue: SendQueue, wanted: dict[str, Any], env: dict[str, str], folder: str,
        keepers_fd: int, on_found: Callable[[dict[str, Any] | None], None],
    ) -> None:  # fmt: skip
        """wanted: the launcher's PREPARE; keepers_fd: closes when guardian and supervisor are gone."""
        self._loop = loop
        self._candidates = list(wanted["pythons"])
        self._folder = folder
        self._keepers_fd = keepers_fd
        self._stop_timeout_s = wanted["stop_timeout_s"]
        self._on_found = on_found
        self.output_fds = []  # where stdout and stderr of torchrun, or of a warm Python, go
        for stream in (workers.STDOUT, workers.STDERR):
            read_end, write_end = os.pipe()
            send_queue.watch(read_end, None, stream)
            self.output_fds.append(write_end)
        # With the sitecustomize of a warm Python, if the run wants one.
        self.warm_folder = lent_code.make_folder(folder, entry.WARM) if wanted.get("warm") else None
        self._env = lent_code.put_first(self.warm_folder, env) if self.warm_folder is not None else env
        self.for_torchrun = not wanted.get("plain", False) and self.warm_folder is None
        self.tried: list[list[str]] = []
        self.child: workers.Child | None = None  # the candidate that is tried, then the one that waits for its order
        self.order_fd: int | None = None  # where that order must be written

    def try_next(self) -> None:
        """Start the next candidate, or call `on_found` with None if none is left."""
        if not self._candidates:
            self._on_found(None)
            return
        candidate = self._candidates.pop(0)
        if candidate == messages.LOGIN_SHELL:
            self._ask_login_shell()
        elif shutil.which(candidate, path=self._env.get("PATH", os.defpath)) is None:
            self.tried.append([candidate, messages.NO_PROGRAM])
            self.try_next()
        else:
            self._start_search(candidate)

    def give_order(self, order: dict[str, Any], claim_fds: list[int]) -> None:
        """Send the waiting torchrun its order, so that secrets in its environment never reach a disk.

        claim_fds: the sockets of the run's claim, which lasts as long as torchrun.
        """
        assert self.order_fd is not None  # opened with its process
        # If its import failed, nobody reads this; its exit is reported as torchrun's.
        workers.pass_on(self.order_fd, claim_fds)
        self._loop.write_all(self.order_fd, json.dumps(order).encode() + b"\n")
        self.order_fd = None

    def _start_search(self, python: str) -> None:
        words = ["torchrun", str(self._stop_timeout_s)] if self.for_torchrun else []
        argv = [python, "-c", lent_code.read_entry().decode(), *words]
        self.child, status_fd, self.order_fd = lent_code.start_python(
            argv, self._env, None, self._folder, self.output_fds, self._keepers_fd
        )
        self._loop.read_all(status_fd, lambda data: self._judge(python, data))

    def _judge(self, python: str, data: bytes) -> None:
        status = _parse(data)
        if status and status["torch"]:
            status["candidate"] = python
            self._on_found(status)
            return
        self.tried.append([python, messages.NO_TORCH if status else "it did not start"])
        assert self.order_fd is not None  # opened with its process
        os.close(self.order_fd)
        self.order_fd = self.child = None
        self.try_next()

    def _ask_login_shell(self) -> None:
        command = [os.environ.get("SHELL") or "/bin/sh", "-lc", "command -v python3 || command -v python"]
        # Use this login's own environment: variables that the user passed (ZDOTDIR, BASH_ENV) may name code to execute.
        env = dict(os.environ)
        proc.mark_environment(env, self._env.get(proc.MARK, ""))
        child, output_fd = workers.spawn_piped(command, env)
        self._loop.read_all(output_fd, self._judge_login_shell, LOGIN_SHELL_TIMEOUT_S, lambda: workers.kill(child))

    def _judge_login_shell(self, data: bytes) -> None:
        lines = data.decode("utf-8", "replace").split()
        path = lines[-1] if lines and lines[-1].startswith("/") else None
        if path and path not in [tried for tried, _ in self.tried]:
            self._candidates.insert(0, path)
        self.try_next()


def _parse(data: bytes) -> dict[str, Any] | None:
    try:
        status: dict[str, Any] = json.loads(data.decode())
        return status
    except ValueError:
        return None
