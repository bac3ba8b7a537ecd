"""The part of this package that can run on another machine: it needs the standard library and ClusterShell's NodeSet.

What stays here is the command line and SSH, which need packages that are installed on the launch host alone.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

_STAYING = (
    "cli/", "transports/ssh/", "transports/registry.py", "transports/relayed/pdsh", "commands/demo_hosts.py",
    "commands/plots.py",
)  # fmt: skip
_NODE_SET = ("__init__.py", "Defaults.py", "NodeSet.py", "NodeUtils.py", "RangeSet.py")
_RANKS = ("launcher.__main__", "launcher.collectives", "launcher.distributed", "launcher.trainer")
_DATE = (2000, 1, 1, 0, 0, 0)  # so that equal code gives an equal archive


@dataclass(frozen=True, slots=True)
class TravellingCode:
    """The code as an archive."""

    archive: bytes  # zip
    files: int
    bytes_in_all: int  # of the files

    @property
    def name(self) -> str:
        """The hash that names it."""
        return hashlib.sha256(self.archive).hexdigest()[:16]


@functools.cache
def pack_code() -> TravellingCode:
    """Return the code that travels."""
    archive, sizes = io.BytesIO(), []
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in _find_files():
            file.writestr(zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED)
            sizes.append(len(content))
    return TravellingCode(archive.getvalue(), len(sizes), sum(sizes))


def list_modules() -> tuple[str, ...]:
    """Return the names of the modules that travel, without those that only the ranks need."""
    names = (name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name, _ in _find_files())
    return tuple(name for name in names if not name.startswith(_RANKS))


def _find_files() -> Iterator[tuple[str, bytes]]:
    package = Path(str(resources.files("launcher")))
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if not name.startswith(_STAYING):
            yield f"launcher/{name}", path.read_bytes()
    spec = importlib.util.find_spec("ClusterShell")
    assert spec is not None and spec.origin is not None  # a dependency
    for name in _NODE_SET:
        yield f"ClusterShell/{name}", Path(spec.origin).with_name(name).read_bytes()
