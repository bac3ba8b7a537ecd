"""launch logs: what a run has written, while it runs or later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from launcher.errors import UsageError
from launcher.output.log_reader import Choice, ExactPrinter, LogPrinter, RunLogs, find_since, follow
from launcher.output.output_streams import OutputStreams
from launcher.runs.run_end import is_running
from launcher.runs.run_list import ListedRun
from launcher.wording import fold_ranks


@dataclass(frozen=True, slots=True)
class LogsRequest:
    """Which lines to print; None: all."""

    follows: bool = False  # until the run has ended
    node: int | None = None
    rank: int | None = None
    attempt: int | None = None
    since_s: float | None = None  # only the last seconds


def print_logs(run: ListedRun, request: LogsRequest, streams: OutputStreams) -> int:
    """Print the lines on stdout; with a rank, its bytes on the streams to which it wrote. Return the exit code."""
    if not run.folder.is_dir():
        raise UsageError(f"the logs in {run.folder} were removed", "see launch ps for other runs")
    record = run.read_record()
    refuse_unknown(run.id, request, record)
    offset = str(record.get("utc_offset") or "+00:00")
    stamp = None if request.since_s is None else find_since(request.since_s, offset, datetime.now(timezone.utc))
    choice = Choice(request.node, request.rank, request.attempt, stamp)
    logs = RunLogs(run.folder, run.find_hosts(), choice)
    printer = LogPrinter(streams) if request.rank is None else ExactPrinter(streams)
    try:
        follow(logs, printer, lambda: request.follows and is_running(run))
    except KeyboardInterrupt:
        printer.flush()
        return 130
    return 0


def refuse_unknown(run_id: str, request: LogsRequest, record: Mapping[str, Any]) -> None:
    """Raise UsageError for a node, a rank or an attempt that a run doesn't have, as its run.json says.

    Of the last attempt it has the nodes; an earlier one may have had more. A run that is followed may start again, and
    before its ranks start it has no record.
    """
    nodes = (record.get("plan") or {}).get("nodes")
    if not nodes:
        return
    attempts = record.get("attempts") or []
    most = max((len(attempt["hosts"]) for attempt in attempts), default=0)
    earlier = range(most) if most > len(nodes) else range(0)
    ranks = {node["first_rank"] + local for node in nodes for local in range(node["nproc"])}
    ranks |= set(range(len(earlier) * nodes[0]["nproc"]))
    starts = max(1, len(attempts) + ("ended_at" not in record))
    for option, number, known in (
        ("node", request.node, {node["node_rank"] for node in nodes} | set(earlier)),
        ("rank", request.rank, ranks),
        ("attempt", None if request.follows else request.attempt, set(range(starts))),
    ):
        if number is not None and number not in known:
            raise UsageError(
                f"--{option} {number}: run {run_id} has no such {option}", f"choose from {fold_ranks(known)}"
            )
