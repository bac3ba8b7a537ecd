"""How an attempt ended, as a value and as the values of run.json. Nothing here does I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from launcher.clock import iso_time
from launcher.runs import run_json

if TYPE_CHECKING:  # launch ps and others of a list of runs need neither
    from launcher.diagnosis.cause import Cause
    from launcher.diagnosis.failure import Failure
    from launcher.session.node_state import Census


@dataclass(frozen=True, slots=True)
class Result:
    """How an attempt ended; how the last one ended is how the run ended."""

    exit_code: int
    seconds: float
    census: Census
    cause: Cause | None = None
    failed: tuple[Failure, ...] = ()  # the ranks that failed by themselves, that of the cause first
    interrupted_by: int | None = None
    error: str | None = None  # why it could not start
    master_port: int | str | None = None
    ranks: int = 0  # of this launcher; 0: it ended before any was started
    is_network: bool = False  # all hosts were lost, or this machine was suspended
    output_s: float | None = None  # from the start of the ranks to their last output; None: there was none
    has_saved: bool | None = None  # whether the ranks have saved a checkpoint; None: not known
    time_limit: str | None = None  # the option that has stopped it in time, `until` or `for`
    lost_host_wait_s: float = 0.0  # until no rank can be alive on a host that was lost; 0: all hosts have been asked

    def describe(self) -> run_json.Result:
        """Return it for run.json and --json."""
        return run_json.Result(
            exit_code=self.exit_code,
            seconds=round(self.seconds, 3),
            interrupted_by=self.interrupted_by,
            time_limit=self.time_limit,
            error=self.error,
            left={host: tuple(found) for host, found in self.census.left.items()},
            unreachable=dict(self.census.unasked),
            written=dict(self.census.written),
            cause=None if self.cause is None else _describe_cause(self.cause),
            failures=tuple(
                run_json.RankFailure(**_describe(each), traceback=tuple(each.traceback)) for each in self.failed
            ),
        )


def _describe(failure: Failure) -> dict[str, Any]:
    return {
        "host": failure.host,
        "rank": failure.rank,
        "local_rank": failure.local_rank,
        "gpu": failure.gpu,
        "exit_code": failure.code,
        "signal": failure.signal,
        "text": failure.ending,
        "at": iso_time(failure.at),
    }


def _describe_cause(cause: Cause) -> run_json.Cause:
    failure, known = cause.failure, cause.explanation
    return run_json.Cause(
        **_describe(failure),
        what=failure.kind.value,
        oom=failure.oom,
        headline=failure.headline,
        traceback=cause.traceback,
        last_lines=cause.last_lines,
        explanation=None if known is None else run_json.Explanation(known.name, known.cause, known.fix),
    )
