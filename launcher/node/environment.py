"""The environment of a run on this node: what --setup, --conda and --venv make of the one that a login has.

Each step runs in a bash of its own and hands its whole environment to the next; the supervisor's loop waits for none.
"""

from __future__ import annotations

import os

from launcher.node import facts, processes, workers
from launcher.node.pythons import find_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from launcher.node.loop import Loop, Timer

    AwaitExit = Callable[[workers.Child, Callable[[int], object]], object]

TAIL_BYTES = 4096  # of what a step prints: enough for its last lines
TAIL_LINES = 5
_DRAIN_PIECES = 64  # a process that it left may print without end

# The command is read from a file and stands in no argv. `eval` can take what it may end with (a comment, an open quote,
# a here-document), and stands on the first line, so that bash counts the user's lines. With `eval ... || exit` his own
# `set -e` would not count.
# The environment goes to a file, of which neither what it prints nor a process that it leaves behind knows anything.
_DRIVER = """\
_launch_folder=$1; cd -- "$2" 2>/dev/null; set --; eval "$(<"$_launch_folder/setup")"
_launch_code=$?
[ "$_launch_code" = 0 ] || exit "$_launch_code"
exec /usr/bin/env -0 >|"$_launch_folder/setup.env"
"""
_BASH_S_OWN = ("_", "SHLVL", "PWD", "OLDPWD")
_OURS = (processes.MARK, "SPT_NOENV", "LAUNCH_FILES")
_CONDA = "LAUNCH_CONDA"  # in which the launcher's lines for --conda say what they have found


class Setup:
    """Runs the steps of one order one after the other, and changes `env` in place."""

    def __init__(
        self, loop: Loop, await_exit: AwaitExit, folder: str, env: dict[str, str], wanted: dict[str, Any],
        on_done: Callable[[dict[str, Any]], object],
    ) -> None:  # fmt: skip
        """Take the launcher's PREPARE as `wanted`; `on_done` gets failure, names, python and conda."""
        self._loop = loop
        self._await_exit = await_exit
        self._folder = folder
        self._env = env
        self._before = dict(env)
        self._workdir = os.path.abspath(os.path.expanduser(wanted.get("workdir") or "~"))
        self._steps = list(wanted["setup"]["steps"])
        self._named = [*wanted["setup"]["named"], *_OURS]
        self._venv = facts.find_venv(wanted)
        self._timeout_s = wanted["setup"]["timeout_s"]
        self._on_done = on_done
        self._timer: Timer | None = None
        self._printed = b""  # its end
        self._is_over = False
        # With a terminal somebody has logged in, and all below him has that environment; a command over SSH has not
        # seen /etc/profile.d, where `module` is made and PATH is completed. Reading that costs 70 to 130 ms.
        is_login = "SSH_CONNECTION" in env and "SSH_TTY" not in env
        self._flags = "-lc" if is_login else "-c"

    def run_next(self) -> None:
        """Start the next step, or tell that all is done."""
        if not self._steps:
            self._finish()
            return
        step = self._steps.pop(0)
        if find_program("bash", self._env) is None:
            self._fail(step["name"], "there is no bash")
            return
        self._printed = b""
        try:
            child, noise_read = self._start(step["command"])
        except OSError as error:  # the disk is full, or no process is left: in a callback it would end the supervisor
            self._fail(step["name"], "it can't be started (%s)" % error.strerror)
            return
        os.set_blocking(noise_read, False)
        # Read to its end, which a process that the step has left in the background may delay: it shall not hang.
        self._loop.watch(noise_read, lambda: self._read(noise_read))
        self._await_exit(child, lambda status: self._judge(step["name"], noise_read, status))
        self._timer = self._loop.call_later(self._timeout_s, lambda: self._give_up(step["name"], child))

    def _start(self, command: str) -> tuple[workers.Child, int]:
        for name, content in (("setup", command.encode("utf-8", "surrogateescape")), ("setup.env", b"")):
            with open(os.path.join(self._folder, name), "wb") as file:
                file.write(content)
        argv = ["bash", self._flags, _DRIVER, "bash", self._folder, self._workdir]
        self._flags = "-c"  # the environment of a login is there now
        return workers.spawn_piped(argv, self._env)

    def cancel(self) -> None:
        """Start nothing more, and tell nothing: the run is being ended."""
        self._is_over = True
        self._loop.cancel(self._timer)

    def _read(self, fd: int) -> int:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return 0
        if not data:
            self._loop.forget(fd)
            os.close(fd)
        self._printed = (self._printed + data)[-TAIL_BYTES:]
        return len(data)

    def _judge(self, name: str, noise: int, status: int) -> None:
        if self._is_over:
            return
        self._loop.cancel(self._timer)
        for _ in range(_DRAIN_PIECES):
            if not self._loop.is_watching(noise) or not self._read(noise):
                break
        end = workers.describe_status(status)
        if end["signal"] is not None:
            self._fail(name, "killed by signal %d" % end["signal"])
        elif end["code"]:
            self._fail(name, "exit code %d" % end["code"])
        else:
            self._take_environment(name)

    def _take_environment(self, name: str) -> None:
        try:
            with open(os.path.join(self._folder, "setup.env"), "rb") as file:
                found = file.read()
            os.unlink(file.name)
        except OSError as error:  # removed, by the step itself or by who tidies /tmp
            self._fail(name, "its environment can't be read (%s)" % error.strerror)
            return
        if not found:
            self._fail(name, "it ended before its environment could be read: an exit or exec in it?")
            return
        self._adopt(found)
        for line in self._last_lines():
            workers.complain("%s: %s" % (name, line))
        self.run_next()

    def _give_up(self, name: str, child: workers.Child) -> None:
        workers.kill(child)  # what it started is ended with the run, which can't begin
        self._fail(name, "it did not end in %g s" % self._timeout_s)

    def _last_lines(self) -> list[str]:
        lines = [line.rstrip() for line in self._printed.decode("utf-8", "replace").splitlines()]
        return [line for line in lines if line][-TAIL_LINES:]

    def _adopt(self, data: bytes) -> None:
        """Take the environment that `env -0` has written, but for what is bash's and what is ours."""
        entries = (os.fsdecode(entry).partition("=") for entry in data.split(b"\0") if entry)
        found = {name: value for name, _, value in entries if name not in _BASH_S_OWN}
        kept = [*self._named, *_BASH_S_OWN]
        found.update((name, self._before[name]) for name in kept if name in self._before)
        self._env.clear()
        self._env.update(found)

    def _fail(self, name: str, reason: str) -> None:
        self._is_over = True
        failure = {"step": name, "reason": reason, "lines": self._last_lines()}
        self._on_done({"failure": failure})

    def _finish(self) -> None:
        env = self._env
        conda = env.pop(_CONDA, None)
        names = [name for name, value in env.items() if self._before.get(name) != value]
        prefix = env.get("CONDA_PREFIX") if conda else None
        if self._venv is not None:
            prefix = env["VIRTUAL_ENV"] = self._venv
            env["PATH"] = "%s/bin:%s" % (prefix, env.get("PATH", os.defpath))
            env.pop("PYTHONHOME", None)  # as its own activate script does
        python = "%s/bin/python" % prefix if prefix else None
        self._on_done({"failure": None, "names": names, "python": python, "conda": conda})
