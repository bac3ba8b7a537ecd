"""The tests themselves: none replaces a function or class of launcher/. Read from their text, without running it."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
REPLACEMENT = re.compile(r"""\.setattr\(\s*(?:["']launcher\.[\w.]*?(\w+)["']|(\w+), ["'](\w+)["'])""")
IMPORTED = re.compile(r"^ *from launcher[\w.]* import (\([^)]*\)|.*)$", re.MULTILINE)
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*|__version__")
# Click calls a command by its name, and gives it nothing but what was typed; `time` stands for the library there.
ALLOWED = {
    "unit/cli/test_command_line.py": {"run_job", "run_recorded", "callback"},
    "unit/cli/test_bisection_command.py": {"run_recorded", "print_culprits", "make_job"},
    "unit/runs/test_culprits.py": {"time"},
}


def find_replaced(text: str) -> set[str]:
    """Return the names of launcher/, but for constants, that a test puts something else in the place of."""
    imported = {name for names in IMPORTED.findall(text) for name in re.findall(r"\w+", names)}
    found = {by_path or name for by_path, holder, name in REPLACEMENT.findall(text) if by_path or holder in imported}
    return {name for name in found if not CONSTANT.fullmatch(name)}


def test_no_test_replaces_a_function_or_class_of_ours() -> None:
    paths = {path.relative_to(TESTS).as_posix(): path for path in TESTS.rglob("*.py")}
    found = {name: replaced for name, path in paths.items() if (replaced := find_replaced(path.read_text("utf-8")))}
    assert found == ALLOWED
