"""One transport that reaches each host its own way, for sessions in which the hosts shall differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.hosts.host import Host
from launcher.transports.base import Channel, Transport


@dataclass(frozen=True)
class TransportByHost:
    """Leads to each host by the transport that stands under its name."""

    ways: Mapping[str, Transport]
    name: str = "by host"

    def open(self, host: Host, command: str, timeout_s: float) -> Channel:
        return self.ways[host.name].open(host, command, timeout_s)

    def own_messages(self, host: Host) -> Sequence[str]:
        return self.ways[host.name].own_messages(host)
