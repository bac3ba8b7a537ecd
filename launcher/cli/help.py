"""The class of all commands: its --help shows the options in groups, then examples, in lines that fit 80 columns."""

from __future__ import annotations

import re

import click

from launcher.cli.code_folder import settle_folders
from launcher.cli.command_table import EXAMPLES

# Options by their names; an option in no group is a general one.
_GROUPS = {
    "Hosts": (
        "hosts", "hostfile", "colon", "include", "exclude", "num_nodes", "transport", "ssh_config",
        "accept_new_host_keys", "ask_password", "connect_timeout", "forget",
    ),
    "Code": ("sync", "no_sync", "sync_limit", "sync_secrets", "link"),
    "Processes": (
        "nnodes", "node_rank", "ssh_hosts", "gpus", "nproc", "cpu", "is_module", "no_python", "legacy", "workdir",
    ),
    "Environment": ("python", "venv", "conda", "setup", "env", "env_file"),
    "Network": ("master_addr", "master_port", "rdzv_timeout", "silence"),
    "Stopping and restarts": (
        "stop_timeout", "now", "hang_timeout", "on_hang", "stacks", "restarts", "progress_dir", "spares", "min_nodes",
    ),
    "Checks": ("dry_run", "code", "check", "no_check", "with_packages", "max_size"),
    "Output": (
        "quiet", "ranks", "as_json", "log_dir", "name", "note", "verbose", "fold", "target", "plot",
        "detach", "controller", "notify", "follow", "node", "rank", "attempt", "since", "all_runs",
    ),
    "Slurm": (
        "nodes", "time", "partition", "mem", "cpus_per_task", "account", "qos", "constraint", "job_name", "directive",
        "requeue", "output", "submit",
    ),
}  # fmt: skip
_GENERAL = "General"
TYPED_WORDS = "launcher.typed"  # of a context's meta: a tuple, without the name of the command
# The range that click adds to a number; the error for a wrong number names it.
_RANGE = re.compile(r"  \[(?:\d+<=)?x[<>]=\d+\]|; (?:\d+<=)?x[<>]=\d+(?=\])|(?<=\[)(?:\d+<=)?x[<>]=\d+; ")
_TIMES = "T is a time: 90, 90s, 10m or 2h."


class Command(click.Command):
    """A command that shows its options in groups and its examples, and keeps the words as they were typed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = settle_folders(args, [each for each in self.params if isinstance(each, click.Option)])
        ctx.meta[TYPED_WORDS] = tuple(args)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, dict[str, tuple[str, str]]] = {name: {} for name in (*_GROUPS, _GENERAL)}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                names, text = record
                group = next((name for name, members in _GROUPS.items() if param.name in members), _GENERAL)
                groups[group][str(param.name)] = (names, _RANGE.sub("", text))
        for title, records in groups.items():
            order = _GROUPS.get(title, tuple(records))
            rows = [records[name] for name in order if name in records]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if any(param.metavar == "T" for param in self.params):
            formatter.write_paragraph()
            formatter.write_text(_TIMES)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(str(self.name), formatter)


def write_examples(name: str, formatter: click.HelpFormatter) -> None:
    """Write the examples of a command, unbroken so that they can be pasted."""
    with formatter.section("Examples"):
        for line in EXAMPLES[name]:
            formatter.write(f"  {line}\n")
