"""The transport to this machine, without SSH: it starts the same command line in a session of its own."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.hosts.host import Host
from launcher.transports.process_channel import ProcessChannel, start_process


class LocalTransport:
    """Starts processes on this machine, whatever the host is called."""

    name = "local"
    is_terse = False

    def open(self, host: Host, command: str, timeout_s: float) -> ProcessChannel:
        return ProcessChannel(start_process(["/bin/sh", "-c", command]))

    def own_messages(self, host: Host) -> Sequence[str]:
        return ()
