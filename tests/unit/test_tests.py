"""The tests themselves: which functions and classes of ours they replace, read from the source without running it."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOCK_LIBRARIES = {"mock", "unittest.mock", "pytest_mock"}
# What a file holds that replaces something; the others need not be parsed.
REPLACES = re.compile(r"setattr|mock|\.\w+ = ")

# A constant of ours, or what a module of the standard library has, seen through one of ours.
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*|__version__")
FOREIGN = re.compile(r"\.(?:os|sys|time|socket|subprocess|signal|secrets|shutil|platform|random)(?:\.|$)")

# What may be replaced nevertheless: the file, the name as it stands there, and why there is no seam for it.
CLICK_FINDS_IT = "click calls a command by its name, and gives it nothing but what was typed"
ALLOWED = {
    ("tests/unit/cli/test_command_line.py", "launcher.cli.runner.run_job"): CLICK_FINDS_IT,
    ("tests/unit/cli/test_command_line.py", "launcher.cli.runner.run_recorded"): CLICK_FINDS_IT,
    ("tests/unit/cli/test_command_line.py", "launcher.cli.run.command.callback"): CLICK_FINDS_IT,
    ("tests/unit/cli/test_bisection_command.py", "launcher.cli.runner.run_recorded"): CLICK_FINDS_IT,
    ("tests/unit/cli/test_bisection_command.py", "launcher.cli.test_distributed.print_culprits"): CLICK_FINDS_IT,
    ("tests/unit/cli/test_bisection_command.py", "launcher.cli.test_distributed.make_job"): CLICK_FINDS_IT,
}


@dataclass(frozen=True, slots=True)
class Replacement:
    """One line of a test that puts something else in the place of a name; `name` is dotted, or None if unreadable."""

    path: str
    line: int
    name: str | None


def read_tests() -> Iterator[tuple[str, ast.Module]]:
    """Parse the Python files in tests/ that may replace something, each with its path from the root."""
    for file in sorted((ROOT / "tests").rglob("*.py")):
        text = file.read_text("utf-8")
        if REPLACES.search(text):
            yield file.relative_to(ROOT).as_posix(), ast.parse(text)


# ---- what the tests replace -----------------------------------------------------------------------------------------


def find_replacements(path: str, tree: ast.Module) -> Iterator[Replacement]:
    """Yield every `setattr` of a monkeypatch, whatever it is called, and every assignment to what was imported."""
    imported = dict(imported_names(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            yield Replacement(path, node.lineno, _replaced_name(node.args, imported))
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and (name := _dotted_name(target, imported)) is not None:
                    yield Replacement(path, node.lineno, name)


def imported_names(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each name that an absolute import binds, also inside functions, and the dotted name that it stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _replaced_name(args: list[ast.expr], imported: dict[str, str]) -> str | None:
    """Return the name that `setattr("a.b", value)` or `setattr(a, "b", value)` replaces.

    Whatever is not launcher's may be replaced under any name.
    """
    if len(args) == 2:
        return _text(args[0])
    holder, name = _dotted_name(args[0], imported), _text(args[1])
    if holder is None or (name is None and holder.startswith("launcher")):
        return None
    return f"{holder}.{name}"


def _dotted_name(node: ast.expr, imported: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return imported.get(node.id)
    if isinstance(node, ast.Attribute):
        holder = _dotted_name(node.value, imported)
        return holder and f"{holder}.{node.attr}"
    return None


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


# ---- the rule -------------------------------------------------------------------------------------------------------


def find_mock_libraries(path: str, tree: ast.Module) -> list[str]:
    """Say where a mock library is imported."""
    return [
        f"{path}: {name} is a mock library; pass a fake in at the seam"
        for _, name in imported_names(tree)
        if any(f"{name}.".startswith(f"{library}.") for library in MOCK_LIBRARIES)
    ]


def find_faults(replacement: Replacement) -> list[str]:
    """Say what is wrong with a replacement that is not on the list."""
    place = f"{replacement.path}:{replacement.line}"
    if replacement.name is None:
        return [f"{place}: name what is replaced, as an imported module and a text, so that it can be judged"]
    if (replacement.path, replacement.name) in ALLOWED or not re.match(r"launcher\.", replacement.name):
        return []
    if CONSTANT.fullmatch(replacement.name.rpartition(".")[2]) or FOREIGN.search(replacement.name):
        return []
    return [f"{place}: {replacement.name} is ours: pass a fake in at a seam, or let the real one meet the fault"]


def test_no_test_replaces_a_function_or_class_of_ours() -> None:
    found, faults = [], []
    for path, tree in read_tests():
        found += find_replacements(path, tree)
        faults += find_mock_libraries(path, tree)
    faults += [fault for replacement in found for fault in find_faults(replacement)]
    assert not faults, "\n".join(faults)
    gone = ALLOWED.keys() - {(replacement.path, replacement.name) for replacement in found}
    assert not gone, f"no longer replaced, so no longer allowed: {gone}"


def test_no_two_files_have_the_same_name() -> None:
    """Pytest imports each by its name alone, and which of two comes first depends on the worker."""
    names = sorted(file.name for file in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, next_name in itertools.pairwise(names) if name == next_name] == []
