"""run.json, as its writers make it and its readers get it; docs/json.md has its fields, with the comments from here.

A reader knows these fields and no others. One that is missing, as in the file of an older version, or that has another
form, has its default.
"""

# The types of fields are looked at by launcher.forms, so annotations are not postponed.
import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from launcher.forms import Count, FormError, Text, reader_of
from launcher.runs.bisection import Verdict
from launcher.runs.run_state import RestartCount

Incident = Literal["lost", "failed its checks", "failed test-distributed", "had a broken GPU"]
INCIDENTS = get_args(Incident)  # what can go wrong with a host
_MOST_LETTERS = 300  # of a cause in one line; torch names all keys that a state_dict lacks in one


@dataclass(frozen=True, slots=True)
class CodeVersion:
    """The commit of the user's code, and what differs from it."""

    commit: str  # the checked-out commit
    dirty: bool | None  # whether files of the repository differ from that commit; `null` if git took too long
    changed_files: int | None  # how many files differ
    untracked_files: int | None  # how many entries `git status` shows that are in no commit and not ignored


@dataclass(frozen=True, slots=True)
class PlannedProgram:
    """What the ranks run; secrets are hidden."""

    kind: str  # `script`, `module`, `command` or `builtin`
    target: Text  # the path or name of the program
    args: tuple[Text, ...]  # the arguments of the program


@dataclass(frozen=True, slots=True)
class Node:
    """A host of the plan."""

    host: str  # the host's name
    node_rank: Count  # the host's node rank, from 0
    first_rank: Count | None  # the first rank on the host; `null` if it depends on the hosts' GPUs, in a dry run
    nproc: Count | None  # the number of ranks on the host; `null` if it depends on its GPUs, in a dry run
    cwd: str = ""  # the directory in which the ranks run
    # what is executed there: torchrun, or a rank if there is no torchrun; empty in a dry run
    argv: tuple[Text, ...] = ()
    # the variables that `launch` sets there, by name; not those of `--env` and the forwarded ones; empty in a dry run
    env: Mapping[str, Text] = field(default_factory=dict)
    command: Text = ""  # the line for a shell on that host, as `--dry-run` prints it; empty if it is none

    @property
    def ranks(self) -> range:
        """The ranks on the host."""
        return range(self.first_rank or 0, (self.first_rank or 0) + (self.nproc or 0))


@dataclass(frozen=True, slots=True)
class SentCode:
    """The code that --sync sent."""

    hash: str  # of the listing of the code
    root: str  # its directory on the launch host
    files: int  # how many files there are
    bytes: int  # their size
    links: Mapping[str, str]  # the target of each link, by name
    left_out: str  # what was not sent, as a text


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is started where."""

    run: str | None = None  # the run's ID; `null` in a dry run, for which no run is made
    name: str | None = None  # the value of `--name`
    logs: str = ""  # the directory of its logs, on the machine that controls the run; empty in a dry run
    attempt: int = 0  # the number of the restart, 0 for the first attempt
    program: PlannedProgram | None = None
    world_size: int | None = None  # the number of ranks; `null` if it depends on the hosts' GPUs, in a dry run
    master_addr: str | None = None  # the address of node 0 that the ranks get; `null` if only the hosts know it
    master_port: int | None = None  # the port of node 0; `null` if only node 0 knows it
    nodes: tuple[Node, ...] = ()
    code: SentCode | None = None  # the code that `--sync` sent, or would send; `null` without it


@dataclass(frozen=True, slots=True)
class UsedHost:
    """What may differ between hosts and change how a run goes."""

    host: str  # a host of the last attempt
    gpus: int  # how many GPUs it has
    gpu_model: str | None  # their model
    driver: str | None  # the version of their driver
    cpu_count: int | None  # CPUs that processes may use
    python: str | None  # the Python that runs the ranks
    python_version: str | None  # its version
    torch_version: str | None  # the version of its torch
    cuda_version: str | None  # the CUDA with which that torch was built
    nccl_version: str | None  # the version of the NCCL that pip installed with it
    interface: str | None  # the network interface that leads to node 0


@dataclass(frozen=True, slots=True)
class RankFailure:
    """How one rank failed by itself, and not because it lost another one."""

    host: str  # the host of a rank that failed by itself: first that of `cause`, then others in order, 100 at most
    rank: int  # that rank
    local_rank: int | None  # its local rank
    gpu: int | None  # the number of its GPU on that host
    exit_code: int | None  # its exit code
    signal: int | None  # the number of the signal that ended it
    text: str  # how it ended, in words
    at: str  # when it failed
    traceback: tuple[Text, ...]  # all lines of its last Python error


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why something failed and what to do, if the error is known."""

    name: str  # the name of the known error
    cause: str  # why it failed, in words
    fix: str  # what to do


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What failed first in a run."""

    host: str  # the host on which it failed
    what: str  # `rank`, `torchrun`, `supervisor` (the helper of `launch` on that host), `connection` or `hang`
    rank: int | None  # the rank that failed
    local_rank: int | None  # its local rank
    gpu: int | None  # the number of its GPU on that host
    exit_code: int | None  # its exit code
    signal: int | None  # the number of the signal that ended it
    oom: str | None  # `probable` if the kernel killed it for lack of memory, as its count says
    text: str  # how it ended, in words
    headline: str = ""  # who failed first and how, in one line
    at: str  # when it failed
    traceback: tuple[Text, ...] = ()  # the lines of its Python error, as the screen shows them
    last_lines: tuple[Text, ...] = ()  # the last lines that it printed
    explanation: Explanation | None  # why it failed, if the error is known

    @property
    def culprit(self) -> str:
        """`gpu2 rank 11`, or the host alone."""
        return self.host if self.rank is None else f"{self.host} rank {self.rank}"

    def describe(self) -> str:
        """Return in one line who failed, and the error; without one how it ended, and why or what it printed last."""
        explained = (self.explanation.cause,) if self.explanation is not None else self.last_lines[-1:]
        reason = ": ".join(each.strip() for each in self.traceback[-1:] or (self.text, *explained))
        return f"{self.culprit}: {reason}"[:_MOST_LETTERS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a run ended, or an attempt."""

    run: str = ""  # the run's ID, `null` in a dry run; not in run.json
    name: str | None = None  # the value of `--name`; not in run.json
    attempts: int = 0  # how many attempts were made; not in run.json
    hosts: tuple[str, ...] = ()  # the hosts of the last attempt, in the order of their node ranks; not in run.json
    exit_code: int  # the exit code of `launch`
    seconds: float = 0.0  # how long the run or attempt took, checks included
    interrupted_by: int | None  # the number of the signal that stopped `launch`; 15 at a time limit
    time_limit: str | None  # `until` or `for` if the run was stopped at the time limit of that option
    error: Text | None  # why a restart could not start
    # for each host the leftover processes, each as `[pid, name, state]`
    left: Mapping[str, tuple[tuple[int, str, str], ...]] = field(default_factory=dict)
    # for each host that couldn't be reached, how many processes may be left
    unreachable: Mapping[str, int] = field(default_factory=dict)
    # for each host on which the run wrote next to the code that `--sync` sent, the directory of the code and the names
    written: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cause: Cause | None  # what failed first; `null` if the run succeeded, or was stopped
    failures: tuple[RankFailure, ...] = ()

    @property
    def reason(self) -> str:
        """Why it failed or could not start, in one line; empty if it didn't fail."""
        return self.cause.describe() if self.cause is not None else (self.error or "").partition("\n")[0]

    def as_record(self) -> dict[str, Any]:
        """Return it for run.json, where the names of the run stand elsewhere."""
        return {name: value for name, value in asdict(self).items() if name not in ("run", "name", "attempts", "hosts")}


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """An attempt that has ended."""

    hosts: tuple[str, ...] = ()  # the hosts of an attempt, by node rank; a run without `--restarts` has one attempt
    spares: tuple[str, ...] = ()  # the hosts that waited to take the place of another one, in their order
    master_port: int | None = None  # the port of node 0; `null` if it could not start
    began_at: str  # when its checks began
    ended_at: str  # when the leftover check was done
    # `succeeded`, `stopped`, `input`, `import`, `error`, `consequence`, `hang`, `host`, `network` or `disk`
    outcome: str
    progress: bool = False  # whether it got further than the attempts before it
    then: str | None = None  # why another attempt followed, or none; `null` if it succeeded
    restarts: RestartCount | None = None
    search: Verdict | None = None  # what a search for the hosts to blame found: see the event `verdict`; `null`: none
    blamed: Mapping[str, str] = field(default_factory=dict)  # what went wrong with which host: `{"gpu2": "lost"}`
    result: Result  # see the event `result`

    def as_record(self) -> dict[str, Any]:
        """Return it for run.json."""
        return {**asdict(self), "result": self.result.as_record()}


@dataclass(frozen=True, slots=True)
class RunJson:
    """What is known of a run."""

    run_id: str = ""  # the ID of the run, as in `logs/<run-id>`
    name: str | None = None  # the value of `--name`
    command: Text = ""  # the command line, quoted for a shell
    directory: Text = ""  # the directory in which it ran
    user: str = ""  # the user who ran it
    launch_host: str = ""  # the machine on which it ran
    # the code of the ranks on the launch host; `null` for the built-in trainer, and if git can't tell within 3 s
    git: CodeVersion | None = None
    again_of: str | None = None  # the run that this one repeats, if `launch again` started it; `null` otherwise
    started_at: str = ""  # when the checks were done and the ranks were about to start
    utc_offset: str = "+00:00"  # the UTC offset of the times in `node_<rank>.log`: `+01:00`
    plan: Plan = Plan()  # see the event `plan`; of the last attempt
    code: SentCode | None = None  # the code that `--sync` sent; `null` without it
    hosts: tuple[UsedHost, ...] = ()
    warnings: tuple[Text, ...] = ()  # the warnings of the checks, as texts
    attempts: tuple[EndedAttempt, ...] = ()
    ended_at: str = ""  # when the leftover check was done; absent before
    result: Result | None = None  # see the event `result`; absent before the end

    @property
    def cause(self) -> Cause | None:
        """What failed first, if the run has failed."""
        return self.result.cause if self.result is not None else None

    @property
    def all_hosts(self) -> list[str]:
        """All hosts that the run has used so far."""
        nodes = [node.host for node in self.plan.nodes]
        return [*nodes, *(host for attempt in self.attempts for host in attempt.hosts)]


def read_run_json(found: object) -> RunJson:
    """Return what a run.json says."""
    values = found if isinstance(found, dict) else {}
    known = {}
    for each in fields(RunJson):
        if values.get(each.name) is not None:
            form: Any = each.type
            with contextlib.suppress(FormError):
                known[each.name] = reader_of(form)(values[each.name])
    return RunJson(**known)
