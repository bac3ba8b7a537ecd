"""What Python has on Linux but not on macOS, according to the standard library's type stubs."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

# The modules through which Python gives access to the system.
MODULES = ("errno", "fcntl", "mmap", "os", "posix", "resource", "select", "signal", "socket", "termios", "time")


@functools.cache
def missing_names() -> Mapping[str, frozenset[str]]:
    """Return the names that each of these modules lacks on macOS."""
    mypy = pytest.importorskip("mypy", reason="its stubs tell the systems apart: pip install mypy")
    folder = Path(mypy.__file__).parent / "typeshed" / "stdlib"
    found = {}
    for module in MODULES:
        path = folder / module / "__init__.pyi"
        tree = ast.parse((path if path.is_file() else folder / f"{module}.pyi").read_text("utf-8"))
        linux, macos = (set(_defined(tree.body, system)) for system in ("linux", "darwin"))
        found[module] = frozenset(linux - macos)
    return found


def _defined(body: list[ast.stmt], system: str) -> Iterator[str]:
    """Yield each name that these statements of a stub define if sys.platform is `system`."""
    names = {"sys": SimpleNamespace(platform=system, version_info=sys.version_info)}
    for node in body:
        if isinstance(node, ast.If):
            is_true = eval(compile(ast.Expression(node.test), "stub", "eval"), names)
            yield from _defined(node.body if is_true else node.orelse, system)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            yield from (target.id for target in targets if isinstance(target, ast.Name))
