"""Every command line of README, the guide and docs/ is understood and planned; docs/lint.py checks words and links."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import click
import pytest

from launcher.cli import command_group
from launcher.cli import main as cli
from launcher.cli.command_table import COMMANDS, DEFAULT_COMMAND
from launcher.cli.options.request import KEYS
from launcher.session.node_state import Stage

ROOT = Path(__file__).parents[2]
COMMANDED = ["README.md", "LAUNCH_GUIDE.md", *(f"docs/{path.name}" for path in sorted(ROOT.glob("docs/*.md")))]
PLANNED = ("run", "singlenode", "node")  # these have --dry-run
PRINTED = ("hosts", "sbatch")  # these contact nobody
_COMMAND = r"(?:launch|test-distributed) "
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def _command_lines() -> list[str]:
    lines = []
    for name in COMMANDED:
        text = (ROOT / name).read_text("utf-8")
        blocks = re.findall(rf"^    {_COMMAND}.*$", text, re.MULTILINE)
        fenced = "\n".join(_FENCED.findall(text))
        blocks += re.findall(rf"^(?:\$ )?({_COMMAND}.*)$", fenced, re.MULTILINE)
        cells = re.findall(rf"\| `({_COMMAND}[^`]+)`", text)  # which begin with one
        lines += [re.split("  #| >", line)[0].strip() for line in (*blocks, *cells)]  # a comment, a redirection
    return sorted(set(lines))


def _split(line: str) -> tuple[str, list[str]]:
    program, *words = shlex.split(line)
    if program == "test-distributed":
        return program, words
    return (words[0], words[1:]) if words and words[0] in COMMANDS else (DEFAULT_COMMAND, words)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory as a user has it, in a Slurm allocation: a script, the sample hostfiles and configurations."""
    monkeypatch.setenv("MY_TOKEN", "abc")
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
    parent = click.Context(command_group.launch, **command_group.launch.context_settings)
    command = command_group.launch.get_command(parent, name)
    assert command is not None
    return command, parent


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/flows.md"])
def test_modules_that_are_named_are_there(name: str) -> None:
    paths = set(re.findall(r"`([\w./-]+(?:\.\w+|/))`", (ROOT / name).read_text("utf-8")))
    own = [path for path in sorted(paths) if "/" in path and not path.startswith((".", "logs/"))]
    assert [path for path in own if not any((base / path).exists() for base in (ROOT, ROOT / "launcher"))] == []
    assert len(own) > 15


def test_every_page_is_in_the_index() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "README.md").read_text("utf-8")))
    assert linked == {path.name for path in ROOT.glob("docs/*.md")} - {"README.md"}


def test_the_contents_of_the_guide_name_all_its_sections() -> None:
    text = (ROOT / "LAUNCH_GUIDE.md").read_text("utf-8")
    contents = re.findall(r"^- \[(.*)\]\(#(.*)\)$", text, re.MULTILINE)
    assert [head for head, _ in contents] == re.findall(r"^## (.*)$", text, re.MULTILINE)


def test_the_guide_has_the_table_that_the_launcher_uses() -> None:
    text = (ROOT / "TROUBLESHOOTING.md").read_text("utf-8")
    assert runpy.run_path(str(ROOT / "docs" / "log_lines.py"))["update"](text) == text, "run docs/log_lines.py"
    assert len(re.findall(r"^\| .*`CUDA out of memory`.* \| .* \| .* \|$", text, re.MULTILINE)) == 2


def test_the_table_of_options_is_that_of_the_commands() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    assert runpy.run_path(str(ROOT / "docs" / "options_table.py"))["update"](text) == text, "run docs/options_table.py"
    assert "| `--gpus N\\|auto` | GPUs per host, one process each. | auto |" in text


def test_options_have_types_in_python() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "options_table.py"))["make_types"]()
    assert made == (ROOT / "launcher" / "api" / "option_types.py").read_text("utf-8"), "run docs/options_table.py"


def test_all_keys_of_launcher_toml_are_listed() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith("- The keys are the long options"))
    assert sorted(re.findall("`([a-z-]+)`", line)) == sorted(name.replace("_", "-") for name in KEYS)


def test_the_lines_to_resume_with_are_those_of_the_example() -> None:
    text = (ROOT / "docs" / "training-script.md").read_text("utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line.strip() for line in block.splitlines() if line]
    script = (ROOT / "examples" / "train_distributed_example.py").read_text("utf-8").splitlines()
    rest = (line.strip() for line in script)
    assert [line for line in lines if line not in rest] == []  # they are in the same order
    assert len(lines) < 16


def test_troubleshooting_lists_its_topics() -> None:
    text = (ROOT / "TROUBLESHOOTING.md").read_text("utf-8")
    _, *topics = re.findall(r"^## (.*)$", text, re.MULTILINE)
    anchors = [re.sub(r"[^\w -]", "", topic.lower()).replace(" ", "-") for topic in topics]
    assert re.findall(r"^- \[.*\]\(#(.*)\): ", text, re.MULTILINE) == anchors
    assert set(re.findall(r"\]\(#(.*?)\)", text)) <= set(anchors)


# No line says that somebody waits for them.
SILENT = (Stage.UNREACHABLE, Stage.QUEUED, Stage.WATCHED)


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage not in SILENT])
def test_every_line_about_waiting_is_explained(stage: Stage) -> None:
    said = f"`waiting for n3: {stage.value.partition(',')[0]}"
    assert said in (ROOT / "TROUBLESHOOTING.md").read_text("utf-8")


def test_troubleshooting_gives_each_remedy_once_and_has_the_words_that_people_search_for() -> None:
    text = (ROOT / "TROUBLESHOOTING.md").read_text("utf-8")
    by_hand = re.sub(r"<!-- made by .*?<!-- end -->", "", text, flags=re.DOTALL)
    rows = [row.split(" | ", 1)[1] for row in re.findall(r"^\| (.* \| .* \| .*) \|$", by_hand, re.MULTILINE)]
    assert {row for row in rows if rows.count(row) > 1} <= {"cause | fix"}
    for words in ("Connection timeout", "Connection timed out", "ModuleNotFoundError", "--node_rank=$SLURM_NODEID"):
        assert re.search(rf"^\| .*`[^`]*{re.escape(words)}[^`]*`.* \| .* \| .* \|$", text, re.MULTILINE), words


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A message, and one line says so.", "'line says': `launch` reports it"),
        ("it counts, also without --restarts.", "', also': even, too, or a sentence that names the case"),
        ("    launch check --hosts gpu[1-4]\n", "zsh refuses an unquoted range: launch check --hosts gpu[1-4]"),
        ("| `launch check --hosts gpu[1-4]` | |\n", "zsh refuses an unquoted range: launch check --hosts gpu[1-4]"),
        ("    launch check --hosts 'gpu[1-4]'  # of gpu[1-4]\n", None),
        ("[x](none.md)", "a link to none.md, which doesn't exist"),
        ("[x](logs.md#none)", "a link to logs.md#none, which doesn't exist"),
        ("[x](logs.md#files-from-the-ranks), [y](#here)\n# Here\n", None),
        ("# Here\n## Here\n", "two headings have the anchor here"),
        ("see scripts/none.sh", "scripts/none.sh doesn't exist"),
    ],
)
def test_the_linter_of_documents(text: str, found: str | None) -> None:
    lint = runpy.run_path(str(ROOT / "docs" / "lint.py"))
    assert [what for _, what in lint["find_in_document"](ROOT / "docs" / "page.md", text)] == ([found] if found else [])
