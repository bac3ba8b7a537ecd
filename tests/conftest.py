"""In CI (`CI=true`) a test that skips has failed: what it needs is missing there, and nobody would notice.

Side by side, tests go by folder; those that start runs on this machine itself, which see each other's left-overs,
go one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any, TypeVar

import pytest
from xdist.scheduler import LoadScopeScheduling

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

THIS_MACHINE = ("process", "ssh")


class ByFolder(LoadScopeScheduling):  # type: ignore[misc]
    """Each folder's tests go through one process, in order; whoever is done takes the next folder."""

    def _split_scope(self, nodeid: str) -> str:
        folder = nodeid.split("/")[1]
        return "this machine" if folder in THIS_MACHINE else folder


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFolder:
    return ByFolder(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _fail_if_skipped((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _fail_if_skipped((yield))


def _fail_if_skipped(report: Report) -> Report:
    """Turn a skip into a failure that says why; an expected failure (xfail), which pytest counts here too, stays."""
    if report.skipped and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        _, _, reason = report.longrepr if isinstance(report.longrepr, tuple) else (None, None, report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"a skip is a failure in CI. {reason}"
    return report
