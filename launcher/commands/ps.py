"""What `launch ps` says of each run: its state, its age, its size, and its last line."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from launcher.output.log_reader import LogFile
from launcher.runs.run_list import ListedRun
from launcher.wording import count, duration

_TAIL_BYTES = 8192
_MOST_TEXT = 200

Record = dict[str, Any]  # the run.json of a run


def describe_state(run: ListedRun, record: Record) -> str:
    """Return `starting`, `running (restart 1)`, `finished`, `failed (1)`, `stopped`, `killed` or `unknown`."""
    if run.is_alive:
        restarts = sum(attempt.get("outcome") != "port" for attempt in record.get("attempts") or [])
        return "starting" if not record else f"running (restart {restarts})" if restarts else "running"
    if run.end is None:
        return "unknown" if run.is_alive is None else "killed"
    if run.end.is_stopped:
        return "stopped"
    return "finished" if run.end.exit_code == 0 else f"failed ({run.end.exit_code})"


def describe_age(run: ListedRun, now: float) -> str:
    """Return how long ago it began; now: wall-clock seconds."""
    seconds = max(0.0, now - run.controller.began_at)
    if seconds >= 2 * 86400:
        return count(round(seconds / 86400), "day")
    return duration(round(seconds))


def describe_size(record: Record) -> str:
    """Return `2 x 8` for two hosts with eight ranks each; `-` before its ranks started."""
    sizes = [node.get("nproc") for node in (record.get("plan") or {}).get("nodes", [])]
    each = "+".join(str(size) for size in dict.fromkeys(sizes))
    return f"{len(sizes)} x {each}" if sizes else "-"


def find_last_line(run: ListedRun, record: Record) -> str:
    """Return the cause of a run that failed, or else the last line that one of its ranks wrote."""
    cause = None if run.is_alive else (record.get("result") or {}).get("cause")
    if cause is not None:
        rank = "" if cause.get("rank") is None else f" rank {cause['rank']}"
        said = [*(cause.get("traceback") or cause.get("last_lines") or [])[-1:], cause.get("text") or ""]
        return f"{cause.get('host')}{rank}: {said[0].strip()}"[:_MOST_TEXT]
    hosts = [host for attempt in record.get("attempts") or [] for host in attempt.get("hosts", [])]
    paths = [*run.folder.glob("node_*.log")]
    with contextlib.suppress(OSError):
        for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
            lines = _read_tail(path, hosts)
            if lines:
                return lines[-1][:_MOST_TEXT]
    return ""


def _read_tail(path: Path, hosts: list[str]) -> list[str]:
    log = LogFile(path, hosts, _TAIL_BYTES)
    lines = [line for line in log.read() if line.host is not None]
    log.close()
    return [
        f"[{line.host}{'' if line.rank is None else f':{line.rank}'}] {line.text.decode('utf-8', 'replace')}"
        for line in lines
    ]


def as_row(run: ListedRun, now: float) -> dict[str, Any]:
    """Return the values of one run for --json."""
    record = run.read_record()
    return {
        "run": run.id,
        "name": run.controller.name,
        "state": describe_state(run, record).partition(" ")[0],
        "exit_code": None if run.is_alive or run.end is None else run.end.exit_code,
        "attempts": len(record.get("attempts") or []),
        "age_s": round(max(0.0, now - run.controller.began_at), 1),
        "launch_host": run.controller.host,
        "pid": run.controller.pid if run.is_alive else None,
        "logs": run.controller.folder,
        "last_line": find_last_line(run, record),
    }
