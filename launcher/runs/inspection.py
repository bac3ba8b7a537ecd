"""All that the nodes are asked before a run: facts, the route to node 0, and whether they reach each other.

It uses the connections that will start the job, while torchrun is imported there, so it costs no time.
A host that fails is left out from then on; the answers of the others still count.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launcher.clock import wall_clock
from launcher.errors import HostFailure
from launcher.hosts.host import Host
from launcher.job.activation import setup_order
from launcher.job.facts import NodeFacts, Probe, Probes
from launcher.job.job import Job, ProgramKind
from launcher.job.plan import master_address, settle_device, used_gpus, warm_fields
from launcher.node import messages
from launcher.preflight.checks import (
    find_all,
    find_busy,
    find_problems,
    is_shared,
    warn_of_checkpoints,
    warn_of_incidents,
)
from launcher.preflight.claims import ClaimOrder, find_claimed
from launcher.preflight.findings import WARNING, CheckedHost, Finding, Severity
from launcher.preflight.network import data_address, find_unreachable_master
from launcher.session.node_state import NodeState
from launcher.session.session import Session
from launcher.sync.contents import Contents
from launcher.sync.delivery import Delivered, Delivery, tree_fields


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the hosts that responded said, and what follows from it."""

    hosts: tuple[Host, ...]
    facts: tuple[NodeFacts, ...]
    findings: tuple[Finding, ...]
    failures: tuple[HostFailure, ...]  # of the hosts that didn't respond
    seconds: float
    claimed: tuple[Finding, ...] = ()  # of these findings, what others have claimed or use: a run can wait for that

    def of(self, severity: Severity) -> list[Finding]:
        """Return the findings of one severity."""
        return [finding for finding in self.findings if finding.severity is severity]


class Inspector:
    """Asks all nodes of a session, one step after the other."""

    def __init__(
        self, job: Job, session: Session, pythons: Sequence[str], *, with_checks: bool,
        incidents: Mapping[str, str] | None = None, checkpoints: str | None = None, contents: Contents | None = None,
        warm_hosts: int = 0, attempt: int = 0, claims: ClaimOrder | None = None,
    ) -> None:  # fmt: skip
        """incidents: what went wrong with hosts in earlier runs; checkpoints: a directory that all hosts must share.

        contents: of the job's tree; None: it isn't sent. warm_hosts: how many, the first ones, import torch meanwhile
        if the job starts warm. attempt: how many came before this one. claims: what the run claims; None: others'
        claims are only looked at.
        """
        self.delivered: Delivered | None = None
        self._contents = contents
        self.job = job  # on CPUs, once it is known that the hosts leave no choice
        self._session = session
        self._pythons = pythons  # candidates for a Python with torch
        self._with_checks = with_checks
        self._warm_hosts = warm_hosts if job.starts_warm else 0
        self._attempt = attempt
        self._claims = claims
        self._incidents = incidents or {}
        self._checkpoints = checkpoints
        self._began_at = wall_clock()
        self._facts: dict[int, NodeFacts] = {}  # by index, of the nodes that have answered so far

    async def ask(self, *, has_master: bool = True) -> Inspection:
        """Return what all nodes say; `has_master`: whether node 0, which holds the master port, is among them."""
        await self._gather_facts()
        findings: list[Finding] = []
        if self._facts:
            hosts, facts = self._hosts(), list(self._facts.values())
            master = self.job.master_addr or master_address(hosts[0], facts, alone=len(facts) == 1)
            findings = find_unreachable_master(hosts, facts, master)
            if not findings:
                await self._find_routes(master, has_master=has_master)
                if self._with_checks and len(self._facts) > 1:
                    await self._probe(master)
                    if self._checkpoints is not None:
                        await self._share(self._checkpoints)
        # Slurm says whose GPUs they are.
        claimed = await self._claim() if not self._session.is_slurm_step else []
        findings += claimed
        find = find_all if self._with_checks else find_problems
        facts = list(self._facts.values())
        findings += find(self.job, self._hosts(), facts)
        if self._with_checks:
            findings += warn_of_incidents(self._hosts(), self._incidents)
            claimed += find_busy(self.job, self._hosts(), facts)
            findings += warn_of_checkpoints(self._hosts(), facts, self._checkpoints or "")
        findings += self.delivered.findings if self.delivered else ()
        failures = tuple(self._session.failures())
        seconds = wall_clock() - self._began_at
        return Inspection(tuple(self._hosts()), tuple(facts), tuple(findings), failures, seconds, tuple(claimed))

    def _hosts(self) -> list[Host]:
        return [self._session.hosts[index] for index in self._facts]

    def _states(self) -> list[tuple[int, NodeState]]:
        """Return the nodes that have answered every step so far and have not failed since."""
        states = self._session.states
        return [(index, states[index]) for index in self._facts if states[index].failure is None]

    async def _gather_facts(self) -> None:
        session, job = self._session, self.job
        script = job.program.target if job.program.kind is ProgramKind.SCRIPT else None
        wanted: dict[str, Any] = {
            "facts": True, "gpus": job.wants_gpus, "pythons": list(self._pythons), "workdir": job.workdir,
            "script": script, "checks": self._with_checks, "setup": setup_order(job), "plain": job.start == "plain",
            "warm": bool(self._warm_hosts),
            "packages": self._with_checks or job.tree is not None, "code": self._find_code(),
        }  # fmt: skip
        silent = await self._open(wanted)
        with session.subscribe(messages.FACTS, lambda event: self._warm_up(event.index)):
            for index in range(len(session.states)):  # some may have come while the code was sent
                self._warm_up(index)
            await session.pump(
                lambda: all(
                    state.facts or state.failure or index in silent for index, state in enumerate(session.states)
                )
            )
        self._facts = {
            index: state.facts
            for index, state in enumerate(session.states)
            if state.facts is not None and state.failure is None
        }
        for index, path in (self.delivered.paths if self.delivered else {}).items():
            if index in self._facts:
                self._facts[index] = replace(self._facts[index], tree=path)
        self.job = settle_device(job, list(self._facts.values()))

    def _warm_up(self, index: int) -> None:
        """Let a host import torch, as soon as it is known for which ranks."""
        facts = self._session.states[index].facts
        if index >= self._warm_hosts or facts is None:
            return
        path = self.delivered.paths.get(index) if self.delivered else None
        order = warm_fields(self.job, self._session.hosts[index], replace(facts, tree=path), self._attempt)
        if order is not None:
            self._session.send(index, messages.WARM, **order)

    async def _open(self, wanted: Mapping[str, Any]) -> set[int]:
        """Connect, and bring the code to all nodes if it is sent; return those that can't have it, and ask no more."""
        tree = self.job.tree
        if tree is None or self._contents is None:
            self._session.open(**wanted)
            return set()
        self._session.open(**wanted, tree=tree_fields(tree))
        self.delivered = await Delivery(self._session, tree, self._contents).deliver()
        return set(range(len(self._session.states))) - self.delivered.paths.keys()

    async def _find_routes(self, master: str, *, has_master: bool) -> None:
        first = min(self._facts) if has_master else None
        listens = self._with_checks and len(self._facts) > 1  # alone nobody tries it, but a torchrun by hand may
        for index, _ in self._states():
            # Node 0 holds the port until torchrun has it: found free now, it could be taken a second later.
            port = (self.job.master_port or 0) if index == first else None
            self._session.send(index, messages.ROUTE, master=master, port=port, listens=listens)
        await self._session.pump(lambda: all(state.route for _, state in self._states()))
        self._facts = {index: replace(self._facts[index], route=state.route) for index, state in self._states()}

    async def _probe(self, master: str) -> None:
        """Make every node try the master port, and a free port of the next node, with a listener at each."""
        targets = self._targets(master)
        for index, probes in targets.items():
            wanted = [[probe.address, probe.port] for probe in probes]
            self._session.send(index, messages.PROBE, targets=wanted, peer=probes[-1].address)
        await self._session.pump(
            lambda: all(state.probed is not None for index, state in self._states() if index in targets)
        )
        self._facts = {index: self._facts[index] for index, _ in self._states()}  # one may have been lost meanwhile
        lost = {failure.host for failure in self._session.failures()}
        for index, state in self._states():
            if state.probed is not None:
                answers = zip(targets[index], state.probed["errors"], strict=False)
                tried = tuple(replace(probe, error=error) for probe, error in answers if probe.host not in lost)
                found = Probes(tried, state.probed["reverse_dns_s"])
                self._facts[index] = replace(self._facts[index], probes=found)

    async def _claim(self) -> list[Finding]:
        """Claim what the run will use of its hosts; return which other runs have claimed that."""
        order, job, states = self._claims, self.job, self._session.states
        nodes = {index: CheckedHost(job, self._session.hosts[index], self._facts[index]) for index, _ in self._states()}
        gpus = {index: [gpu.index for gpu in used_gpus(job, node.host, node.fact)] for index, node in nodes.items()}
        asked = [index for index in nodes if gpus.get(index)]
        for index in asked:
            is_look = order is None or index >= order.hosts
            values = {} if order is None else order.as_fields()
            self._session.send(index, messages.CLAIM, is_look=is_look, gpus=gpus[index], **values)
        await self._session.pump(lambda: all(states[index].claimed or states[index].failure for index in asked))
        findings, now = [], wall_clock()
        for index in asked:
            answer = states[index].claimed or {"rivals": [], "taken": [], "error": None}
            taken = {*answer["taken"], *(gpu for claim in answer["rivals"] for gpu in claim.gpus)}
            self._facts[index] = replace(self._facts[index], claimed_gpus=tuple(taken))
            node = replace(nodes[index], fact=self._facts[index])
            own = {*gpus[index]}
            rivals = [claim for claim in answer["rivals"] if own & {*claim.gpus}]
            if order is not None:  # a spare only looks, and may still hold what this run has claimed
                own_run = order.run, order.since
                rivals = [claim for claim in rivals if not (claim.is_mine and (claim.run, claim.since) == own_run)]
            shares = order is not None and order.shares
            findings += find_claimed(node, own, rivals, now, shares=shares)
            if answer["error"] and order is not None:
                findings.append(Finding((node.name,), answer["error"], "see who else uses them", WARNING))
        return findings

    def _find_code(self) -> dict[str, str | None] | None:
        """Return the directory whose Python files are compared, and the script in it; None: none are compared."""
        program = self.job.program
        is_compared = self._with_checks and self.job.tree is None and len(self._session.hosts) > 1
        if is_compared and program.kind is ProgramKind.SCRIPT:
            folder, name = posixpath.split(program.target)
            return {"folder": folder, "script": name}
        return {"folder": "", "script": None} if is_compared and program.kind is ProgramKind.MODULE else None

    async def _share(self, folder: str) -> None:
        """Ask all hosts about the directory in which the ranks save, and compare it with that of node 0."""
        states, tree = self._session.states, self.job.tree
        asked = [index for index, _ in self._states()]
        for index in asked:
            root = self._facts[index].tree  # there the directory may be a link to another place
            workdir = tree.directory(root) if tree is not None and root is not None else self.job.workdir
            self._session.send(index, messages.SHARE, folder=folder, workdir=workdir)
        await self._session.pump(lambda: all(states[index].shared or states[index].failure for index in asked))
        answers = {index: found for index in asked if (found := states[index].shared) is not None}
        for index, found in answers.items():
            if asked[0] in answers:
                sees = is_shared(answers[asked[0]], found)
                self._facts[index] = replace(self._facts[index], sees_checkpoints=sees)

    def _targets(self, master: str) -> dict[int, list[Probe]]:
        """Return the addresses that each node must try; a node without a route has a finding already."""
        routes = {index: fact.route for index, fact in self._facts.items() if fact.route and fact.route.probe_port}
        ring = list(routes)
        targets: dict[int, list[Probe]] = {}
        for index, following in zip(ring, [*ring[1:], *ring[:1]], strict=True):
            first, name = routes[ring[0]], self._session.hosts[following].name
            own = [Probe(self._session.hosts[ring[0]].name, master, first.port, is_master=True)] if first.port else []
            address = data_address(self.job, self._facts[following])
            if following != index and address is not None:
                own.append(Probe(name, address, routes[following].probe_port or 0, is_master=False))
            if own:
                targets[index] = own
        return targets
