"""After a reboot: what a controller keeps of its login, and the warning about hosts that start nothing."""

from __future__ import annotations

from launcher.controller.control import _drop_login, describe_no_unit
from launcher.node.facts import network


def test_one_host_or_several() -> None:
    fix = "fix: loginctl enable-linger there, or install cron"
    assert describe_no_unit(["g2"], "no systemd, and no cron daemon") == (
        f"g2 doesn't rejoin the run by itself after a reboot: no systemd, and no cron daemon; {fix}"
    )
    assert describe_no_unit(["g2", "g3"], "no systemd") == (
        f"g[2-3] don't rejoin the run by themselves after a reboot: no systemd; {fix}"
    )


def test_what_is_kept_of_a_login_that_is_over() -> None:
    (_, own), *_ = network.list_addresses()
    old = {"PATH": "/usr/bin", "SSH_AUTH_SOCK": "/tmp/agent", "SSH_CONNECTION": f"192.0.2.9 50000 {own} 22"}
    now = {"SSH_CONNECTION": f"192.0.2.8 50001 {own} 22"}
    moved = {**old, "SSH_CONNECTION": "192.0.2.9 50000 198.51.100.7 22"}
    assert _drop_login(old, {}) == {"PATH": "/usr/bin", "SSH_CONNECTION": old["SSH_CONNECTION"]}
    assert _drop_login(old, now) == _drop_login(moved, now) == {"PATH": "/usr/bin", **now}
    assert _drop_login(moved, {}) == {"PATH": "/usr/bin"}
