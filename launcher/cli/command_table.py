"""The names of all commands, with their examples."""

from __future__ import annotations

import importlib

import click

# heading of the list -> name -> (module, and the name there unless that is `command`; one line for the list)
GROUPS = {
    "Run": {
        "run": ("launcher.cli.run", "Run SCRIPT on every host under torchrun (the default)."),
        "singlenode": ("launcher.cli.singlenode", "Run SCRIPT on this machine only, without SSH."),
        "again": ("launcher.cli.again", "Start an earlier run again, as it was typed."),
    },
    "Follow": {
        "ps": ("launcher.cli.ps", "List the runs that were started on this machine."),
        "top": ("launcher.cli.top", "Show what the GPUs of all hosts do now."),
        "attach": ("launcher.cli.attach", "Show the output of a run until it ends."),
        "logs": ("launcher.cli.logs", "Print the logs of a run."),
        "wait": ("launcher.cli.wait", "Wait until a run ends, and exit with its exit code."),
        "stop": ("launcher.cli.stop", "Stop a run, as Ctrl-C in its terminal does."),
        "fetch": ("launcher.cli.fetch", "Copy the logs of a run from its controller host."),
        "report": ("launcher.cli.report", "Make a page of a run: its cause, attempts and plots."),
    },
    "Hosts": {
        "check": ("launcher.cli.check", "Compare the hosts and find what would break a run."),
        "free": ("launcher.cli.free", "Show which GPUs are free, and who uses the others."),
        "clean": ("launcher.cli.clean", "Stop and remove leftovers of your earlier runs."),
        "exec": ("launcher.cli.exec", "Run a plain command on every host."),
    },
    "Try": {
        "demo": ("launcher.cli.demo", "Train on two hosts, each of which is this machine."),
    },
    "Also": {  # named in one line
        "node": ("launcher.cli.node", "Run this machine's share of a run started by hand."),
        "hosts": ("launcher.cli.hosts", "Show the hosts as launch reads them."),
        "completion": ("launcher.cli.completion", "Print the script that completes command lines in a shell."),
    },
}
COMMANDS = {name: entry for entries in GROUPS.values() for name, entry in entries.items()}
DEFAULT_COMMAND = "run"

# What help of a command, or of `launch` itself, shows. A test plans or parses each of them.
EXAMPLES = {  # of `run` also that of `launch` itself, whose help has lines for two
    "run": (
        "launch --hosts gpu1,gpu2 --gpus 8 train.py --lr 3e-4",
        "launch --hosts 'gpu[1-4]' --sync --restarts 10 --detach train.py",
    ),
    "singlenode": ("launch singlenode --gpus 4 train.py", "launch singlenode --nproc 2 --cpu train.py"),
    "node": (
        "launch node --nnodes 2 --node-rank 0 --master-addr gpu1 --gpus 8 train.py",
        "launch node --nnodes 2 --node-rank 1 --master-addr gpu1 --gpus 8 train.py",
    ),
    "again": ("launch again", "launch again 20261120-091233 --same-code --restarts 10"),
    "check": ("launch check --hosts gpu1,gpu2", "launch check --hosts 'gpu[1-4]' --venv .venv train.py"),
    "free": ("launch free --hosts gpu1,gpu2", "launch free --hosts 'gpu[1-4]' --json"),
    "ps": ("launch ps", "launch ps --all --json"),
    "top": ("launch top", "launch top --hosts 'gpu[1-4]' --once"),
    "attach": ("launch attach", "launch attach baseline"),
    "logs": ("launch logs -f", "launch logs 20261120-091233 --rank 3 --since 10m"),
    "wait": ("launch wait", "launch wait 20261120-091233 baseline"),
    "stop": ("launch stop", "launch stop 20261120-091233 --now"),
    "fetch": ("launch fetch", "launch fetch 20261120-091233 outputs/"),
    "report": ("launch report", "launch report 20261120-091233 -o report.html"),
    "clean": ("launch clean --hosts gpu1,gpu2 --dry-run", "launch clean --hosts gpu1,gpu2"),
    "exec": (
        "launch exec --hosts gpu1,gpu2 -- nvidia-smi -L",
        "launch exec --hosts 'gpu[1-4]' --fold -- 'df -h / | tail -1'",
    ),
    "hosts": ("launch hosts --hosts 'gpu[1-4]' --exclude gpu3", "launch hosts --hosts 'gpu[1-4]' --json"),
    "completion": ("launch completion bash", "launch completion zsh"),
    "demo": ("launch demo", "launch demo --nodes 3 --nproc 1"),
    "test-distributed": ("test-distributed 2 --cpu", "test-distributed 8 --hosts gpu1,gpu2"),
}  # fmt: skip


def load_command(name: str) -> click.Command:
    """Return a command of `launch`, whose module is imported only now: `launch --help` is quick."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    command: click.Command = getattr(importlib.import_module(module), attribute or "command")
    return command


def write_examples(name: str, formatter: click.HelpFormatter) -> None:
    """Write the examples of a command, unbroken so that they can be pasted."""
    with formatter.section("Examples"):
        for line in EXAMPLES[name]:
            formatter.write(f"  {line}\n")
