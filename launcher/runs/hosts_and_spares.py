"""Which hosts a run uses, in the order of their node ranks, and which spares wait. Nothing here does I/O."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from launcher.hosts.host import Host


class HostsAndSpares:
    """The hosts of a run, by node rank, and the line of spares behind them.

    A spare takes the node rank of the host that it replaces, and that host goes to the end of the line: it may come
    back. With `min_nodes`, a host that no spare replaces leaves a run that still has so many hosts without it; else it
    keeps its place, and the run waits until it responds again.
    """

    def __init__(self, hosts: Sequence[Host], spares: Sequence[Host] = (), min_nodes: int | None = None) -> None:
        self.hosts = tuple(hosts)
        self.spares = tuple(spares)
        self._min_nodes = min_nodes
        self._failed: set[str] = set()  # since ranks were started last

    def note_start(self) -> None:
        """Record that ranks were started: hosts that failed before that may respond again."""
        self._failed.clear()

    def can_replace(self, names: Collection[str]) -> bool:
        """Return whether the run can do without these hosts: with spares that have not failed, or with fewer hosts."""
        out = [host for host in self.hosts if host.name in names]
        dispensable = len(self.hosts) - self._min_nodes if self._min_nodes is not None else 0
        return 0 < len(out) <= len(self._fresh()) + dispensable

    def has_spare(self, names: Collection[str]) -> bool:
        """Return whether a spare that has not failed could take the place of one of these hosts."""
        return any(host.name in names for host in self.hosts) and bool(self._fresh())

    def replace(self, names: Collection[str], *, may_shrink: bool = True) -> list[str]:
        """Take these hosts out as far as that is possible; return what changed, in words.

        may_shrink: they are to blame, so the run is better off without them.
        """
        self._failed.update(names)
        words = []
        for host in [host for host in self.hosts if host.name in names]:
            shrinks = may_shrink and self._min_nodes is not None and len(self.hosts) > self._min_nodes
            back = [spare for spare in self.spares if spare.name not in names]  # they may respond again
            line = self._fresh() or ([] if shrinks else back)
            if not line and not shrinks:
                continue
            place = self.hosts.index(host)
            self.hosts = (*self.hosts[:place], *line[:1], *self.hosts[place + 1 :])
            self.spares = (*(spare for spare in self.spares if spare not in line[:1]), host)
            words.append(f"{line[0].name} takes the place of {host.name}" if line else f"without {host.name}")
        return words

    def _fresh(self) -> list[Host]:
        return [host for host in self.spares if host.name not in self._failed]
