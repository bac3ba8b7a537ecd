"""What `launch` no longer has, and what takes its place."""

from __future__ import annotations

# The option, and after the name of a command one that only that command had -> what to type or do instead.
GONE = {
    "--note": "--name NAME",
    "--sync-secrets": "git add for what may be sent",
    "--accept-new-host-keys": "StrictHostKeyChecking accept-new in ssh_config",
    "check --gpus-under-load": "test-distributed N --hosts LIST",
    "test-distributed --plot": "results.json among the logs, with all pairs of hosts",
    "check --packages": "launch check --json, which has the packages of each host",
    "check --verbose": "launch check, whose first line names what launcher.toml sets",
    "hosts --to": "--json",
    "hosts --forget": "launch ps --forget RUN",
    "ps --all-users": "launch free --hosts LIST",
    "stop --ask": "launch free, which names the owner",
    "--claim-cpus": "a run on GPUs, which claims them",
    "--colon": "host:8 for slots, host:2222 for a port",
    "--legacy": "--start plain",
    "--no-samples": "leave it out: a sample takes no time of the ranks",
    "top --controller": "launch top --hosts LIST",
    "--fetch": "launch fetch RUN PATH, after the run or during it",
    "--queue-timeout": "--queue 2h",
    "--survive-reboots": "launch again RUN, after a reboot of its controller host",
}


def replacement(command: str | None, flag: str) -> str | None:
    """Return what takes the place of an option that is gone, in words; None for any other."""
    return GONE.get(f"{command} {flag}") or GONE.get(flag)
