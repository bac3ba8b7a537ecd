"""Import launch's code from an archive: a zip of its .py files, which is named by its hash.

What is imported is what was hashed, in memory. So whatever happens to a file later, such as a cleaner of caches that
removes it, a process continues, even one that still has modules to import days later.
"""

from __future__ import annotations

import marshal
import sys
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any


def find_own() -> Archive | None:
    """Return the archive from which this process runs, if it doesn't run from an installed package."""
    loader: Any = sys.modules["launcher"].__loader__
    return loader if hasattr(loader, "bytecode") else None  # its class is that of the loading module, not this one


class Archive:
    """An archive, and what imports from it; `sys.meta_path` has it."""

    def __init__(self, content: bytes, bytecode: dict[str, bytes]) -> None:
        """bytecode: of its files, for this Python; without it, modules are compiled when they are imported."""
        self.content = content
        self.bytecode = bytecode
        self._files: dict[str, bytes] | None = None

    @property
    def files(self) -> dict[str, bytes]:
        """Its files by their paths, such as `launcher/node/archive.py`."""
        if self._files is None:
            import io
            import zipfile  # which takes longer than a start, and isn't needed where the bytecode is known

            with zipfile.ZipFile(io.BytesIO(self.content)) as archive:
                self._files = {path: archive.read(path) for path in archive.namelist()}
        return self._files

    def enter(self) -> None:
        """Let everything that is imported from now on come from here."""
        self.take_modules()  # this module, and what has loaded it
        sys.meta_path.insert(0, self)

    def take_modules(self) -> dict[str, ModuleType]:
        """Forget the modules that have the name of one from here; return them."""
        packages = {path.partition("/")[0] for path in self.bytecode or self.files}
        return {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] in packages}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return where a module is here, or None."""
        place = name.replace(".", "/")
        for file in (place + ".py", place + "/__init__.py"):
            if file in (self.bytecode or self.files):
                return ModuleSpec(name, self, origin=file, is_package=file != place + ".py")  # type: ignore[arg-type]
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a module."""
        assert module.__spec__ is not None and module.__spec__.origin is not None  # find_spec has made it
        exec(self._read_code(module.__spec__.origin), module.__dict__)

    def get_source(self, name: str) -> str:
        """Return the source of a module, for a traceback."""
        spec = self.find_spec(name)
        assert spec is not None and spec.origin is not None  # it was imported
        return self.files[spec.origin].decode()

    def compile(self, path: str) -> CodeType:
        """Return the code of a file, without what this module imports from __future__."""
        return compile(self.files[path], path, "exec", dont_inherit=True)

    def _read_code(self, path: str) -> Any:
        if path in self.bytecode:
            return marshal.loads(self.bytecode[path])
        return self.compile(path)
