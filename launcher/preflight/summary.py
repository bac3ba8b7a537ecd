"""Describe the nodes in a few words: GPUs, versions and the data interface."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launcher.job.facts import NodeFacts
from launcher.job.job import Job
from launcher.preflight.gpus import gigabytes


def summarize(job: Job, facts: Sequence[NodeFacts]) -> str:
    """Return the traits of the nodes in one line; values that differ are joined by `or`."""
    return ", ".join(" or ".join(dict.fromkeys(values)) for values in _traits(job, facts, with_paths=True))


def common_traits(job: Job, facts: Sequence[NodeFacts]) -> list[str]:
    """Return the traits that are equal on all nodes; the path of Python is named where it is the same."""
    has_one_path = len({fact.python for fact in facts}) == 1
    traits = [*_traits(job, facts, with_paths=has_one_path), _script_words(job, facts)]
    return [values[0] for values in traits if len(values) == len(facts) and len(set(values)) == 1]


def _traits(job: Job, facts: Sequence[NodeFacts], *, with_paths: bool) -> list[list[str]]:
    """Return one list per trait, with the value of each node in words."""
    traits = [_gpu_words(job, facts), _driver_words(job, facts)]
    if job.program.needs_torch:
        traits.append(_words("python", (_describe_python(fact, with_path=with_paths) for fact in facts)))
        traits.append(_words("torch", (fact.torch_version for fact in facts)))
        if job.wants_gpus:
            traits.append(_words("CUDA", (fact.cuda_version for fact in facts)))
            traits.append(_words("NCCL", (fact.nccl_version for fact in facts)))
    traits.append(_words("data over", (fact.route.interface for fact in facts if fact.route)))
    return [trait for trait in traits if trait]


def _gpu_words(job: Job, facts: Sequence[NodeFacts]) -> list[str]:
    if job.cpu or not any(fact.gpus for fact in facts):
        return ["CPUs"] * len(facts)
    return [_describe_gpus(fact) for fact in facts]


def _driver_words(job: Job, facts: Sequence[NodeFacts]) -> list[str]:
    return [] if job.cpu else _words("driver", (fact.gpus[0].driver for fact in facts if fact.gpus))


def _script_words(job: Job, facts: Sequence[NodeFacts]) -> list[str]:
    hashes = [fact.checks.script_hash if fact.checks else None for fact in facts]
    if None in hashes:
        return []
    return _words(job.program.target.rpartition("/")[2], (str(found)[:6] for found in hashes))


def _describe_gpus(fact: NodeFacts) -> str:
    if not fact.gpus:
        return "no GPU"
    first = fact.typical_gpu
    memory = f" {gigabytes(first.memory_mib)}" if first.memory_mib else ""
    return f"{len(fact.gpus)} x {first.name}{memory}"


def _describe_python(fact: NodeFacts, *, with_path: bool) -> str | None:
    return f"{fact.python_version} ({fact.python})" if with_path and fact.python_version else fact.python_version


def _words(label: str, values: Iterable[str | None]) -> list[str]:
    """Return the values of a trait in words; only the first has the label, for `python 3.11 or 3.12`."""
    found = [value for value in values if value is not None]
    return [f"{label} {value}" if index == 0 or value == found[0] else str(value) for index, value in enumerate(found)]
