"""What `launch ps` says of each run: its state, its age, its size, and its last line."""

# The types of fields are looked at by launcher.forms, so annotations are not postponed.
import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from launcher.forms import Count, FormError, reader_of
from launcher.output.run_folder import is_run_id
from launcher.runs.run_json import RunJson
from launcher.runs.run_state import Activity, Doing, Seconds
from launcher.wording import count

if TYPE_CHECKING:
    from launcher.runs.run_list import ListedRun

_TAIL_BYTES = 8192
_MOST_TEXT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run of `launch ps`; docs/json.md says what is None when."""

    run: Annotated[str, is_run_id]  # its id
    name: str | None = None  # from `--name`; `null` without it
    # `starting`, `running`, `finished`, `failed`, `stopped`, `killed`, or `unknown` if only another machine can tell,
    # or nobody can
    state: Literal["starting", "running", "finished", "failed", "stopped", "killed", "unknown"]
    exit_code: Count | None = None  # of a run that has ended; `null` else
    attempts: Count = 0  # how many attempts have ended
    # what the run does now; `null` for a run that doesn't run, or whose `launch` is too old or can't write it
    doing: Doing | None = None
    restarts: Count | None = None  # how many restarts the run has used; `null` for a run that doesn't run
    # of those, how many count toward `--restarts N`; `null` like `doing`
    restarts_without_progress: Count | None = None
    restarts_left: Count | None = None  # how many may still follow without progress; `null` like `doing`
    age_s: Seconds = 0.0  # seconds since its start
    nodes: tuple[Count | None, ...] = ()  # the number of ranks on each host; empty before they start
    hosts: tuple[str | None, ...] | None = None  # the names of these hosts; `null` if nobody can tell
    launch_host: str | None = None  # the machine where it was started; `null` if nobody can tell
    controller: str = ""  # the machine that controls it
    pid: Count | None = None  # the process that controls it; `null` once that has ended
    logs: str | None = None  # the directory of its logs, on that machine
    last_line: str = ""  # the cause of its failure, or the last line of a rank

    @property
    def may_live(self) -> bool:
        """Whether the run may still live."""
        return self.state in ("starting", "running", "unknown")

    def describe(self) -> str:
        """Return what the run does, or how it ended: `running (1 restart used)`, `waiting for g2 (4 min 10 s)`."""
        if self.doing is not None and (self.doing.what is not Activity.RUNNING or self.doing.odd):
            return str(self.doing)
        if self.restarts:
            return f"{self.state} ({count(self.restarts, 'restart')} used)"
        return f"failed ({self.exit_code})" if self.state == "failed" else self.state


def read_row(found: object) -> RunRow | None:
    """Return the row that another machine gave with --json; None if this can't be one."""
    whole = json.dumps(found, ensure_ascii=False).encode("utf-8", "replace")  # half a character can't be printed
    try:
        row: RunRow = reader_of(RunRow)(json.loads(whole))
    except FormError:
        return None
    return row


def make_row(run: "ListedRun", now: float) -> RunRow:
    """Return the row of a run; now: wall-clock seconds."""
    record, state = run.read_record(), run.read_state()
    nodes, attempts = record.plan.nodes, record.attempts
    restarts = state.restarts if state is not None else None
    used = restarts.used if restarts is not None else None
    if run.is_alive and restarts is None:  # its own count is missing
        used = len(attempts)
    return RunRow(
        run=run.id,
        name=run.controller.name,
        state=describe_state(run, record),
        exit_code=None if run.is_alive or run.end is None else run.end.exit_code,
        attempts=len(attempts),
        doing=state.as_doing(now) if state is not None else None,
        restarts=used,
        restarts_without_progress=restarts.without_progress if restarts is not None else None,
        restarts_left=restarts.left if restarts is not None else None,
        age_s=round(max(0.0, now - run.controller.began_at), 1),
        nodes=tuple(node.nproc for node in nodes),
        hosts=tuple(node.host for node in nodes),
        launch_host=record.launch_host or run.controller.host,
        controller=run.controller.host,
        pid=run.controller.pid if run.is_alive else None,
        logs=run.controller.folder,
        last_line=find_last_line(run, record),
    )


def describe_state(run: "ListedRun", record: RunJson) -> Any:
    """Return `starting`, `running`, `finished`, `failed`, `stopped`, `killed` or `unknown`."""
    if run.is_alive:
        return "running" if record.run_id else "starting"
    if run.end is None:
        return "unknown" if run.is_alive is None else "killed"
    if run.end.is_stopped:
        return "stopped"
    return "finished" if run.end.exit_code == 0 else "failed"


def find_last_line(run: "ListedRun", record: RunJson) -> str:
    """Return what ended a run that has no result, the cause of a failure, or else the last line of a rank."""
    if run.death:
        return f"{run.death}; launch again {run.id} runs it again"
    result = None if run.is_alive else record.result
    if result is not None and result.reason:
        return result.reason[:_MOST_TEXT]
    hosts = [host for attempt in record.attempts for host in attempt.hosts]
    paths = [*run.folder.glob("node_*.log")]
    with contextlib.suppress(OSError):
        for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
            lines = _read_tail(path, hosts)
            if lines:
                return lines[-1][:_MOST_TEXT]
    return ""


def _read_tail(path: Path, hosts: list[str]) -> list[str]:
    from launcher.output.log_reader import LogFile  # the start of a run needs none

    log = LogFile(path, hosts, _TAIL_BYTES)
    lines = [line for line in log.read() if line.host is not None]
    log.close()
    return [
        f"[{line.host}{'' if line.rank is None else f':{line.rank}'}] {line.text.decode('utf-8', 'replace')}"
        for line in lines
    ]
