"""`launch top`: what the GPUs of hosts do now, told by the hosts of a session or by the run that uses them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from launcher.clock import iso_time, wall_clock
from launcher.commands.free import look
from launcher.commands.run_answers import is_running
from launcher.commands.top_screen import HostNow, RunNow, now_as_text
from launcher.errors import EXIT_UNREACHABLE
from launcher.job.facts import BoxClaim, GpuSample, GpuUse, HostSample, NodeFacts
from launcher.node import messages
from launcher.runs.odd_gpus import INTERVAL_S, OddWatch, Samples
from launcher.runs.run_list import ListedRun
from launcher.runs.run_state import Activity
from launcher.runs.samples import FILE
from launcher.session.connection import Event
from launcher.session.session import Session

PERIOD_S = 2.0
_CLAIMS_S = 10.0  # between two looks for claims
_LOOK_S = 0.5  # between two looks for something new
_SILENT_S = 2.5 * INTERVAL_S  # without anything new: no ranks run
_TAIL_BYTES = 1 << 20  # of the samples of a run: of the last interval of 1,000 hosts

Show = Callable[[RunNow], object]


class HostWatch:
    """Takes what the hosts of a session tell, with whoever uses their GPUs."""

    def __init__(self, session: Session) -> None:
        self._session = session
        names = [host.name for host in session.hosts]
        self._names = names
        self._now: dict[str, HostNow] = {name: HostNow(0.0) for name in names}
        self._counts = dict.fromkeys(names, 0)
        self._uses: dict[str, list[GpuUse]] = {}
        self._since = {name: Samples() for name in names}
        self._odd = OddWatch({}, {})
        self._compared_at = time.monotonic()

    @property
    def has_all(self) -> bool:
        """Whether each host has told enough for rates, or can't be asked."""
        return all(
            count >= 2 or state.failure is not None
            for count, state in zip(self._counts.values(), self._session.states, strict=True)
        )

    def take(self, event: Event) -> None:
        """Take what one host tells."""
        name, fields = self._names[event.index], event.fields
        chosen = self._session.hosts[event.index].gpus
        gpus = tuple(gpu for gpu in fields["gpus"] if chosen is None or gpu.index in chosen)
        self._since[name].add(fields["host"], gpus, fields["error"])
        self._counts[name] += 1
        if fields["processes"] is not None:
            self._uses[name] = fields["processes"]
        self._now[name] = self._now[name].after(event, gpus)

    def find(self) -> RunNow:
        """Return what all hosts do now."""
        at = wall_clock()
        if time.monotonic() - self._compared_at >= INTERVAL_S:
            self._compared_at = time.monotonic()
            self._odd.take({name: summed for name, each in self._since.items() if (summed := each.sum_up())})
            self._since = {name: Samples() for name in self._names}
        hosts = {}
        for name, state in zip(self._names, self._session.states, strict=True):
            lost = state.failure.text if state.failure is not None else None
            claims = tuple(state.claimed["rivals"]) if state.claimed is not None else ()
            users = find_users(state.facts, claims, self._uses.get(name, ()))
            hosts[name] = replace(self._now[name], lost=lost, users=users)
        return RunNow(at, hosts, tuple(odd.describe() for odd in self._odd.current))


def find_users(facts: NodeFacts | None, claims: Sequence[BoxClaim], uses: Sequence[GpuUse]) -> dict[str, str]:
    """Return who uses each GPU, by its number: the run that has claimed it, else a process and its user."""
    users: dict[str, list[str]] = {}
    for claim in claims:
        for index in claim.gpus if not claim.is_waiting else ():
            users.setdefault(str(index), []).append(f"{claim.user}'s {claim.name or claim.run or 'unresponsive run'}")
    indexes = {gpu.uuid: str(gpu.index) for gpu in facts.gpus} if facts is not None else {}
    claimed = {*users}
    for use in uses:
        place = indexes.get(use.gpu)
        if place is not None and place not in claimed:
            name = use.name or f"process {use.pid}"
            users.setdefault(place, []).append(f"{name} ({use.owner})" if use.owner else name)
    return {index: ", ".join(dict.fromkeys(names)) for index, names in users.items()}


async def watch_hosts(session: Session, show: Show, *, once: bool) -> int:
    """Show what the hosts do until a signal comes, or once; return the exit code: not 0 if a host can't be reached."""
    watch = HostWatch(session)
    period_s = 1.0 if once else PERIOD_S
    async with session.asking():
        await look(session)
        session.send_to_all(messages.SAMPLE, period_s=period_s)
        claims_at = time.monotonic()
        while not (once and watch.has_all):
            await session.pump(lambda: False, time.monotonic() + (_LOOK_S if once else period_s))
            for event in session.take_samples():
                watch.take(event)
            if not once:
                show(watch.find())
            if time.monotonic() - claims_at >= _CLAIMS_S:
                claims_at = time.monotonic()
                session.send_to_all(messages.CLAIM, is_look=True, gpus=[])
            if all(state.failure is not None for state in session.states):
                if not once:
                    session.say_failures()  # the screen, which has them, goes now
                break
    if once:
        show(watch.find())
    return EXIT_UNREACHABLE if any(state.failure is not None for state in session.states) else 0


def watch_run(run: ListedRun) -> Iterator[RunNow]:
    """Yield what the hosts of a run do, whenever its samples have something new, until it ends; else what it does."""
    path, hosts, odd = run.folder / FILE, dict[str, HostNow](), dict[str, list[str]]()
    position, told = -1, ""
    began_at = wall_clock()
    while is_running(run):
        lines, position = _read_on(path, position)
        for name, host, texts in filter(None, map(_read_line, lines)):
            hosts[name], odd[name] = host, texts
        heard_at = max((host.at for host in hosts.values()), default=0.0)
        recent = {name: host for name, host in hosts.items() if host.at > heard_at - _SILENT_S}
        now = wall_clock()
        if now - heard_at < _SILENT_S:
            if lines:
                yield RunNow(now, recent, tuple(text for name in recent for text in odd[name]))
            told = ""
        elif (doing := _describe_silence(run, now - max(began_at, heard_at))) != told:
            told = doing
            if doing:
                yield RunNow(now, doing=doing)
        time.sleep(_LOOK_S)


def _describe_silence(run: ListedRun, seconds: float) -> str:
    """Return why the hosts of a run have told nothing for these seconds; empty if they soon may."""
    doing = run.read_doing(time.time())
    if seconds < _SILENT_S and (doing is None or doing.what in (Activity.STARTING, Activity.RUNNING)):
        return ""
    is_at_work = doing is None or doing.what is Activity.RUNNING
    return "no samples (a full disk)" if is_at_work else str(doing)


def _read_on(path: Path, position: int) -> tuple[list[bytes], int]:
    """Return the whole lines from a position on, of a negative one those at the end, and where they end."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(position if position >= 0 else max(0, size - _TAIL_BYTES))
            *lines, rest = file.read(size).split(b"\n")
            return lines, file.tell() - len(rest)
    except OSError:  # no interval is over yet
        return [], 0


def _read_line(line: bytes) -> tuple[str, HostNow, list[str]] | None:
    """Return which host a line is about, what that did, and what stood out there; None for any other line."""
    gpus: list[GpuSample] = []
    ranks: dict[str, int] = {}
    try:
        found = json.loads(line)
        for index, row in found["gpus"].items():
            busy, used, power, temperature, clock, reasons, rank, memory, limit, top = row
            name = found["model"]
            gpus.append(GpuSample(int(index), name, busy, used, memory, power, limit, temperature, clock, top, reasons))
            ranks |= {index: rank} if rank is not None else {}
        cpu, load, free, network = (found[name] for name in ("cpu", "load", "disk_free", "network"))
        memory, used = (found[name] and int(found[name] * 1024) for name in ("memory_gib", "memory_used_gib"))
        host = HostSample(cpu, load, memory, used, None, free, network)
        now = HostNow(found["at"], host, tuple(gpus), found.get("error"), ranks=ranks)
        return found["host"], now, found.get("odd", [])
    except (ValueError, LookupError, TypeError, AttributeError):
        return None  # it is about something that stands out, or of an earlier version


def print_now(run: ListedRun) -> int:
    """Print what the hosts of a run do, a JSON line each time, until it ends or nobody reads any more."""
    for now in watch_run(run):
        print(now_as_text(now), flush=True)
    return 0


def as_lines(now: RunNow, last: Mapping[str, float]) -> tuple[list[str], dict[str, float]]:
    """Return a line of JSON for each host that has told something new, and when each has; last: when it had before."""
    lines = []
    for name, host in now.hosts.items():
        if host.at != last.get(name) or host.lost is not None:
            values = {
                "event": "sample", "time": iso_time(host.at) if host.at else None,
                "host": name, "lost": host.lost, "error": host.error,
                "odd": [text for text in now.odd if text.startswith((f"{name} ", f"{name}:"))],
                **asdict(host.host or HostSample()),
                "gpus": [asdict(gpu) | _used(host, gpu.index) for gpu in host.gpus],
            }  # fmt: skip
            lines.append(json.dumps(values))
    return lines, {name: host.at for name, host in now.hosts.items()}


def _used(host: HostNow, gpu: int) -> dict[str, object]:
    return {"rank": host.ranks.get(str(gpu)), "user": host.users.get(str(gpu))}
