"""One node's side as real processes: started by a shell as a transport does it, and talked to over pipes."""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from machines import processes
from machines.patience import DEADLINE_S, NEVER_S
from machines.processes import is_alive, send_signal

from launcher.hosts.host import Host
from launcher.job.job import Job, Program, ProgramKind
from launcher.job.plan import build_plan, start_fields
from launcher.node import archive, kept_archives, messages
from launcher.session.allowed_messages import read_message
from launcher.session.node_state import read_facts, read_route
from launcher.transports import bootstrap
from launcher.transports.archives import PackedCode, pack_node

STOP_TIMEOUT_S = 0.2
POLL_S = 0.01
STDOUT, STDERR = 1, 2
STAND_IN = Path(__file__).with_name("stand_in")

Message = dict[str, Any]

# Shell scripts of ranks that tell their process id and obey SIGTERM, or ignore it.
WAITS = "echo ready pids $$; exec sleep 300"
IGNORES = "trap '' TERM; echo ready pids $$; while :; do sleep 300; done"

# Python: children in sessions of their own, one without environment, and a daemon that ignores SIGTERM.
FORKS = """
    import os, subprocess, time
    sleep = ["sleep", "300"]
    child = subprocess.Popen(sleep, start_new_session=True)
    bare = subprocess.Popen(sleep, start_new_session=True, env={})
    script = "trap '' TERM; setsid sleep 300 >/dev/null 2>&1 & echo $!"
    daemon = subprocess.run(["sh", "-c", script], env={"PATH": os.defpath}, stdout=subprocess.PIPE, check=True)
    print("ready pids", os.getpid(), child.pid, bare.pid, int(daemon.stdout), flush=True)
    time.sleep(300)
"""

# Python: at SIGTERM it begins to save, which succeeds if its child (a data-loader worker) lives until the test says go.
SAVES = """
    import os, signal, sys, time
    from pathlib import Path
    place = sys.argv[1] + "/"
    worker = os.fork()
    if worker == 0:
        time.sleep(300)
    def save(*_):
        Path(place + "saving").touch()
        while not os.path.exists(place + "go"):
            time.sleep(0.01)
        os._exit(0 if os.waitpid(worker, os.WNOHANG) == (0, 0) else 5)
    signal.signal(signal.SIGTERM, save)
    print("ready pids", os.getpid(), worker, flush=True)
    while True:
        time.sleep(300)
"""


def shell(script: str, *args: str) -> list[str]:
    return ["/bin/sh", "-c", script, "sh", *args]


def python(code: str, *args: str) -> list[str]:
    return [sys.executable, "-ISc", textwrap.dedent(code), *args]


_sharing = threading.Lock()


@functools.cache
def code_cache(pack: Callable[[], PackedCode] = pack_node) -> Path:
    """Return a cache directory that holds launch's code: to compile it takes longer than most starts."""
    folder = Path(tempfile.mkdtemp(prefix="tests-code-"))
    atexit.register(shutil.rmtree, folder)
    code, own = folder / "launch" / "code", pack()
    code.mkdir(parents=True, mode=0o700)
    kept_archives.keep(str(code), own.name, archive.Archive(own.content, {}))
    return folder


def share_code(cache: Path) -> None:
    """Make a cache directory with launch's code, unless it is there; threads may call this at once."""
    with _sharing:
        if not cache.exists():
            shutil.copytree(code_cache(), cache)


class Node:
    """Guardian, supervisor and all below them; a message or a process that does not come in time fails the test."""

    def __init__(
        self, folder: Path, *, python: str = sys.executable, rc_file: str = "",
        typed: bytes = b"", env: Mapping[str, str] | None = None, mark: str | None = None,
    ) -> None:  # fmt: skip
        """Start the loader behind `rc_file`; `typed`: sent before the marker."""
        self.tmpdir, self.home = folder / "tmp", folder / "home"
        for path in (folder, self.tmpdir, self.home):
            path.mkdir()
        self.mark = mark or f"test.{secrets.token_hex(4)}"
        self.nonce = secrets.token_hex(8)
        self.messages: list[Message] = []  # all that came; output without its bytes
        self.output: dict[tuple[int | None, int], bytearray] = defaultdict(bytearray)  # by local rank and stream
        self.noise = b""
        self.supervisor = 0  # process id
        self.folder = Path()
        self._decoder = messages.Decoder()
        self._stderr = folder / "stderr"
        with self._stderr.open("wb") as stderr:
            self.guardian = subprocess.Popen(
                ["/bin/sh", "-c", rc_file + bootstrap.loader_command(python, self.nonce, pack_node())],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, bufsize=0, cwd=folder,
                env={
                    **os.environ, "HOME": str(self.home), "TMPDIR": str(self.tmpdir),
                    "XDG_CACHE_HOME": str(code_cache()), **(env or {}),
                },
                start_new_session=True,
            )  # fmt: skip
        assert self.guardian.stdin and self.guardian.stdout
        self.stdin, self.stdout = self.guardian.stdin, self.guardian.stdout
        self.stdin.write(typed)
        self.had_code, rest = self._read_marker()
        self.stdin.write(bootstrap.start_code(bootstrap.SUPERVISOR, pack_node(), is_kept=self.had_code))
        self._take(rest)

    def _read_marker(self) -> tuple[bool, bytes]:
        text = b""
        pattern = re.compile(rb"%b %b (\w+) [0-9.]+\n" % (bootstrap.MARKER.encode(), self.nonce.encode()))
        deadline = time.monotonic() + DEADLINE_S
        while not (found := pattern.search(text)):
            assert time.monotonic() < deadline, f"no marker: {text!r}"
            data = self._read(POLL_S)
            assert data != b"", f"ended without a marker: {text!r} {self.stderr}"
            text += data or b""
        self.noise = text[: found.start()]
        return found[1] == b"kept", text[found.end() :]

    # ---- talking ----------------------------------------------------------------------------------------------------

    def send(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        self.stdin.write(messages.encode(kind, payload, **fields))

    def prepare(self, **fields: Any) -> Message:
        """Say what the run wants to know first; return the answer."""
        order = {"silence_s": NEVER_S, "stop_timeout_s": STOP_TIMEOUT_S, "env": {}, **fields}
        run = self.mark.partition(".")[0]
        self.send(messages.PREPARE, run=run, mark=self.mark, **order)
        hello = self.wait_for(messages.HELLO)
        self.supervisor, self.folder = hello["keepers"][0][0], Path(hello["folder"])
        return hello

    def start(self, *argvs: list[str], env: Mapping[str, str] | None = None, **fields: Any) -> None:
        """Start one rank per argv, without torchrun."""
        ranks = [{"rank": rank, "argv": argv, "env": env or {}} for rank, argv in enumerate(argvs)]
        self.send(messages.START, **{"processes": ranks, "cwd": None, **fields})
        for rank in range(len(argvs)):
            self.wait_for(messages.STARTED, local_rank=rank)

    def start_ready(self, *argvs: list[str], **fields: Any) -> None:
        """Start ranks and wait until each has told that it is ready."""
        self.start(*argvs, **fields)
        for rank in range(len(argvs)):
            self.wait_for_output("ready", rank)

    def import_torchrun(self, *pythons: str, **env: str) -> Message:
        """Let the node look for a Python with torch; with none named, in ours, with the stand-in for torch."""
        env = env if pythons else {"PYTHONPATH": str(STAND_IN), **env}
        self.prepare(facts=True, pythons=pythons or [sys.executable], env=env)
        return self.wait_for(messages.FACTS)

    def start_torchrun(self, argv: list[str], nproc: int = 2, **fields: Any) -> None:
        """Start `argv` as a Python script with arguments (or a shell's, in its place) under torchrun, as planned."""
        self.send(messages.ROUTE, master="127.0.0.1", port=0)
        facts = read_facts(self.wait_for(messages.FACTS), str(self.folder))
        program = Program(ProgramKind.SCRIPT, argv[0], tuple(argv[1:]))
        job = Job(program, nproc, cpu=True, master_port=read_route(self.wait_for(messages.ROUTED)).port)
        self.send(messages.START, **start_fields(build_plan(job, [Host("here")], [facts]).nodes[0]), **fields)

    def stop(self, timeout_s: float = 0, **fields: Any) -> list[Any]:
        """End the run; return what the census names as left. By then nothing may be."""
        self.send(messages.STOP, timeout_s=timeout_s, **fields)
        left: list[Any] = self.wait_for(messages.CENSUS)["left"]
        assert not find_marked(self.mark), "the census came too early"
        return left

    def hang_up(self) -> None:
        self.stdin.close()

    # ---- waiting ----------------------------------------------------------------------------------------------------

    def wait_until(self, is_true: Callable[[], object], what: str = "") -> None:
        """Take in what comes until something is true."""
        deadline = time.monotonic() + DEADLINE_S
        while not is_true():
            assert time.monotonic() < deadline, f"not in time: {what}\n{self}"
            self.receive()

    def wait_for(self, kind: str, **fields: Any) -> Message:
        """Return the first message of this kind and with these fields, whenever it came."""
        self.wait_until(lambda: self.find(kind, **fields) or self.stdout.closed, f"{kind} {fields}")
        assert self.find(kind, **fields), f"ended without {kind} {fields}\n{self}"
        return self.find(kind, **fields)[0]

    def wait_for_output(self, text: str, rank: int | None = 0, stream: int = STDOUT) -> None:
        output, wanted = self.output[rank, stream], text.encode()
        self.wait_until(lambda: wanted in output or self.stdout.closed, what=f"{text!r} of rank {rank}")
        assert wanted in output, f"ended without {text!r} of rank {rank}\n{self}"

    def wait_for_exits(self, count: int = 1) -> dict[int, tuple[int | None, int | None]]:
        """Wait until all ranks have ended; return code and signal of each."""
        self.wait_until(lambda: len(self.find(messages.EXIT)) >= count, what="exits")
        return {exit["local_rank"]: (exit["code"], exit["signal"]) for exit in self.find(messages.EXIT)}

    def wait_until_gone(self) -> None:
        """Wait until nothing of this node runs any more."""
        keepers = [self.guardian.pid, self.supervisor or self.guardian.pid]  # the last ones: others are looked for then
        self.wait_until(lambda: not any(map(is_alive, keepers)) and not self.living(), "all gone")
        self.guardian.wait()

    def wait_for_guardian(self, kind: str = messages.CENSUS) -> Message:
        """Return what the guardian says after the supervisor's death: lines of stderr that begin with the nonce."""
        self.wait_until(lambda: self._find_guardian(kind), f"{kind} of the guardian")
        return self._find_guardian(kind)[0]

    def _find_guardian(self, kind: str) -> list[Message]:
        lines = self.stderr.split("\n")[:-1]
        said = [json.loads(line.partition(" ")[2]) for line in lines if line.startswith(f"{self.nonce} ")]
        return [message for message in said if message["type"] == kind]

    def find(self, kind: str, **fields: Any) -> list[Message]:
        wanted = {"type": kind, **fields}
        return [message for message in self.messages if wanted.items() <= message.items()]

    def receive(self) -> None:
        """Take in what comes within a moment."""
        self._take(self._read(POLL_S) or b"")

    def _take(self, data: bytes) -> None:
        for header, payload in self._decoder.feed(data):
            read_message(header)
            self.messages.append(header)
            if header["type"] == messages.OUTPUT:
                self.output[header["local_rank"], header["stream"]] += payload
            elif header["type"] == messages.STACK:
                header["text"] = payload.decode()
            elif header["type"] == messages.WANTED:
                header["content"] = payload

    def _read(self, timeout_s: float) -> bytes | None:
        """Return the next piece, b"" at the end of file and None where nothing comes."""
        if not select.select([] if self.stdout.closed else [self.stdout], [], [], timeout_s)[0]:
            return None
        data = os.read(self.stdout.fileno(), 1 << 18)
        if not data:
            self.stdout.close()
        return data

    def __str__(self) -> str:
        output = [f"{key}: {bytes(data[-500:])!r}" for key, data in self.output.items()]
        return "\n".join([*map(str, self.messages[-10:]), *output, self.stderr])

    # ---- looking ----------------------------------------------------------------------------------------------------

    @property
    def stderr(self) -> str:
        return self._stderr.read_text("utf-8", "replace")

    @property
    def told_pids(self) -> list[int]:
        """The process ids that ranks have told after the word `pids`, rank by rank, whoever was the first to speak."""
        streams = [(stream, data) for stream, data in self.output.items() if stream[0] is not None]
        text = b"\n".join(bytes(data[:1000]) for _, data in sorted(streams)).decode("utf-8", "replace")
        return [int(word) for line in re.findall(r"pids ([\d ]+)\n", text) for word in line.split()]

    def pid_of(self, rank: int) -> int:
        pid: int = self.wait_for(messages.STARTED, local_rank=rank)["pid"]
        return pid

    def living(self) -> set[int]:
        """Return what of this node is alive, guardian and supervisor included."""
        pids = {self.guardian.pid, self.supervisor, *self.told_pids, *find_marked(self.mark)}
        return {pid for pid in pids if pid and is_alive(pid)}

    def end(self) -> None:
        """Hang up: soon nothing of this node may be left, neither process nor folder."""
        self.hang_up()
        try:
            self.wait_until_gone()
            assert not self.folder.name or not self.folder.exists()
            assert not list(self.tmpdir.iterdir())
        finally:
            for pid in self.living():
                send_signal(pid, signal.SIGKILL)
            self.guardian.wait()
            self.stdout.close()


# ---- /proc, read without the launcher's own reader ------------------------------------------------------------------


def read_status(pid: int, name: str) -> str:
    """Return a line of /proc/PID/status: `VmHWM`, the most memory that it ever had, is "20480 kB"."""
    text = Path(f"/proc/{pid}/status").read_text()
    return next(line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(f"{name}:"))


def find_marked(mark: str, name: str = "LAUNCH_MARK") -> set[int]:
    """Return the living processes with this mark in their environment."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):  # of `[0-9]*/environ` it would look whether that is there, and fail
        try:
            env = (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"{name}={mark}".encode() in env and is_alive(int(path.name)):
            found.add(int(path.name))
    return found


def wait_until(is_true: Callable[[], object]) -> None:
    assert processes.wait_until(is_true), "not in time"


class Nodes:
    """Start nodes, each in a folder of its own; all of them end with the test."""

    def __init__(self, folder: Path, ends: ExitStack) -> None:
        self._folder = folder
        self._ends = ends
        self._numbers = itertools.count()

    def start(self, **how: Any) -> Node:
        """Start a node that waits for its first message."""
        node = Node(self._folder / f"node{next(self._numbers)}", **how)
        self._ends.callback(node.end)
        return node
