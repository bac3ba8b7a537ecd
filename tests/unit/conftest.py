"""Which of these tests a Mac can run: what the launch host does, but not the code of the hosts, which run Linux."""

from __future__ import annotations

import sys

import pytest

IS_LINUX = sys.platform == "linux"
collect_ignore = [] if IS_LINUX else ["node", "bench"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests marked `linux` elsewhere: a skip would be a failure in CI."""
    if not IS_LINUX:
        away = [item for item in items if item.get_closest_marker("linux")]
        items[:] = [item for item in items if item not in away]
        config.hook.pytest_deselected(items=away)
