"""Where the code lies on a host, and what Python finds there first."""

from __future__ import annotations

import pytest

from launcher.hosts.host import Host
from launcher.job.facts import NodeFacts
from launcher.job.job import Job, Program, ProgramKind
from launcher.job.plan import build_plan
from launcher.job.tree import Link, Tree

LIVE = Tree("/home/ann/proj", b"[]", "0123456789abcdef", 0, 0, live=("/home/ann/proj", "/srv/proj"))
SRC = Tree("/home/ann/proj", b"[]", "0123456789abcdef", 0, 0, live=LIVE.live, has_src=True)


@pytest.mark.parametrize(
    ("found", "others"),
    [
        ("/home/ann/proj", ""), ("/home/ann/proj/src:/x", ":/x"), ("/srv/proj/lib", ":/t/proj/lib"),
        ("/x:/home/ann/proj/lib:/y", ":/x:/t/proj/lib:/y"), (":/x::/x:", ":/x"),
        ("/home/ann/projects", ":/home/ann/projects"),
        ("lib:.", ":lib:."), ("/home/ann", ":/home/ann"), ("/t/proj", ""),
    ],
)  # fmt: skip
def test_the_live_directory_in_pythonpath_becomes_the_tree(found: str, others: str) -> None:
    """The rest stays in its order, each once; an empty entry, which is the working directory, is dropped."""
    assert SRC.python_path("/t/proj", found) == f"/t/proj:/t/proj/src{others}"


def test_editable_packages_of_the_live_directory_are_those_of_the_tree() -> None:
    """Some have their code below src; a package of another directory is left to its own path file."""
    found = LIVE.python_path("/t/proj", "/x", ["/home/ann/proj", "/home/ann/proj/libs/a", "/srv/proj/libs/b", "/opt/c"])
    assert found == ("/t/proj:/t/proj/src:/t/proj/libs/a/src:/t/proj/libs/a:/t/proj/libs/b/src:/t/proj/libs/b:/x")


def test_a_host_has_its_own_editable_packages_and_pythonpath() -> None:
    fact = NodeFacts("/run", home="/root", tree="/t/proj", python_path="/x", editables={"a": "/home/ann/proj/libs/a"})
    job = Job(Program(ProgramKind.COMMAND, "hostname"), nproc=1, cpu=True, tree=LIVE)
    (node,) = build_plan(job, [Host("gpu1")], [fact]).nodes
    assert (node.cwd, node.python_path) == ("/t/proj", "/t/proj:/t/proj/libs/a/src:/t/proj/libs/a:/x")


@pytest.mark.parametrize(
    ("path", "moved"),
    [
        ("/home/ann/proj", "/t"), ("/home/ann/proj/", "/t/"), ("/home/ann/proj/a/b", "/t/a/b"), ("/srv/proj/a", "/t/a"),
        ("/home/ann/proj2", None), ("/home/ann", None), ("proj", None), ("", None), ("~/proj", None),
    ],
)  # fmt: skip
def test_a_path_is_moved(path: str, moved: str | None) -> None:
    assert LIVE.move(path, "/t") == moved


def test_nothing_is_moved_out_of_the_whole_disk() -> None:
    """A repository at the top of the disk doesn't have all that is below."""
    tree = Tree("/", b"[]", "0", 0, 0, live=("/",))
    assert tree.python_path("/t/root", "/usr/lib") == "/t/root:/usr/lib"
    assert tree.folder_name == "root"


def test_the_working_directory_is_below_the_root() -> None:
    assert LIVE.directory("/t/proj") == "/t/proj"
    assert Tree("/p", b"[]", "0", 0, 0, inside="a/b").directory("/t/p") == "/t/p/a/b"
    assert LIVE.name == "0123456"
    assert not Link("data", "/mnt", may_make=False).is_filled


@pytest.mark.parametrize(
    ("root", "name"),
    [
        ("/a/my proj", "my proj"), ("/a/a:b:c", "a_b_c"), ("/a/n\new", "n_ew"), ("/a/\udcff", "_"),
        ("/a/\u202ex", "_x"), ("/a/links", "links_"), ("/a/lock", "lock_"), ("/a/listing", "listing_"),
        ("/a/.new-x", ".new-x"), ("/a/ü", "ü"),
    ],
)  # fmt: skip
def test_the_name_of_the_directory_on_the_hosts(root: str, name: str) -> None:
    """A colon would part PYTHONPATH, a newline would be replaced in the host's message, and some names are in use."""
    assert Tree(root, b"[]", "0", 0, 0).folder_name == name
