"""A screen that keeps what is said."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.hosts.host import Host
from launcher.output.node_output import NodeOutput
from launcher.output.output_streams import Style
from launcher.output.run_folder import RunRecord


class Screen:
    """Where the words of a run go, in a list."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def say(self, text: str, style: Style = Style.TEXT) -> None:
        self.words.append(text)

    def show(self, text: str) -> None:
        self.words.append(text)

    def withhold(self) -> None: ...

    def release(self, *which: object, **how: object) -> frozenset[int]:
        return frozenset()

    def emit(self, event: str, **values: object) -> None: ...

    def progress(self, text: str) -> None: ...

    def outputs(self, hosts: Sequence[Host], record: RunRecord, *, first_node: int = 0) -> list[NodeOutput]:
        return [NodeOutput(host.name, record.open_log(rank), None) for rank, host in enumerate(hosts, first_node)]
