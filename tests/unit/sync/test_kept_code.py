"""The code of earlier runs: what this machine keeps of it, and gives back only as it was."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from machines.repositories import make_repository

from launcher.errors import LauncherError, UsageError
from launcher.job.tree import Tree
from launcher.node.code.folders import find_base
from launcher.sync.contents import path_of
from launcher.sync.kept_code import keep_contents, read_listing, refuse_lacking, write_tree
from launcher.sync.selection import select
from launcher.sync.snapshot import take_snapshot

HASH = "0" * 64


def keep(root: Path, variables: dict[str, str]) -> Tree:
    tree = take_snapshot(select(root))
    keep_contents(tree, variables)
    return tree


def test_code_comes_back_as_it_was(tmp_path: Path) -> None:
    variables = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    root = make_repository(tmp_path / "r", "a.py", "run.sh", "d/e/b\udcff\n", "d/same")
    (root / "d/same").write_text("a.py")
    large = os.urandom(1 << 19)
    (root / "large").write_bytes(large)
    (root / "empty").write_bytes(b"")
    (root / "run.sh").chmod(0o755)
    (root / "d/link").symlink_to("../a.py")
    tree = keep(root, variables)
    (root / "a.py").write_text("other")
    (root / "large").unlink()
    kept = read_listing(tree.listing)
    refuse_lacking(kept, Tree(str(root), b"", "", 0, 0, kept={HASH: b""}), "R", variables)
    assert write_tree(kept, tmp_path / "copy", variables) == []
    assert take_snapshot(select(tmp_path / "copy")).listing == tree.listing
    assert (tmp_path / "copy/large").read_bytes() == large
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o700
    with pytest.raises(FileExistsError):
        write_tree(kept, tmp_path / "copy", variables)


def test_code_that_is_lost_or_damaged_is_named(tmp_path: Path) -> None:
    variables = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    root = make_repository(tmp_path / "r", "a.py", "b.py", "c.py")
    kept = read_listing(keep(root, variables).listing)
    places = {entry.path: Path(path_of(find_base(variables), entry.content)) for entry in kept}
    places["a.py"].unlink()
    places["b.py"].write_text("b.pY")
    assert write_tree(kept, tmp_path / "copy", variables) == ["a.py", "b.py"]
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {"c.py"}
    now = Tree(str(tmp_path / "none"), b"", "", 0, 0, kept={HASH: b""})
    with pytest.raises(UsageError, match=r"^the code of run R isn't kept any more: a\.py, b\.py$"):
        refuse_lacking(kept, now, "R", variables)


@pytest.mark.parametrize(
    "entry",
    [
        ["../a", "-", 0, HASH], ["/a", "-", 0, HASH], ["a/../../b", "-", 0, HASH], ["a", "l", 0, "/etc"],
        ["d/a", "l", 0, "../../b"], ["a", "-", 0, "../" + HASH[3:]], ["a", "-", -1, HASH],
    ],
)  # fmt: skip
def test_a_listing_that_names_other_places_is_refused(entry: list[object]) -> None:
    with pytest.raises(LauncherError):
        read_listing(json.dumps([entry]).encode())


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    variables = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    root = make_repository(tmp_path / "r", "a")
    (entry,) = [entry for entry in read_listing(keep(root, variables).listing) if entry.path == "a"]
    kept = read_listing(json.dumps([["d", "l", 0, "."], entry._replace(path="d/a")]).encode())
    with pytest.raises(FileExistsError):
        write_tree(kept, tmp_path / "copy", variables)
    assert not (tmp_path / "copy/a").exists()
