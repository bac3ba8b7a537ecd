"""What Fabric and paramiko raise where a host can't be reached: what is reported, and what ssh is tried for."""

from __future__ import annotations

import errno
import os

import paramiko
import pytest
from paramiko.ssh_exception import IncompatiblePeer, NoValidConnectionsError

from launcher.errors import HostFailureKind
from launcher.transports.ssh.fabric import classify
from launcher.transports.ssh.failures import Destination
from launcher.transports.ssh.logins import TakesSsh

PLACE = Destination("10.0.0.2", "10.0.0.2", 22, "ann")
REFUSED = HostFailureKind.REFUSED, "10.0.0.2 port 22 refuses the connection"
SILENT = HostFailureKind.TIMED_OUT, "10.0.0.2 port 22 does not answer"
NO_ROUTE = HostFailureKind.NO_ROUTE, "no route to 10.0.0.2 port 22"


def of_all_addresses(number: int) -> Exception:
    """What paramiko makes of some errors."""
    return NoValidConnectionsError({("10.0.0.2", 22): OSError(number, os.strerror(number))})


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (of_all_addresses(errno.ECONNREFUSED), REFUSED),
        (of_all_addresses(errno.EHOSTUNREACH), NO_ROUTE),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), NO_ROUTE),
        (OSError(errno.ENETDOWN, "Network is down"), NO_ROUTE),
        (OSError(errno.EHOSTDOWN, "Host is down"), NO_ROUTE),  # what macOS says of a silent one in its own network
        (
            OSError(errno.ETIMEDOUT, "Operation timed out"),
            (HostFailureKind.TIMED_OUT, "10.0.0.2 port 22 does not answer"),
        ),
    ],
)
def test_errors_of_the_network(error: Exception, found: tuple[HostFailureKind, str]) -> None:
    found_error = classify(error, PLACE, "gate")
    assert (found_error.failure.kind, found_error.failure.text, found_error.jump_host) == (*found, "gate")
    assert not isinstance(found_error, TakesSsh)


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (TakesSsh("BindAddress", PLACE.takes_ssh("BindAddress")), HostFailureKind.SSH, "BindAddress"),
        (IncompatiblePeer("no kex"), HostFailureKind.SSH, "fabric fails (IncompatiblePeer: no kex)"),
        (EOFError("x"), HostFailureKind.LOST, "fabric fails (EOFError: x)"),
        (paramiko.SSHException("key cannot sign"), HostFailureKind.SSH, "fabric fails (SSHException: key cannot sign)"),
        (paramiko.AuthenticationException("Authentication timeout."), HostFailureKind.SLOW_LOGIN, None),
        (OSError(errno.EMFILE, "Too many open files"), HostFailureKind.SSH, None),
    ],
)
def test_what_ssh_is_tried_for(error: Exception, kind: HostFailureKind, reason: str | None) -> None:
    """For nothing of the network or this machine."""
    found = classify(error, PLACE, "gate")
    assert (found.failure.kind, found.reason if isinstance(found, TakesSsh) else None) == (kind, reason)
