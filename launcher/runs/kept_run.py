"""What is kept of a run on the disk of its controller, so that another controller can take it up if that one dies.

It is a directory in the run's entry in the list of runs, with files that only the user can read: secrets are among
them. Each file appears whole, also after a power cut, and its hash shows whether it is what was written. The code is
kept with them: only that code can read them, and it may be gone from everywhere else by then.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.errors import LauncherError, UsageError
from launcher.node.own_folders import make_own
from launcher.output.output_streams import OutputStreams
from launcher.output.plain_messages import tell
from launcher.output.write_queue import STALLED_S, WriteQueue
from launcher.private_files import flush, replace_durably
from launcher.runs.run_list import KEPT, START, ListedRun

if TYPE_CHECKING:  # commands about a run of another process drive none
    from launcher.runs.standing import Standing

_REQUEST, _STANDING, _GENERATION = "request", "standing", "generation"
_CODE = "code"
_HASH_CHARS = 64
_EXIT_S = 0.5  # for a process to exit that has closed its streams
_OTHERS = "see launch ps for those that run"
_AGAIN = "start the run again: it continues from its last checkpoint"

# What is run is what was hashed, in memory, as in launcher.node.archive.
_START_CODE = '''\
"""Take up the run of this directory, with the code that it was started with."""

import hashlib, os, sys

here = os.path.dirname(os.path.abspath(__file__))
try:
    with open(os.path.join(here, "code"), "rb") as file:
        code = file.read()
except OSError as error:
    if not os.path.exists(__file__):
        sys.exit("launch: run %s has ended\\n  fix: {others}" % os.path.basename(os.path.dirname(here)))
    sys.exit("launch: can't read %s: %s" % (error.filename, error.strerror))
if hashlib.sha256(code).hexdigest() != "{code_name}":
    sys.exit("launch: {{}} is damaged\\n  fix: {again}".format(os.path.join(here, "code")))
sys.path.insert(0, os.path.join(here, "code"))
from launcher.node.archive import Archive
del sys.path[0]
Archive(code, {{}}).enter()

from launcher.controller.control import take_up
from launcher.node.processes.proc import name_process

name_process("launch")
take_up(os.path.dirname(here), os.environ)
'''


class KeptRun:
    """What is kept of one run.

    Until `begin`, nothing is written: before all ranks have run, the end of the controller is that of the run.
    """

    def __init__(self, place: Path, complain: Callable[[OSError], object] = lambda error: None) -> None:
        """place: of the run's entry; complain: gets, once and in another thread, what could not be written."""
        self._folder = place / KEPT
        self._complain = complain
        self._queue = WriteQueue("kept", self._fail)
        self._standing = b""
        self._is_kept = False
        self._has_failed = False

    def begin(self, request: object, code: bytes) -> None:
        """Keep the run from now on; code: the archive that runs."""
        self._is_kept = True
        self._queue.put(partial(self._begin, request, code))

    @property
    def is_kept(self) -> bool:
        """Whether another controller could take the run up."""
        return self._is_kept and not self._has_failed

    def note(self, standing: Standing) -> None:
        """Keep where the run stands; called in its event loop, which doesn't wait for the disk."""
        self._standing = pickle.dumps(standing, protocol=4)
        if self._is_kept:
            self._queue.put(self._write_standing)

    def wait(self) -> bool:
        """Wait until all is written, but not long for a disk that doesn't respond; return whether the run is kept."""
        return self._queue.wait(STALLED_S) and self.is_kept

    def resume(self) -> tuple[Any, Standing, int]:
        """Return the request, where the run stood, and the number of the controller that asks, which is written down.

        Whoever asks has locked the run's entry. Raise LauncherError if that can't be read or written.
        """
        request, standing = self._read(_REQUEST), self._read(_STANDING)
        number: int = self._read(_GENERATION) + 1
        try:
            self._write(_GENERATION, number)
        except OSError as error:
            text = f"can't write {self._folder / _GENERATION}: {error.strerror}"
            raise LauncherError(text, "free space there") from None
        self._is_kept = True
        return request, standing, number

    def remove(self) -> None:
        """Keep the run no more: it has ended."""
        self._is_kept = False
        self._queue.close()
        with contextlib.suppress(OSError):
            (self._folder / START).unlink()  # first: what is left of the others can't be started
        shutil.rmtree(self._folder, ignore_errors=True)

    def _begin(self, request: object, code: bytes) -> None:
        make_own(str(self._folder.absolute()))
        start = _START_CODE.format(code_name=hashlib.sha256(code).hexdigest(), again=_AGAIN, others=_OTHERS)
        replace_durably(self._folder / _CODE, code)
        self._write(_GENERATION, 1)
        self._write(_REQUEST, request)
        self._write_standing()
        replace_durably(self._folder / START, start.encode())
        for path in self._folder.parent.iterdir():  # what the run's entry has had from its beginning
            if path.is_file():
                flush(path)
        flush(self._folder.parent)

    def _write_standing(self) -> None:
        replace_durably(self._folder / _STANDING, _seal(self._standing))

    def _fail(self, error: Exception) -> None:
        had_failed, self._has_failed = self._has_failed, True
        if not had_failed:
            self._complain(error if isinstance(error, OSError) else OSError(0, repr(error)))

    def _write(self, name: str, value: object) -> None:
        replace_durably(self._folder / name, _seal(pickle.dumps(value, protocol=4)))

    def _read(self, name: str) -> Any:
        """Return a value; nothing that isn't what was written is unpickled."""
        path = self._folder / name
        try:
            found = path.read_bytes()
        except OSError as error:
            if not (self._folder / START).exists():  # as by a stop that was typed at the same time
                raise UsageError(f"run {self._folder.parent.name} has ended", _OTHERS) from None
            raise LauncherError(f"can't read {path}: {error.strerror}", _AGAIN) from None
        if found != _seal(found[_HASH_CHARS:]):
            raise LauncherError(f"{path} is damaged", _AGAIN)
        return pickle.loads(found[_HASH_CHARS:])


def start_argv(place: Path) -> list[str]:
    """Return the command that takes up the run of this entry: it drives the run to its end, in the same process."""
    return [sys.executable, "-X", "utf8", "-IS", str(find_start(place))]


def find_start(place: Path) -> Path:
    """Return the program of `start_argv`; it is there for as long as the run can be taken up."""
    return place / KEPT / START


def start_controller(run: ListedRun, streams: OutputStreams) -> int:
    """Start a controller for a run whose controller died; return 0 once it has taken the run up.

    One that can't says why. Raise UsageError for a run that needs none.
    """
    if run.is_alive is None:
        raise UsageError(f"only {run.controller.host} can take run {run.id} up", f"use launch on {run.controller.host}")
    if run.is_alive or run.end is not None:
        raise UsageError(f"run {run.id} {'is controlled' if run.is_alive else 'has ended'}", "see launch ps")
    if not run.is_kept:
        text = f"run {run.id} can't be taken up: its controller died before all ranks ran, or it has no --restarts"
        raise UsageError(text, _AGAIN)
    try:
        make_own(str(run.place.absolute()))
        process = subprocess.Popen(
            start_argv(run.place), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise LauncherError(f"can't take run {run.id} up: {error.filename}: {error.strerror}") from None
    assert process.stdout is not None  # it is a pipe
    for line in process.stdout:  # until it has left its streams, or ended
        tell(line.decode("utf-8", "replace").rstrip("\n"), streams)
    try:
        return process.wait(_EXIT_S)
    except subprocess.TimeoutExpired:
        return 0


def _seal(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode() + data
