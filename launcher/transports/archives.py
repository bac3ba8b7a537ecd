"""The archives of this package's code that travel to hosts. They have a fixed date: equal code gives equal archives."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import io
import os
import threading
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import launcher
from launcher.node.archive import find_own

_NODE = ("launcher/__init__.py", "launcher/node/")
# What a controller doesn't need, or can't have: SSH clients and pages that need other packages.
_STAYING = tuple(
    f"launcher/{name}" for name in (
        "api/",
        "cli/report_page/page.py",
        "transports/ssh/fabric", "transports/ssh/identities.py", "transports/ssh/pdsh",
    )
)  # fmt: skip
_TRAINER = (
    "launcher/__init__.py", "launcher/node/__init__.py", "launcher/node/nvml.py",
    "launcher/node/processes/__init__.py", "launcher/node/processes/numa.py", "launcher/node/system.py",
    "launcher/distributed.py", "launcher/exchange.py",
    "launcher/collectives/", "launcher/trainer/",
)  # fmt: skip
_TRAINER_MAIN = "import runpy, sys\nrunpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)\n"
_NODE_SET = ("__init__.py", "Defaults.py", "NodeSet.py", "NodeUtils.py", "RangeSet.py")
_LOCK = threading.RLock()  # hosts connect in threads, and an archive is made once for all


@dataclass(frozen=True, slots=True)
class PackedCode:
    """An archive, from which launcher.node.archive imports."""

    name: str  # its hash
    content: bytes  # a zip; what is in it isn't compressed: all of it together takes less

    def compress(self) -> bytes:
        """Return it as it is sent to a host that lacks it."""
        with _LOCK:
            return _compress(self.content)


def pack_node() -> PackedCode:
    """Return what every host needs."""
    with _LOCK:
        return _pack(_NODE)


def pack_launcher() -> PackedCode:
    """Return what a controller needs: that, and most of the rest, with click and ClusterShell's NodeSet."""
    with _LOCK:
        return _pack(("launcher/", "ClusterShell/", "click/"), _STAYING)


def trainer_archive() -> bytes:
    """Return the built-in programs (`launcher.trainer`, `launcher.collectives`) as a zip that Python can run.

    The first argument names the module to run.
    """
    return _write({"__main__.py": _TRAINER_MAIN.encode(), **read_package(_TRAINER)}, zipfile.ZIP_DEFLATED)


_compress = functools.cache(zlib.compress)


@functools.cache
def _pack(wanted: tuple[str, ...], left_out: tuple[str, ...] = ()) -> PackedCode:
    return pack(read_package(wanted, left_out))


def pack(files: Mapping[str, bytes]) -> PackedCode:
    """Return an archive of these files, by their paths."""
    content = _write(files, zipfile.ZIP_STORED)
    return PackedCode(hashlib.sha256(content).hexdigest(), content)


def read_package(wanted: tuple[str, ...], left_out: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Return the files of this package, and of what travels with it, whose paths in an archive begin with `wanted`."""
    own = find_own()
    found: Mapping[str, bytes | Path] = _find_installed() if own is None else own.files
    files = {}
    for path in sorted(found):
        if path.startswith(wanted) and not path.startswith(left_out):
            file = found[path]
            with contextlib.suppress(FileNotFoundError):  # it was removed just now
                files[path] = file.read_bytes() if isinstance(file, Path) else file
    return files


@functools.cache
def _find_installed() -> dict[str, Path]:
    package = Path(launcher.__path__[0])
    names = (Path(folder, name) for folder, _, names in os.walk(package) for name in names)
    found = [path for path in names if path.suffix == ".py" and not path.name.startswith(".")]  # as of an editor
    files = {f"launcher/{path.relative_to(package).as_posix()}": path for path in found}
    for library in ("ClusterShell", "click"):
        spec = importlib.util.find_spec(library)
        assert spec is not None and spec.origin is not None  # a dependency
        paths = Path(spec.origin).parent.glob("*.py")
        files |= {f"{library}/{path.name}": path for path in paths if library == "click" or path.name in _NODE_SET}
    return files


def strip(source: bytes) -> str:
    """Return a module without its comments and docstrings, which are half of it."""
    with _LOCK:  # Python 3.11 fails if two threads parse at once (python/cpython#106905)
        tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _write(files: Mapping[str, bytes], compression: int) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name, content in files.items():
            file.writestr(zipfile.ZipInfo(name, date_time=(2000, 1, 1, 0, 0, 0)), content, compression)
    return archive.getvalue()
