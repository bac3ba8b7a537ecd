"""Check whether each node could enter the environment of --setup, --venv or --conda, or the one active here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.job.activation import python_of
from launcher.job.facts import SetupFailure
from launcher.node import messages
from launcher.preflight.findings import NOTE, WARNING, Finding, Node

_WORDS = {messages.NO_PROGRAM: "isn't there", messages.NO_TORCH: "has no torch"}


def find(node: Node) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the environment, and the remedy."""
    venv, failure = node.job.activation.venv, node.fact.setup_failure
    if not node.fact.venv_found:
        yield (
            f"no virtual environment {venv}: {venv}/bin/python doesn't exist",
            "create it with python3 -m venv, or name another with --venv",
        )
    if failure is not None:
        yield f"{failure.step} failed ({failure.reason}){_said(failure)}", _hint(failure)


def is_entered(node: Node) -> bool:
    """Tell whether the node could enter the environment; only then did it look for a Python."""
    return node.fact.venv_found and node.fact.setup_failure is None


def find_passed_over(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Yield why ranks don't run in the environment that is active where `launch` was typed.

    If no host has that environment, as with a Mac's, the finding is only a note.
    """
    reasons = [_find_reason(node) for node in nodes]
    severity = NOTE if set(reasons) == {messages.NO_PROGRAM} else WARNING
    for node, reason in zip(nodes, reasons, strict=True):
        if reason is not None and node.fact.python is not None:
            why = _WORDS.get(reason, "has a Python that doesn't start")
            text = f"this terminal's environment {node.job.active_env} {why}, so ranks use {node.fact.python}"
            yield Finding((node.name,), text, "choose another with --venv, --conda or --python", severity)


def _find_reason(node: Node) -> str | None:
    """Return why a node passes over the active environment; None if it doesn't, or none is active."""
    folder = node.job.active_env
    return dict(node.fact.pythons_tried).get(python_of(folder)) if folder else None


def _said(failure: SetupFailure) -> str:
    # A colored error would color launch's output too.
    lines = ["".join(letter for letter in line if letter.isprintable()) for line in failure.lines]
    if len(lines) < 2:
        return "".join(f": {line}" for line in lines)
    return ":" + "".join(f"\n    {line}" for line in lines)


def _hint(failure: SetupFailure) -> str:
    if failure.step == "--setup":
        return "test it there: it runs in the working directory, in bash, without a terminal"
    has_others = any(line.startswith("environments there:") for line in failure.lines)
    return "name one of them, or its path, with --conda" if has_others else "load conda or add it to PATH with --setup"
