"""launch report: make a page of a run, as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from launcher.cli.find_run import ask_value, find_run
from launcher.cli.options.command import Command, gather
from launcher.cli.options.file_owners import refuse_strange_folder
from launcher.cli.options.request import FILE, RUN, RUN_PLACE, Option
from launcher.cli.report_page.contents import collect_contents, read_contents
from launcher.errors import LauncherError, UsageError
from launcher.private_files import replace_private
from launcher.runs.run_list import ListedRun, RemoteRun


@click.command("report", cls=Command, params=[
    RUN, Option(["-o", "--output"], metavar="FILE", type=FILE, help="Write the page to FILE.", heading="Output"),
    *RUN_PLACE,
])  # fmt: skip
@gather
def command(*, run: str | None, output: Path | None, controller: str | None, ssh_config: Path | None) -> int:
    """Make a page of RUN and print its path: the cause, attempts, numbers and GPUs.  [default: the newest run]

    The page is one HTML file, which loads nothing: report.html among the logs, or logs/RUN-report.html of a run whose
    logs are on another machine.
    """
    from launcher.cli.report_page.page import write_page

    found = find_run(run, controller, ssh_config)
    try:
        contents = (
            collect_contents(found) if isinstance(found, ListedRun) else read_contents(ask_value(found, "contents"))
        )
        text = write_page(contents)
    except (ValueError, OverflowError) as error:
        raise LauncherError(f"what is known of run {found.id} can't be read: {error!r:.200}") from None
    print(_write(text, output or _choose_path(found), is_chosen=output is not None))
    return 0


def _choose_path(run: ListedRun | RemoteRun) -> Path:
    if isinstance(run, ListedRun):
        return run.folder / "report.html"
    folder = Path("logs")
    refuse_strange_folder(folder)
    return folder / f"{run.id}-report.html"


def _write(text: str, path: Path, *, is_chosen: bool) -> Path:
    """Write the page so that only the user can read it; a link is followed only if the user has named it."""
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"-o: {path} is not a file", "name a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_private(path.resolve() if is_chosen else path, text)
    except OSError as error:
        raise UsageError(f"can't write {path}: {error.strerror}", "name another file with -o") from None
    return path
