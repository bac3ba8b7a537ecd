"""The archives of this package's code that travel to hosts. They have a fixed date: equal code gives equal archives."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import io
import threading
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import launcher
from launcher.node.archive import find_own

_NODE = ("launcher/__init__.py", "launcher/node/")
# What a controller doesn't need: the command line, and SSH clients that need more than the standard library.
_STAYING = tuple(
    f"launcher/{name}" for name in (
        "api/", "cli/", "transports/registry.py", "transports/relayed/pdsh", "commands/demo_hosts.py",
        "commands/pairs.py", "commands/drawing.py", "commands/report_page/page.py", "commands/report_page/timeline.py",
        *(f"transports/ssh/{name}" for name in (
            "config_", "fabric", "host_keys.py", "identities.py", "packet_limits.py", "plain_config.py",
        )),
    )
)  # fmt: skip
_TRAINER = (
    "launcher/__init__.py", "launcher/node/__init__.py", "launcher/node/nvml.py",
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
    packed: bytes  # the same, compressed


def pack_node(*, is_small: bool = False) -> PackedCode:
    """Return what every host needs; is_small: without comments and docstrings, and so with other numbers of lines."""
    with _LOCK:
        return _pack(_NODE, (), is_small=is_small)


def pack_launcher() -> PackedCode:
    """Return what a controller needs: that, and most of the rest, with ClusterShell's NodeSet."""
    with _LOCK:
        return _pack(("launcher/", "ClusterShell/"), _STAYING, is_small=False)


def trainer_archive() -> bytes:
    """Return the built-in programs (`launcher.trainer`, `launcher.collectives`) as a zip that Python can run.

    The first argument names the module to run.
    """
    files = {path: text for path, text in read_package().items() if path.startswith(_TRAINER)}
    return _write({"__main__.py": _TRAINER_MAIN.encode(), **files}, zipfile.ZIP_DEFLATED)


@functools.cache
def _pack(wanted: tuple[str, ...], left_out: tuple[str, ...], *, is_small: bool) -> PackedCode:
    files = {
        path: text for path, text in read_package().items() if path.startswith(wanted) and not path.startswith(left_out)
    }
    return pack({path: strip(text).encode() for path, text in files.items()} if is_small else files)


def pack(files: Mapping[str, bytes]) -> PackedCode:
    """Return an archive of these files, by their paths."""
    content = _write(files, zipfile.ZIP_STORED)
    return PackedCode(hashlib.sha256(content).hexdigest(), content, zlib.compress(content))


def read_package() -> Mapping[str, bytes]:
    """Return the files of this package, and of what travels with it, by their paths in an archive."""
    own = find_own()
    return _read_installed() if own is None else own.files


@functools.cache
def _read_installed() -> Mapping[str, bytes]:
    package = Path(launcher.__path__[0])
    files = {f"launcher/{path.relative_to(package).as_posix()}": path for path in sorted(package.rglob("[!.]*.py"))}
    spec = importlib.util.find_spec("ClusterShell")
    assert spec is not None and spec.origin is not None  # a dependency
    files |= {f"ClusterShell/{name}": Path(spec.origin).with_name(name) for name in _NODE_SET}
    return {name: path.read_bytes() for name, path in files.items()}


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
