"""launch completion: print the script with which a shell asks click at each Tab."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from launcher.cli.options.command import Command, gather
from launcher.errors import UsageError
from launcher.hosts.ranges import shown

# The one line that installs each, typed in that shell. What a shell reads when it starts calls no program.
INSTALL = {
    "bash": "launch completion bash >~/.launch.bash && echo '. ~/.launch.bash' >>~/.bashrc",
    "zsh": "launch completion zsh >~/.launch.zsh && echo '. ~/.launch.zsh' >>~/.zshrc",
    "fish": "launch completion fish >$__fish_config_dir/conf.d/launch.fish",
}
_ZSH_SETUP = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }"  # which click's script needs
_HELP = f"""Print the script that completes command lines in a shell.  [default: that of $SHELL]

Install it with the line of your shell, and open another one:

\b
{chr(10).join(INSTALL.values())}

It completes commands, options, their choices, files, runs, and the hosts that ~/.ssh/config names. It contacts no
host.
"""


@click.command("completion", cls=Command, help=_HELP)
@click.argument("shell", metavar="[bash|zsh|fish]", type=click.Choice([*INSTALL]), required=False)
@gather
def command(*, shell: str | None) -> int:
    """Print the scripts of both programs."""
    path = os.environ.get("SHELL", "")
    shell = shell or Path(path).name
    kind = get_completion_class(shell) if shell in INSTALL else None
    if kind is None:
        raise UsageError(f"SHELL is {shown(path)}, which has no completion", "name one: launch completion bash")
    click.echo(f"# To install it: {INSTALL[str(shell)]}")
    if shell == "zsh":
        click.echo(_ZSH_SETUP)
    for program in ("launch", "test-distributed"):
        script = kind(command, {}, program, f"_{program.replace('-', '_').upper()}_COMPLETE").source()
        click.echo(script.replace('string split ","', 'string split -m 1 ","'))  # in fish, a list is one word
    return 0
