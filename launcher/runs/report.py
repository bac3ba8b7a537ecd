"""The messages about a run: its plan, why it failed, and the last line, with which it ends. Nothing here does I/O.

What is printed about restarts between two attempts is in `runs.run`.

A Cause becomes text here; `launcher.errors` describes how it is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from launcher.clock import local_time, short_time
from launcher.diagnosis.cause import Cause
from launcher.diagnosis.failure import Failure, FailureKind, Role
from launcher.errors import HostsUnreachable, LauncherError
from launcher.escapes import shown
from launcher.hosts.ranges import fold_names
from launcher.hosts.unreachable import failure_lines
from launcher.job.job import Job
from launcher.job.plan import FLIGHT_RECORDER_PREFIX, LaunchPlan, NodePlan
from launcher.output.output_streams import Line, Style
from launcher.preflight.findings import Finding
from launcher.runs.policy import Stop
from launcher.runs.records import Result
from launcher.session.node_state import Census
from launcher.wording import count, duration, listed, plural, span

_MOST_WRITTEN = 5  # names
_MAX_LEFT = 10
_MAX_WARNINGS = 8
_MAX_LAST_LINES = 6  # so that the block usually fits a screen of 24 rows
_MAX_LINE = 150
_MAX_ERROR = 300
_MAX_FRAME_LINES = 5
_FoundT = TypeVar("_FoundT")
_SENDERS = {2: "you", 15: "SIGTERM", 1: "SIGHUP"}  # by the number of the signal


def plan_line(plan: LaunchPlan, run: str, folder: Path, *, on_cpu: bool, code: str | None = None) -> str:
    """Return `2 hosts x 8 GPUs = 16 ranks, run 20261120-091233, logs in logs/20261120-091233`.

    code: the name of the code that was sent, which follows the ranks.
    """
    return f"{plan_size(plan, on_cpu=on_cpu)}, {f'code {code}, ' if code else ''}run {run}, logs in {folder}"


def restart_words(restarts: int, spares: Sequence[str]) -> str:
    """Return `; up to 10 restarts without progress, spare gpu9`, to append to the line about the plan, or nothing."""
    if not restarts:
        return ""
    names = f", {'spare' if len(spares) == 1 else 'spares'} {fold_names(spares)}" if spares else ""
    return f"; up to {count(restarts, 'restart')} without progress{names}"


def plan_size(plan: LaunchPlan, *, on_cpu: bool) -> str:
    """Return `2 hosts x 8 GPUs = 16 ranks`."""
    sizes = list(dict.fromkeys(node.nproc for node in plan.nodes))
    unit = "process" if on_cpu else "GPU"
    if plan.nnodes > len(plan.nodes):  # this machine's share of a run by hand
        own = plan.nodes[0]
        shape = f"node rank {own.node_rank} of {plan.nnodes} nodes: {count(own.nproc, unit)}"
    elif len(sizes) == 1:
        shape = f"{count(plan.nnodes, 'host')} x {count(sizes[0], unit)}"
    else:
        each = " + ".join(str(node.nproc) for node in plan.nodes)
        shape = f"{count(plan.nnodes, 'host')} with {each} {plural(unit)}"
    ranks = count(plan.world_size, "rank")
    return f"{shape}, {ranks} in all" if plan.nnodes > len(plan.nodes) else f"{shape} = {ranks}"


def cpu_words(job: Job, plan: LaunchPlan) -> str:
    """Return what the run does on hosts that have no GPUs, and how to get more ranks unless a number was chosen."""
    is_chosen = job.nproc or any(node.host.slots for node in plan.nodes)
    each = ": 1 process per host (--nproc N for more)" if not is_chosen else ""
    return f"{count(len(plan.nodes), 'host')} without GPUs, so the run uses CPUs{each}"


def warning_lines(warnings: Sequence[Finding]) -> list[str]:
    """Return one line for each of the first eight warnings, and one with the number of the others."""
    return _few([f"  {warning.one_line}" for warning in warnings], _MAX_WARNINGS, ": run launch check")


def plan_lines(plan: LaunchPlan) -> list[str]:
    """Return for each node a comment, and the command to copy and paste."""
    lines = []
    first_is_known = True
    for node in plan.nodes:
        ranks = _rank_words(node, first_is_known=first_is_known)
        inside = f", inside {node.host.enter}" if node.host.enter else ""
        lines += [f"# node {node.node_rank}: {node.host.name}, {ranks}{inside}", node.by_hand]
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


def finished_words(result: Result, seconds: float, failed: int) -> str:
    """Return the last line of a run that succeeded; seconds: how long it took; failed: attempts before that."""
    tried = f", {failed + 1} attempts" if failed else ""
    ranks = f"{count(result.ranks, 'rank')} succeeded"
    return f"finished in {duration(seconds)}{tried}, {ranks}, {result.census.describe()}"


def failed_words(result: Result, run: str | None = None) -> str:
    """Return the last line of a run that failed; its cause was printed before. run: its id, if commands can find it."""
    page = f" (launch report {run})" if run is not None else ""
    return ", ".join(filter(None, [result.census.describe(), f"exit code {result.exit_code}{page}"]))


def limit_words(until: float, for_s: float | None, now: float) -> str:
    """Return why a run is stopped now; for_s: the value of --for; None: --until has set its end."""
    option = f"--until {short_time(until, now)}" if for_s is None else f"--for {span(for_s)}"
    return f"the run has reached its time limit ({option})"


def stopped_words(result: Result, seconds: float) -> str:
    """Return the last line of a run that was stopped after so many seconds."""
    return ", ".join(
        filter(None, [f"stopped by {_sender(result)} after {duration(seconds)}", result.census.describe()])
    )


def unstarted_words(result: Result) -> str:
    """Return the last line of a run that was stopped before any rank was started; a --setup may leave processes."""
    census = result.census
    return f"stopped by {_sender(result)}, {'nothing was started' if census.is_clean else census.describe()}"


def _sender(result: Result) -> str:
    assert result.interrupted_by is not None  # it was stopped
    return "its time limit" if result.time_limit else _SENDERS[result.interrupted_by]


def no_restart_words(decision: Stop, attempts: int, seconds: float) -> str:
    """Return why a run with --restarts isn't restarted after so many attempts and seconds."""
    after = f" after {count(attempts, 'attempt')} in {duration(seconds)}" if attempts > 1 else ""
    return f"no restart{after}: {decision.why}"


def refusal_lines(error: LauncherError, number: int) -> list[str]:
    """Return why a restart, the one with this number, could not start; 0: the run itself, after it was in the queue."""
    which = f"restart {number}" if number else "the run"
    if isinstance(error, HostsUnreachable):
        return [f"launch: {which} could not start", *failure_lines(error.failures)]
    fix = [f"fix: {error.fix}"] if error.fix else []
    return [
        f"launch: {which} could not start:",
        *(f"  {line}" for line in [*error.message.splitlines(), *fix]),
    ]


def left_lines(census: Census) -> list[str]:
    """Return one line for each process that could not be killed."""
    return _few(
        f"  {host}: pid {pid} ({name}) {_survival(state)}"
        for host, processes in census.left.items()
        for pid, name, state in processes
    )


def uncopied_lines(census: Census) -> list[str]:
    """Return what ranks have left in LAUNCH_FILES that didn't come with their other files."""
    lines = []
    for where, (number, files) in _group_hosts(census.uncopied):
        named = [f"{shown(name)} ({why})" for name, why in files]
        lines.append(f"  {where}: not copied from LAUNCH_FILES: {_list_few(named, number)}")
    fix = "    fix: write to the working directory instead, and copy from there with launch fetch RUN PATH"
    return [*_few(lines), fix] if lines else []


def written_lines(census: Census) -> list[str]:
    """Return what ranks have written beside the code that was sent, where the next run doesn't see it."""
    lines = [
        f"  {where}: the run wrote {_list_few(names, len(names))} next to its code, in {root}"
        for where, (root, *names) in _group_hosts(census.written)
    ]
    fix = "    fix: pass --link NAME=DIR, or write elsewhere: the next run gets a new directory, without these"
    return [*_few(lines), fix] if lines else []


def _few(lines: Iterable[str], most: int = _MAX_LEFT, rest: str = "") -> list[str]:
    """Return the first lines, and one that counts the others."""
    known = [*lines]
    return known[:most] + ([f"  and {len(known) - most} more{rest}"] if len(known) > most else [])


def _list_few(names: Sequence[str], number: int) -> str:
    few = names[:_MOST_WRITTEN]
    return listed([*few, *([f"{number - len(few)} more"] if number > len(few) else [])])


def _group_hosts(found: Mapping[str, _FoundT]) -> list[tuple[str, _FoundT]]:
    """Return the hosts of which the same is true, folded, and what that is."""
    hosts: dict[_FoundT, list[str]] = {}
    for host, each in found.items():
        hosts.setdefault(each, []).append(host)
    return [(fold_names(names), each) for each, names in hosts.items()]


def _survival(state: str) -> str:
    if state == "D":
        return "is in state D, which no signal can end"
    return f"is still running after SIGKILL (state {state}): it may run as another user"


def failed_first_line(cause: Cause, nodes: int) -> str:
    """Return `gpu2 rank 11 failed first (exit code 1), stopping the run on 2 hosts`."""
    return f"{cause.failure.headline}, stopping the run on {count(nodes, 'host')}"


def cause_block(
    cause: Cause, failures: Sequence[Failure], ranks: int, log: Path, *, withheld: int = 0,
    code: tuple[str, str] | None = None,
) -> list[Line]:  # fmt: skip
    """Return the lines that explain the cause, few enough for a screen.

    failures: of all ranks; ranks: how many the run has. log: the file with all output of the failed node; withheld: how
    many ranks printed other tracebacks that are only in the logs; code: the root of the code that was sent, there and
    here: an editor opens what the traceback names here.
    """
    failure = cause.failure
    traceback = [line.replace(f'"{code[0]}/', f'"{code[1]}/') if code else line for line in cause.traceback]
    local = f" (local rank {failure.local_rank}" + (f", GPU {failure.gpu})" if failure.gpu is not None else ")")
    where = local if failure.local_rank is not None else ""
    lines = [Line(f"  {failure.subject}{where} at {local_time(failure.at)[11:19]}:", Style.STRONG)]
    *frame, error = _fit_traceback(traceback) or [failure.ending]
    lines += [*(Line(f"    {line}") for line in frame), Line(f"    {error}", Style.FAILURE)]
    lines += map(Line, same_lines(cause, ranks))
    if cause.explanation is not None:
        lines.append(Line(f"  why: {_cut(cause.explanation.cause, _MAX_ERROR)}"))
        lines.append(Line(f"  fix: {cause.explanation.fix}", Style.STRONG))
    counted = [f"  {count(withheld, 'other traceback')} in the logs"] if withheld else []
    if cause.last_lines:
        last_lines = [f"    {_cut(line, _MAX_LINE)}" for line in cause.last_lines[-_MAX_LAST_LINES:]]
        lines += map(Line, ["  its last lines:", *last_lines])
    return [*lines, *map(Line, [*others_lines(cause, failures), *counted, f"  full log: {log}"])]


def _cut(line: str, length: int) -> str:
    return line if len(line) <= length else line[: length - 3] + "..."


def _fit_traceback(traceback: Sequence[str]) -> list[str]:
    """Cut long statements and messages, so that they don't push the rest off the screen."""
    *frame, error = traceback or ("",)
    if len(frame) > _MAX_FRAME_LINES:
        frame = [*frame[: _MAX_FRAME_LINES - 1], "  ..."]
    return [*(_cut(line, _MAX_LINE) for line in frame), _cut(error, _MAX_ERROR)] if traceback else []


def same_lines(cause: Cause, ranks: int) -> list[str]:
    """Return `same error on all 4 ranks: 2 each on gpu[1-2]`, or no line; ranks: of the run."""
    if not cause.same:
        return []
    alike = Counter(failure.host for failure in (cause.failure, *cause.same))
    total = alike.total()
    return [f"  same error on {f'all {total}' if total == ranks else f'{total} of {ranks}'} ranks: {_by_host(alike)}"]


def others_lines(cause: Cause, failures: Sequence[Failure]) -> list[str]:
    """Return `1 other failed as well: 1 on gpu2` for the ranks that failed by themselves, and in another way."""
    alike = {failure.rank for failure in (cause.failure, *cause.same)}
    others = [each for each in failures if each.kind is FailureKind.RANK and each.rank not in alike]
    hosts = Counter(each.host for each in others if each.role is Role.ERROR)
    return [f"  {count(hosts.total(), 'other')} failed as well: {_by_host(hosts)}"] if hosts else []


def _by_host(counts: Mapping[str, int]) -> str:
    by_number: dict[int, list[str]] = {}
    for host, number in counts.items():
        by_number.setdefault(number, []).append(host)
    return ", ".join(
        f"{number} on {fold_names(hosts)}" if len(hosts) == 1 else f"{number} each on {fold_names(hosts)}"
        for number, hosts in by_number.items()
    )


def flight_recorder_lines(files: Sequence[Path], unsafe: Mapping[Path, str]) -> list[str]:
    """Return where the files of NCCL's flight recorder are, and the command that reads them, if that is safe.

    The command, torchfrtrace, comes with torch, and runs code from files that are no plain data.
    """
    if not files:
        return []
    place = files[0].parent.parent  # above the nodes' directories
    lines = [f"  NCCL's flight recorder of {count(len(files), 'rank')}: {place}"]
    if unsafe:
        path, why = next(iter(unsafe.items()))
        number = count(len(unsafe), "file")
        return [*lines, f"    don't run torchfrtrace on it: {number} can't be trusted, such as {path} ({why})"]
    command = f"torchfrtrace --prefix {FLIGHT_RECORDER_PREFIX} {place}"
    return [*lines, f"    which rank is missing from which collective: {command}"]
