"""The code of a run on a node: what it asks for, what it keeps, the directory that it fills, and its proof."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from node_code import FILES, Code, Talk
from node_process import STAND_IN, WAITS, Node, Nodes, shell

from launcher.node import messages

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="run as root, to make directories of other users")
FACTS = {
    "facts": True, "workdir": "/nowhere", "script": None, "pythons": [sys.executable], "gpus": False, "checks": False,
    "env": {"PYTHONPATH": str(STAND_IN)},
}  # fmt: skip


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def start(nodes: Nodes, cache: Path) -> Any:
    """Start a node that keeps code in the cache directory of the test."""

    def start_node(run: str = "test", **how: Any) -> Node:
        env = {"XDG_CACHE_HOME": str(cache), **how.pop("env", {})}
        return nodes.start(env=env, mark=f"{run}.{os.urandom(4).hex()}", **how)

    return start_node


def read(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def test_a_node_asks_for_each_content_once_and_fills_the_directory(start: Any, cache: Path, any_python: str) -> None:
    code = Code({**FILES, "run.sh": b"#!/bin/sh\n"}, programs=("run.sh",), links={"pkg/again": "../train.py"})
    talk = Talk(start(python=any_python), code)
    assert talk.ask() == ["empty", "pkg/copy.py", "run.sh", "train.py"]
    talk.send("empty", "pkg/copy.py", "run.sh", "train.py")
    answer = talk.answer()
    root = Path(answer["path"])
    assert root == cache / "launch" / "trees" / f"test-{code.hash[:7]}" / "proj"
    assert answer | {"path": ""} == {
        "type": "placed", "path": "", "wrong": [], "repaired": [], "empty": [], "moved": [],
    }  # fmt: skip
    assert read(root) == code.files
    assert [path.stat().st_mode & 0o777 for path in (root, *root.parents[:3])] == [0o700] * 4
    assert [path.name for path in root.rglob("*") if path.is_file() and path.stat().st_mode & 0o100] == ["run.sh"]
    assert (root / "pkg/again").readlink() == Path("../train.py")
    assert all(path.stat().st_nlink == 1 for path in root.rglob("*") if path.is_file())
    assert len(talk.node.find(messages.TOOK)) == 3, "an empty file takes no piece"
    assert talk.node.stop() == []


def test_the_next_run_gets_what_has_changed_and_a_directory_of_its_own(start: Any) -> None:
    first = start()
    before = Talk(first, Code(FILES)).deliver()
    first.stop()
    first.wait_until_gone()
    code = Code({"train.py": b"print(2)\n", "pkg/model.py": b"SIZE = 3\n", "empty": b""})
    talk = Talk(start("next"), code)
    assert talk.ask() == ["train.py"]
    talk.send("train.py")
    assert read(Path(talk.answer()["path"])) == code.files
    assert read(before) == FILES


def test_a_living_run_and_one_that_wrote_into_its_directory_keep_it(start: Any) -> None:
    living = start()
    kept = [Talk(living, Code(FILES)).deliver()]
    wrote = start("wrote")
    kept.append(Talk(wrote, Code(FILES)).deliver())
    (kept[1] / "pkg" / "result.json").write_text("42")
    wrote.stop()
    wrote.wait_until_gone()
    for number in range(4):  # more than are kept
        node = start(f"next{number}")
        root = Talk(node, Code({**FILES, "number": b"%d" % number})).deliver()
        assert root not in kept
        if number:
            (root / "checkpoint").write_text("3")
        if number == 3:
            node.wait_until(lambda: not (kept[1] / "train.py").exists(), "what was sent is removed")
        node.stop()
        node.wait_until_gone()
    assert read(kept[0]) == FILES
    assert (kept[1] / "pkg" / "result.json").read_text() == "42"


def test_what_is_damaged_is_asked_for_again_and_told(start: Any, tmp_path: Path) -> None:
    code = Code(FILES)
    node = start()
    links = [["outputs", str(tmp_path / "outputs"), True]]
    root = Talk(node, code, links=links).deliver()
    link_inode = (root / "outputs").lstat().st_ino
    (root / "pkg" / "__pycache__").mkdir()
    (root / "train.py").write_bytes(b"print(7)\n")
    (root / "pkg" / "model.py").unlink()
    (root / "pkg" / "model.py").symlink_to("/etc/hostname")
    node.stop()
    node.wait_until_gone()
    talk = Talk(start(), code, links=links)  # the next attempt of the same run
    assert talk.ask() == ["train.py"]
    talk.send("train.py")
    answer = talk.answer()
    assert answer["path"] == str(root)
    assert (answer["repaired"], answer["wrong"]) == (["pkg/model.py", "train.py"], [])
    assert not (root / "pkg" / "__pycache__").exists()
    assert (root / "outputs").lstat().st_ino == link_inode, "another host that shares the directory may be using it"
    assert {path: data for path, data in read(root).items() if path in FILES} == FILES


def test_links_lead_outside_and_what_a_run_wrote_there_stays(start: Any, tmp_path: Path) -> None:
    live, data = tmp_path / "live", tmp_path / "data"
    data.mkdir()
    (data / "corpus").write_text("")
    links = [["outputs", str(live / "outputs"), True], ["data", str(data), False]]
    talk = Talk(start(), Code(FILES), links=links, sub="runs/here")
    root = talk.deliver()
    assert talk.node.find(messages.PLACED)[0]["empty"] == ["outputs"]
    assert (root / "runs/here").is_dir()
    (root / "outputs" / "model.pt").write_text("")
    assert [path.name for path in (live / "outputs").iterdir()] == ["model.pt"]
    talk.node.stop()
    talk.node.wait_until_gone()
    out, under = ["out", "/dev/null/out", True], ["under", "/dev/null/under", True]
    fails = Talk(start("fails"), Code({"train.py": b"1"}), links=[out, under])
    text = "can't make /dev/null/out for out/: Not a directory; fix: pass --link out=DIR"
    assert fails.answer()["text"] == text
    # What can't be below a laptop's home directory is below that of the host.
    node = start("laptop", env={"HOME": str(tmp_path / "home")})
    moved = Talk(node, Code({"train.py": b"2"}), links=[out, under], home="/dev/null")
    root = Path(moved.deliver())
    assert (root / "out").readlink() == tmp_path / "home" / "out"
    assert (root / "under").readlink() == tmp_path / "home" / "under"
    placed = moved.node.find(messages.PLACED)[0]
    assert (placed["moved"], placed["empty"]) == (["out", "under"], ["out", "under"])
    again = Talk(start("again"), Code({"train.py": b""}), links=[["data", str(tmp_path / "missing"), False]])
    assert again.answer()["text"] == f"--link data={tmp_path}/missing: there is no {tmp_path}/missing"
    assert (live / "outputs" / "model.pt").exists() and (data / "corpus").exists()


def test_a_listing_with_a_place_outside_is_refused(start: Any, cache: Path) -> None:
    code = Code({"../out": b"x"})
    talk = Talk(start(), code)
    talk.request()
    talk.node.send(messages.LISTING, zlib.compress(code.listing))
    answer = talk.node.wait_for(messages.UNPLACED)
    assert answer["text"].startswith("it can't read what launch sent: not a path in a tree: ")
    assert not list((cache / "launch" / "trees").iterdir())


def test_a_cache_that_can_t_be_written_is_named(start: Any, cache: Path) -> None:
    cache.write_text("a file")
    node = start()
    node.prepare(tree=Code(FILES).fields())
    text = node.wait_for(messages.UNPLACED)["text"]
    assert text == f"can't keep the code in {cache}: Not a directory"


@needs_root
@pytest.mark.parametrize("is_dry", [False, True])
def test_a_level_of_another_user_is_refused(start: Any, cache: Path, is_dry: bool) -> None:
    """Nor is anything read there: who opens a FIFO waits without end."""
    level = cache / "launch" / "trees"
    (level / "run").mkdir(parents=True)
    os.mkfifo(level / "run" / "listing")
    os.chown(level, NOBODY, -1)
    node = start()
    node.prepare(tree=Code(FILES).fields(**({"is_prune": True, "is_dry": True} if is_dry else {})))
    answer = node.wait_for(messages.UNPLACED)
    assert answer["text"] == (
        f"can't keep the code in {level}: it belongs to user nobody, who could replace what is there"
    )
    assert answer["is_disk"]


@needs_root
@pytest.mark.parametrize(("path", "wrong"), [("pkg", ["pkg/copy.py", "pkg/model.py"]), ("train.py", [])])
def test_what_another_user_could_change_is_replaced_before_a_restart_or_named(
    start: Any, path: str, wrong: list[str]
) -> None:
    first = start()
    root = Talk(first, Code(FILES)).deliver()
    first.stop()
    first.wait_until_gone()
    os.chown(root / path, NOBODY, -1)
    talk = Talk(start(), Code(FILES))
    assert talk.ask() == []
    assert talk.answer()["wrong"] == wrong
    assert (root / "train.py").stat().st_uid == os.geteuid()


def test_ranks_run_in_the_tree_and_facts_are_of_there(start: Any) -> None:
    node = start()
    code = Code({"sub/train.py": b"import pkg; print(pkg.__file__)\n", "pkg/__init__.py": b""})
    root = Talk(node, code, {**FACTS, "script": "train.py", "pythons": []}, sub="sub").deliver()
    facts = node.wait_for(messages.FACTS)
    assert (facts["workdir_found"], facts["script_found"]) == (True, True)
    (root / "pkg/__pycache__").mkdir()
    (root / "ckpt").mkdir()
    (root / "ckpt/a.pt").touch()
    (root / "empty").mkdir()
    node.start(["python3", "train.py"], cwd=str(root / "sub"), python_path=str(root))
    node.wait_for_output(f"{root}/pkg/__init__.py")
    assert node.wait_for_exits() == {0: (0, None)}
    node.stop()
    census = node.wait_for(messages.CENSUS)
    assert (census["tree"], census["written"]) == (str(root), ["ckpt/"])


def test_a_directory_of_a_living_run_is_locked(start: Any) -> None:
    node = start()
    root = Talk(node, Code(FILES)).deliver()
    node.start_ready(shell(WAITS))
    for path, flags in ((root.parent, os.O_RDONLY | os.O_DIRECTORY), (root.parent / "lock", os.O_RDWR)):
        fd = os.open(path, flags)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)
    node.stop()
    node.wait_until_gone()
    shutil.rmtree(root)


@pytest.mark.parametrize("is_behind_a_link", [True, False])
def test_nothing_that_a_run_wrote_is_ever_lost(start: Any, tmp_path: Path, is_behind_a_link: bool) -> None:
    """Not by the next run, by one that can't begin, or by the pruning after many others."""
    code = Code({**FILES, "results/metrics.csv": b"1\n"})
    live, elsewhere = tmp_path / "live", tmp_path / "elsewhere"
    elsewhere.mkdir()
    links = [["outputs", str(live / "outputs"), True]]
    node = start("wrote")
    root = Talk(node, code, links=links).deliver()
    mine = {
        "a changed file": root / "results/metrics.csv",
        "a link's place": root / "outputs/a.pt",
        "a file's place": root / "train.py/a.pt",
        "beside": root.parent / "outputs/a.pt",
    }
    if is_behind_a_link:
        mine = {"behind a link": elsewhere / "metrics.csv"}
        shutil.rmtree(root / "results")
        (root / "results").symlink_to(elsewhere)
    for how, path in mine.items():
        if how in ("a link's place", "a file's place"):
            path.parent.unlink()
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    node.stop()
    named = [] if is_behind_a_link else ["../outputs", "outputs/", "results/metrics.csv", "train.py/"]
    assert node.wait_for(messages.CENSUS)["written"] == named
    node.wait_until_gone()
    broken = Talk(start("broken"), code, links=[*links, ["mnt", "/nowhere", False]])
    assert "there is no /nowhere" in broken.answer()["text"]
    for number in range(4):
        other = start(f"next{number}")
        Talk(other, Code({**code.files, "number": b"%d" % number}), links=links).deliver()
        other.stop()
        other.wait_until_gone()
    cleaner = start("clean")
    cleaner.prepare(tree={"is_prune": True, "is_dry": False})
    left = cleaner.wait_for(messages.PRUNED)["left"]
    assert {how: path.read_text() for how, path in mine.items()} == dict.fromkeys(mine, "mine")
    assert left == ([] if is_behind_a_link and not root.exists() else [str(root)])


def test_cleaning_removes_what_hosts_keep_of_launch_itself(start: Any, cache: Path) -> None:
    """And what earlier versions kept by its hash."""
    (cache / "launch" / "content" / "ab").mkdir(parents=True)
    for number, is_dry in enumerate([True, False]):
        cleaner = start(f"clean{number}")
        cleaner.prepare(tree={"is_prune": True, "is_dry": is_dry})
        assert cleaner.wait_for(messages.PRUNED)["bytes"] == 0, "it counts the code of runs"
        assert bool([*(cache / "launch" / "code").iterdir()]) == is_dry
        assert (cache / "launch" / "content").exists() == is_dry


def test_who_takes_the_code_holds_nothing_of_the_login(start: Any) -> None:
    """A login ends when nobody has its streams, and on a disk that hangs this process can't be killed."""
    node = start()
    Talk(node, Code(FILES)).ask()
    pid = Path(f"/proc/{node.supervisor}/task/{node.supervisor}/children").read_text().strip()
    held = [str(path.readlink()).partition(":")[0] for path in Path(f"/proc/{pid}/fd").iterdir()]
    assert [kind for kind in held if kind in ("pipe", "socket")] == ["socket"], "to the supervisor"


def test_packages_are_listed_if_the_python_answers_before_the_code_is_there(start: Any) -> None:
    node = start()
    talk = Talk(node, Code(FILES), {**FACTS, "packages": True})
    children = Path(f"/proc/{node.supervisor}/task/{node.supervisor}/children")

    def read_command(pid: str) -> bytes:
        with suppress(OSError):  # it has just ended: it was another child
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        return b""

    def has_answered() -> bool:
        found = [pid for pid in children.read_text().split() if b"torchrun" in read_command(pid)]
        return bool(found) and not Path(f"/proc/{found[0]}/fd/3").exists()

    node.wait_until(has_answered, "its answer")
    talk.deliver()
    assert node.wait_for(messages.FACTS)["search"]["packages"]
