"""Directories that no other user can fill or replace, however they came about."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.node.own_folders import make_own, refuse_others

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="run as root, to make directories of other users")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def refusal(path: Path) -> str:
    with pytest.raises(OSError) as raised:
        make_own(str(path))
    return f"{raised.value.filename}: {raised.value.strerror}"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / ".cache"


def test_every_missing_level_is_made_private(cache: Path) -> None:
    umask = os.umask(0o002)
    try:
        make_own(str(cache / "launch" / "trees"))
    finally:
        os.umask(umask)
    assert [mode(path) for path in (cache, cache / "launch", cache / "launch" / "trees")] == [0o700] * 3


def test_what_is_there_gets_its_mode_but_nothing_above_it(cache: Path) -> None:
    (cache / "launch").mkdir(parents=True)
    cache.chmod(0o755)
    (cache / "launch").chmod(0o777)
    make_own(str(cache / "launch"))
    assert (mode(cache), mode(cache / "launch")) == (0o755, 0o700)


def test_what_is_no_directory(cache: Path) -> None:
    cache.touch()
    assert refusal(cache / "launch") == f"{cache}: Not a directory"
    assert refusal(cache) == f"{cache}: Not a directory"


def test_own_links_are_followed(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    cache.mkdir()
    (cache / "launch").symlink_to("../disk/./own")
    make_own(str(cache / "launch" / "trees"))
    (tmp_path / "disk" / "own").chmod(0o755)
    make_own(str(cache / "launch"))
    assert (mode(tmp_path / "disk" / "own"), mode(tmp_path / "disk" / "own" / "trees")) == (0o700, 0o700)
    (tmp_path / "disk").chmod(0o777)
    assert "disk: others may write to it" in refusal(cache / "launch")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert refusal(tmp_path / "a" / "c") == f"{tmp_path}/a: Not a directory"
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        refuse_others(str(tmp_path / "a"))


@pytest.mark.parametrize("bits", [0o777, 0o757])
def test_where_everybody_may_rename_it_is_refused(cache: Path, bits: int) -> None:
    (cache / "launch").mkdir(parents=True)
    cache.chmod(bits)
    assert refusal(cache / "launch") == (
        f"{cache}: others may write to it (mode {bits:04o}), and could replace what is there"
    )
    cache.chmod(bits | 0o1000)  # as /tmp: others can't rename what isn't theirs
    make_own(str(cache / "launch"))


def set_group(path: Path, name: str) -> None:
    os.chown(path, -1, grp.getgrnam(name).gr_gid)


@needs_root
def test_a_group_that_is_not_this_user_s_alone(cache: Path) -> None:
    """A umask of 002 is the default where each user has a group of the same name."""
    cache.mkdir()
    cache.chmod(0o775)
    set_group(cache, grp.getgrgid(pwd.getpwuid(os.geteuid()).pw_gid).gr_name)
    make_own(str(cache / "launch"))
    set_group(cache, "users")
    assert refusal(cache / "launch").startswith(f"{cache}: others may write to it (mode 0775)")


def own_by_nobody(path: Path) -> None:
    os.chown(path, NOBODY, -1, follow_symlinks=False)


def link_of_nobody(path: Path) -> None:
    path.rename(path.with_name("theirs"))
    path.symlink_to("theirs")
    own_by_nobody(path)


@needs_root
@pytest.mark.parametrize("plant", [own_by_nobody, link_of_nobody])
@pytest.mark.parametrize("level", [".cache", ".cache/launch", ".cache/launch/trees"])
def test_another_user_s_level_is_refused(tmp_path: Path, level: str, plant: Callable[[Path], object]) -> None:
    """In a sticky directory too anybody may make one first."""
    path = tmp_path / ".cache/launch/trees"
    path.mkdir(parents=True)
    plant(tmp_path / level)
    assert refusal(path) == f"{tmp_path / level}: it belongs to user nobody, who could replace what is there"
