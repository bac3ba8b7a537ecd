"""A run on disk, on the machine that controls it: logs/<run-id>/ with a log per node, run.json, links to the newest."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from launcher.errors import UsageError
from launcher.output.log_writer import TRANSCRIPT, LogWriter, Transcript
from launcher.output.write_queue import StalledError, WriteQueue
from launcher.private_files import make_private, replace_private, write_private

Complaint = Callable[[Path, OSError], None]
SAMPLES = "samples.jsonl"  # what the GPUs of a run did
_RUN_ID = re.compile(r"\d{8}-\d{6}(-\d{1,2})?")
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class RunIds(Protocol):
    """The ids that runs have taken, wherever their logs are."""

    def claim(self, run_id: str) -> bool:
        """Take an id; return False if another run has it."""

    def release(self, run_id: str) -> None:
        """Give back the id of a run that has not begun."""


class RunRecord:
    """The directory of one run.

    The first `update` writes run.json. Values that are known earlier wait for it, since a run that never starts leaves
    no directory. All methods write at once; while ranks run, they are called by `disk`, the thread for all that touches
    the directory.
    """

    def __init__(
        self, folder: Path, run_id: str, complain: Complaint, known: Mapping[str, Any] | None = None, *,
        has_made_base: bool = False, ids: RunIds | None = None, host: str = "",
    ) -> None:  # fmt: skip
        """host: the name of this machine, if whoever reads its messages is on another one."""
        self.folder = folder
        self._host = host
        self._has_made_base = has_made_base  # the directory above it
        self._ids = ids
        self.run_id = run_id
        self.attempt = 0  # the number of the one that runs
        self.write_error: OSError | None = None  # the first one: something is missing in the logs
        self._complain = complain
        self.disk = WriteQueue(
            "disk",
            lambda error: self.complain(folder, OSError(errno.EIO, repr(error))),
            lambda: complain(folder, StalledError()),
        )
        self.transcript = Transcript(self._open_log(TRANSCRIPT, folder / "files"))
        self._content: dict[str, Any] = {"run_id": run_id, **(known or {})}
        self._lock = threading.Lock()
        self._is_written = False

    @property
    def name(self) -> str | None:
        """The name that the user gave to the run."""
        name: str | None = self._content.get("name")
        return name

    @property
    def title(self) -> str:
        """The id of the run, and the name that it may have: `20261120-091233 (baseline)`."""
        return f"{self.run_id} ({self.name})" if self.name else self.run_id

    def complain(self, path: Path, error: OSError) -> None:
        """Record that something could not be written, and pass it on."""
        self.write_error = self.write_error or error
        self._complain(self.show(path), error)

    def show(self, path: Path) -> Path:
        """Return how messages name a path: `gpu1:/home/ann/...` if it is on a host that controls the run."""
        return Path(f"{self._host}:{path}") if self._host else path

    def log_path(self, node_rank: int) -> Path:
        """Return where a node's full log is."""
        return self.folder / f"node_{node_rank}.log"

    def open_log(self, node_rank: int) -> LogWriter:
        """Return a node's log; its file is made when something is written."""
        return self._open_log(self.log_path(node_rank).name, self.files_path(node_rank))

    def _open_log(self, name: str, files: Path) -> LogWriter:
        return LogWriter(self.folder / name, self.complain, files, self.disk)

    def name_stacks(self, number: int) -> str:
        """Return the name of a text of stacks: `stacks-1.txt`, or `stacks-restart_2-1.txt` for that of a restart."""
        restart = f"restart_{self.attempt}-" if self.attempt else ""
        return f"stacks-{restart}{number}.txt"

    def keep_text(self, name: str, text: str) -> None:
        """Write a text of `launch` beside the logs; `complain` gets an error."""
        try:
            write_private(self.folder / name, text)
        except OSError as error:
            self.complain(self.folder / name, error)

    def files_path(self, node_rank: int) -> Path:
        """Return where the files of a node's ranks are, those of each restart in a directory of their own."""
        return self._files / f"node_{node_rank}"

    def find_files(self, prefix: str) -> list[Path]:
        """Return the files of this attempt's ranks that torchfrtrace would read with this prefix."""
        return sorted(self._files.rglob(f"*{prefix}*"))

    @property
    def _files(self) -> Path:
        files = self.folder / "files"
        return files / f"restart_{self.attempt}" if self.attempt else files

    @property
    def has_begun(self) -> bool:
        """Whether the run was started, so that its directory stays."""
        return self.transcript.has_begun

    def update(self, values: Mapping[str, Any]) -> None:
        """Add values to run.json and write it; a write error is passed to `complain`, and the run continues."""
        with self._lock:
            self._is_written = True
            self._put(values)

    def add(self, values: Mapping[str, Any]) -> None:
        """Add values to run.json, whenever it is written; any thread may do so."""
        with self._lock:
            self._put(values)

    def _put(self, values: Mapping[str, Any]) -> None:
        self._content.update(values)
        if not self._is_written:
            return
        text = json.dumps(self._content, indent=2, ensure_ascii=False, default=str) + "\n"
        try:
            replace_private(self.folder / "run.json", text)
        except OSError as error:
            self.complain(self.folder / "run.json", error)

    def discard(self) -> None:
        """Remove the directory of a run that never started, and its new parent, unless something was logged."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()
            if self._ids is not None:
                self._ids.release(self.run_id)
            if self._has_made_base:
                self.folder.parent.rmdir()

    def link(self, node_ranks: Sequence[int]) -> None:
        """Point logs/latest to this run and logs/node_<rank>.log into it.

        In a sticky directory nobody can replace another user's links, and these stay as they are.
        """
        base = self.folder.parent
        try:
            if self._has_made_base:
                _leave_out_of_git(base)
            _replace_link(base / "latest", self.folder.name)
            for node_rank in node_ranks:
                self.log_path(node_rank).touch(mode=0o600)  # a node that says nothing has an empty log
                _replace_link(base / f"node_{node_rank}.log", f"latest/node_{node_rank}.log")
            for path in base.glob("node_*.log"):  # of a run with other nodes
                number = path.stem[len("node_") :]
                is_ours = path.is_symlink() and str(path.readlink()) == f"latest/{path.name}"
                if is_ours and number.isdecimal() and int(number) not in node_ranks:
                    with contextlib.suppress(PermissionError):
                        path.unlink()
        except OSError as error:
            if error.errno != errno.EPERM:
                self._complain(base / "latest", error)


def propose_ids(now: datetime) -> Iterator[str]:
    """Yield the ids that a run may have which starts now, the usual one first."""
    stamp = now.strftime("%Y%m%d-%H%M%S")
    yield stamp
    yield from (f"{stamp}-{number}" for number in range(2, 100))


def is_run_id(text: str) -> bool:
    """Tell whether a text from another machine can be a run's id, and so the name of a directory."""
    return _RUN_ID.fullmatch(text) is not None


def create_record(
    base: Path, now: datetime, complain: Complaint, known: Mapping[str, Any] | None = None, *,
    ids: RunIds | None = None, run_id: str | None = None, host: str = "",
) -> RunRecord:  # fmt: skip
    """Create the directory of a new run, named by the time of its start; raise UsageError if that fails.

    known: the first values of run.json; `name` among them is the run's name. ids: among which the run's is its alone;
    None: among those in `base`. run_id: to be used if it is free. host: as of a RunRecord.

    Only the user can read it, since ranks may print secrets. Several users may share `base`, so the umask applies to
    that one. A full disk raises nothing: the run continues without its logs.
    """
    is_new = not os.path.lexists(base)
    for proposed in [*([run_id] if run_id else []), *propose_ids(now)]:
        if ids is not None and not ids.claim(proposed):
            continue
        record = RunRecord(base / proposed, proposed, complain, known, has_made_base=is_new, ids=ids, host=host)
        try:
            make_private(record.folder, base)
        except OSError as error:
            is_taken = isinstance(error, FileExistsError) and os.path.lexists(record.folder)
            if ids is not None and (is_taken or error.errno not in _DISK_FULL):
                ids.release(proposed)
            if is_taken:
                continue
            if error.errno not in _DISK_FULL:
                text = f"can't create the log directory {record.folder}: {error.strerror}"
                raise UsageError(text, "choose another directory with --log-dir") from None
            record.complain(record.folder, error)
        return record
    raise UsageError(f"{base / now.strftime('%Y%m%d-%H%M%S')}: 99 runs started in one second")


def _leave_out_of_git(folder: Path) -> None:
    """Let git ignore a new directory of logs, and so the --sync of a run with another --log-dir."""
    with contextlib.suppress(OSError), (folder / ".gitignore").open("x") as file:  # x follows nobody's symlink
        file.write("*\n")


def _replace_link(path: Path, target: str) -> None:
    if path.is_symlink() and str(path.readlink()) == target:
        return  # it may be another user's
    if path.is_file() and not path.is_symlink():
        return  # somebody's own file, such as a log that other scripts wrote: the link is a convenience
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")  # several runs may do so at once
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    try:
        fresh.replace(path)
    except OSError:
        fresh.unlink()
        raise
