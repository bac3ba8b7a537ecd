"""Compare the packages that are installed for the Python of each node.

What differs on one host is one finding, however many packages these are. torch, numpy and NCCL have findings of their
own in `comparison`; here it only counts whether they are installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from launcher.preflight.comparison import group_hosts, has_majority, list_values
from launcher.preflight.findings import WARNING, CheckedHost, Finding
from launcher.wording import count

# pip, setuptools and wheel install packages, and a virtual environment made by another tool or at another time has
# others of them; ranks import none. What ranks need of the launcher comes from the launch host.
_IGNORED = {"pip", "setuptools", "wheel", "ssh-torch-launcher"}
_COMPARED = ("torch", "numpy")
_NCCL = "nvidia-nccl-cu"
_FEW = 3  # packages that are named
_MAX_VALUES = 4
_MISSING = "missing"
_FIX = "make the environments equal, for example with --setup 'uv sync --locked'"

_Versions = Mapping[str, str | None]  # by the host's name; None: not installed there


def check(nodes: Sequence[CheckedHost]) -> Iterator[Finding]:
    """Yield which packages differ on which hosts, in one finding for each host, or for all if none is in the majority.

    So of two hosts neither is blamed.
    """
    known = [node for node in nodes if node.fact.packages is not None]
    if all(node.fact.packages == known[0].fact.packages for node in known):
        return  # as usual, even on hundreds of hosts
    apart: dict[str, list[str]] = {}
    split: list[str] = []
    for name, versions in _collect(known).items():
        groups = group_hosts({host: _key(name, version, known) for host, version in versions.items()})
        if len(groups) < 2 or name in _IGNORED:
            continue
        if not has_majority(groups):
            split.append(f"{name} {_list_versions(versions)}")
            continue
        common, *_ = groups
        others = "the others" if len(groups) == 2 else "most"
        for host, version in versions.items():
            if _key(name, version, known) != common:
                apart.setdefault(host, []).append(_describe(name, version, common, others))
    for host, words in apart.items():
        yield _fold((host,), words, " from the others")
    if split:
        yield _fold(tuple(node.name for node in known), split, "")


def _list_versions(versions: _Versions) -> str:
    """Return `0.8.1 on gpu[1-2], 0.8.0 on gpu3, missing on gpu4`; beyond four values, count the rest."""
    groups = group_hosts({host: version or _MISSING for host, version in versions.items()})
    if _MISSING in groups:
        groups[_MISSING] = groups.pop(_MISSING)  # last
    return ", ".join(list_values(groups, _MAX_VALUES))


def _collect(nodes: Sequence[CheckedHost]) -> dict[str, _Versions]:
    """Return the versions of each package on all nodes, by the package's name."""
    names = sorted({name for node in nodes for name in node.fact.packages or ()})
    return {name: {node.name: (node.fact.packages or {}).get(name) for node in nodes} for name in names}


def _key(name: str, version: str | None, nodes: Sequence[CheckedHost]) -> str | None:
    """Return what is compared of a version: nothing but its presence if `comparison` has a finding for the rest."""
    is_compared = name in _COMPARED or (name.startswith(_NCCL) and nodes[0].job.wants_gpus)
    return "" if is_compared and version is not None else version


def _describe(name: str, version: str | None, common: str | None, others: str) -> str:
    if version is None:
        return f"{name} missing"
    if not common:
        return f"{name} {version} (missing on {others})"
    return f"{name} {version} ({others.removeprefix('the ')} {common})"


def _fold(hosts: tuple[str, ...], words: Sequence[str], whom: str) -> Finding:
    is_long = len(words) > _FEW
    shown = [*words[: _FEW - 1], "..."] if is_long else words
    differ = "differs" if len(words) == 1 else "differ"
    text = f"{count(len(words), 'package')} {differ}{whom}: {', '.join(shown)}"
    return Finding(hosts, text, _FIX + ("; launch check --json lists all" if is_long else ""), WARNING)
