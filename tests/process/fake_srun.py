"""A stand-in for srun, with a task for each host of --nodelist on this machine.

What counts is as Slurm does it (step_io.c, slurmstepd/io.c): each task gets all that srun reads, and nothing before all
of them have started; their output is mixed in pieces of whole lines of at most 1,024 bytes; and when srun is killed
nobody tells the tasks, because a daemon stands between, here one process for each task. SIGTERM lets srun kill them.

FAKE_SRUN_FROM is its address. FAKE_SRUN_COPY names a file that gets a copy of its input.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

MESSAGE_BYTES = 1024
HEAD = struct.Struct("!cI")
IN, KILL, OUT, ERR, EXIT = b"i", b"k", b"o", b"e", b"x"
ENDINGS = {-signal.SIGKILL: "Killed", -signal.SIGTERM: "Terminated"}


def main() -> int:
    options = [word for word in sys.argv[1:] if word.startswith("--")]
    command = sys.argv[1 + len(options) :]
    hosts = next(word for word in options if word.startswith("--nodelist=")).partition("=")[2].split(",")
    lock = threading.Lock()
    links, readers = [], []
    for task, host in enumerate(hosts):
        link = start_daemon(task, host, command)
        links.append(link)
        readers.append(threading.Thread(target=take_output, args=(link, f"{host}: task {task}", lock)))
    signal.signal(signal.SIGTERM, lambda *_: kill_tasks(links))
    for reader in readers:
        reader.start()
    threading.Thread(target=give_input, args=(links,), daemon=True).start()
    for reader in readers:
        reader.join()
    return 0


def kill_tasks(links: list[socket.socket]) -> None:
    for link in links:
        with contextlib.suppress(OSError):  # its task has ended
            link.sendall(HEAD.pack(KILL, 0))
    os._exit(1)


def start_daemon(task: int, host: str, command: list[str]) -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
        address = os.environ.get("FAKE_SRUN_FROM", "127.0.0.1")
        cache = f"{os.environ['XDG_CACHE_HOME']}/{host}"
        own = {
            "SLURM_PROCID": str(task), "SLURMD_NODENAME": host, "SLURM_LAUNCH_NODE_IPADDR": address,
            "XDG_CACHE_HOME": cache,
        }  # fmt: skip
        env = {**os.environ, **own}
        argv = [sys.executable, __file__, "daemon", str(theirs.fileno()), *command]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        subprocess.Popen(argv, env=env, pass_fds=[theirs.fileno()], start_new_session=True, **streams)
    return ours


def give_input(links: list[socket.socket]) -> None:
    data = b"-"
    with Path(os.environ.get("FAKE_SRUN_COPY", os.devnull)).open("wb", 0) as copy:
        while data:
            data = os.read(0, MESSAGE_BYTES)
            copy.write(data)
            for link in links:
                with contextlib.suppress(OSError):  # its task has ended
                    link.sendall(HEAD.pack(IN, len(data)) + data)


def take_output(link: socket.socket, name: str, lock: threading.Lock) -> None:
    with link, link.makefile("rb") as stream:
        for kind, data in read_messages(stream):
            with lock:
                if kind == EXIT:
                    code = int(data)
                    ending = ENDINGS.get(code, f"Exited with exit code {code}")
                    os.write(2, f"srun: error: {name}: {ending}\n".encode() if code else b"")
                else:
                    write_all(1 if kind == OUT else 2, data)


def read_messages(stream: IO[bytes]) -> Iterator[tuple[bytes, bytes]]:
    while head := stream.read(HEAD.size):
        kind, size = HEAD.unpack(head)
        yield kind, stream.read(size)


def write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def serve(link: socket.socket, command: list[str]) -> None:
    """Be the daemon of a task."""
    pipe = subprocess.PIPE
    task = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
    assert task.stdin and task.stdout and task.stderr  # asked for
    lock = threading.Lock()

    def send(kind: bytes, data: bytes) -> None:
        with lock, contextlib.suppress(OSError):  # srun is gone, and the task goes on
            link.sendall(HEAD.pack(kind, len(data)) + data)

    def pass_on(kind: bytes, stream: IO[bytes]) -> None:
        with io.BufferedReader(stream) as lines:
            while line := lines.readline(MESSAGE_BYTES):
                send(kind, line)

    def feed() -> None:
        with link.makefile("rb") as stream:
            for kind, data in read_messages(stream):
                if kind == KILL:
                    task.kill()
                    continue
                with contextlib.suppress(OSError):  # it reads no more
                    write_all(task.stdin.fileno(), data)
                if not data:
                    task.stdin.close()

    feeder = threading.Thread(target=feed)
    feeder.start()
    readers = [threading.Thread(target=pass_on, args=pair) for pair in ((OUT, task.stdout), (ERR, task.stderr))]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    send(EXIT, str(task.wait()).encode())
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_WR)
    feeder.join()  # what is still on its way must be read, or srun would get no more than an error


if __name__ == "__main__":
    if sys.argv[1] == "daemon":
        serve(socket.socket(fileno=int(sys.argv[2])), sys.argv[3:])
    else:
        sys.exit(main())
