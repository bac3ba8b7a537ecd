"""A run on disk: its own folder, run.json, the links to the newest, and disks that are full or closed to us."""

from __future__ import annotations

import errno
import json
import os
import resource
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from machines.logs import open_log

from launcher.errors import EXIT_USAGE, UsageError
from launcher.output.run_folder import create_record

NOW = datetime(2026, 11, 20, 9, 12, 33)
ANN, BOB, TEAM = 54321, 54322, 54323  # no account and no group has these numbers


def unexpected(path, error):
    raise AssertionError(f"{path}: {error}")


def make_record(base, complain=unexpected):
    return create_record(base, NOW, complain)


def test_runs_of_one_second_have_folders_of_their_own(tmp_path):
    records = [make_record(tmp_path / "deep" / "logs") for _ in range(3)]
    assert [record.run_id for record in records] == ["20261120-091233", "20261120-091233-2", "20261120-091233-3"]
    assert [record.folder for record in records] == [tmp_path / "deep" / "logs" / record.run_id for record in records]
    assert all(record.folder.is_dir() for record in records)
    assert records[0].log_path(7) == records[0].folder / "node_7.log"


def test_files_of_the_ranks_are_found_by_name(tmp_path):
    record = make_record(tmp_path)
    assert record.find_files("trace_") == []
    for name in ("node_1/trace_2", "node_0/trace_0", "node_0/results.json"):
        path = record.folder / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert record.find_files("trace_") == [
        record.folder / "files" / name for name in ("node_0/trace_0", "node_1/trace_2")
    ]


def test_run_json_grows_and_is_replaced_whole(tmp_path):
    record = make_record(tmp_path)
    record.update({"plan": {"host": "gpü1"}, "started_at": 1.5})
    before = (record.folder / "run.json").stat().st_ino
    record.update({"result": {"exit_code": 0, "log": Path("logs/x")}})
    text = (record.folder / "run.json").read_text("utf-8")
    assert json.loads(text) == {
        "run_id": "20261120-091233",
        "plan": {"host": "gpü1"},
        "started_at": 1.5,
        "result": {"exit_code": 0, "log": "logs/x"},
    }
    assert ("gpü1" in text, text[-2:]) == (True, "}\n")
    assert [path.name for path in record.folder.iterdir()] == ["run.json"]
    assert (record.folder / "run.json").stat().st_ino != before


def test_what_is_known_before_a_run_begins_waits_for_its_first_update(tmp_path):
    record = create_record(tmp_path, NOW, unexpected, {"name": "base", "git": None})
    assert (record.title, make_record(tmp_path).title) == ("20261120-091233 (base)", "20261120-091233-2")
    record.add({"git": {"dirty": True}})
    assert list(record.folder.iterdir()) == []  # it may never begin
    record.update({"plan": 1})
    record.add({"git": {"dirty": False}})
    content = json.loads((record.folder / "run.json").read_text())
    assert content == {"run_id": "20261120-091233", "name": "base", "git": {"dirty": False}, "plan": 1}


def test_links_point_to_the_newest_run(tmp_path):
    for text in ("first", "second"):
        record = make_record(tmp_path)
        record.log_path(0).write_text(text)
        record.log_path(1).write_text(text + " one")
        record.link([0, 1])
    assert (tmp_path / "latest").readlink() == Path("20261120-091233-2")
    assert (tmp_path / "node_1.log").readlink() == Path("latest/node_1.log")
    assert ((tmp_path / "node_0.log").read_text(), (tmp_path / "node_1.log").read_text()) == ("second", "second one")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "20261120-091233", "20261120-091233-2", "latest", "node_0.log", "node_1.log",
    ]  # fmt: skip


def test_a_link_that_can_not_be_made_is_told(tmp_path):
    heard = []
    record = make_record(tmp_path, lambda path, error: heard.append((path, error.errno)))
    (tmp_path / "latest").mkdir()
    record.link([0])
    assert heard == [(tmp_path / "latest", errno.EISDIR)]


def test_files_of_other_programs_stay(tmp_path):
    for name in ("node_0.log", "node_7.log", "my.log"):
        (tmp_path / name).write_text("of another script")
    (tmp_path / "node_5.log").symlink_to("my.log")
    for ranks in ([1, 3], [0, 1]):  # the second run has no rank 3
        make_record(tmp_path).link(ranks)
    assert not (tmp_path / "node_3.log").is_symlink() and (tmp_path / "node_7.log").exists()
    assert (tmp_path / "node_0.log").read_text() == "of another script"
    assert (tmp_path / "node_5.log").readlink() == Path("my.log")
    assert (tmp_path / "node_1.log").readlink() == Path("latest/node_1.log")


def test_a_run_that_never_began_leaves_no_folder(tmp_path):
    kept, dropped = make_record(tmp_path), make_record(tmp_path)
    kept.log_path(0).write_text("noise")
    for record in (kept, dropped, dropped):
        record.discard()
    assert [path.name for path in tmp_path.iterdir()] == ["20261120-091233"]


def test_a_folder_that_can_not_be_made_is_refused(tmp_path):
    (tmp_path / "logs").write_text("a file")
    with pytest.raises(UsageError) as caught:
        make_record(tmp_path / "logs")
    assert (caught.value.message, caught.value.fix, caught.value.exit_code) == (
        f"can't create the log directory {tmp_path}/logs/20261120-091233: Not a directory",
        "choose another directory with --log-dir",
        EXIT_USAGE,
    )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_run_goes_on_without_its_logs_where_the_disk_is_full(tmp_path, monkeypatch, number):
    def refuse(path, **_):
        raise OSError(number, os.strerror(number), str(path))

    heard = []
    with monkeypatch.context() as full:
        full.setattr(Path, "mkdir", refuse)
        record = make_record(tmp_path / "logs", lambda path, error: heard.append((path, error.errno)))
    record.update({"a": 1})
    record.link([0])
    record.discard()
    folder = tmp_path / "logs" / "20261120-091233"
    assert heard == [(folder, number), (folder / "run.json", errno.ENOENT), (tmp_path / "logs/latest", errno.ENOENT)]


def test_a_run_is_its_user_s_alone(tmp_path):
    """Whatever the umask is; the folder above it may be a group's: it has the umask's mode, or keeps its own."""
    (tmp_path / "shared").mkdir(mode=0o755)
    before = os.umask(0o002)
    try:
        for base in (tmp_path / "shared", tmp_path / "deep" / "logs"):
            record = make_record(base)
            log = open_log(record.log_path(1), unexpected, record.files_path(1))
            log.write(b"words\n")
            log.close()
            log.keep_file("trace_0", b"content")
            record.keep_text("stacks-1.txt", "text")
            record.update({"a": 1})
            record.link([0, 1])
    finally:
        os.umask(before)
    assert find_modes(tmp_path / "shared") == {
        ".": 0o755,
        "20261120-091233": 0o700,
        "20261120-091233/files": 0o700,
        "20261120-091233/files/node_1": 0o700,
        "20261120-091233/files/node_1/trace_0": 0o600,
        "20261120-091233/node_0.log": 0o600,
        "20261120-091233/node_1.log": 0o600,
        "20261120-091233/run.json": 0o600,
        "20261120-091233/stacks-1.txt": 0o600,
    }
    assert find_modes(tmp_path / "deep") == {
        ".": 0o775,
        "logs": 0o775,
        "logs/.gitignore": 0o664,
        **{f"logs/{name}": mode for name, mode in find_modes(tmp_path / "shared").items() if name != "."},
    }


@contextmanager
def acting_as(uid):
    """Be a user of the group, with umask 002, until the end of the block."""
    groups, umask = os.getgroups(), os.umask(0o002)
    os.setgroups([])
    os.setegid(TEAM)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
        os.umask(umask)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
@pytest.mark.parametrize(("mode", "is_replaced"), [(0o2775, True), (0o3775, False)])
def test_two_users_of_a_group_run_in_one_project(tmp_path, monkeypatch, mode, is_replaced):
    """Nobody can replace another user's links in a sticky directory; the run goes on."""
    monkeypatch.chdir(tmp_path)  # the directories above it are root's alone
    os.chown(tmp_path, ANN, TEAM)
    tmp_path.chmod(0o2775)
    with acting_as(ANN):
        make_record(Path("logs")).link([0, 1])
        Path("logs").chmod(mode)
    with acting_as(BOB):
        assert os.access("logs", os.R_OK | os.W_OK, effective_ids=True)
        record = make_record(Path("logs"))
        record.link([0])
        record.update({"a": 1})
    assert Path("logs/latest").readlink() == Path(f"20261120-091233{'-2' if is_replaced else ''}")
    assert (record.folder.stat().st_uid, record.folder.stat().st_mode & 0o777) == (BOB, 0o700)
    assert [path.name for path in Path("logs").glob(".*")] == [".gitignore"]
    if not is_replaced:
        Path("logs/latest").unlink()
        with acting_as(BOB):
            record.link([0])  # node_0.log, which is the first user's, leads to the right file
        assert Path("logs/latest").readlink() == Path("20261120-091233-2")


def find_modes(folder):
    found = [path for path in (folder, *folder.rglob("*")) if not path.is_symlink()]
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o7777 for path in found}


@pytest.mark.linux
def test_a_disk_that_fills_up_later_is_told_and_keeps_what_was_written(tmp_path):
    heard = []
    record = make_record(tmp_path, lambda path, error: heard.append((path, error.errno)))
    record.update({"a": 1})
    assert record.write_error is None
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))
    try:
        record.update({"b": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert heard == [(record.folder / "run.json", errno.EFBIG)]
    assert record.write_error.errno == errno.EFBIG
    assert [path.name for path in record.folder.iterdir()] == ["run.json"]
    assert json.loads((record.folder / "run.json").read_text()) == {"run_id": record.run_id, "a": 1}


def test_a_path_on_the_host_that_controls_a_run_is_named_with_it(tmp_path):
    heard = []
    record = create_record(tmp_path, NOW, lambda path, error: heard.append(str(path)), host="gpu1")
    record.complain(record.folder, OSError())
    assert heard == [str(record.show(record.folder))] == [f"gpu1:{record.folder}"]
    assert make_record(tmp_path).show(tmp_path) == tmp_path


@pytest.mark.linux
def test_a_file_of_a_rank_that_does_not_fit_leaves_no_part(tmp_path):
    heard = []
    record = make_record(tmp_path, lambda path, error: heard.append((path, error.errno)))
    folder = record.folder / "files" / "node_0"
    folder.mkdir(parents=True)
    (folder / ".trace.part").symlink_to("/dev/full")
    open_log(record.log_path(0), record.complain, record.files_path(0)).keep_file("trace", b"x" * 10)
    assert heard == [(folder / "trace", errno.ENOSPC)]
    assert (list(folder.iterdir()), record.write_error.errno) == ([], errno.ENOSPC)
