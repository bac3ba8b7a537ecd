"""The class of all commands: its --help shows the options in groups, then examples, in lines that fit 80 columns."""

from __future__ import annotations

import re

import click

from launcher.cli.command_table import write_examples
from launcher.cli.options.table import HEADINGS, Option, settle_folders

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
        groups: dict[str, list[tuple[str, str]]] = {heading: [] for heading in HEADINGS}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                names, text = record
                heading = param.heading if isinstance(param, Option) else HEADINGS[-1]
                groups[heading].append((names, _RANGE.sub("", text)))
        for heading, rows in groups.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)
        if any(param.metavar == "T" for param in self.params):
            formatter.write_paragraph()
            formatter.write_text(_TIMES)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(str(self.name), formatter)
