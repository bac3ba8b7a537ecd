"""Code that a process borrows from an archive, while it runs somebody else's program."""

from __future__ import annotations

import sys

import pytest

import launcher
from launcher.node.archive import Archive
from launcher.transports.archives import pack, pack_node


def test_a_module_is_lent_and_nothing_else_of_the_archive_is_found() -> None:
    modules, finders, path = dict(sys.modules), list(sys.meta_path), list(sys.path)
    archive = Archive(pack_node().content, {})
    module = archive.lend("launcher.node.programs.torchrun")
    assert (module.__loader__, module.starter.__loader__) == (archive, archive)
    assert (sys.meta_path, sys.path) == (finders, path)
    assert sys.modules["launcher"] is launcher
    assert {name: each for name, each in sys.modules.items() if name.startswith("launcher")} == {
        name: each for name, each in modules.items() if name.startswith("launcher")
    }


def test_a_module_of_the_program_that_has_such_a_name_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = type(sys)("lent")
    monkeypatch.setitem(sys.modules, "lent", theirs)
    lent = Archive(pack({"lent/__init__.py": b"", "lent/part.py": b"WORD = 'ours'"}).content, {}).lend("lent.part")
    assert lent.WORD == "ours"
    assert sys.modules["lent"] is theirs and "lent.part" not in sys.modules
