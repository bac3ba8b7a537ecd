"""Check whether each node could enter the environment that --setup, --venv or --conda names."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.job.facts import SetupFailure
from launcher.preflight.findings import Node


def find(node: Node) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the environment, and the remedy."""
    venv, failure = node.job.activation.venv, node.fact.setup_failure
    if not node.fact.venv_found:
        yield (
            f"no virtual environment {venv}: {venv}/bin/python is not there",
            "make it with python3 -m venv, or name another with --venv",
        )
    if failure is not None:
        yield f"{failure.step} failed ({failure.reason}){_said(failure)}", _hint(failure)


def is_entered(node: Node) -> bool:
    """Tell whether the environment could be entered; only then did the node look for a Python."""
    return node.fact.venv_found and node.fact.setup_failure is None


def _said(failure: SetupFailure) -> str:
    # A coloured error would colour ours.
    lines = ["".join(letter for letter in line if letter.isprintable()) for line in failure.lines]
    if len(lines) < 2:
        return "".join(f": {line}" for line in lines)
    return ":" + "".join(f"\n    {line}" for line in lines)


def _hint(failure: SetupFailure) -> str:
    if failure.step == "--setup":
        return "it runs there in the working folder, by bash, without a terminal"
    has_others = any(line.startswith("environments there:") for line in failure.lines)
    return "name one of them, or its path, with --conda" if has_others else "--setup can load or find it first"
