"""What only Linux has: used where the nodes' code is, and nowhere else, since Macs launch too.

Read from the source without running it; tests/ssh/test_ssh_from_macos.py runs what it can of that.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from machines.macos import missing_names

ROOT = Path(__file__).parents[2]
ON_LINUX = "launcher/node/"

# Tables of this machine's own numbers: for those of a node they would be wrong on a Mac.
OWN_NUMBERS = {"signal": {"Signals", "strsignal"}, "os": {"strerror"}, "errno": {"errorcode"}}
FILES = ("/proc/", "/sys/", "/dev/shm")
PROGRAMS = {"free", "ip", "journalctl", "lscpu", "lsof", "nproc", "ps", "setsid", "ss", "systemctl", "timeout"}
ALLOWED = {
    ("launcher/cli/options/file_owners.py", "os.listxattr"): "where there is one",
    ("launcher/distributed.py", "os.sched_getaffinity"): "where there is one",
    ("launcher/cli/find_run.py", "the program ps"): "it is launch ps",
    ("launcher/cli/options/request.py", "the program nproc"): "it is the option --nproc",
    ("launcher/session/signals.py", "signal.Signals"): "a signal that this very process got",
}


def read_trees() -> Iterator[tuple[str, list[ast.AST]]]:
    """Parse what a launch host may run: yield each path and the nodes of its tree."""
    for file in sorted((ROOT / "launcher").rglob("*.py")):
        path = file.relative_to(ROOT).as_posix()
        if not path.startswith(ON_LINUX):
            yield path, list(ast.walk(ast.parse(file.read_text("utf-8"))))


Found = Iterator[tuple[int, str]]  # each with its line


def find_uses(nodes: list[ast.AST]) -> list[tuple[int, str]]:
    """Return everything that macOS lacks, or numbers in another way."""
    return [found for find in (find_names, find_files, find_programs, find_error_numbers) for found in find(nodes)]


def find_names(nodes: list[ast.AST]) -> Found:
    foreign = {module: names | OWN_NUMBERS.get(module, set()) for module, names in missing_names().items()}
    imports = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules = {alias.asname or alias.name: alias.name for alias in imports}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names if alias.name in foreign.get(node.module or "", ())]
            yield from ((node.lineno, f"{node.module}.{name}") for name in names)
        elif isinstance(node, ast.Attribute):
            module = modules.get(node.value.id, "") if isinstance(node.value, ast.Name) else ""
            if node.attr in foreign.get(module, ()) or node.attr == "prctl":
                yield node.lineno, f"{module}.{node.attr}".lstrip(".")


def find_files(nodes: list[ast.AST]) -> Found:
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings]
    for node in texts:
        if isinstance(node.value, str) and node.value.startswith(FILES) and " " not in node.value:
            yield node.lineno, repr(node.value)


def find_programs(nodes: list[ast.AST]) -> Found:
    argvs = [node.elts for node in nodes if isinstance(node, ast.List | ast.Tuple) and node.elts]
    for first, *_ in argvs:
        if isinstance(first, ast.Constant) and first.value in PROGRAMS:
            yield first.lineno, f"the program {first.value}"


def find_error_numbers(nodes: list[ast.AST]) -> Found:
    for node in nodes:
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "errno":
            sides = [part for side in node.comparators for part in ast.walk(side)]
            yield from ((part.lineno, "the number of an error") for part in sides if _is_number(part))


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


@pytest.fixture(scope="module")
def uses() -> list[tuple[str, int, str]]:
    """Everything that is found, each with its file and line."""
    return [(path, *found) for path, nodes in read_trees() for found in find_uses(nodes)]


def test_a_launch_host_needs_nothing_of_linux(uses: list[tuple[str, int, str]]) -> None:
    faults = [f"{path}:{line}: {words}" for path, line, words in uses if (path, words) not in ALLOWED]
    assert not faults, "\n".join(faults)


def test_what_is_allowed_is_still_there(uses: list[tuple[str, int, str]]) -> None:
    assert ALLOWED.keys() <= {(path, words) for path, _, words in uses}
