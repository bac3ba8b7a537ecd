"""The part of this package that can run on another machine: it needs the standard library and ClusterShell's NodeSet.

What stays here is the command line and an SSH client, which need packages that are installed on the launch host alone.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from launcher.transports.bootstrap import write_archive

_STAYING = (
    "api/", "cli/", "transports/registry.py", "commands/demo_hosts.py", "commands/pairs.py",
    "commands/drawing.py", "commands/report_page/page.py", "commands/report_page/timeline.py",
    *(f"transports/ssh/{name}" for name in (
        "fabric", "host_keys.py", "identities.py", "packet_limits.py", "pdsh", "plain_config.py",
    )),
)  # fmt: skip
_FOR_RANKS = (  # where they are compiled
    "launcher/trainer/", "launcher/collectives/", "launcher/distributed.py", "launcher/exchange.py",
)  # fmt: skip
_NODE_SET = ("__init__.py", "Defaults.py", "NodeSet.py", "NodeUtils.py", "RangeSet.py")

_LEVEL = 4  # twice as fast as zlib's default, for 4 % more bytes


@dataclass(frozen=True, slots=True)
class TravellingCode:
    """The code as an archive."""

    archive: bytes  # zip, from which Python can import

    @property
    def name(self) -> str:
        """The hash that names it."""
        return hashlib.sha256(self.archive).hexdigest()

    def compress(self) -> bytes:
        """Return what launcher.node.controller_code takes; the archive isn't compressed, so it is packed soon."""
        return zlib.compress(self.archive, _LEVEL)


@functools.cache
def pack_code() -> TravellingCode:
    """Return the code that travels."""
    return TravellingCode(write_archive(_read_files(), zipfile.ZIP_STORED))


def _read_files() -> Iterator[tuple[str, bytes]]:
    for name, path in _find_files():
        yield name, path.read_bytes()
        if not name.startswith(_FOR_RANKS) and (bytecode := _read_bytecode(path)):
            yield f"{name}c", bytecode


def _find_files() -> Iterator[tuple[str, Path]]:
    package = Path(str(resources.files("launcher")))
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if not name.startswith(_STAYING):
            yield f"launcher/{name}", path
    spec = importlib.util.find_spec("ClusterShell")
    assert spec is not None and spec.origin is not None  # a dependency
    for name in _NODE_SET:
        yield f"ClusterShell/{name}", Path(spec.origin).with_name(name)


def _read_bytecode(path: Path) -> bytes | None:
    """Return what this Python keeps of a module, in the form that a Python of its version takes from a zip.

    None is made here: bytecode of equal code may differ in some bytes, and so would the archive's name.
    """
    try:
        found = path.stat()
        facts = (0, int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF)
        header = importlib.util.MAGIC_NUMBER + struct.pack("<3I", *facts)
        data = Path(importlib.util.cache_from_source(str(path))).read_bytes()
    except (OSError, NotImplementedError):  # the latter: this Python keeps none
        return None
    # PEP 552: 1 is for bytecode that is not compared with its source.
    unchecked = importlib.util.MAGIC_NUMBER + struct.pack("<3I", 1, 0, 0)
    return unchecked + data[len(header) :] if data.startswith(header) else None
