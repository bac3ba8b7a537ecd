"""The shape of the house: who may import whom, read from the source without running it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# The floors of launcher/, from the ground up: a room imports from the floors below its own, and what it is built of
# itself.
FLOORS = (
    "escapes private_files open_files clock wording",
    "errors forms",
    "concurrency hosts",
    "job diagnosis output",
    "preflight transports",
    "session",
    "sync",
    "runs",
    "controller",
    "cli",
    "api",
    "__main__",
)
# Beside them: what the ranks run. It knows nothing of the launcher, and the launcher never imports it.
RANK_FLOORS = ("distributed exchange", "collectives trainer")
LEVELS = {name: level for level, names in enumerate(FLOORS) for name in names.split()}
RANK_LEVELS = {name: level for level, names in enumerate(RANK_FLOORS) for name in names.split()}

# Who may import a library; a name stands for a module or for a whole package.
LIBRARIES = {
    "fabric": {"transports"},
    "paramiko": {"transports"},
    "cryptography": {"transports"},
    "torch": {"distributed", "exchange", "collectives", "trainer"},
    "click": {"cli"},
    "rich": {"cli"},
    "jinja2": {"cli"},
}
READ_ENVIRONMENT = {"cli", "api", "node", "distributed", "collectives", "trainer"}
BESIDE_TORCH = "launcher.node.programs."  # where torch and the user's sitecustomize may be imported
# What others import of node/.
OF_NODE_FOR_ALL = ("archive", "loading", "messages")
OF_NODE = {
    "clock": ("system",),
    "controller": ("facts.network", "processes.proc"),
    "sync": ("code.folders", "code.listing", "code.store"),
    "runs": ("agents.notice", "facts.machine", "own_folders", "system"),
    "collectives": ("nvml", "processes.numa"),
    "cli": ("file_sender",),
}
ENVIRONMENT_NAMES = {"environ", "environb", "getenv", "getenvb"}

# Pure packages do nothing but compute, and what reads files may still have no process, socket or clock.
PURE = {"preflight", "diagnosis"}
READ_FILES = {"hosts", "job"}
REACHES_OUT = {"subprocess", "socket", "select", "threading", "asyncio", "multiprocessing", "time", "os"}

# What starts something that nobody looks at; launcher.concurrency does it so that somebody does.
STARTERS = {"Thread", "Timer", "create_task", "ensure_future", "run_coroutine_threadsafe", "start_new_thread"}
# On a node few imports matter, and a rank's threads are its own.
START_UNSEEN = {"concurrency", "node", *" ".join(RANK_FLOORS).split()}

NODE_PYTHON = (3, 8)
STANDARD_SINCE_NODE_PYTHON = {"annotationlib", "compression", "graphlib", "tomllib", "zoneinfo"}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name, and the line it stands on."""

    name: str
    line: int

    @property
    def library(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the package, parsed; `name` is dotted and begins with `launcher`."""

    name: str
    path: str
    nodes: list[ast.AST]

    @property
    def part(self) -> str:
        """Return the module or package right under `launcher` that this one is, or is in; empty for the root."""
        return _part(self.name)

    @property
    def package(self) -> str:
        return self.name if self.path.endswith("__init__.py") else self.name.rpartition(".")[0]

    def imports(self) -> Iterator[Import]:
        """Yield every import, also those inside functions and under TYPE_CHECKING, by its full name."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from (Import(alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from (Import(name, node.lineno) for name in self._names_from(node))

    def _names_from(self, node: ast.ImportFrom) -> Iterator[str]:
        base = node.module or ""
        if node.level:
            above = self.package.split(".")
            base = ".".join([*above[: len(above) - node.level + 1], *filter(None, [node.module])])
        yield from (f"{base}.{alias.name}" for alias in node.names)

    def environment_reads(self) -> Iterator[int]:
        """Yield the lines that take the environment from `os`, under whatever name."""
        for node in self.nodes:
            if isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT_NAMES:
                yield node.lineno
            elif isinstance(node, ast.ImportFrom) and node.module == "os":
                yield from (node.lineno for alias in node.names if alias.name in ENVIRONMENT_NAMES)


def parse_module(name: str, path: str, text: str) -> Module:
    version = NODE_PYTHON if _part(name) == "node" else None
    return Module(name, path, list(ast.walk(ast.parse(text, path, feature_version=version))))


def read_modules() -> list[Module]:
    modules = []
    for file in sorted((ROOT / "launcher").rglob("*.py")):
        path = file.relative_to(ROOT)
        parts = path.with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules.append(parse_module(name, path.as_posix(), file.read_text("utf-8")))
    return modules


def _part(name: str) -> str:
    return name.partition(".")[2].partition(".")[0]


def find_layer_faults(module: Module) -> list[str]:
    """Say which imports of our own modules go up, sideways, or into a house next door."""
    faults = []
    for found in module.imports():
        if found.library != "launcher" or _may_import(module, found.name):
            continue
        faults.append(f"{module.path}:{found.line}: {module.name} may not import {found.name}")
    return faults


def _may_import(module: Module, name: str) -> bool:
    mine, other = module.part, _part(name)
    if mine == other and mine != "":
        return True
    if mine == "" and other in ("api", "errors"):  # what is public
        return True
    if mine == "node":
        return False
    if other == "node":
        allowed = (*OF_NODE.get(mine, ()), *(() if mine in RANK_LEVELS else OF_NODE_FOR_ALL))
        return name.startswith(tuple(f"launcher.node.{each}" for each in allowed))
    if mine in RANK_LEVELS:
        return other in RANK_LEVELS and RANK_LEVELS[other] < RANK_LEVELS[mine]
    if other in LEVELS:
        return LEVELS[other] < LEVELS.get(mine, -1)
    # What is no module is a name in launcher/__init__.py, below everything, such as __version__.
    return other not in RANK_LEVELS


def find_library_faults(module: Module) -> list[str]:
    """Say which foreign libraries are imported where they don't live."""
    return [
        f"{module.path}:{found.line}: {found.library} may be imported in {', '.join(sorted(allowed))} only"
        for found in module.imports()
        if (allowed := LIBRARIES.get(found.library)) is not None and module.part not in allowed
        if not (found.library == "torch" and module.name.startswith(BESIDE_TORCH))
    ]


def find_environment_faults(module: Module) -> list[str]:
    """Say which lines read the environment outside the modules that may."""
    if module.part in READ_ENVIRONMENT:
        return []
    return [f"{module.path}:{line}: reads the environment" for line in module.environment_reads()]


def find_impurities(module: Module) -> list[str]:
    """Say which imports let a pure module reach a process, a socket or a clock, and what of preflight/ opens a file."""
    if module.part not in PURE | READ_FILES:
        return []
    faults = [
        f"{module.path}:{found.line}: imports {found.name}"
        for found in module.imports()
        if found.library in REACHES_OUT or found.name in ("launcher.clock.wall_clock", "launcher.clock.boottime")
    ]
    if module.part in READ_FILES or module.name == "launcher.diagnosis.flight_recorder":
        return faults
    names = {getattr(node, "attr", getattr(node, "id", "")): node for node in module.nodes}
    return faults + [
        f"{module.path}: uses {name}" for name in sorted({"open", "read_text", "read_bytes"} & names.keys())
    ]


def find_unseen_starts(module: Module) -> list[str]:
    """Say which lines start a thread or task whose failure nobody would see."""
    if module.part in START_UNSEEN:
        return []
    calls = [node for node in module.nodes if isinstance(node, ast.Call)]
    names = [(call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", ""), call.lineno)
             for call in calls]  # fmt: skip
    return [f"{module.path}:{line}: {name} is for launcher.concurrency" for name, line in names if name in STARTERS]


def find_node_faults(module: Module) -> list[str]:
    """Say which imports of a module in node/ a bare Python 3.8 hasn't got."""
    if module.part != "node":
        return []
    standard = sys.stdlib_module_names - STANDARD_SINCE_NODE_PYTHON
    if module.name.startswith(BESIDE_TORCH):
        standard |= {"torch", "sitecustomize"}
    return [
        f"{module.path}:{found.line}: {found.name} is not in the standard library of Python 3.8"
        for found in module.imports()
        if found.library != "launcher" and found.library not in standard
    ]


FIND_FAULTS = (
    find_layer_faults, find_library_faults, find_environment_faults, find_impurities,
    find_unseen_starts, find_node_faults,
)  # fmt: skip


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    """Parse the package; a file in node/ that Python 3.8 couldn't read raises SyntaxError here."""
    return read_modules()


@pytest.mark.parametrize("find_faults", FIND_FAULTS)
def test_the_house_stands(find_faults: Callable[[Module], list[str]], modules: list[Module]) -> None:
    faults = [fault for module in modules for fault in find_faults(module)]
    assert not faults, "\n".join(faults)


def test_every_room_has_its_floor(modules: list[Module]) -> None:
    known = LEVELS.keys() | RANK_LEVELS.keys() | {"node", ""}
    assert {module.part for module in modules} - known == set()
