"""The environment of a run on this node: that of a login, as changed by --setup, --conda and --venv.

Each step runs in a bash of its own, and passes its whole environment to the next; the supervisor's loop keeps running
meanwhile.
"""

from __future__ import annotations

import os
from typing import Any, Callable

from launcher.node.facts import gathering
from launcher.node.loop import Loop, Timer
from launcher.node.processes import lent_code, proc, workers
from launcher.node.processes.ranks import Ranks

TAIL_BYTES = 4096  # of what a step prints: enough for its last lines
TAIL_LINES = 5
_DRAIN_PIECES = 64  # a limit, since a process that the step left behind may print without end

# bash reads the command from a pipe, since it may hold a secret, which must be in no argv and on no disk. `eval` copes
# with any end of it (a comment, an open quote, a here-document), and is on the first line so that bash's line numbers
# are the user's. With `eval ... || exit`, a `set -e` in the command would have no effect.
# The environment goes to a file without a name, apart from what the step and what it leaves behind print.
_DRIVER = """\
_launch_env=$1; cd -- "$2" 2>/dev/null; set --; eval "$(</dev/fd/3)" 3<&-
_launch_code=$?
[ "$_launch_code" = 0 ] || exit "$_launch_code"
exec /usr/bin/env -0 >|"$_launch_env"
"""
_COMMAND_FD = 3
# Variables whose value a shell executes, or reads commands from (bash(1), zshall(1)). The setup sees the node's own
# values: `--env-file` is parsed, never executed. ENV is not among them: only interactive shells read it.
_CODE_OF_SHELLS = ("BASH_ENV", "PS4", "PROMPT_COMMAND", "ZDOTDIR")
_BASH_S_OWN = ("_", "SHLVL", "PWD", "OLDPWD")
_OURS = (proc.MARK, "SPT_NOENV", proc.FILES)
_CONDA = "LAUNCH_CONDA"  # in which the launcher's lines for --conda report what they found


class Setup:
    """Runs the steps of a PREPARE one after the other, and changes `env` in place.

    `on_done` is called once, after the last step or the first that fails; after `cancel` it is not called at all. Do
    not use `env` before that: between steps it is the environment of the last step that succeeded.
    """

    def __init__(
        self, loop: Loop, ranks: Ranks, folder: str, env: dict[str, str], wanted: dict[str, Any],
        on_done: Callable[[dict[str, Any]], object],
    ) -> None:  # fmt: skip
        """Take the launcher's PREPARE as `wanted`; `on_done` gets failure, names, python and conda."""
        self._loop = loop
        self._ranks = ranks
        self._folder = folder
        self._env = env
        self._before = dict(env)
        self._workdir = os.path.abspath(os.path.expanduser(wanted.get("workdir") or "~"))
        self._steps = list(wanted["setup"]["steps"])
        self._named = [*wanted["setup"]["named"], *_OURS]
        self._venv = gathering.find_venv(wanted)
        self._timeout_s = wanted["setup"]["timeout_s"]
        self._on_done = on_done
        self._timer: Timer | None = None
        self._printed = b""  # the end of the step's output
        self._output_fd: int | None = None  # until all that has it open have ended
        self._is_over = False
        # A login with a terminal has read /etc/profile.d, which defines `module` and completes PATH; a command over SSH
        # has not. Reading it takes 70 to 130 ms.
        is_login = "SSH_CONNECTION" in env and "SSH_TTY" not in env
        self._flags = "-lc" if is_login else "-c"

    def run_next(self) -> None:
        """Start the next step, or call `on_done` if none is left."""
        if not self._steps:
            self._finish()
            return
        step = self._steps.pop(0)
        self._printed = b""
        try:
            child, output_fd, env_fd = self._start(step["command"])
        except OSError as error:  # the disk is full, or no more processes; uncaught, it would end the supervisor
            self._fail(step["name"], "it can't be started (%s)" % error.strerror)
            return
        # Don't block: a process that the step left in the background may keep it open.
        os.set_blocking(output_fd, False)
        self._output_fd = output_fd
        self._loop.watch(output_fd, lambda: self._read(output_fd))
        self._ranks.await_exit(child, lambda status: self._judge(step["name"], env_fd, status))
        self._timer = self._loop.call_later(self._timeout_s, lambda: self._give_up(step["name"], child))

    def _start(self, command: str) -> tuple[workers.Child, int, int]:
        """Start bash; return it, and the descriptors of its output and of its environment at the end."""
        env_fd = lent_code.open_unnamed(self._folder)
        command_read, command_write = os.pipe()
        argv = ["bash", self._flags, _DRIVER, "bash", "/proc/%d/fd/%d" % (os.getpid(), env_fd), self._workdir]
        self._flags = "-c"  # later steps inherit the environment of the login
        try:
            child, output_fd = workers.spawn_piped(argv, self._env_of_bash(), {_COMMAND_FD: command_read})
        except OSError:
            os.close(env_fd)
            os.close(command_write)
            raise
        finally:
            os.close(command_read)
        self._loop.write_all(command_write, command.encode("utf-8", "surrogateescape"))
        return child, output_fd, env_fd

    def _env_of_bash(self) -> dict[str, str]:
        """Return the environment for bash; variables that a shell executes are the node's own, never the user's."""
        env = dict(self._env)
        for name in set(_CODE_OF_SHELLS).intersection(self._named):
            env.pop(name, None)
            if name in os.environ:
                env[name] = os.environ[name]
        return env

    def cancel(self) -> None:
        """Start no further step and do not call `on_done`: the run is being stopped."""
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
            self._output_fd = None
        self._printed = (self._printed + data)[-TAIL_BYTES:]
        return len(data)

    def _judge(self, name: str, env_fd: int, status: int) -> None:
        with open(env_fd, "rb") as file:
            found = file.read()
        if self._is_over:
            return
        self._loop.cancel(self._timer)
        for _ in range(_DRAIN_PIECES):
            if self._output_fd is None or not self._read(self._output_fd):
                break
        end = workers.describe_status(status)
        if end["signal"] is not None:
            self._fail(name, "killed by signal %d" % end["signal"])
        elif end["code"]:
            self._fail(name, "exit code %d" % end["code"])
        elif not found:
            self._fail(name, "it exited before its environment could be read; remove exit and exec from it")
        else:
            self._adopt(found)
            for line in self._last_lines():
                workers.complain("%s: %s" % (name, line))
            self.run_next()

    def _give_up(self, name: str, child: workers.Child) -> None:
        workers.kill(child)  # what it started is stopped with the run, which can't begin
        self._fail(name, "it did not finish in %g s" % self._timeout_s)

    def _last_lines(self) -> list[str]:
        lines = [line.rstrip() for line in self._printed.decode("utf-8", "replace").splitlines()]
        return [line for line in lines if line][-TAIL_LINES:]

    def _adopt(self, data: bytes) -> None:
        """Adopt the environment that `env -0` has written, except for the variables of bash, launch and --env."""
        entries = (os.fsdecode(entry).partition("=") for entry in data.split(b"\0") if entry)
        found = {name: value for name, _, value in entries if name not in _BASH_S_OWN}
        kept = [*self._named, *_BASH_S_OWN]
        found.update((name, self._before[name]) for name in kept if name in self._before)
        proc.mark_environment(found, found[proc.MARK])  # a step may have changed Slurm's variables
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
            env.pop("PYTHONHOME", None)  # as the venv's activate script does
        python = "%s/bin/python" % prefix if prefix else None
        has_venv = self._venv is not None and os.access("%s/bin/python" % self._venv, os.X_OK)
        self._on_done({"failure": None, "names": names, "python": python, "conda": conda, "has_venv": has_venv})
