"""`launch` as click knows it: the group of all commands.

Commands are imported only when they are called, so `launch --help` is quick.
"""

from __future__ import annotations

import importlib

import click
from click.shell_completion import CompletionItem

from launcher import __version__
from launcher.cli.command_table import COMMANDS, DEFAULT_COMMAND, EXAMPLES, GROUPS
from launcher.errors import UsageError


class CommandGroup(click.Group):
    """Loads a command when it is called; any other first word starts the default command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[name][0])
        command: click.Command = module.command
        return command

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help in 23 lines, so that all of it fits on a small terminal."""
        self.format_usage(ctx, formatter)
        formatter.write(f"  {self.help}\n")
        for heading, entries in GROUPS.items():
            if heading == "Also":
                formatter.write(f"{heading + ':':<9}{', '.join(entries)}\n")
                continue
            names = [f"{heading}:", *[""] * (len(entries) - 1)]
            for label, (name, (_, text)) in zip(names, entries.items(), strict=True):
                formatter.write(f"{label:<9}{name:<12}{text}\n")
        formatter.write("Examples (options: launch COMMAND --help; version: launch --version):\n")
        for line in EXAMPLES["launch"]:
            formatter.write(f"  {line}\n")

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        path = ctx.command_path
        formatter.write_usage(path, f"[OPTIONS] SCRIPT [ARGS]...  or  {path} COMMAND [OPTIONS] ...")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the commands, without importing them, and files or options of the default command."""
        if incomplete.startswith("-") and (default := self.get_command(ctx, DEFAULT_COMMAND)) is not None:
            own = click.Command.shell_complete(self, ctx, incomplete)
            return own + default.shell_complete(click.Context(default, ctx, resilient_parsing=True), incomplete)
        found = {name: text for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)}
        files = [CompletionItem(incomplete, type="file")]  # first: the script for bash drops what it has got till then
        return files + [CompletionItem(name, help=text) for name, text in found.items()]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = ("--help", "-h", "--version")
        if args[:1] == ["help"]:
            if args[1:2] and args[1] not in COMMANDS:
                raise UsageError(f"no command {args[1]!r}", "see launch --help for the commands")
            args = [*args[1:2], "--help"]
        if not args:
            args = [] if ctx.resilient_parsing else [DEFAULT_COMMAND]  # a Tab: the word that is typed may be a command
        elif args[0] not in own and args[0] not in COMMANDS:
            if not args[0].startswith("-"):
                from launcher.cli.mistakes import refuse_first_word

                refuse_first_word(args)
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="launch")
def launch() -> None:
    """Start PyTorch training on several machines over SSH, without a scheduler."""
