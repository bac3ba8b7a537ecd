"""launch report: of a run that failed, of one that another machine controls, and its page in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import pytest
from machines.example_run import FINDING, ExampleRun
from machines.launches import run_launch
from machines.patience import DEADLINE_S

from launcher.cli.find_run import ASK
from launcher.cli.report_page.contents import collect_contents, read_contents
from launcher.cli.report_page.page import write_page
from launcher.controller.remote_launcher import RemoteLauncher
from launcher.hosts.host import Host
from launcher.output.output_streams import OutputStreams
from launcher.transports.process_channel import LocalTransport

CHROMIUM = shutil.which("chromium")
RUN = ("singlenode", "--nproc", "2", "--cpu", "--no-check", "--no-python", "sh", "-c")
# Rank 0 prints a loss; then rank 1 fails with an error that would be a script in a page.
FAILS = r"""
    if [ $RANK = 0 ]; then for loss in 3 2 1; do echo "loss=$loss"; sleep 0.02; done; touch go; sleep 60; fi
    until [ -e go ]; do sleep 0.02; done; echo "ValueError: <script>document.title = 'no'</script>" >&2; exit 7
"""
HOSTILE = "</style></title><script>console.error('ran')</script><img src=x onerror=\"console.error('ran')\">\x1b[2J\x00"


def call(folder: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return run_launch(*words, cwd=folder, code=code)


@dataclass(frozen=True)
class Browsed:
    """What a browser made of a page."""

    dom: str  # what it has read, written as HTML again
    console: list[str]  # errors, such as what the page's policy forbids, and whatever a script has said


def browse(page: Path, profile: Path) -> Browsed:
    if CHROMIUM is None:
        pytest.skip("needs chromium (Debian: apt-get install chromium)")
    options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--enable-logging=stderr")
    done = subprocess.run(
        [CHROMIUM, *options, "--dump-dom", page.as_uri()], capture_output=True, timeout=DEADLINE_S, check=True
    )
    said = done.stderr.decode("utf-8", "replace").splitlines()
    return Browsed(done.stdout.decode("utf-8"), [line for line in said if ":CONSOLE:" in line])


def test_a_run_that_fails_names_the_command(tmp_path: Path) -> None:
    failed = call(tmp_path, *RUN, FAILS, code=7)
    found = re.search(r"exit code 7 \(launch report (\S+)\)$", failed.stderr)
    assert found is not None, failed.stderr
    path = Path(call(tmp_path, "report", found[1]).stdout.rstrip("\n"))
    assert path == tmp_path / "logs" / found[1] / "report.html"
    assert path.stat().st_mode & 0o777 == 0o600
    page = unescape(path.read_text("utf-8"))
    for text in (
        "rank 1: exit code 7",
        "ValueError: <script>document.title = 'no'</script>",
        "<b>loss</b>",
    ):
        assert text in page, text


def test_where_the_page_is_written(tmp_path: Path) -> None:
    call(tmp_path, *RUN, "echo a=1")
    assert call(tmp_path, "report", "-o", "a/b.html").stdout == "a/b.html\n"
    assert "The run has succeeded." in (tmp_path / "a" / "b.html").read_text("utf-8")
    link = tmp_path / "link.html"
    link.symlink_to("a/b.html")
    call(tmp_path, "report", "-o", "link.html")
    assert link.is_symlink() and not (tmp_path / "a" / "b.html").is_symlink()
    refused = call(tmp_path, "report", "-o", "a", code=2)
    assert refused.stderr == "launch: -o: a is not a file\n  fix: name a file\n"
    refused = call(tmp_path, "report", "-o", "link.html/c", code=2)
    assert refused.stderr.splitlines()[1] == "  fix: name another file with -o"
    refused = call(tmp_path, "report", "nosuch", code=2)
    assert refused.stderr == "launch: no run 'nosuch'\n  fix: see launch ps for the runs of this machine\n"


def test_a_run_json_that_can_t_be_read(tmp_path: Path) -> None:
    call(tmp_path, *RUN, "echo a=1")
    record = tmp_path / "logs" / "latest" / "run.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "attempts": [3]}))
    call(tmp_path, "report")
    record.write_text(json.dumps({**json.loads(record.read_text()), "ended_at": "x"}))
    refused = call(tmp_path, "report", code=1)
    assert "can't be read" in refused.stderr and "Traceback" not in refused.stderr


def test_the_contents_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order goes to the controller host, which needs no jinja2, and what the page shows comes back."""
    call(tmp_path, *RUN, "for loss in 3 2 1; do echo loss=$loss; done")
    (run,) = json.loads(call(tmp_path, "ps", "--json").stdout)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    launcher = RemoteLauncher(LocalTransport(), Host("here"), [sys.executable], DEADLINE_S)
    streams = OutputStreams(frozenset(), is_one_file=False, with_color=False)
    launcher.ask((ASK, run["run"], "contents"), streams)
    contents = read_contents(json.loads(launcher.read_output()))
    launcher.close()
    assert (contents.run, contents.state) == (run["run"], "finished")
    assert [plot.title for plot in contents.numbers] == ["loss"]
    assert contents.record.plan.world_size == 2


@pytest.mark.linux
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """With text in it that would be more than text; a page that lets it through is noticed."""
    example = ExampleRun(hours=0.2, name=HOSTILE, said=HOSTILE, error=f"OutOfMemoryError {HOSTILE}")
    page = tmp_path / "report.html"
    page.write_text(write_page(collect_contents(example.write(tmp_path))), "utf-8")
    shown = browse(page, tmp_path / "profile")
    assert shown.console == []
    dom = unescape(shown.dom)
    assert "<title>failed: 20261126-080000 (</style></title><script>console.error('ran')</script>" in dom
    assert "<strong>gpu2 rank 11: exit code 1</strong>" in shown.dom
    assert "OutOfMemoryError </style></title><script>" in dom and FINDING in dom
    assert not re.search("<script|<img", shown.dom)
    assert shown.dom.count('<svg class="plot') == 13
    leaky = tmp_path / "leaky.html"
    leaky.write_text(page.read_text("utf-8").replace("</h1>", f"</h1>{HOSTILE}"), "utf-8")
    assert len(browse(leaky, tmp_path / "profile").console) >= 2  # and still nothing ran
