"""Methods to run one command on many hosts: the transports, and what a user would type without `launch`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.farm import Farm

Argv = list[str | Path]

PATIENCE_S = "60"  # for a login: the measuring machine may be busy
LAUNCH = [sys.executable, "-c", "from launcher.cli.main import main; main()"]
TRANSPORTS = ("fabric", "ssh", "pdsh")
SSH_LOOP, PLAIN_PDSH, CLUSH = "ssh loop", "plain pdsh", "clush"
WAYS = (*TRANSPORTS, SSH_LOOP, PLAIN_PDSH, CLUSH)


def command_of(way: str, hosts: Farm, names: Sequence[str], command: str) -> Argv:
    """Return the argv that runs a shell command on those hosts in parallel."""
    config, listed, fan_out = hosts.ssh_config, ",".join(names), str(len(names))
    if way == SSH_LOOP:
        ssh = shlex.join(["ssh", "-F", str(config)])
        return ["/bin/sh", "-c", f"for host in {' '.join(names)}; do {ssh} $host {shlex.quote(command)} & done; wait"]
    if way == PLAIN_PDSH:
        pdsh = ["env", f"PDSH_SSH_ARGS_APPEND=-F {config}", "pdsh", "-R", "ssh", "-t", PATIENCE_S]
        return [*pdsh, "-f", fan_out, "-w", listed, command]
    if way == CLUSH:
        clush = [sys.executable, "-m", "ClusterShell.CLI.Clush", "--nostdin", "-f", fan_out]
        return [*clush, "-o", f"-F {config}", "-w", listed, command]
    # Without a port, all names of the farm look like this machine, and each needs an ssh -G; elsewhere one is enough.
    places = ",".join(f"{name}:{hosts.port}" for name in names)
    words: Argv = ["--connect-timeout", PATIENCE_S, "--ssh-config", config, "--hosts", places]
    return [*LAUNCH, "exec", "--transport", way, *words, "--", command]
