"""In CI (`CI=true`) a test that skips has failed: what it needs is missing there, and nobody would notice.

Side by side, tests go in two groups: those that start runs on this machine itself, which see each other's left-overs,
and those that start none or have machines of their own.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any, TypeVar

import pytest
from xdist.scheduler import LoadScopeScheduling

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

THIS_MACHINE = ("process", "ssh")


class TwoGroups(LoadScopeScheduling):  # type: ignore[misc]
    """Each group goes through one process of its own, in order."""

    def _split_scope(self, nodeid: str) -> str:
        return "this machine" if nodeid.split("/")[1] in THIS_MACHINE else "others"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TwoGroups:
    return TwoGroups(config, log)


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
