"""What a run needs of the screen: the console of `launch` has it, and so has one that shows nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from launcher.hosts.host import Host
from launcher.output.node_log import NodeOutput
from launcher.output.run_folder import RunRecord
from launcher.output.style import Style
from launcher.output.traceback_filter import Source


class Screen(Protocol):
    """Where a run puts its messages and results."""

    def say(self, text: str, style: Style = Style.AS_IS) -> None:
        """Print a message of `launch` on stderr."""

    def show(self, text: str) -> None:
        """Print a result on stdout."""

    def withhold(self) -> None:
        """Keep the tracebacks of further ranks off the screen: the first failure is known."""

    def release(self, sources: Collection[Source] | None = None, alike: Collection[Source] = ()) -> frozenset[Source]:
        """Show what was held back from these sources, or from all; return those whose tracebacks are only in the logs.

        alike: sources with the same error; if it was shown for one of them, it is not shown again.
        """

    def emit(self, event: str, **values: object) -> None:
        """With --json, print one JSON object on stdout; else do nothing."""

    def progress(self, text: str) -> None:
        """Show a line that the next one replaces, on a terminal only."""

    def outputs(self, hosts: Sequence[Host], record: RunRecord, *, first_node: int = 0) -> list[NodeOutput]:
        """Return the destination of each host's output; first_node: the node rank of the first host."""


class MuteScreen:
    """Shows nothing, for one of many runs whose ends are told by whoever started them; the logs are kept."""

    def say(self, text: str, style: Style = Style.AS_IS) -> None:
        """Print nothing."""

    def show(self, text: str) -> None:
        """Print nothing."""

    def withhold(self) -> None:
        """Hide nothing."""

    def release(self, sources: Collection[Source] | None = None, alike: Collection[Source] = ()) -> frozenset[Source]:
        """Return that nothing was hidden."""
        return frozenset()

    def emit(self, event: str, **values: object) -> None:
        """Print nothing."""

    def progress(self, text: str) -> None:
        """Show nothing."""

    def outputs(self, hosts: Sequence[Host], record: RunRecord, *, first_node: int = 0) -> list[NodeOutput]:
        """Return the logs of the hosts; first_node: the node rank of the first one."""
        return [NodeOutput(host.name, record.open_log(rank), None) for rank, host in enumerate(hosts, first_node)]
