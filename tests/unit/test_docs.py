"""Every command line of README and LAUNCH_GUIDE is understood and planned; TROUBLESHOOTING has all known lines."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import click
import pytest

from launcher.cli import main as cli
from launcher.session.node_state import Stage

ROOT = Path(__file__).parents[2]
PLANNED = ("run", "singlenode", "node")  # these have --dry-run
PRINTED = ("hosts", "sbatch")  # these contact nobody


def _command_lines() -> list[str]:
    lines = []
    for name in ("README.md", "LAUNCH_GUIDE.md"):
        text = (ROOT / name).read_text()
        blocks = re.findall(r"^    (?:launch|test-distributed) .*$", text, re.MULTILINE)
        cells = re.findall(r"\| `((?:launch|test-distributed) [^`]+)`", text)  # which begin with one
        lines += [line.split("  #")[0].strip() for line in (*blocks, *cells)]
    return sorted(set(lines))


def _split(line: str) -> tuple[str, list[str]]:
    program, *words = shlex.split(line)
    if program == "test-distributed":
        return program, words
    return (words[0], words[1:]) if words and words[0] in cli.COMMANDS else (cli.DEFAULT_COMMAND, words)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a user has it, in a Slurm allocation: a script, the sample hostfiles and configurations."""
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    (tmp_path / "train.py").touch()
    for name in ("hostfiles", "config"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_are_command_lines() -> None:
    assert len(_command_lines()) > 15


@pytest.mark.parametrize("line", _command_lines())
def test_documented_command_line(line: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, words = _split(line)
    if name in PLANNED:
        dry = [] if "--dry-run" in words and "--check" not in words else ["--dry-run"]
        words = [word for word in words if word != "--check"]
        with pytest.raises(SystemExit) as end:
            cli.main([name, *dry, *words])
        assert end.value.code == 0
        assert "# node 0: " in capsys.readouterr().out or name == "node"
    elif name in PRINTED:
        with pytest.raises(SystemExit) as end:
            cli.main([name, *(word for word in words if word != "--submit")])
        assert end.value.code == 0
    else:
        command, parent = _load(name)
        with command.make_context(name, words, parent) as context:
            assert context.command is command


def _load(name: str) -> tuple[click.Command, click.Context | None]:
    if name == "test-distributed":
        from launcher.cli.test_distributed import command

        return command, None
    parent = click.Context(cli.launch, **cli.launch.context_settings)
    command = cli.launch.get_command(parent, name)
    assert command is not None
    return command, parent


@pytest.mark.parametrize(
    "name", ["README.md", "LAUNCH_GUIDE.md", "TROUBLESHOOTING.md", "docs/old-scripts.md", "docker/README.md"]
)
def test_documented_files_are_there(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    paths = set(re.findall(r"(?<![\w./])(?:scripts|examples|config|hostfiles|docker|docs)/[\w./-]*\w", text))
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    anchors = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in _headings("LAUNCH_GUIDE.md")}
    assert set(re.findall(r"LAUNCH_GUIDE\.md#([\w-]+)", text)) <= anchors


def _headings(name: str) -> list[str]:
    return re.findall(r"^#+ (.*)$", (ROOT / name).read_text("utf-8"), re.MULTILINE)


def test_the_guide_has_the_table_that_the_launcher_uses() -> None:
    text = (ROOT / "TROUBLESHOOTING.md").read_text("utf-8")
    assert runpy.run_path(str(ROOT / "docs" / "log_lines.py"))["update"](text) == text, "run docs/log_lines.py"
    assert len(re.findall(r"^\| .*`CUDA out of memory`.* \| .* \| .* \|$", text, re.MULTILINE)) == 2


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage is not Stage.UNREACHABLE])
def test_every_line_about_waiting_is_explained(stage: Stage) -> None:
    said = f"`waiting for n3: {stage.value.partition(',')[0]}"
    assert said in (ROOT / "TROUBLESHOOTING.md").read_text("utf-8")
