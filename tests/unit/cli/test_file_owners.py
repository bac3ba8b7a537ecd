"""Whose launcher.toml is obeyed: a file that somebody else could have written runs nothing."""

from __future__ import annotations

import errno
import grp
import json
import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.cli.fetch import fetch_logs
from launcher.cli.options.file_owners import find_other_writer, refuse_strange_folder
from launcher.errors import EXIT_USAGE, UsageError
from launcher.runs.run_list import RemoteRun, Way

Launch = Callable[..., tuple[int, str, str]]
ANN, EVE = 54321, 54322  # no account has these numbers
TEAM = 54323


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a directory of one's own below the home directory."""
    project = tmp_path / "home" / "project"
    project.mkdir(parents=True)
    monkeypatch.chdir(project)
    monkeypatch.setattr("sys.platform", "linux")  # a Mac refuses to run ranks
    monkeypatch.setattr("os.environ", {"COLUMNS": "200", "HOME": str(tmp_path / "home")})
    return project


def remedy(name: str) -> str:
    return f"  fix: pass --config {name} if you trust it, or --config /dev/null to use no file\n"


# who can write a file

Entry = tuple[int, int, int]  # owner, group, mode
ROOT: dict[str, Entry] = {"/": (0, 0, 0o755), "/home": (0, 0, 0o755), "/tmp": (0, 0, 0o1777), "/data": (0, 0, 0o1777)}
OWN: dict[str, Entry] = {**ROOT, "/home/ann": (ANN, ANN, 0o755), "/home/ann/p": (ANN, ANN, 0o755)}


@pytest.mark.parametrize(
    ("file", "entries", "doubt"),
    [
        ("/home/ann/p/f", {"/home/ann/p/f": (ANN, ANN, 0o644)}, ""),
        ("/home/ann/p/f", {"/home/ann/p/f": (0, 0, 0o644)}, ""),
        ("/home/ann/p/f", {"/home/ann/p/f": (EVE, EVE, 0o644)}, "/home/ann/p/f belongs to uid 54322"),
        ("/home/ann/p/f", {"/home/ann/p/f": (ANN, ANN, 0o666)}, "every user can write /home/ann/p/f"),
        # One group per user and umask 002, against a group of several.
        ("/home/ann/p/f", {"/home/ann/p/f": (ANN, ANN, 0o664), "/home/ann/p": (ANN, ANN, 0o775)}, ""),
        ("/home/ann/p/f", {"/home/ann/p/f": (ANN, TEAM, 0o664)}, "group 54323 can write /home/ann/p/f"),
        ("/home/ann/p/f", {"/home/ann/p/f": (ANN, TEAM, 0o644), "/home/ann/p": (ANN, TEAM, 0o2775)},
         "group 54323 can write /home/ann/p"),
        # A home directory is one as any other.
        ("/home/ann/p/f", {"/home/ann/p/f": (ANN, ANN, 0o644), "/home": (EVE, EVE, 0o755)},
         "/home belongs to uid 54322"),
        ("/home/ann/p/f", {"/home/ann/p/f": (ANN, ANN, 0o644), "/home/ann": (ANN, ANN, 0o777)},
         "every user can write /home/ann"),
        # In /tmp a stranger can leave the file, or a symlink; a directory of one's own there is safe.
        ("/tmp/f", {"/tmp/f": (EVE, EVE, 0o644)}, "/tmp/f belongs to uid 54322"),
        ("/tmp/f", {"/tmp/f": (ANN, ANN, 0o644)}, "every user can write /tmp"),
        ("/tmp/p/f", {"/tmp/p/f": (ANN, ANN, 0o644), "/tmp/p": (ANN, ANN, 0o755)}, ""),
        ("/tmp/p/f", {"/tmp/p/f": (ANN, ANN, 0o644), "/tmp/p": (EVE, EVE, 0o755)}, "/tmp/p belongs to uid 54322"),
        ("/tmp/p/q/f", {"/tmp/p/q/f": (ANN, ANN, 0o644), "/tmp/p/q": (ANN, ANN, 0o755), "/tmp/p": (EVE, EVE, 0o755)},
         "/tmp/p belongs to uid 54322"),
        ("/data/f", {"/data/f": (ANN, ANN, 0o644), "/data": (0, 0, 0o777)}, "every user can write /data"),
        # So is one anywhere else, up to a directory of root's.
        ("/srv/ann/f", {"/srv/ann/f": (ANN, ANN, 0o644), "/srv/ann": (ANN, ANN, 0o755), "/srv": (0, 0, 0o755)}, ""),
        ("/srv/ann/f", {"/srv/ann/f": (ANN, ANN, 0o644), "/srv/ann": (ANN, ANN, 0o755), "/srv": (0, TEAM, 0o775)},
         "group 54323 can write /srv"),
        ("/srv/x/ann/f", {"/srv/x/ann/f": (ANN, ANN, 0o644), "/srv/x/ann": (ANN, ANN, 0o755),
                          "/srv/x": (0, 0, 0o755), "/srv": (EVE, EVE, 0o755)}, ""),
    ],
)  # fmt: skip
def test_who_else_can_write_a_file(file: str, entries: dict[str, Entry], doubt: str) -> None:
    table = {**OWN, **entries}

    def read_stat(path: Path) -> os.stat_result:
        owner, group, mode = table[str(path)]
        return os.stat_result((mode, 0, 0, 0, owner, group, 0, 0, 0, 0))

    said = find_other_writer(Path(file), ANN, read_stat=read_stat, is_own_group=lambda _, gid: gid == ANN)
    assert (said or "") == doubt


def test_a_name_with_a_newline_forges_no_line(tmp_path: Path) -> None:
    folder = tmp_path / "a\nlaunch: all is well"
    folder.mkdir()
    folder.chmod(0o777)
    said = find_other_writer(folder / "f", os.geteuid(), read_stat=lambda _: folder.stat())
    assert said == f"every user can write {str(folder / 'f')!r}"
    assert find_other_writer(folder, 12345, read_stat=lambda _: os.stat_result((0, 0, 0, 0, EVE, *[0] * 5))) == (
        f"{str(folder)!r} belongs to uid {EVE}"
    )


@pytest.mark.parametrize(
    ("primary", "name", "members", "is_alone"),
    [
        (TEAM, "ann", [], True),
        (TEAM, "ann", ["ann"], True),
        (TEAM, "ann", ["ann", "eve"], False),
        (TEAM, "users", [], False),
        (ANN, "ann", [], False),
    ],
)
def test_the_group_of_one_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, primary: int, name: str, members: list[str], is_alone: bool
) -> None:
    account = pwd.struct_passwd(("ann", "x", ANN, primary, "", "/home/ann", "/bin/sh"))
    monkeypatch.setattr("pwd.getpwuid", lambda _: account)
    monkeypatch.setattr("grp.getgrgid", lambda gid: grp.struct_group((name, "x", gid, members)))

    def read_stat(path: Path) -> os.stat_result:
        return os.stat_result((0o770, 0, 0, 0, ANN, TEAM, 0, 0, 0, 0))

    file = tmp_path / "f"
    doubt = None if is_alone else f"group {name} can write {file}"
    assert find_other_writer(file, ANN, read_stat=read_stat) == doubt


@pytest.mark.parametrize(("gid", "is_alone"), [(TEAM, True), (EVE, False), (0, False)])
def test_a_container_s_user_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gid: int, is_alone: bool
) -> None:
    """As `docker run --user 54321:54323` and umask 002 have it; group 0 has a name."""
    monkeypatch.setattr("os.getegid", lambda: TEAM if gid == EVE else gid)

    def read_stat(path: Path) -> os.stat_result:
        return os.stat_result((0o775, 0, 0, 0, ANN, gid, 0, 0, 0, 0))

    assert (find_other_writer(tmp_path / "f", ANN, read_stat=read_stat) is None) is is_alone


# launcher.toml


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("launcher.toml", 'hosts = "a"\n'),
        ("launcher.toml", "not TOML"),
    ],
)
def test_a_file_where_anybody_can_write_is_refused(launch: Launch, folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    folder.chmod(0o1777)
    said = f"launch: {name} is not used: every user can write {folder}\n{remedy(name)}"
    assert launch("hosts", "--hosts", "b", "--json") == (EXIT_USAGE, "", said)
    assert launch("hosts", "--help")[::2] == (0, "")
    assert launch("hosts", "--hosts", "b", "--json", "--config", "/dev/null")[::2] == (0, "")


def test_a_symlink_counts_where_it_leads_and_where_it_lies(launch: Launch, folder: Path) -> None:
    shared = folder.parent / "shared"
    shared.mkdir()
    (shared / "own.toml").write_text('hosts = "a"\n')
    (folder / "launcher.toml").symlink_to(shared / "own.toml")
    assert launch("hosts", "--json")[::2] == (0, "launch: using launcher.toml (hosts)\n")
    shared.chmod(0o777)
    said = f"launch: launcher.toml is not used: every user can write {shared}\n{remedy('launcher.toml')}"
    assert launch("hosts") == (EXIT_USAGE, "", said)
    shared.chmod(0o755)
    folder.chmod(0o777)
    assert launch("hosts")[2] == said.replace(str(shared), str(folder))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_log_directory_that_a_stranger_made(launch: Launch, folder: Path) -> None:
    (folder / "train.py").touch()
    (folder / "logs").mkdir()
    os.chown(folder / "logs", EVE, EVE)
    refuse_strange_folder(Path("logs"))  # of a colleague, in a directory of the project
    folder.chmod(0o1777)
    said = f"launch: logs belongs to uid {EVE} and is in a directory that every user can write\n"
    fix = "  fix: name another with --log-dir\n"
    assert launch("singlenode", "--nproc", "1", "--cpu", "train.py") == (EXIT_USAGE, "", said + fix)
    with pytest.raises(UsageError, match=r"^logs belongs to"):  # also for attach
        fetch_logs(RemoteRun("20261120-091233", Way("a")), Path("logs"), is_chosen=False)
    assert [*(folder / "logs").iterdir()] == []
    (folder / "logs").rmdir()
    (folder / "logs").symlink_to(folder.parent)
    os.lchown(folder / "logs", EVE, EVE)
    assert launch("singlenode", "--nproc", "1", "--cpu", "train.py")[2] == said + fix
    (folder / "logs").rename("a\nb")
    with pytest.raises(UsageError, match=r"^'a\\nb' belongs to uid 54322 and"):
        refuse_strange_folder(Path("a\nb"))


# --config


def test_a_named_file_goes_in_place_of_those_that_are_found(launch: Launch, folder: Path) -> None:
    (folder / "launcher.toml").write_text('hosts = "a"\nnum-nodes = 1\n')
    (folder / "other.toml").write_text('hosts = "b,c"\n')
    (folder / "other.toml").chmod(0o666)
    code, out, err = launch("hosts", "--config", "other.toml", "--json")
    assert (code, [row["host"] for row in json.loads(out)]) == (0, ["b", "c"])
    assert err == "launch: using other.toml (hosts)\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.toml", None, "none.toml: can't be read: No such file or directory"),
        (".", None, ".: can't be read: Is a directory"),
        ("d.toml", "hosts" + ".a" * 500 + " = 1", "d.toml: hosts must be a string or a list of strings, got {'a': "
         "{'a': {'a': {'a': {'a': {'a': {...}}}}}}}"),
        ("d.toml", b"hosts = '\xff'", "d.toml: 'utf-8' codec can't decode byte 0xff in position 9: invalid start byte"),
        ("d.toml", "k" * 500 + " = 1", f"d.toml: no option {'k' * 97 + '...'!r}"),
    ],
)  # fmt: skip
def test_a_named_file_that_can_not_be_used(
    launch: Launch, folder: Path, name: str, text: str | bytes | None, message: str
) -> None:
    if text is not None:
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    assert launch("hosts", "--hosts", "a", "--config", name) == (EXIT_USAGE, "", f"launch: {message}\n")


def test_a_found_file_that_can_not_be_read_can_be_left_out(
    launch: Launch, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    (folder / "launcher.toml").touch()
    monkeypatch.setattr(Path, "read_bytes", refuse)  # root may read whatever the mode says
    fix = "  fix: pass --config /dev/null to use no file\n"
    assert launch("hosts") == (EXIT_USAGE, "", f"launch: launcher.toml: can't be read: Permission denied\n{fix}")
    assert (
        launch("hosts", "--config", "launcher.toml")[2] == "launch: launcher.toml: can't be read: Permission denied\n"
    )


def test_a_directory_that_is_gone(launch: Launch, folder: Path) -> None:
    folder.rmdir()
    said = "launch: the current directory can't be read: No such file or directory\n  fix: cd to another directory\n"
    assert launch("hosts --hosts a") == (EXIT_USAGE, "", said)
    assert launch("hosts --config /dev/null --hosts a")[0] == 0  # needs no directory
    assert launch("--config /dev/null --nproc 1 --cpu --hosts a --workdir x t.py") == (EXIT_USAGE, "", said)
