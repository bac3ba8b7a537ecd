"""Settings for all tests: skips in CI, and how files run in parallel.

In CI (`CI=true`) a skipped test fails: something that it needs is missing there, and nobody would notice.

In parallel, each file goes to one worker, and each worker has a PID namespace: a run looks for leftover processes of
other runs, and would find those of other tests. Without PID namespaces, files whose runs would see each other run one
after the other.

One worker alone collects `tests/train`, whose imports of torch are most of what collecting takes.
"""

from __future__ import annotations

import gc
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

THIS_MACHINE = ("process", "ssh")
# One worker begins with tests that import torch. What waits, a folder or a file, runs beside what computes, and the
# short ones run last.
TORCH = "train"
WAITING = ("faults",)
COMPUTING = 3  # workers at least, as long as there is something to compute
TOGETHER = "slurm"  # one worker starts its Slurm, and on both nodes a Python that imports torch
ORDER = ("cluster", "slurm", "ssh", "process", "unit")

# What others leave in /tmp is of other machines then: no worker sees a run of another one there, and takes it for over.
OWN_MACHINE = """
id=$(mktemp) && od -An -N16 -tx1 /dev/urandom | tr -d ' \\n' >"$id" && chmod 644 "$id"
mount --bind "$id" /etc/machine-id 2>/dev/null
rm -f "$id"
"""
# A shell is the first process there, since Python would not reap orphans; if unshare, outside, is killed, all die.
ALONE = (
    "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", OWN_MACHINE + '"$@"; exit $?', "sh",
)  # fmt: skip

# Property tests: the same examples each time in CI, and no deadline, since a loaded machine isn't a bug.
settings.register_profile(
    "launcher",
    deadline=None,
    derandomize=os.environ.get("CI") == "true",
    max_examples=100 if os.environ.get("EVERY_PAIR") else 30,  # elsewhere each run tries others
)
settings.load_profile("launcher")


STATES = pytest.StashKey[Iterator[Path]]()  # a directory for each test


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Runs each file's tests in order in one worker, and those of TOGETHER; a worker that is done takes the next."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        is_alone = self.config.option.tx[0] != "popen"
        if not is_alone and _folder(nodeid) in THIS_MACHINE:
            return "this machine"
        return TOGETHER if _folder(nodeid) == TOGETHER else str(file)

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        self.registered_collections[node] = list(collection)

    def _check_nodes_have_same_collection(self) -> bool:
        """Put the most complete collection first, which is taken as that of all: the others may lack TORCH."""
        self.registered_collections = dict(
            sorted(self.registered_collections.items(), key=lambda entry: len(entry[1]), reverse=True)
        )
        return True

    def _assign_work_unit(self, node: Any) -> None:
        own = set(self.registered_collections[node])
        scopes = [scope for scope, unit in self.workqueue.items() if own.issuperset(unit)]
        if not scopes:
            node.shutdown()
            return
        waiting = [other for other in self.nodes if other is not node and self._is_waiting(other)]
        may_wait = len(waiting) < max(1, len(self.nodes) - COMPUTING)
        scope = next((scope for scope in scopes if may_wait or not _waits(Path(scope))), scopes[0])
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def _is_waiting(self, node: Any) -> bool:
        units = self.assigned_work.get(node, {})
        return any(_waits(Path(scope)) and not all(unit.values()) for scope, unit in units.items())


def _folder(nodeid: str) -> str:
    return nodeid.split("/")[1]


def _waits(file: Path) -> bool:
    return not {file.name, file.parent.name}.isdisjoint(WAITING)


def pytest_configure(config: pytest.Config) -> None:
    """Give each worker a PID namespace, if tests run in parallel; a worker itself has nothing to do."""
    _ignore_no_signal()
    # Where bytecode isn't kept, every worker rewrites every test's asserts, and every `launch` compiles itself anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.environ["OMP_WAIT_POLICY"] = "passive"  # threads of torch that wait for others leave the cores to other tests
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):  # the tests name their Python; the terminal's doesn't count
        os.environ.pop(name, None)
    states = tempfile.mkdtemp(prefix="launch-tests-")
    config.add_cleanup(lambda: shutil.rmtree(states, ignore_errors=True))
    config.stash[STATES] = (Path(states) / str(number) for number in itertools.count())
    workers = getattr(config.option, "tx", None) or []
    if set(workers) == {"popen"} and shutil.which(ALONE[0]) is not None:
        tried = subprocess.run([*ALONE, "true"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if tried.returncode == 0:
            config.option.tx = [f"popen//python={shlex.join([*ALONE, sys.executable])}"] * len(workers)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker whether it collects TORCH; all do so where somebody has named the tests."""
    is_all = node.config.args_source is pytest.Config.ArgsSource.TESTPATHS
    number = int(node.gateway.id.removeprefix("gw"))
    # One in the place of a worker that has crashed has a higher number, and may have to run what that one ran.
    node.workerinput["without_torch"] = is_all and 1 <= number < len(node.config.option.tx)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_without_torch = getattr(config, "workerinput", {}).get("without_torch", False)
    return True if is_without_torch and collection_path == Path(__file__).parent / TORCH else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let no test meet what `launch` remembers of the hosts of another one, or of the user's."""
    os.environ["XDG_STATE_HOME"] = str(next(item.config.stash[STATES]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what collecting makes out of garbage collections: it lives to the end, and each would look through it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _ignore_no_signal() -> None:
    """Restore signals that nohup or a shell's `&` ignores: launch rightly keeps ignoring those."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put those that need torch first, then those that wait, then others in the order of ORDER."""
    order = (TORCH, WAITING, *ORDER)
    items.sort(key=lambda item: order.index(WAITING if _waits(item.path) else _folder(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    config.option.loadscopereorder = False  # it would sort files by their number of tests
    return ByFile(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _fail_if_skipped((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _fail_if_skipped((yield))


def _fail_if_skipped(report: Report) -> Report:
    """In CI, turn a skip into a failure with its reason; leave an expected failure (xfail), which is also `skipped`."""
    if report.skipped and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        _, _, reason = report.longrepr if isinstance(report.longrepr, tuple) else (None, None, report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"a skip is a failure in CI. {reason}"
    return report
