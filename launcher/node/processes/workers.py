"""How processes are started on this node, and how their output, exit status and files are read.

Each rank writes to two named pipes in the run's directory, which its starter opens for it. So its output arrives
unchanged, per rank and stream, and doesn't pass through torchrun, whose `--tee` rewrites carriage returns and mixes
ranks.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
from contextlib import suppress
from typing import Any, Sequence, Set

from launcher.node import messages, system
from launcher.node.processes import proc

STDOUT, STDERR = 1, 2
STREAMS = {STDOUT: "out", STDERR: "err"}  # with the beginnings of their pipes' names
FILES = "files"  # below the run's directory: what ranks leave here is sent to the launcher
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_PR_SET_PDEATHSIG = 1
_EXEC_FAILED = 127
_FIRST_LINE_BYTES = 258  # of which the kernel reads no more: execve(2)
CAUGHT = (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)  # by the supervisor
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, *proc.NOTICES, proc.HOLD)  # by Python, supervisor or shim

private_fds: Set[int] = set()  # descriptors that no fork of this process has, unless it is meant to


class Child:
    """A child of this process, which it has started and will reap."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.process = proc.read_process(pid)


def fork(death_signal: int = signal.SIGKILL, kept: Sequence[int] = ()) -> int:
    """Fork, and return as os.fork does; when this process dies, the kernel sends the child `death_signal` (0: none).

    kept: of `private_fds`, what the child keeps. A signal that this process catches ends the child, however early it
    comes, and never wakes this process's loop.
    """
    parent = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, CAUGHT)
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for number in CAUGHT:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, CAUGHT)
    if pid == 0:
        for fd in private_fds.difference(kept):
            os.close(fd)
        private_fds.intersection_update(kept)
    if pid == 0 and death_signal:
        die_with(parent, death_signal)
    return pid


def watch_signals() -> int:
    """Return a descriptor from which the numbers of signals can be read that have a handler and have come."""
    reader, writer = os.pipe()
    for fd in (reader, writer):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def make_channel() -> tuple[int, int]:
    """Return where a child reads, and where this process writes: as a pipe, but descriptors can be passed on there."""
    reader, writer = socket.socketpair()
    return reader.detach(), writer.detach()


def pass_on(fd: int, fds: Sequence[int]) -> None:
    """Give the process at the other end of a socket these descriptors, with one byte, if it lives."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("%di" % len(fds), *fds))] if fds else []
    with suppress(BrokenPipeError), socket.socket(fileno=os.dup(fd)) as sock:
        sock.sendmsg([b"\n"], rights)


def take_passed(fd: int) -> list[int] | None:
    """Wait for the descriptors that are passed on to this end of a socket, and return them; None: nobody will."""
    with socket.socket(fileno=os.dup(fd)) as sock:
        go, passed, _, _ = sock.recvmsg(1, socket.CMSG_SPACE(1 << 10), socket.MSG_CMSG_CLOEXEC)
    return [fd for _, _, data in passed for (fd,) in struct.iter_unpack("i", data)] if go else None


def spawn(
    argv: list[str],
    env: dict[str, str],
    cwd: str | None,
    fds: dict[int, int],
    death_signal: int = signal.SIGKILL,
) -> Child:
    """Start `argv` in a session of its own; `fds` maps the child's descriptors to this process's.

    When this process dies, the kernel sends the child `death_signal`. If the program can't be started, the child prints
    that to its stderr and exits with 127, as in a shell.
    """
    pid = fork(death_signal)
    if pid:
        return Child(pid)
    subject = argv[0] if argv else "nothing"
    try:
        os.setsid()
        # Two passes, because a target number may be a descriptor that is in use.
        kept = {target: _move_up(source, max(fds) + 1) for target, source in fds.items()}
        for target, fd in kept.items():
            os.dup2(fd, target)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_DFL)
        if cwd is not None:
            _enter(cwd)
        _execute(argv, env)
    except OSError as error:
        complain("launch: can't start %s: %s" % (subject, error.strerror))
    except (ValueError, IndexError) as error:  # a NUL byte, or no argv at all
        complain("launch: can't start %s: %s" % (subject, error))
    finally:
        os._exit(_EXEC_FAILED)


def _execute(argv: list[str], env: dict[str, str]) -> None:
    try:
        os.execvpe(argv[0], argv, env)
    except FileNotFoundError as error:  # so the kernel says it, too, if it doesn't find the script's interpreter
        line = system.read_text(argv[0], _FIRST_LINE_BYTES).split("\n")[0]
        if line.startswith("#!"):
            raise OSError(error.errno, "no interpreter %s" % ascii(line[2:].strip(" "))) from None
        raise


def spawn_piped(argv: list[str], env: dict[str, str], fds: dict[int, int] | None = None) -> tuple[Child, int]:
    """Start `argv`; return the child, and the descriptor from which to read its output; raise OSError.

    fds: more descriptors of the child, mapped to this process's.
    """
    read_end, write_end = os.pipe()
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            return spawn(argv, env, None, {0: null, 1: write_end, 2: write_end, **(fds or {})}), read_end
        finally:
            os.close(null)
    except OSError:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        raise OSError(error.errno, "the directory %s: %s" % (folder, error.strerror)) from None


def _move_up(fd: int, least: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)


def die_with(parent: int, number: int) -> None:
    """Let this fork get a signal when its parent dies; without prctl, the guardian and the mark remain."""
    if proc.call_c("prctl", _PR_SET_PDEATHSIG, number, 0, 0, 0) and os.getppid() != parent:
        os._exit(_EXEC_FAILED)


def kill(child: Child) -> None:
    """Kill a child if it still exists; the processes that it started stay alive."""
    if child.process is not None:
        proc.send_signal(child.process, signal.SIGKILL)


def make_pipe(folder: str, name: str, flags: int) -> int:
    """Make a named pipe in the run's directory, and return its reading end.

    It holds 1 MiB, so that large output comes in few large pieces.
    """
    path = os.path.join(folder, name)
    os.mkfifo(path, 0o600)
    fd = os.open(path, flags | os.O_NONBLOCK)
    with suppress(OSError):  # the user's pipe quota is used up; the default of 64 KiB works
        fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_BYTES)
    return fd


def describe_status(status: int) -> dict[str, Any]:
    """Return a wait(2) status as the fields of a message."""
    if os.WIFSIGNALED(status):
        return {"code": None, "signal": os.WTERMSIG(status)}
    return {"code": os.WEXITSTATUS(status), "signal": None}


def complain(text: str) -> None:
    """Write a line to stderr, which the launcher keeps; it is lost if nobody reads that."""
    with suppress(OSError):
        os.write(STDERR, (text + "\n").encode("utf-8", "replace"))


def silence(*fds: int) -> None:
    """Let standard streams lead nowhere, and nothing else get their numbers."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in fds:
        os.dup2(null, fd)
    os.close(null)


def drop_descriptors(*kept: int) -> None:
    """Close all descriptors of this fork but these: the connection to the launcher must be able to end without it."""
    silence(*range(3))
    for fd in set(map(int, os.listdir("/proc/self/fd"))).difference(range(3), kept):
        with suppress(OSError):  # that of the directory itself
            os.close(fd)


def read_files(folder: str) -> tuple[list[tuple[str, bytes]], list[tuple[str, str]]]:
    """Return name and content of the files in `folder`, smallest first, and which are left out, with the reason."""
    try:
        names = os.listdir(folder)
        files = [name for name in names if os.path.isfile(os.path.join(folder, name))]
        sizes = sorted((os.path.getsize(os.path.join(folder, name)), name) for name in files)
    except OSError as error:
        return [], [(folder, str(error.strerror))]
    found: list[tuple[str, bytes]] = []
    left_out = [
        (name, "a directory" if os.path.isdir(os.path.join(folder, name)) else "no file")
        for name in set(names).difference(files)
    ]
    room = messages.MAX_FILES_BYTES
    for size, name in sizes:
        if not (name.isprintable() and messages.is_file_name(name)):
            left_out.append((name, "unusable name"))
        elif size > room:
            left_out.append((name, "%d MiB, over %d in all" % (size >> 20, messages.MAX_FILES_BYTES >> 20)))
        elif len(found) == messages.MAX_FILES:
            left_out.append((name, "over %d files" % messages.MAX_FILES))
        else:
            try:
                with open(os.path.join(folder, name), "rb") as file:
                    found.append((name, file.read(size)))
                room -= size
            except OSError as error:
                left_out.append((name, str(error.strerror)))
    return found, sorted(left_out)


def remove_folder(path: str) -> str | None:
    """Remove the run's directory with its content; return why something is left, or None.

    Nothing is removed if a rank has mounted something there, which may be the user's home. This takes one descriptor,
    which may be all that is left, and shutil.rmtree several.
    """
    mount = system.find_mount(path)
    if mount is not None:
        complain("can't remove %s: %s is mounted" % (path, mount))
        return "%s is mounted" % mount
    reason = None
    for parent, folders, files in os.walk(path, topdown=False):
        for name in files + folders:
            full = os.path.join(parent, name)
            try:
                (os.rmdir if name in folders and not os.path.islink(full) else os.unlink)(full)
            except OSError as error:
                reason = reason or "%s: %s" % (os.path.relpath(full, path), error.strerror)
                complain("can't remove %s: %s" % (full, error.strerror))
    try:
        os.rmdir(path)
    except OSError as error:
        return reason or error.strerror
    return None
