"""What `launch` no longer has, and what takes its place: for errors, and for runs that were typed with it."""

from __future__ import annotations

from collections.abc import Sequence

# The option, and after the name of a command one that only that command had -> (what to type, for "did you mean";
# the words that `launch again` types instead, in which {} is the value).
GONE: dict[str, tuple[str, tuple[str, ...]]] = {
    "--note": ("--name NAME", ()),
    "--sync-secrets": ("git add for what may be sent", ()),
    "--accept-new-host-keys": ("StrictHostKeyChecking accept-new in ssh_config", ()),
    "check --verbose": ("launch check, whose first line names what launcher.toml sets", ()),
    "hosts --to": ("--json", ()),
    "hosts --forget": ("launch ps --forget RUN", ()),
    "ps --all-users": ("launch free --hosts LIST", ()),
    "stop --ask": ("launch free, which names the owner", ()),
    "--colon": ("host:8 for slots, host:2222 for a port", ()),
    "--legacy": ("--start plain", ("--start=plain",)),
    "sbatch --output": ("launch sbatch ... > FILE", ()),
    "sbatch --submit": ("launch sbatch ... | sbatch", ()),
    **{
        f"sbatch --{name}": (f"launch sbatch ... | sbatch --{name}={value}", ())
        for name, value in {
            "partition": "NAME",
            "account": "NAME",
            "qos": "NAME",
            "constraint": "LIST",
            "mem": "SIZE",
            "job-name": "NAME",
            "time": "TIME",
            "cpus-per-task": "N",
        }.items()
    },
    "sbatch --directive": ("launch sbatch ... | sbatch OPTIONS", ()),
    "--queue-timeout": ("--queue 2h", ("--queue={}",)),
}


def replacement(command: str | None, flag: str) -> str | None:
    """Return what takes the place of an option that is gone, in words; None for any other."""
    found = GONE.get(f"{command} {flag}") or GONE.get(flag)
    return found[0] if found is not None else None


def renew(group: Sequence[str]) -> tuple[str, ...]:
    """Return an option and its value as an earlier version kept them, in the words of now; () if it has no effect."""
    flag, _, value = group[0].partition("=")
    if flag not in GONE:
        return tuple(group)
    return tuple(word.format(group[1] if len(group) > 1 else value) for word in GONE[flag][1])
