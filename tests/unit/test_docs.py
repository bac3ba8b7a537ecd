"""The tables and lists of the documents are those of the code; docs/lint.py checks words and links."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from launcher.cli.options.request import KEYS
from launcher.session.node_state import Stage

ROOT = Path(__file__).parents[2]


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


@pytest.mark.parametrize(
    ("page", "script", "words"),
    [
        ("TROUBLESHOOTING.md", "log_lines", "| `CUDA out of memory`, `"),
        ("docs/configuration.md", "options_table", "| `--gpus N\\|auto` | GPUs per host, one process each. | auto |"),
        ("docs/json.md", "json_fields", ""),
    ],
)
def test_the_tables_are_those_of_the_code(page: str, script: str, words: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert runpy.run_path(str(ROOT / "docs" / f"{script}.py"))["update"](text) == text, f"run docs/{script}.py"
    assert words in text


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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A message, and one line says so.", "'line says': `launch` reports it"),
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
