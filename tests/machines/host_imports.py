"""Import all that runs on hosts in the Python that runs this, with a torch and a numpy that have every name."""

from __future__ import annotations

import importlib
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class AnyName(type):
    """The type of a class that has every name, and may stand in types."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

    def __getitem__(cls, key: object) -> Any:
        return cls


class Anything(metaclass=AnyName):
    """A class to inherit from, and a decorator with or without arguments."""

    def __init__(self, *args: object, **named: object) -> None:
        pass

    def __call__(self, *args: Any) -> Any:
        return args[0]


class AnyModule(types.ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class Finder:
    """Finds these modules, and all in them."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in ("torch", "numpy") else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return AnyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def main(root: Path) -> None:
    """Import them from this directory."""
    sys.path.insert(0, str(root))
    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]
    paths = [path for part in ("node", "collectives", "trainer") for path in (root / "launcher" / part).rglob("*.py")]
    for path in sorted([*(root / "launcher" / name for name in ("distributed.py", "exchange.py")), *paths]):
        names = path.relative_to(root).with_suffix("").parts
        importlib.import_module(".".join(name for name in names if name != "__init__"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
