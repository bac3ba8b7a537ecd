"""The class of all commands: its help shows examples, then the options in groups, in lines that fit 80 columns."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click
from click.shell_completion import CompletionItem

from launcher.cli.command_table import write_examples
from launcher.cli.options.request import HEADINGS, Option, settle_words

TYPED_WORDS = "launcher.typed"  # of a context's meta: a tuple, without the name of the command
_TIMES = "T is a time: 90, 90s, 10m, 2h or 2d."
_UNBROKEN = "\xa0"  # a space at which no line is broken
_MANY = 30  # options: -h of a command with more shows only the common ones


def _show_common(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
    if is_given and not ctx.resilient_parsing and isinstance(ctx.command, Command):
        click.echo(ctx.command.describe_common(ctx))
        ctx.exit()


_SHORT_HELP = Option(
    ["-h"], is_flag=True, is_eager=True, expose_value=False, callback=_show_common,
    help="Show the common options and exit.",
)  # fmt: skip


class Command(click.Command):
    """A command that shows its examples and its options in groups, and keeps the words as they were typed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = settle_words(args, [each for each in self.params if isinstance(each, click.Option)])
        ctx.meta[TYPED_WORDS] = tuple(args)
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        is_of_script = not ctx.allow_interspersed_args and ctx.params.get("words")
        return [] if is_of_script else super().shell_complete(ctx, incomplete)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        *params, help_option = super().get_params(ctx)
        return [*params, _SHORT_HELP, help_option] if self._is_long else [*params, help_option]

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        return [name for name in super().get_help_option_names(ctx) if not self._is_long or name != "-h"]

    @property
    def _is_long(self) -> bool:
        return len(self.params) > _MANY

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

    def describe_common(self, ctx: click.Context) -> str:
        """Return the text of -h: what the command does, its examples, and its common options in one list."""
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(inspect.cleandoc(self.help or "").partition("\n\n")[0])
        write_examples(str(self.name), formatter)
        common = [(param, row) for param, row in self._describe_options(ctx) if getattr(param, "is_common", False)]
        with formatter.section("Common options"):
            formatter.write_dl([row for _, row in sorted(common, key=_by_heading)])
        formatter.write_paragraph()
        formatter.write_text(f"All options: {ctx.command_path} --help")
        return formatter.getvalue().rstrip("\n").replace(_UNBROKEN, " ")

    def _describe_options(self, ctx: click.Context) -> Iterator[tuple[click.Parameter, tuple[str, str]]]:
        """Yield each option with its names and its help; the first word of a default is on the line of its bracket."""
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                yield param, (record[0], record[1].replace("[default: ", f"[default:{_UNBROKEN}"))


def _find_heading(param: click.Parameter) -> str:
    return param.heading if isinstance(param, Option) else HEADINGS[-1]  # that of click's --help


def _by_heading(described: tuple[click.Parameter, tuple[str, str]]) -> int:
    return HEADINGS.index(_find_heading(described[0]))
