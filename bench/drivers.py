"""Programs that start something with the peers that are libraries, as their documentation does it.

drivers.py parallel-ssh KEY HOST,HOST... COMMAND    drivers.py torchrunx HOST,HOST... WORD...
"""

from __future__ import annotations

import logging
import sys

logging.basicConfig(level=logging.INFO)  # which torchrunx needs to show what its ranks print


def run_parallel_ssh(key: str, hosts: str, command: str) -> int:
    """Run a command on all hosts at once, and print its lines as they come; return the largest exit code."""
    from pssh.clients import ParallelSSHClient

    names = hosts.split(",")
    client = ParallelSSHClient(names, pkey=key, pool_size=len(names))
    outputs = client.run_command(command)
    for output in outputs:
        for line in output.stdout:
            print(f"[{output.host}] {line}", flush=True)
        for line in output.stderr:
            print(f"[{output.host}] {line}", file=sys.stderr, flush=True)
    client.join()
    return max(output.exit_code or 0 for output in outputs)


def run_torchrunx(hosts: str, *words: str) -> int:
    """Run rank.py with two workers on each host."""
    import torchrunx

    names = hosts.split(",")
    torchrunx.Launcher(hostnames=names, workers_per_host=2, backend="gloo").run(_work, list(words))
    return 0


def _work(words: list[str]) -> None:
    from bench.rank import main

    main(words)


if __name__ == "__main__":
    starts = {"parallel-ssh": run_parallel_ssh, "torchrunx": run_torchrunx}
    sys.exit(starts[sys.argv[1]](*sys.argv[2:]))
