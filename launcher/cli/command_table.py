"""The names of all commands, and what is said of a word that is none."""

from __future__ import annotations

import os

from launcher.errors import UsageError
from launcher.wording import nearest

# name -> (module, one line for the list)
COMMANDS = {
    "run": ("launcher.cli.run", "Run SCRIPT on every host under torchrun (the default)."),
    "singlenode": ("launcher.cli.singlenode", "Run SCRIPT on this machine only, without SSH."),
    "node": ("launcher.cli.node", "Run this machine's share of a run started by hand."),
    "check": ("launcher.cli.check", "Compare the hosts; find what would break a run."),
    "clean": ("launcher.cli.clean", "End what earlier runs of yours left on the hosts."),
    "exec": ("launcher.cli.exec", "Run a plain command on every host."),
    "hosts": ("launcher.cli.hosts", "Show how the hosts were read."),
    "sbatch": ("launcher.cli.sbatch", "Print or submit the same job as a Slurm batch script."),
    "demo": ("launcher.cli.demo", "Train on loopback SSH hosts of this machine, to see it work."),
}
DEFAULT_COMMAND = "run"


def refuse_unknown_word(word: str) -> None:
    """Raise UsageError for a first word that is neither command nor file, before any host is asked."""
    if word in COMMANDS:
        raise UsageError(f"{word!r} is a command", f"write it first: launch {word} ...")
    if "/" in word or word.endswith(".py") or os.path.exists(word):  # noqa: PTH110 - false where pathlib would raise
        return
    near = nearest(word, COMMANDS)
    guess = f"; did you mean {near!r}?" if near else ""
    raise UsageError(f"no file or command {word!r}{guess}", "launch --help lists the commands")
