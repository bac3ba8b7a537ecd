"""The messages about a run: its plan, how it ended and the cause. Nothing here does I/O.

A Cause gets its last form here; `launcher.errors` tells how it came about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.clock import local_time
from launcher.diagnosis.cause import Cause
from launcher.hosts.ranges import fold_names
from launcher.job.plan import FLIGHT_RECORDER_PREFIX, LaunchPlan, NodePlan
from launcher.output.style import Line, Style, break_line
from launcher.preflight.findings import Finding
from launcher.runs.others import Others
from launcher.session.node_state import Census
from launcher.wording import count, plural

_MAX_LEFT = 10
_MAX_WARNINGS = 8
_MAX_UNSAFE_HOSTS = 8
_MAX_UNSAFE_FILES = 3  # of one host, that are named one by one
# The smallest screen has 24 rows; one is for the line above the block, and one for the census below it.
_BLOCK_ROWS = 22
_COLUMNS = 80
_MAX_LINE = 150
_MAX_ERROR = 300
_MAX_FRAME_LINES = 5


def plan_line(plan: LaunchPlan, run: str, folder: Path, *, on_cpu: bool) -> str:
    """`2 nodes x 8 GPUs = 16 ranks, run 20261120-091233, logs in logs/20261120-091233`."""
    return f"{plan_size(plan, on_cpu=on_cpu)}, run {run}, logs in {folder}"


def plan_size(plan: LaunchPlan, *, on_cpu: bool) -> str:
    """`2 nodes x 8 GPUs = 16 ranks`."""
    sizes = list(dict.fromkeys(node.nproc for node in plan.nodes))
    unit = "process" if on_cpu else "GPU"
    if plan.nnodes > len(plan.nodes):  # our share of a run by hand
        own = plan.nodes[0]
        shape = f"node {own.node_rank} of {plan.nnodes} (from 0) with {count(own.nproc, unit)}"
    elif len(sizes) == 1:
        shape = f"{count(plan.nnodes, 'node')} x {count(sizes[0], unit)}"
    else:
        each = " + ".join(str(node.nproc) for node in plan.nodes)
        shape = f"{count(plan.nnodes, 'node')} with {each} {plural(unit)}"
    whole = "of" if plan.nnodes > len(plan.nodes) else "="
    return f"{shape} {whole} {count(plan.world_size, 'rank')}"


def warning_lines(warnings: Sequence[Finding]) -> list[str]:
    """Return one line for each warning; of more than eight the first ones, and how many more there are."""
    lines = [f"  {warning.one_line}" for warning in warnings]
    more = len(lines) - _MAX_WARNINGS
    return lines[:_MAX_WARNINGS] + ([f"  and {more} more: launch check"] if more > 0 else [])


def plan_lines(plan: LaunchPlan) -> list[str]:
    """Return for each node a comment, and the command to copy and paste."""
    lines = []
    first_is_known = True
    for node in plan.nodes:
        ranks = _rank_words(node, first_is_known=first_is_known)
        lines += [f"# node {node.node_rank}: {node.host.name}, {ranks}", node.by_hand]
        first_is_known = first_is_known and node.nproc > 0
    return lines


def _rank_words(node: NodePlan, *, first_is_known: bool) -> str:
    """Return a node's ranks; a dry run doesn't know their number, or the first one, if a node's GPUs are uncounted."""
    if not node.nproc:
        return "as many ranks as GPUs"
    if not first_is_known:
        return count(node.nproc, "rank")
    if node.nproc == 1:
        return f"rank {node.first_rank}"
    return f"ranks {node.first_rank} to {node.first_rank + node.nproc - 1}"


def census_words(census: Census) -> str:
    """Return `0 processes left on 2 nodes`, and each host that could not be asked."""
    nodes = len(census.left)
    total = sum(len(processes) for processes in census.left.values())
    words = [f"{count(total, 'process')} left on {count(nodes, 'node')}"] if nodes else []
    for host, number in census.unasked.items():
        # One that was lost while it started has told of no process.
        words.append(
            f"{host} unreachable, {count(number, 'process') if number else 'what was started there'} may remain"
        )
    return "; ".join(words)


def gap_words(write_error: OSError | None) -> str:
    """Say why something is missing in the logs, at the end of the line that a run ends with."""
    return f"; the logs are incomplete: {write_error.strerror}" if write_error is not None else ""


def left_lines(census: Census) -> list[str]:
    """Return one line for each process that could not be ended."""
    lines = [
        f"  {host}: pid {pid} ({name}) {_survival(state)}"
        for host, processes in census.left.items()
        for pid, name, state in processes
    ]
    more = len(lines) - _MAX_LEFT
    return lines[:_MAX_LEFT] + ([f"  and {more} more"] if more > 0 else [])


def _survival(state: str) -> str:
    if state == "D":
        return "is in state D, which no signal ends"
    return f"still runs after SIGKILL (state {state}): it may run as another user"


def failed_first_line(cause: Cause, nodes: int) -> str:
    """Return `gpu2 rank 11 failed first (exit code 1), stopping 2 nodes`."""
    return f"{cause.failure.headline}, stopping {count(nodes, 'node')}"


def cause_block(cause: Cause, others: Others, log: Path, *, withheld: int = 0) -> list[Line]:
    """Return the lines that explain the cause, no more than fit a screen of 24 rows.

    log: the file with all output of the failed node; withheld: how many ranks printed other tracebacks, off the screen.
    """
    failure = cause.failure
    local = f" (local rank {failure.local_rank}" + (f", GPU {failure.gpu})" if failure.gpu is not None else ")")
    where = local if failure.local_rank is not None else ""
    lines = [Line(f"  {failure.subject}{where} at {local_time(failure.at)[11:19]}:", Style.STRONG)]
    *frame, error = _fit_traceback(cause.traceback) or [failure.ending]
    lines += [*(Line(f"    {line}") for line in frame), Line(f"    {error}", Style.FAILURE)]
    lines += map(Line, same_lines(others))
    if cause.explanation is not None:
        lines.append(Line(f"  why: {_cut(cause.explanation.cause, _MAX_ERROR)}"))
        lines.append(Line(f"  fix: {cause.explanation.fix}", Style.STRONG))
    after = [*map(Line, [*others_lines(others), *withheld_lines(withheld), f"  all of it: {log}"])]
    rows = sum(_rows(line.text) for line in [*lines, *after])
    last_lines = _fit_last_lines(cause.last_lines, _BLOCK_ROWS - rows - 1)
    if last_lines:
        lines += map(Line, ["  its last lines:", *last_lines])
    return [*lines, *after]


def _rows(line: str) -> int:
    """Return how many rows of the smallest screen a line takes; a word may be longer than one of them."""
    return sum(max(1, -(-len(part) // _COLUMNS)) for part in break_line(line, _COLUMNS))


def _cut(line: str, length: int) -> str:
    return line if len(line) <= length else line[: length - 3] + "..."


def _fit_traceback(traceback: Sequence[str]) -> list[str]:
    """Cut long statements and messages, so that they don't push the rest off the screen."""
    *frame, error = traceback or ("",)
    if len(frame) > _MAX_FRAME_LINES:
        frame = [*frame[: _MAX_FRAME_LINES - 1], "  ..."]
    return [*(_cut(line, _MAX_LINE) for line in frame), _cut(error, _MAX_ERROR)] if traceback else []


def _fit_last_lines(lines: Sequence[str], rows: int) -> list[str]:
    """Return the latest lines that fit into so many rows of the screen; of the very last one at least its start."""
    kept: list[str] = []
    left = rows
    for line in reversed([f"    {_cut(line, _MAX_LINE)}" for line in lines]):
        left -= _rows(line)
        if left < 0:
            break
        kept.insert(0, line)
    return kept or [_cut(f"    {line}", _COLUMNS) for line in lines[-1:] if rows > 0]


def same_lines(others: Others) -> list[str]:
    """`the same on all 4 ranks: 2 each on gpu[1-2]`, or no line."""
    total = sum(others.same.values())
    if not total:
        return []
    ranks = f"all {total}" if total == others.ranks else f"{total} of {others.ranks}"
    return [f"  the same on {ranks} ranks: {_by_host(others.same)}"]


def others_lines(others: Others) -> list[str]:
    """Return a line for each way in which other ranks ended: `1 other failed as well: 1 on gpu2`."""
    ways = (
        (others.failed, "failed as well", ""),
        (others.followed, "failed because of it", ""),
        (others.stopped, "followed", " (stopped by launch)"),
        (others.succeeded, "had already succeeded", ""),
    )
    return [
        f"  {count(sum(counts.values()), 'other')} {words}: {_by_host(counts)}{how}"
        for counts, words, how in ways
        if any(counts.values())
    ]


def withheld_lines(number: int) -> list[str]:
    """Say whose tracebacks the screen has not shown; the error of the blamed rank is none of them."""
    if not number:
        return []
    return ["  1 other's traceback is in the logs" if number == 1 else f"  {number} others' tracebacks are in the logs"]


def _by_host(counts: Mapping[str, int]) -> str:
    by_number: dict[int, list[str]] = {}
    for host, number in counts.items():
        by_number.setdefault(number, []).append(host)
    return ", ".join(
        f"{number} on {fold_names(hosts)}" if len(hosts) == 1 else f"{number} each on {fold_names(hosts)}"
        for number, hosts in by_number.items()
    )


def early_exit_line(first: str, succeeded: Mapping[str, int], running: int) -> str:
    """Say that ranks have ended well while others go on; `first` is the name of the only one, counts by host."""
    total = sum(succeeded.values())
    who = first if total == 1 else f"{count(total, 'rank')}, {_by_host(succeeded)},"
    verb = "is" if running == 1 else "are"
    return f"{who} finished (exit code 0); {count(running, 'other')} {verb} still running"


def flight_recorder_lines(files: Sequence[Path], unsafe: Mapping[Path, str], hosts: Mapping[str, str]) -> list[str]:
    """Say where the files of NCCL's flight recorder are, and what reads them (it comes with torch), if that is safe.

    `hosts` has the host of each node's folder.
    """
    if not files:
        return []
    place = files[0].parent.parent  # above the nodes' folders
    command = f"torchfrtrace --prefix {FLIGHT_RECORDER_PREFIX} {place}"
    lines = [f"  NCCL's flight recorder of {count(len(files), 'rank')}: {place}"]
    if not unsafe:
        return [*lines, f"    which rank is missing from which collective: {command}"]
    lines += [f"    {line}" for line in _removal_lines(unsafe, hosts)]
    return lines + ([f"    then: {command}"] if len(unsafe) < len(files) else [])


def _removal_lines(unsafe: Mapping[Path, str], hosts: Mapping[str, str]) -> list[str]:
    """Return a line for each host; of many files its folder, so that none is left out."""
    by_folder: dict[Path, list[Path]] = {}
    for path in sorted(unsafe, key=lambda path: (len(path.parent.name), path)):  # node_10 after node_9
        by_folder.setdefault(path.parent, []).append(path)
    names = {folder: hosts.get(folder.name, "?") for folder in by_folder}
    lines = []
    for folder, paths in list(by_folder.items())[:_MAX_UNSAFE_HOSTS]:
        if len(paths) <= _MAX_UNSAFE_FILES:
            what = ", ".join(map(str, paths))
            why = "; ".join(dict.fromkeys(unsafe[path] for path in paths))
        else:
            what = str(folder)
            why = f"{len(paths)} of its files; {paths[0].name} {unsafe[paths[0]]}"
        lines.append(f"remove {names[folder]}'s files before you run torchfrtrace: {what} ({why})")
    more = [names[folder] for folder in by_folder][_MAX_UNSAFE_HOSTS:]
    return lines + ([f"remove the directories of {fold_names(more)} as well"] if more else [])
