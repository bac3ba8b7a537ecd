"""The functions for programs: those that start a run or follow one, and those that ask about hosts and runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from launcher.api.child import Argv, Child, Event, Scalar, Word, as_words, ask, call, list_words, script_words
from launcher.api.values import (
    CheckResult,
    FreeResult,
    Host,
    Line,
    ListedRun,
    Result,
    failure_of,
    read_check,
    read_free,
)
from launcher.errors import UsageError
from launcher.forms import reader_of

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing from Python 3.11 on

    from launcher.api.option_types import Options

_OWN = ("json", "dry_run", "check")  # options that are set here, or that start no run


class Run:
    """A run that has begun, on its hosts.

    Iterating yields the lines of its ranks as they come, until it ends. Nobody has to: the run never waits for this
    program. Leaving the block ends a run that `launch` started, and waits until nothing of it is left; one that was
    detached, or attached to, continues.
    """

    def __init__(self, child: Child, begun: Event, reach: Sequence[str] = ()) -> None:
        """reach: the options with which another command finds the run."""
        self._child = child
        self._reach = reach
        self.id: str = begun["run"]
        self.name: str | None = begun["name"]
        self._follow_detached()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._child.end(may_raise=error is None)

    def __iter__(self) -> Iterator[Line]:
        """Yield the lines of the ranks; each line is yielded once, however many iterate."""
        while True:
            while (line := self._child.next_line()) is not None:
                yield line
            if not self._follow_detached():
                return

    def __repr__(self) -> str:
        return f"<launcher.Run {self.id}{f' ({self.name})' if self.name else ''}>"

    @property
    def logs(self) -> Path:
        """The directory of its logs, on the machine that controls it."""
        self._child.wait_for(lambda: _find_logs(self._child))  # of a queued run, once it is attached to
        return Path(_find_logs(self._child) or _refuse(self._child))

    @property
    def messages(self) -> list[str]:
        """What `launch` itself has said so far, line by line."""
        return self._child.messages

    @property
    def dropped_lines(self) -> int:
        """How many lines came while 32 MB were not read yet; the logs have them."""
        return self._child.dropped_lines

    @property
    def result(self) -> Result | None:
        """How the run ended; None while it runs."""
        event = self._child.events.get("result")
        # What an older launch, or a run that was killed, doesn't say is empty.
        return reader_of(Result)(event) if event is not None and self._child.has_ended else None

    def wait(self, timeout_s: float | None = None, *, check: bool = True) -> Result:
        """Wait until the run has ended and return how; the lines stay for whoever iterates.

        Raise RankFailed, or RunFailed if no rank is to blame, unless check is False; TimeoutError after timeout_s.
        """
        self._child.wait_for(lambda: False, timeout_s)
        if self._follow_detached():  # as launcher.toml may say
            return self.wait(timeout_s, check=check)
        result = self.result
        if result is None:
            raise self._child.find_error()
        if check and result.exit_code:
            raise failure_of(result, self.messages)
        return result

    def stop(self, *, now: bool = False) -> Result:
        """Stop the run as `launch stop` does, wait until nothing of it is left, and return how it ended.

        now: kill the ranks at once, without time to save.
        """
        call(["stop", *self._reach, *as_words({"now": now}), self.id])
        return self.wait(check=False)

    def _follow_detached(self) -> bool:
        """Attach to the run if its `launch` has left it; return whether it did."""
        if not self._child.has_ended or "detached" not in self._child.events or "result" in self._child.events:
            return False
        self._child = Child(["attach", "--json", self.id])
        return True


AnyRun = str | Run | ListedRun | None
File = str | os.PathLike[str] | None


def launch(argv: Argv = (), **options: Unpack[Options]) -> Run:
    """Start a run of argv, a script and its arguments, as `launch` does; return once its ranks are about to start.

    The options are those of the command line by their names: `gpus=8`, `sync=True`, `env={"A": "1"}`, `for_="6h"`.
    Raise UsageError, HostsUnreachable or ChecksFailed if it can't start. With detach=True, return once all ranks run;
    that run then outlives the block and this program.
    """
    return _start(["run"], options, script_words(argv))


def singlenode(argv: Argv = (), **options: Unpack[Options]) -> Run:
    """Start a run on this machine only, without SSH, as `launch singlenode` does; otherwise the same as `launch`."""
    return _start(["singlenode"], options, script_words(argv))


def again(run: AnyRun = None, **options: Unpack[Options]) -> Run:
    """Start a run again as it was typed, as `launch again` does, with these options instead of its own.

    run: as of `attach`. It returns and raises what `launch` does.
    """
    return _start(["again", *_name_run(run)], options)


def attach(run: AnyRun = None, *, controller: str | None = None, ssh_config: File = None) -> Run:
    """Follow a run that exists, from its last lines on, as `launch attach` does; None: the newest one.

    run: an id, a name, or what `runs` or another call returned; controller: the host that controls it, if it was
    started on another machine. Leaving the block leaves it running.
    """
    reach = as_words({"controller": controller, "ssh_config": ssh_config})
    return _begin(Child(["attach", "--json", *reach, *_name_run(run)]), reach)


def stop(run: AnyRun = None, *, now: bool = False, controller: str | None = None, ssh_config: File = None) -> None:
    """Stop a run as `launch stop` does, and wait until nothing of it is left; None: the only active one.

    now: kill the ranks at once, without time to save; controller: as of `attach`.
    """
    call(["stop", *as_words({"now": now, "controller": controller, "ssh_config": ssh_config}), *_name_run(run)])


def check(argv: Argv = (), **options: Unpack[Options]) -> CheckResult:
    """Compare the hosts and return what would break a run, as `launch check` does, with its options by their names."""
    return read_check(ask("check", [*as_words(options), *script_words(argv)]))


def free(**options: Unpack[Options]) -> FreeResult:
    """Return which GPUs of the hosts are free, and who has claimed or uses the others, as `launch free` shows them."""
    return read_free(ask("free", as_words(options)))


def hosts(**options: Unpack[Options]) -> list[Host]:
    """Return the hosts in rank order as launch reads them, spares last, without contacting them.

    The options are `hosts`, `hostfile`, `include`, `exclude` and others of `launch hosts`.
    """
    return [*map(reader_of(Host), ask("hosts", as_words(options)))]


def runs(*, all: bool = False, hosts: str | Sequence[str] | None = None, ssh_config: File = None) -> list[ListedRun]:
    """Return the runs that were started on this machine, the newest first, as `launch ps` lists them.

    all: not only the active ones and the newest 20; hosts: the runs that these hosts control.
    """
    return [*map(reader_of(ListedRun), ask("ps", as_words({"all": all, "hosts": hosts, "ssh_config": ssh_config})))]


def fetch(
    run: AnyRun = None, paths: Argv = (), *, all: bool = False, code: bool = False,
    limit: Scalar | None = None, log_dir: File = None, controller: str | None = None, ssh_config: File = None,
) -> None:  # fmt: skip
    """Copy the logs of a run from the host that controls it, or files of its ranks, as `launch fetch` does.

    run: None is the newest one
    paths: of the ranks' files, such as outputs/, which go to `log_dir`/ID-fetched instead of the logs to `log_dir`/ID
    all: copy them from all hosts, not only from node 0
    code: copy the code of the run instead, to paths or else to ID-code
    limit: of what is copied from each host, such as "2GB"
    controller: the host that controls the run, if it was started on another machine
    """
    given = {
        "all": all, "code": code, "limit": limit, "log_dir": log_dir, "controller": controller, "ssh_config": ssh_config
    }  # fmt: skip
    names = list_words(paths)
    word = _name_run(run) or (["latest"] if names else [])
    call(["fetch", *as_words(given), "--", *word, *names])


def _name_run(run: AnyRun) -> list[str]:
    """Return the word that names a run; nothing for None."""
    word = run.id if isinstance(run, Run) else run.run if isinstance(run, ListedRun) else run
    return [] if word is None else [word]


def _start(command: Sequence[str], options: Mapping[str, Any], words: Sequence[Word] = ()) -> Run:
    if own := [name for name in _OWN if name in options]:
        raise UsageError(f"launcher.{'launch' if command[0] == 'run' else command[0]} takes no {own[0]}", "omit it")
    child = Child([*command, "--json", *as_words(options), *words])
    return _begin(child, detaches=bool(options.get("detach")))


def _begin(child: Child, reach: Sequence[str] = (), *, detaches: bool = False) -> Run:
    """Return the run once it has begun; raise the error with which it ends before that.

    detaches: only once `launch` has left it.
    """
    try:
        child.wait_for(lambda: not detaches and _find_begun(child))
        return Run(child, _find_begun(child) or _refuse(child), reach)
    except BaseException:
        child.end(may_raise=False)
        raise


def _find_begun(child: Child) -> Event | None:
    """Return the first event that names the run."""
    return next((child.events[name] for name in ("plan", "attached", "detached") if name in child.events), None)


def _find_logs(child: Child) -> str | None:
    return next((event["logs"] for event in [*child.events.values()] if "logs" in event), None)


def _refuse(child: Child) -> NoReturn:
    child.wait_for(lambda: False)
    raise child.find_error()
