"""launch free: which GPUs of the hosts nobody uses, and who has claimed the others or runs on them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from launcher.cli.host_session import act_on_hosts
from launcher.cli.options.command import Command, gather
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.request import AS_JSON, HELPER_PYTHON, HOSTS, LIFE, REACH, Request
from launcher.clock import iso_time, wall_clock
from launcher.errors import EXIT_UNREACHABLE, HostFailure
from launcher.hosts.host import Host
from launcher.hosts.ranges import fold_names, fold_numbers, split_list
from launcher.hosts.unreachable import fold_failures
from launcher.job.facts import BoxClaim, Gpu, GpuProcess, NodeFacts
from launcher.node import messages
from launcher.preflight.claims import describe_claim
from launcher.preflight.gpus import describe_processes, gigabytes, hidden_mib, users_of

if TYPE_CHECKING:
    from launcher.output.console import Console
    from launcher.session.session import Session

_Row = tuple[str, str]  # what of a host, and who uses it


@click.command("free", cls=Command, params=[
    CONFIG, *HOSTS, *REACH, *LIFE, HELPER_PYTHON, AS_JSON.but(help="Print the result as one JSON object."),
])  # fmt: skip
@gather
def command(*, request: Request) -> int:
    """Show which GPUs are free, and who has claimed the others or uses them.

    A run of `launch` claims its GPUs; a process that was started without it is shown once it uses a GPU's memory. The
    exit code is 69 if a host can't be reached. In a Slurm job, its hosts are the default.
    """

    async def survey(session: Session, console: Console) -> int:
        async with session.asking():
            await look(session)
        boxes = [
            Box(host, state.facts, tuple(state.claimed["rivals"]), state.claimed["error"])
            for host, state in zip(session.hosts, session.states, strict=True)
            if state.facts is not None and state.claimed is not None
        ]
        answered = {box.host.name for box in boxes}
        failures = [failure for failure in session.failures() if failure.host not in answered]
        found = Survey(boxes, failures, wall_clock())
        console.emit("free", **as_record(found))
        for line in table(found):
            console.show(line)
        return found.exit_code

    return act_on_hosts("free", request, survey)


@dataclass(frozen=True, slots=True)
class Box:
    """What one host says about its GPUs."""

    host: Host
    facts: NodeFacts
    claims: tuple[BoxClaim, ...] = ()
    claims_error: str | None = None  # why some may be missing

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """All of its GPUs, or those that were chosen with --include."""
        chosen = self.host.gpus
        return tuple(gpu for gpu in self.facts.gpus if chosen is None or gpu.index in chosen)

    def claims_on(self, gpu: Gpu) -> tuple[BoxClaim, ...]:
        """Return the claims on a GPU, the oldest first."""
        return tuple(claim for claim in self.claims if gpu.index in claim.gpus)

    def state(self, gpu: Gpu) -> str:
        """Return whether a GPU is `lost`, `claimed`, `busy` without a claim, or `free`."""
        if gpu.fault is not None:
            return "lost"
        return "claimed" if self.claims_on(gpu) else "busy" if users_of(gpu) or hidden_mib(gpu) else "free"


@dataclass(frozen=True, slots=True)
class FreeGpu:
    """A GPU in the event `free` of --json."""

    index: int  # the number of one of its GPUs; with `--include`, of those that were chosen
    state: str  # `free`, `claimed`, `busy` without a claim, or `lost` if it doesn't respond
    name: str  # its model
    memory_mib: int | None  # its memory
    free_mib: int | None  # memory that is free
    # the processes that have memory on it, as in [the facts of a host](#the-facts-of-a-host)
    processes: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class FreeHost:
    """A host in the event `free` of --json."""

    host: str  # a host that has answered
    gpus: Sequence[FreeGpu]
    claims: Sequence[BoxClaim]
    gpu_error: str | None  # why its GPUs couldn't be listed
    claims_error: str | None  # why claims may be missing


@dataclass(frozen=True, slots=True)
class Survey:
    """What all hosts say, and which could not be asked."""

    boxes: Sequence[Box]
    failures: Sequence[HostFailure]
    at: float  # wall-clock seconds

    @property
    def exit_code(self) -> int:
        """The exit code: not 0 if a host can't be reached."""
        return EXIT_UNREACHABLE if self.failures else 0


async def look(session: Session) -> None:
    """Ask all hosts for their GPUs, and then who has claimed them."""
    session.open(facts=True, gpus=True, pythons=[])
    await session.pump(lambda: all(state.facts or state.failure for state in session.states))
    session.send_to_all(messages.CLAIM, is_look=True, gpus=[])
    await session.pump(lambda: all(state.claimed or state.failure for state in session.states))


def table(found: Survey) -> list[str]:
    """Return a line for all GPUs of a host that the same people use; hosts that say the same share their lines."""
    alike: dict[tuple[_Row, ...], list[str]] = {}
    for box in found.boxes:
        alike.setdefault(tuple(_rows(box, found.at)), []).append(box.host.name)
    blocks = [(fold_names(names), rows) for rows, names in alike.items()]
    lost = [(fold_names(names), text, fix) for names, text, fix in fold_failures(found.failures)]
    name_width = max((len(name) for name, *_ in [*blocks, *lost]), default=0)
    label_width = max((len(label) for _, rows in blocks for label, _ in rows), default=0)
    lines = [
        f"{'' if number else name:<{name_width}}  {label:<{label_width}}  {text}".rstrip()
        for name, rows in blocks
        for number, (label, text) in enumerate(rows)
    ]
    for name, text, fix in lost:
        lines += [f"{name:<{name_width}}  can't be used: {text}"]
        lines += [f"{'':<{name_width}}  fix: {fix}"] if fix else []
    return [*lines, *_verdict(found.boxes)]


def _rows(box: Box, now: float) -> Iterator[_Row]:
    if not box.facts.gpus:
        yield "no GPUs", ""
    groups: dict[tuple[tuple[BoxClaim, ...], tuple[Any, ...]], list[Gpu]] = {}
    for gpu in box.gpus:
        claims = box.claims_on(gpu)
        jobs = tuple(dict.fromkeys(map(_job, _unclaimed(gpu, claims))))
        groups.setdefault((claims, (gpu.fault, *(jobs or (not claims and hidden_mib(gpu) > 0,)))), []).append(gpu)
    for (claims, _), gpus in groups.items():
        label = f"GPU {fold_numbers(sorted(gpu.index for gpu in gpus))}"
        for text in [*(describe_claim(claim, now) for claim in claims), *_describe_use(gpus, claims)]:
            yield label, text
            label = ""
    if box.facts.gpu_error not in (None, messages.NO_GPU_TOOL):
        yield "", f"its GPU tool reports an error: {box.facts.gpu_error}"
    if box.claims_error is not None:
        yield "", box.claims_error


def _describe_use(gpus: Sequence[Gpu], claims: Sequence[BoxClaim]) -> list[str]:
    """Return who uses GPUs in the same way, beside those who have claimed them."""
    jobs: dict[tuple[str | None, ...], list[GpuProcess]] = {}
    for gpu in gpus:
        for process in _unclaimed(gpu, claims):
            jobs.setdefault(_job(process), []).append(process)
    texts = [f"{describe_processes(each)}, no claim" for each in jobs.values()]
    if gpus[0].fault is not None:
        return [*texts, f"doesn't respond ({gpus[0].fault})"]
    if texts or claims:
        return texts
    hidden = sum(map(hidden_mib, gpus))
    return [f"{gigabytes(hidden)} in use by a process that isn't visible there, no claim" if hidden else "free"]


def _unclaimed(gpu: Gpu, claims: Sequence[BoxClaim]) -> list[GpuProcess]:
    """Return the processes on a GPU that can't belong to the runs that have claimed it.

    Of another user's process only root can read the mark, so the owner decides; where that is not known, nothing does.
    """
    users = {claim.user for claim in claims}
    return [process for process in users_of(gpu) if not claims or process.owner not in (None, *users)]


def _job(process: GpuProcess) -> tuple[str | None, ...]:
    return process.owner, process.name, process.mark


def _verdict(boxes: Sequence[Box]) -> list[str]:
    """Return how many GPUs are free and, if others aren't, the option that chooses them."""
    total = sum(len(box.gpus) for box in boxes)
    if not total:
        return []
    free = {box.host.name: [gpu.index for gpu in box.gpus if box.state(gpu) == "free"] for box in boxes}
    number = sum(map(len, free.values()))
    alike: dict[str, list[str]] = {}
    for name, indexes in free.items():
        alike.setdefault(",".join(map(str, indexes)), []).append(name)
    choice = "@".join(
        f"{name}:{gpus}" for gpus, names in alike.items() if gpus for name in split_list(fold_names(names))
    )
    hint = f": --include {shlex.quote(choice)}" if 0 < number < total else ""
    return [f"{number} of {total} GPUs {'is' if number == 1 else 'are'} free{hint}"]


def as_record(found: Survey) -> dict[str, Any]:
    """Return the same as JSON values."""
    unreachable = [asdict(failure) for failure in found.failures]
    return {"exit_code": found.exit_code, "hosts": [*map(_describe, found.boxes)], "unreachable": unreachable}


def _describe(box: Box) -> dict[str, Any]:
    gpus = [
        FreeGpu(
            gpu.index, box.state(gpu), gpu.name, gpu.memory_mib, gpu.free_mib, [*map(asdict, gpu.processes)]
        )
        for gpu in box.gpus
    ]  # fmt: skip
    host = asdict(FreeHost(box.host.name, gpus, box.claims, box.facts.gpu_error, box.claims_error))
    for claim in host["claims"]:
        claim |= {name: iso_time(at) for name in ("since", "until") if (at := claim[name]) is not None}
    return host
