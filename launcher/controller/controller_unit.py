"""What takes a run up when its controller has died, or its host has rebooted, with --survive-reboots.

It is one program, which waits for the lock of the run's entry, which the controller holds until it dies. It is started
by the controller, for as long as this boot lasts, and by a boot unit (launcher.node.boot_units) after the next one.
Where both run, one of them takes the run up first, and the other one can't.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

from launcher.node import boot_units
from launcher.runs.kept_run import find_start
from launcher.runs.run_list import LOCK

_PAUSE_S = 3
_PROGRAM = """\
import fcntl, os, runpy, time
try:
    with open({lock!r}) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
except OSError:
    pass  # the run is listed no more, or on a file system without locks
time.sleep({pause_s})  # a shutdown ends the controller a moment before this process
if os.path.exists({start!r}):  # otherwise the run has ended
    runpy.run_path({start!r}, run_name="__main__")
"""


class ControllerUnit:
    """The boot unit of one run on the host of its controller."""

    def __init__(self, place: Path, fingerprint: str) -> None:
        """place: of the run's entry; fingerprint: of its certificate: two runs of two launch hosts may have one id."""
        self._name = f"{place.name}.{fingerprint[:8]}.controller"
        self._lock: boot_units.Lock | None = None
        self._program = _PROGRAM.format(lock=str(place / LOCK), start=str(find_start(place)), pause_s=_PAUSE_S)

    def install(self) -> str:
        """Let the run be taken up after a boot; return why that is not possible, or ""."""
        return boot_units.install(self._name, self._program)

    @property
    def is_installed(self) -> bool:
        """Whether the next boot lets the run be taken up."""
        return self._name in boot_units.find()

    def stand_by(self, *, is_last: bool = False) -> None:
        """Let the run be taken up if this process dies; until then, `launch clean` leaves the boot unit alone.

        is_last: after this process only a boot, or the user, shall start another one.
        """
        self._lock = boot_units.take_lock(self._name)
        if is_last:
            return
        argv, null = [sys.executable, "-X", "utf8", "-ISc", self._program], subprocess.DEVNULL
        with contextlib.suppress(OSError):  # no process is left
            subprocess.Popen(argv, stdin=null, stdout=null, stderr=null, start_new_session=True)

    def remove(self) -> None:
        """Let nothing be started any more."""
        boot_units.remove(self._name)
        lock = self._lock or boot_units.take_lock(self._name)  # of a controller that has died
        if lock is not None:
            lock.release()
