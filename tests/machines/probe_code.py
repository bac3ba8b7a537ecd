"""An archive whose program does what a test wants to see."""

from __future__ import annotations

from launcher.transports.archives import PackedCode, pack, read_package

_KEEPERS = ("__init__", "node/__init__", "node/archive", "node/kept_archives", "node/loading", "node/own_folders")


def make_probe(body: str, **modules: str) -> PackedCode:
    """Return an archive with `probe`, whose main(nonce, wait_s) runs one line, other modules, and what keeps it."""
    texts = {"probe": f"import sys\n\ndef main(nonce, wait_s):\n    {body}\n", **modules}
    keepers = read_package(tuple(f"launcher/{name}.py" for name in _KEEPERS))
    return pack({**{f"{name}.py": text.encode() for name, text in texts.items()}, **keepers})
