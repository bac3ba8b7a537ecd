"""This machine, without SSH: the same command line, in a session of its own."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.hosts.host import Host
from launcher.transports.process_channel import ProcessChannel, start_process


class LocalTransport:
    """Runs the node's side on this machine."""

    name = "local"
    is_terse = False

    def open(self, host: Host, command: str, timeout_s: float) -> ProcessChannel:
        return ProcessChannel(start_process(["/bin/sh", "-c", command]))

    def own_messages(self, host: Host) -> Sequence[str]:
        return ()
