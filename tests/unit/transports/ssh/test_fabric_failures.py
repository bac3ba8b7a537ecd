"""What Fabric and paramiko raise where a host can't be reached, and what we make of it."""

from __future__ import annotations

import errno
import os

import pytest
from paramiko.ssh_exception import NoValidConnectionsError

from launcher.errors import HostFailureKind
from launcher.transports.ssh.fabric_failures import classify
from launcher.transports.ssh.failures import Destination
from launcher.transports.ssh.openssh_config import HostConfig

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
    failure = classify(error, HostConfig(Destination("10.0.0.2", "10.0.0.2", 22, "ann"), {}))
    assert (failure.kind, failure.text) == found
