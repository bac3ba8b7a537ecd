"""Which connections to the port of a controller count as those of one source."""

from __future__ import annotations

import pytest

from launcher.transports.agents.agent_listener import find_source


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:0:1:aaaa::1", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:bbbb::2", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_sources(address: str, source: str) -> None:
    assert find_source(address) == source
