"""launch completion: print the script that completes command lines in a shell."""

from __future__ import annotations

import os
from pathlib import Path

import click

from launcher.cli.completion.vocabulary import read_vocabulary
from launcher.cli.options.help import Command
from launcher.cli.options.values import gather
from launcher.errors import UsageError
from launcher.hosts.ranges import shown

# The one line that installs each, typed in that shell. What a shell reads when it starts calls no program.
INSTALL = {
    "bash": "launch completion bash >~/.launch.bash && echo '. ~/.launch.bash' >>~/.bashrc",
    "zsh": "launch completion zsh >~/.launch.zsh && echo '. ~/.launch.zsh' >>~/.zshrc",
    "fish": "launch completion fish >$__fish_config_dir/conf.d/launch.fish",
}
_HELP = f"""Print the script that completes command lines in a shell.  [default: that of $SHELL]

Install it with the line of your shell, and open another one:

\b
{chr(10).join(INSTALL.values())}

It completes commands, options, their values, runs, and the hosts of the hostfile, ssh_config and known_hosts. It
contacts no host.
"""


@click.command("completion", cls=Command, help=_HELP)
@click.argument("shell", metavar="[bash|zsh|fish]", type=click.Choice([*INSTALL]), required=False)
@gather
def command(*, shell: str | None) -> int:
    """Print the script of a shell, with the line that installs it as a comment."""
    shell = shell or _find_shell(os.environ.get("SHELL", ""))
    script = Path(__file__).with_name(f"launch.{shell}").read_text("utf-8")
    click.echo(script.replace("{install}", INSTALL[shell]), nl=False)
    read_vocabulary()  # so that the first Tab needn't make it
    return 0


def _find_shell(path: str) -> str:
    name = Path(path).name
    if name not in INSTALL:
        raise UsageError(f"SHELL is {shown(path)}, which has no completion", "name one: launch completion bash")
    return name
