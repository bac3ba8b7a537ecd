"""What an agent that a boot has started gets of the login."""

from __future__ import annotations

import os
import resource

import pytest

from launcher.node.agents.agent_unit import restore_login

pytestmark = pytest.mark.linux


def test_limits_are_raised_as_far_as_this_boot_permits(monkeypatch: pytest.MonkeyPatch) -> None:
    umask = os.umask(0o022)
    set_limits: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(os, "environ", {"OF": "a boot"})
    monkeypatch.setattr(resource, "setrlimit", set_limits.__setitem__)
    limits = {"RLIMIT_NOFILE": 2000, "RLIMIT_NPROC": resource.RLIM_INFINITY, "RLIMIT_OF_ANOTHER_KERNEL": 7}
    monkeypatch.setattr(resource, "getrlimit", {resource.RLIMIT_NOFILE: (1, 5000), resource.RLIMIT_NPROC: (1, 300)}.get)
    try:
        environment = {"PATH": "/usr/bin", "SSH_CONNECTION": "192.0.2.1 50000 198.51.100.7 22"}
        restore_login({"environment": environment, "umask": 0o077, "limits": limits})
        assert os.umask(umask) == 0o077
    finally:
        os.umask(umask)
    assert os.environ == {"PATH": "/usr/bin"}, "this node has another address now"
    assert set_limits == {resource.RLIMIT_NOFILE: (2000, 5000), resource.RLIMIT_NPROC: (300, 300)}


@pytest.mark.parametrize("address", ["127.0.0.2", "::1"])
def test_the_address_of_the_login_is_kept_while_it_is_this_node_s(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks of other hosts may reach this one by it."""
    environment = {"SSH_CONNECTION": f"192.0.2.1 50000 {address} 22"}
    monkeypatch.setattr(os, "environ", {})
    restore_login({"environment": environment, "umask": 0o022, "limits": {}})
    assert os.environ == environment
