"""What the commands of --enter say if they start nothing: docker, podman, kubectl, apptainer, sudo; and what to do."""

from __future__ import annotations

import re

from launcher.errors import HostFailure, HostFailureKind

_RUNTIME = re.compile(r"docker|podman|nerdctl|kubectl|apptainer|singularity")
_MISSING = re.compile(r"(?i)not found|no such file|unknown command|can't execute")
_FIXES = (
    (re.compile("(?i)permission denied.*(docker|podman).*sock"),
     "let your user use it there (docker: its group docker), or put sudo -n before it"),
    (re.compile("(?i)is the docker daemon running|cannot connect to podman"), "start its daemon on {host}"),
    (re.compile("(?i)no such container|no container with name"),
     "start the container on {host}, or correct its name: {runtime} ps lists those that run"),
    (re.compile("(?i)is paused"), "continue it there: {runtime} unpause NAME"),
    (re.compile("(?i)is not running|container state improper"), "start it there: {runtime} start NAME"),
    (re.compile("(?i)a password is required|a terminal is required"), "let sudo start it there without a password"),
    (re.compile("(?i)not a tty"), "leave out its option for a terminal (-t)"),
    (_MISSING, "install it on {host}, or correct the command, whose words are taken as they are"),
)  # fmt: skip


def is_missing(enter: str, noise: bytes) -> bool:
    """Tell whether exit code 127 is of a shell that doesn't find this command, and not of `env`, which it starts.

    A Python that is too old says nothing.
    """
    lines = noise.decode("utf-8", "replace").splitlines()
    return bool(enter) and any(_MISSING.search(line) and not line.startswith("env: ") for line in lines)


def find_fix(enter: str, host: str, noise: bytes) -> str:
    """Return what to do about a command that has ended and said this."""
    said = noise.decode("utf-8", "replace")
    runtime = _RUNTIME.search(enter)
    found = next((fix for words, fix in _FIXES if words.search(said)), None)
    name = runtime[0] if runtime is not None else enter.split()[0]
    return found.format(runtime=name, host=host) if found is not None else try_by_hand(enter)


def try_by_hand(enter: str) -> str:
    """Return what shows whether the command works."""
    return f"try it by hand there: {enter} true"


def describe_no_input(enter: str, host: str) -> HostFailure:
    """Return the failure of a host whose command closes stdin, over which the helper gets its messages."""
    return HostFailure(
        host, HostFailureKind.SHELL, f"{enter} passes on no input",
        "let it keep stdin open: docker, podman and kubectl exec need -i",
    )  # fmt: skip
