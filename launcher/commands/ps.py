"""What `launch ps` says of each run: its state, its age, its size, and its last line."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from launcher.output.log_reader import LogFile
from launcher.runs.run_list import ListedRun

_TAIL_BYTES = 8192
_MOST_TEXT = 200

Record = dict[str, Any]  # the run.json of a run
Row = dict[str, Any]  # the values of one run for --json


def as_row(run: ListedRun, now: float) -> Row:
    """Return the values of one run; now: wall-clock seconds."""
    record = run.read_record()
    attempts = record.get("attempts") or []
    return {
        "run": run.id,
        "name": run.controller.name,
        "state": describe_state(run, record),
        "exit_code": None if run.is_alive or run.end is None else run.end.exit_code,
        "attempts": len(attempts),
        "restarts": sum(attempt.get("outcome") != "port" for attempt in attempts) if run.is_alive else None,
        "age_s": round(max(0.0, now - run.controller.began_at), 1),
        "nodes": [node.get("nproc") for node in (record.get("plan") or {}).get("nodes", [])],
        "launch_host": record.get("launch_host", run.controller.host),
        "controller": run.controller.host,
        "pid": run.controller.pid if run.is_alive else None,
        "logs": run.controller.folder,
        "last_line": find_last_line(run, record),
    }


def describe_state(run: ListedRun, record: Record) -> str:
    """Return `starting`, `running`, `finished`, `failed`, `stopped`, `killed` or `unknown`."""
    if run.is_alive:
        return "running" if record else "starting"
    if run.end is None:
        return "unknown" if run.is_alive is None else "killed"
    if run.end.is_stopped:
        return "stopped"
    return "finished" if run.end.exit_code == 0 else "failed"


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
