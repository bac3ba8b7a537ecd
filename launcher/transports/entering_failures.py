"""What to report if a command of --enter, such as docker, podman, kubectl, apptainer or sudo, starts nothing."""

from __future__ import annotations

import re

from launcher.errors import HostFailure, HostFailureKind

_MISSING = re.compile(r"(?i)not found|no such file|unknown command|can't execute")


def is_missing(enter: str, noise: bytes) -> bool:
    """Tell whether exit code 127 is of a shell that doesn't find this command, and not of `env`, which it starts.

    A Python that is too old says nothing.
    """
    lines = noise.decode("utf-8", "replace").splitlines()
    return bool(enter) and any(_MISSING.search(line) and not line.startswith("env: ") for line in lines)


def try_by_hand(enter: str) -> str:
    """Return what shows whether the command works."""
    return f"try it by hand there: {enter} true"


def describe_no_input(enter: str, host: str) -> HostFailure:
    """Return the failure of a host whose command closes stdin, over which the helper gets its messages."""
    return HostFailure(
        host, HostFailureKind.SHELL, f"{enter} passes on no input",
        "let it keep stdin open: docker, podman and kubectl exec need -i",
    )  # fmt: skip
