"""One attempt's way to the hosts: the Transport whose channels go through the agents of a hub."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from launcher.errors import HostFailure, HostFailureKind
from launcher.hosts.host import Host
from launcher.transports.agents.link import AgentLink
from launcher.transports.base import TransportError
from launcher.transports.relayed.channel import RelayChannel


class AgentTransport:
    """Starts processes through the agents; they refuse what an attempt asks for after a later one has begun."""

    name = "agents"
    is_terse = False

    def __init__(
        self, attempt: int, find_link: Callable[[str, float], AgentLink | None], next_number: Callable[[], int]
    ) -> None:
        """find_link: waits for a host's agent, at most so many seconds; next_number: of the next channel of a run."""
        self.attempt = attempt
        self._find_link = find_link
        self._next_number = next_number

    def open(self, host: Host, command: str, timeout_s: float) -> RelayChannel:
        link = self._find_link(host.name, timeout_s)
        if link is None:
            raise TransportError(
                HostFailure(
                    host.name,
                    HostFailureKind.TIMED_OUT,
                    f"its agent is not connected (waited {timeout_s:g} s)",
                    "check that the host runs and that its network reaches the controller",
                )
            )
        return link.open_channel(self._next_number(), self.attempt, command)

    def own_messages(self, host: Host) -> Sequence[str]:
        return ()
