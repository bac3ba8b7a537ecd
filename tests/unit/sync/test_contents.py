"""The file of a hash: from the directory that was listed, else from what this machine keeps; never another content."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.job.tree import Tree
from launcher.node.code import folders
from launcher.node.code.listing import FILE, PROGRAM, Entry, encode
from launcher.sync.contents import Contents, path_of

FIX = "try again when nothing writes to it and no launch clean --code runs, or exclude it in .launchignore"


def entry_of(path: str, data: bytes, kind: str = FILE) -> Entry:
    return Entry(path, kind, len(data), hashlib.sha256(data).hexdigest())


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proj" / "sub").mkdir(parents=True)
    return tmp_path / "proj"


@pytest.fixture
def contents(root: Path, variables: dict[str, str]) -> Contents:
    return contents_of(str(root), variables)


def contents_of(root: str, variables: dict[str, str], *kept: bytes) -> Contents:
    small = {hashlib.sha256(data).hexdigest(): data for data in kept}
    return Contents(Tree(root, b"[]", "", 0, 0, kept=small), variables)


def keep(variables: dict[str, str], data: bytes) -> Path:
    """Put a file among those that this machine keeps."""
    path = Path(path_of(folders.find_base(variables), hashlib.sha256(data).hexdigest()))
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


def read(contents: Contents, entry: Entry) -> bytes:
    found = contents.find(entry)
    return found if isinstance(found, bytes) else Path(found).read_bytes()


@pytest.mark.parametrize("name", ["a.py", "sub/b c", "a\nb", "n\udcff", "-x"])
def test_a_file_is_found_by_its_path(root: Path, contents: Contents, name: str) -> None:
    (root / name).write_bytes(b"x")
    assert read(contents, entry_of(name, b"x", PROGRAM)) == b"x"


CHANGES = {
    "another content": lambda path: path.write_bytes(b"new"),
    "longer": lambda path: path.write_bytes(b"old+"),
    "shorter": lambda path: path.write_bytes(b"ol"),
    "gone": lambda path: path.unlink(),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
    "a FIFO": lambda path: (path.unlink(), os.mkfifo(path)),
    "a link": lambda path: (path.rename(path.with_name("moved")), path.symlink_to("moved")),
    "its directory": lambda path: (path.unlink(), path.parent.rmdir(), path.parent.write_text("")),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_file_that_has_changed(
    root: Path, contents: Contents, variables: dict[str, str], change: str, is_kept: bool
) -> None:
    """It is sent as it was listed if this machine keeps that, or not at all. A FIFO in its place delays nothing."""
    entry = entry_of("sub/a.py", b"old")
    (root / entry.path).write_bytes(b"old")
    assert read(contents, entry) == b"old"
    CHANGES[change](root / entry.path)
    if is_kept:
        keep(variables, b"old")
        assert read(contents, entry) == b"old"
        return
    with pytest.raises(UsageError) as caught:
        contents.find(entry)
    assert (str(caught.value), caught.value.fix) == ("sub/a.py has changed or was removed since launch listed it", FIX)


def test_what_is_kept_may_be_damaged_too(contents: Contents, variables: dict[str, str]) -> None:
    keep(variables, b"old").write_bytes(b"new")
    with pytest.raises(UsageError, match=r"^a\?b has changed or was removed since"):
        contents.find(entry_of("a\nb", b"old"))


def test_a_very_long_name_is_shortened(contents: Contents) -> None:
    with pytest.raises(UsageError, match=rf"^{'x' * 200}\.\.\. has changed or was removed since"):
        contents.find(entry_of("x" * 4000, b""))


def test_a_root_that_isn_t_there_leaves_what_is_kept(variables: dict[str, str]) -> None:
    """As for a controller on another host, to which the code was sent before."""
    keep(variables, b"old")
    assert read(contents_of("/nowhere/at/all", variables), entry_of("a.py", b"old")) == b"old"


def test_a_controller_holds_the_code_of_its_run(variables: dict[str, str]) -> None:
    """Between two attempts no supervisor holds it, and `launch clean --code` removes what nobody holds."""
    entry = entry_of("big.bin", bytes(300_000))
    tree = Tree("/home/me/proj", encode([entry]), "", 1, entry.size)
    base = folders.find_base(variables)
    folders.make_base(base)
    folder = folders.begin(base, tree.folder_name)
    assert folders.write_file(folder.make_room(entry), entry, [bytes(300_000)])
    folder.write_listing(tree.listing)
    folders.appear(folder, folders.open_folder(base, "1", tree.hash, tree.folder_name)).unlock()

    contents = Contents(tree, variables)
    assert folders.prune(base, kept=0) == (0, 0, [])
    assert read(contents, entry) == bytes(300_000)


def test_a_small_file_is_sent_as_it_was_listed(root: Path, variables: dict[str, str]) -> None:
    """Whoever goes on editing while the run starts, or runs for days, doesn't change what a restart sends."""
    (root / "a.py").write_bytes(b"new")
    assert read(contents_of(str(root), variables, b"old"), entry_of("a.py", b"old")) == b"old"
