"""The class of all commands: its help shows examples, then the options in groups, in lines that fit 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.shell_completion import CompletionItem

from launcher.cli.command_table import write_examples
from launcher.cli.options.request import HEADINGS, Option, settle_words

TYPED_WORDS = "launcher.typed"  # of a context's meta: a tuple, without the name of the command
_TIMES = "T is a time: 90, 90s, 10m, 2h or 2d."
_UNBROKEN = "\xa0"  # a space at which no line is broken


class Command(click.Command):
    """A command that shows its examples and its options in groups, and keeps the words as they were typed."""

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        return ["-h", "--help"]  # in any context: click keeps those of the first one

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = settle_words(args, [each for each in self.params if isinstance(each, click.Option)])
        ctx.meta[TYPED_WORDS] = tuple(args)
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        is_of_script = not ctx.allow_interspersed_args and ctx.params.get("words")
        return [] if is_of_script else super().shell_complete(ctx, incomplete)

    def get_help(self, ctx: click.Context) -> str:
        return super().get_help(ctx).replace(_UNBROKEN, " ")

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        write_examples(str(self.name), formatter)
        self.format_options(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading in HEADINGS:
            rows = [row for param, row in self._describe_options(ctx) if _find_heading(param) == heading]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)
        if any(param.metavar == "T" for param in self.params):
            formatter.write_paragraph()
            formatter.write_text(_TIMES)

    def _describe_options(self, ctx: click.Context) -> Iterator[tuple[click.Parameter, tuple[str, str]]]:
        """Yield each option with its names and its help; the first word of a default is on the line of its bracket."""
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                yield param, (record[0], record[1].replace("[default: ", f"[default:{_UNBROKEN}"))


def _find_heading(param: click.Parameter) -> str:
    return param.heading if isinstance(param, Option) else HEADINGS[-1]  # that of click's --help
