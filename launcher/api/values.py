"""What comes back from a command, as frozen values: those of run.json and --json, which docs/json.md describes."""

# The types of fields are looked at by launcher.forms, so annotations are not postponed.
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from launcher.errors import (
    ChecksFailed,
    HostFailure,
    HostFailureKind,
    HostsUnreachable,
    LauncherError,
    UsageError,
)
from launcher.forms import reader_of
from launcher.preflight import findings
from launcher.runs import run_json, run_rows, run_state
from launcher.wording import count


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a rank; rank None: of torchrun."""

    host: str  # where the line was printed
    rank: int | None  # the rank that printed it; `null`: torchrun
    stream: Literal["stdout", "stderr"]  # `stdout` or `stderr`
    text: str  # the line, without its newline
    time: str = ""  # when it came, ISO 8601

    def __str__(self) -> str:
        """Return the line as the terminal shows it: `[gpu1:0] step 1`."""
        return f"[{self.host}] {self.text}" if self.rank is None else f"[{self.host}:{self.rank}] {self.text}"


ListedRun = run_rows.RunRow  # of `launch ps`
Finding = findings.Finding
Doing = run_state.Doing
Result = run_json.Result
Cause = run_json.Cause
Explanation = run_json.Explanation
RankFailure = run_json.RankFailure


class RunFailed(LauncherError):
    """A run that had begun did not succeed: it failed, or it was stopped.

    why and fix are empty if the error isn't known; result has everything.
    """

    def __init__(self, shown: str, result: Result) -> None:
        cause = result.cause
        known = cause.explanation if cause is not None else None
        super().__init__(shown.partition("\n")[0], known.fix if known is not None else "")
        self.args = (shown,)
        self.result = result
        self.exit_code = result.exit_code  # of `launch`: 128 and the signal for a rank that a signal ended
        self.why = known.cause if known is not None else ""
        self.host = cause.host if cause is not None else None
        self.failures = {failure.rank: failure for failure in result.failures}


class RankFailed(RunFailed):
    """A rank failed, the first one of a run."""

    host: str

    def __init__(self, shown: str, result: Result) -> None:
        super().__init__(shown, result)
        assert result.cause is not None and result.cause.rank is not None  # `failure_of` has looked
        self.rank = result.cause.rank
        self.gpu = result.cause.gpu
        own = self.failures.get(self.rank)
        self.traceback = "\n".join(own.traceback if own is not None else result.cause.traceback)


def failure_of(result: Result, messages: Sequence[str]) -> RunFailed:
    """Return the exception for a run that failed or was stopped; its text begins with the line of the terminal.

    messages: what `launch` has said.
    """
    cause = result.cause
    if cause is None:
        said = [line.removeprefix("launch: ") for line in messages if line.startswith("launch: stopped by ")]
        return RunFailed(result.error or (said or [f"exit code {result.exit_code}"])[-1], result)
    known = cause.explanation
    lines = [f"{cause.headline}, stopping the run on {count(len(result.hosts), 'host')}"]
    lines += [f"  {line}" for line in cause.traceback or cause.last_lines[-1:]]
    lines += [f"  why: {known.cause}", f"  fix: {known.fix}"] if known is not None else []
    is_rank = cause.rank is not None and cause.what == "rank"
    return (RankFailed if is_rank else RunFailed)("\n".join(lines), result)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What `launch check` found; facts has all facts of each host that responded, as docs/json.md lists them."""

    exit_code: int
    on_all: tuple[str, ...]
    findings: tuple[Finding, ...]
    unreachable: tuple[HostFailure, ...]
    facts: Mapping[str, Mapping[str, Any]]

    @property
    def problems(self) -> list[Finding]:
        """The findings that would break a run."""
        return [finding for finding in self.findings if finding.severity is findings.PROBLEM]


@dataclass(frozen=True, slots=True)
class FreeResult:
    """What `launch free` found; hosts has the GPUs and claims of each host that responded, as in docs/json.md."""

    exit_code: int
    hosts: Mapping[str, Mapping[str, Any]]  # by name
    unreachable: tuple[HostFailure, ...]

    @property
    def gpus(self) -> dict[str, list[int]]:
        """The numbers of the free GPUs of each host."""
        found = {name: host["gpus"] for name, host in self.hosts.items()}
        return {name: [gpu["index"] for gpu in gpus if gpu["state"] == "free"] for name, gpus in found.items()}


@dataclass(frozen=True, slots=True)
class Host:
    """One host as launch reads it; None: ssh_config or the host decides."""

    node_rank: int | None  # the host's node rank, from 0; `null` for a spare
    host: str  # the host's name
    slots: int | None  # the number of processes, if the hostfile sets it
    gpus: tuple[int, ...] | None  # the numbers of the GPUs that were chosen
    user: str | None  # the user who logs in
    port: int | None  # the SSH port
    addr: str | None  # the address for the other hosts
    enter: str  # the command that starts a program inside of its container; empty: none
    source: str  # where the host was named


def read_check(event: Mapping[str, Any]) -> CheckResult:
    """Return the value of a `check` event."""
    found = tuple(map(reader_of(Finding), event["findings"]))
    failures = tuple(map(_read_host_failure, event["unreachable"]))
    return CheckResult(event["exit_code"], tuple(event["on_all"]), found, failures, event["hosts"])


def read_free(event: Mapping[str, Any]) -> FreeResult:
    """Return the value of a `free` event."""
    failures = tuple(map(_read_host_failure, event["unreachable"]))
    return FreeResult(event["exit_code"], {each["host"]: each for each in event["hosts"]}, failures)


def read_error(event: Mapping[str, Any]) -> LauncherError:
    """Return the exception that an `error` event describes; its text is what the terminal shows."""
    message, fix, code = event["message"], event["fix"], event["exit_code"]
    error: LauncherError
    if event["unreachable"]:
        error = HostsUnreachable([*map(_read_host_failure, event["unreachable"])])
    elif code == ChecksFailed.exit_code:
        found = tuple(map(reader_of(Finding), event["findings"]))
        hosts = dict.fromkeys(name for finding in found for name in finding.hosts)
        error = ChecksFailed(message, fix, hosts=tuple(hosts), findings=found)
    else:
        error = make_error(message, fix, code)
    error.args = (event["shown"],)
    return error


def make_error(message: str, fix: str, exit_code: int) -> LauncherError:
    """Return the exception for the exit code of a `launch`."""
    error = (UsageError if exit_code == UsageError.exit_code else LauncherError)(message, fix)
    error.exit_code = exit_code
    return error


def _read_host_failure(row: Mapping[str, Any]) -> HostFailure:
    return HostFailure(**{**row, "kind": HostFailureKind(row["kind"])})
