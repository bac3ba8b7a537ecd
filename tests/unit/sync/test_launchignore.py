"""The lines of .launchignore: how they are read, and how they are written where git takes them from another place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.sync.launchignore import read_patterns, seen_from_inside


def test_lines_are_read_as_git_reads_gitignore(tmp_path: Path) -> None:
    assert read_patterns(tmp_path) == ()
    text = b"\xef\xbb\xbf# comment\n\n   \n*.bin  \r\n!keep\\ \n\\#a\nb\\  \nc\\\\  \n b\ntab\t\n\xff\nd\\"
    (tmp_path / ".launchignore").write_bytes(text)
    assert read_patterns(tmp_path) == (
        "*.bin", "!keep\\ ", "\\#a", "b\\ ", "c\\\\", " b", "tab\t", "\udcff", "d\\",
    )  # fmt: skip
    (tmp_path / ".launchignore").write_bytes("*.bin\n".encode("utf-16"))
    with pytest.raises(UsageError, match="isn't a text") as raised:
        read_patterns(tmp_path)
    assert raised.value.fix == "save it as UTF-8"
    (tmp_path / ".launchignore").unlink()
    (tmp_path / ".launchignore").mkdir()
    with pytest.raises(UsageError, match=r"\.launchignore can't be read: it isn't a regular file"):
        read_patterns(tmp_path)


def test_code_of_others_neither_hangs_nor_fills_the_memory(tmp_path: Path) -> None:
    file = tmp_path / ".launchignore"
    file.symlink_to("/dev/zero")
    with pytest.raises(UsageError, match=r"\.launchignore can't be read: it isn't a regular file"):
        read_patterns(tmp_path)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(UsageError, match=r"\.launchignore can't be read: it isn't a regular file"):
        read_patterns(tmp_path)
    file.unlink()
    with file.open("wb") as content:
        content.truncate(1 << 40)
    with pytest.raises(UsageError, match=r"\.launchignore can't be read: it is larger than 1 MiB"):
        read_patterns(tmp_path)


@pytest.mark.parametrize(
    ("pattern", "from_inside"),
    [
        ("/data", []),
        ("/a/b/", []),  # the directory itself
        ("!a/b/c/", ["!/c/"]),
        ("/a/c/c", []),
        ("/?/b/x", []),  # a wildcard above means nothing inside
        ("!**/x/y", ["!**/x/y"]),
    ],
)
def test_patterns_as_a_directory_inside_writes_them(pattern: str, from_inside: list[str]) -> None:
    assert sorted(seen_from_inside([pattern], "a/b")) == sorted(from_inside)
