"""--sync on the command line and in launcher.toml: which directory is sent, and what a job becomes by that."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from machines.repositories import make_repository, write_files

from launcher.cli.job_request import read_job
from launcher.cli.options.command import make_request, settle
from launcher.cli.run import command as run_command
from launcher.cli.tree_request import add_tree
from launcher.errors import EXIT_USAGE, UsageError
from launcher.hosts.host import Host
from launcher.job.job import Job
from launcher.job.tree import Link, Tree
from launcher.node.code import listing

REINCLUDE = "add a line !data/deep/go.py to .launchignore, after !D/ and D/* for each ignored directory D above it"

Launch = Callable[..., tuple[int, str, str]]

PLAN = ("--dry-run", "--hosts", "a", "--nproc", "1", "--cpu")
FILES = ("train.py", "sub/eval.py", "sub/here/x")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the repository of which each test has a copy."""
    return make_repository(tmp_path_factory.mktemp("template"), *FILES, ignore="/data\n/empty\n/outputs\n")


@pytest.fixture(autouse=True)
def repository(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a repository with a few files, in an environment of which nothing is forwarded."""
    env = {"COLUMNS": "100", "HOME": str(tmp_path), "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1"}
    monkeypatch.setattr("os.environ", env)
    root = shutil.copytree(template, tmp_path / "proj")
    monkeypatch.chdir(root)
    return root


def read(*words: str) -> Job:
    """Return the job of a command line, with its tree, as `launch run` does it."""
    with run_command.make_context("launch", ["--hosts", "a", "--nproc", "1", "--cpu", *words]) as context:
        request = make_request(settle(context.params))
        return add_tree(read_job(request, [Host("a")]), request)


def tree_of(*words: str) -> Tree:
    tree = read(*words).tree
    assert tree is not None
    return tree


def paths_of(tree: Tree) -> list[str]:
    return [entry.path for entry in listing.decode(tree.listing)]


# ---- which directory ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", ["--sync train.py", "--sync= train.py", "--sync --quiet train.py", "--sync -- train.py"]
)
def test_without_a_directory_the_repository_is_sent(repository: Path, words: str) -> None:
    write_files(repository, "untracked", "data/x")
    job = read(*words.split())
    tree = job.tree
    assert tree is not None
    assert (tree.root, tree.inside, job.program.target) == (str(repository), "", "train.py")
    assert paths_of(tree) == [".gitignore", "sub/eval.py", "sub/here/x", "train.py", "untracked"]
    assert (tree.files, tree.bytes_in_all) == (5, 22 + 11 + 10 + 8 + 9)
    assert tree.left_out == "data/ (git-ignored)"
    assert tree.links == (Link("data", f"{repository}/data", may_make=True, is_filled=True),)
    assert tree.live == (str(repository),)


@pytest.mark.parametrize("words", ["--sync sub sub/eval.py", "--sync=sub/ sub/eval.py"])
def test_a_directory_may_follow(repository: Path, words: str) -> None:
    """It may be a part of the repository, and the user elsewhere."""
    job = read(*words.split())
    assert job.tree is not None
    assert (job.tree.root, job.tree.inside, job.program.target) == (f"{repository}/sub", "", "eval.py")
    assert paths_of(job.tree) == ["eval.py", "here/x"]


def test_the_script_may_begin_in_the_directory_that_is_sent(repository: Path) -> None:
    job = read("--sync=sub", "eval.py")
    assert (job.program.target, job.tree.root, job.tree.inside) == ("eval.py", str(repository / "sub"), "")


def test_a_word_that_is_no_directory_is_the_script(repository: Path) -> None:
    job = read("--sync", "train.py", "--sync", "sub")
    assert (job.program.target, job.program.args) == ("train.py", ("--sync", "sub"))
    assert job.tree is not None and job.tree.root == str(repository)


@pytest.mark.parametrize(
    ("value", "folder", "root"),
    [
        ("true", "sub", "."), ('"sub"', "sub/here", "sub"), ('""', "sub", "."),
    ],
)  # fmt: skip
def test_launcher_toml_names_it(
    repository: Path, monkeypatch: pytest.MonkeyPatch, value: str, folder: str, root: str
) -> None:
    """Also one in a parent directory, from which a relative path begins."""
    (repository / "launcher.toml").write_text(f"sync = {value}\n")
    monkeypatch.chdir(repository / folder)
    assert tree_of("--no-python", "true").root == os.path.normpath(repository / root)


def test_launcher_toml_may_say_no(repository: Path) -> None:
    (repository / "launcher.toml").write_text("sync = false\nsync-limit = '1kB'\nlink = ['data=/mnt']\n")
    assert read("train.py").tree is None
    assert tree_of("--sync", "train.py").links == (Link("data", "/mnt", may_make=False),)


def test_a_symbolic_link_to_the_directory(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both names of the live directory are moved to the tree, as an editable install may have either."""
    (tmp_path / "again").symlink_to(repository)
    write_files(repository, "data/")
    monkeypatch.chdir(tmp_path)
    tree = tree_of("--sync=again", "again/train.py")
    assert (tree.root, tree.live) == (str(repository), (str(repository), f"{tmp_path}/again"))
    assert tree.links == (Link("data", f"{repository}/data", may_make=True),)
    assert tree.move(f"{tmp_path}/again/src", "/tree") == "/tree/src"


# ---- the script and the working directory ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "script", "inside", "target"),
    [
        (".", "./train.py", "", "train.py"),
        (".", "{root}/sub/eval.py", "", "sub/eval.py"),
        ("sub", "eval.py", "sub", "eval.py"),
        ("sub/here", "{root}/train.py", "sub/here", "../../train.py"),
        ("sub/here", "../../sub/../train.py", "sub/here", "../../train.py"),
        (".", "app", "", "app"),
        (".", "linked.py", "", "linked.py"),
    ],
)
def test_the_script_s_path_is_one_in_the_tree(
    repository: Path, monkeypatch: pytest.MonkeyPatch, folder: str, script: str, inside: str, target: str
) -> None:
    write_files(repository, "app/__main__.py")
    (repository / "linked.py").symlink_to("train.py")
    monkeypatch.chdir(repository / folder)
    job = read("--sync=", script.format(root=repository), "--lr", "1")
    assert job.tree is not None
    assert (job.tree.root, job.tree.inside, job.program.target) == (str(repository), inside, target)
    assert job.program.args == ("--lr", "1")
    assert job.workdir == str(repository / folder).rstrip("/.")


def test_a_module_and_a_command_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("sub")
    assert read("--sync", "-m", "pkg.train").program.target == "pkg.train"
    assert read("--sync", "--no-python", "./run.sh", "../data").program.args == ("../data",)
    assert tree_of("--sync", "--no-python", "true").inside == "sub"


def test_src_is_seen(repository: Path) -> None:
    assert not tree_of("--sync", "train.py").has_src
    write_files(repository, "src/pkg/__init__.py")
    assert tree_of("--sync", "train.py").has_src


WRONG = [
    (
        ".", "--sync /etc/passwd", "the script '/etc/passwd' is not in {root}, which --sync sends",
        "name a directory that contains it: --sync=DIR",
    ),
    (
        ".", "--sync=sub train.py", "the script 'train.py' is not in {root}/sub, which --sync sends",
        "name a directory that contains it: --sync=DIR",
    ),
    (
        ".", "--sync data/deep/go.py", "the script 'data/deep/go.py' isn't among the files that are sent; "
        "left out: data/ (git-ignored)", REINCLUDE,
    ),
    (
        "data/deep", "--sync go.py --x", "", "",
    ),
    (
        "data", "--sync=.. ../train.py",
        "the working directory 'data' isn't sent: the hosts have a link to {root}/data",
        "cd to another directory of {root}",
    ),
    (
        "data/deep", "--sync=../.. --workdir ~/proj --no-python true",
        "the working directory 'data/deep' isn't sent: the hosts have a link to ~/proj/data",
        "cd to another directory of {root}",
    ),
    (
        ".", "--sync --workdir /srv trian.py",
        "the script 'trian.py' isn't among the files that are sent; left out: data/ (git-ignored); "
        "did you mean 'train.py'?", "correct its path",
    ),
    (".", "--sync=none train.py", "{root}/none is not a directory", "name the directory that contains the code"),
]  # fmt: skip


@pytest.mark.parametrize(("folder", "line", "text", "fix"), WRONG)
def test_a_script_that_isn_t_sent(
    repository: Path, monkeypatch: pytest.MonkeyPatch, launch: Launch, folder: str, line: str, text: str, fix: str
) -> None:
    write_files(repository, "data/deep/go.py")
    monkeypatch.chdir(repository / folder)
    code, out, err = launch(*PLAN, *line.split())
    if not text:  # in an ignored directory, that is what is sent
        assert (code, err) == (0, "")
        return
    assert (code, out) == (EXIT_USAGE, "")
    assert err == f"launch: {text}\n  fix: {fix}\n".format(root=repository)


# ---- sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "is_enough"),
    [("44", False), ("0.051k", True), ("0.05KB", False), ("1 kB", True)],
)
def test_more_than_the_limit_is_refused(repository: Path, launch: Launch, size: str, is_enough: bool) -> None:
    code, _, err = launch(*PLAN, "--sync", "--sync-limit", size, "train.py")
    assert code == (0 if is_enough else EXIT_USAGE)
    limit = {"44": 44}.get(size, 50)
    assert err == ("" if is_enough else (
        f"launch: {repository} has 51 bytes to send, more than {limit} bytes: .gitignore 22 bytes, sub/ 21 bytes, "
        "train.py 8 bytes\n  fix: leave them out with .gitignore or .launchignore, or pass --sync-limit SIZE\n"
    ))  # fmt: skip


# ---- links ----------------------------------------------------------------------------------------------------------

_AS = "write it as --link data=/mnt/data"
WRONG_LINKS = [
    ("data=mnt", "must be NAME=PATH with an absolute path, got 'data=mnt'", _AS),
    ("=/mnt", "'' must be a name in the directory that is sent", _AS),
    ("a/../b=/mnt", "'a/../b' must be a name in the directory that is sent", _AS),
    ("sub=/mnt", "'sub' is sent, so it can't be a link", "leave it out with .launchignore, or omit the link"),
    ("train.py/x=/mnt", "'train.py/x' is sent, so it can't be a link",
     "leave it out with .launchignore, or omit the link"),
    ("data/set/a=/mnt", "'data/set/a' is below 'data', which is a link itself",
     "omit it, or link the whole directory: --link data=PATH"),
]  # fmt: skip


@pytest.mark.parametrize(("link", "text", "fix"), WRONG_LINKS)
def test_a_link_that_can_t_be(repository: Path, launch: Launch, link: str, text: str, fix: str) -> None:
    write_files(repository, "data/")
    code, out, err = launch(*PLAN, "--sync", "--link", link, "train.py")
    assert (code, out, err) == (EXIT_USAGE, "", f"launch: --link: {text}\n  fix: {fix}\n")


def test_links_are_named_and_ignored_directories_are_links(repository: Path, tmp_path: Path) -> None:
    write_files(repository, "data/x", "empty/", "outputs/model.pt")
    (repository / ".git/info/exclude").write_text("/venv\n/cache.bin\n")
    write_files(repository, "venv/pyvenv.cfg", "cache.bin")
    auto = tree_of("--sync", "train.py").links
    assert auto == (
        Link("data", f"{repository}/data", may_make=True, is_filled=True),
        Link("empty", f"{repository}/empty", may_make=True),
        Link("outputs", f"{repository}/outputs", may_make=True),
        Link("venv", f"{repository}/venv", may_make=True),
    )
    named = tree_of(
        "--sync", "--link", "data=/mnt/d=1", "--link", "sub/./more/=~/x", "--link", "x=/1", "--link", "x=/2"
    )
    assert named.links == (
        Link("data", "/mnt/d=1", may_make=False), *auto[1:],
        Link("sub/more", "~/x", may_make=False), Link("x", "/2", may_make=False),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("workdir", "base", "live"),
    [
        ("/srv/proj/", "/srv/proj", ("/srv/proj",)), ("~/proj", "~/proj", ()), ("/", "", ("/",)),
        ("sub", "{root}/sub", ("{root}/sub",)),
    ],
)  # fmt: skip
def test_workdir_is_where_links_lead(repository: Path, workdir: str, base: str, live: tuple[str, ...]) -> None:
    """Also that of the built-in trainer's outputs."""
    write_files(repository, "data/")
    job = read("--sync", "--workdir", workdir)
    assert job.tree is not None
    base = base.format(root=repository)
    assert job.tree.links == (
        Link("data", f"{base}/data", may_make=True), Link("outputs", f"{base}/outputs", may_make=True)
    )  # fmt: skip
    assert [path.rstrip("/") or "/" for path in job.tree.live] == [
        str(repository), *(path.format(root=repository) for path in live)
    ]  # fmt: skip
    assert job.workdir == str(repository)


@pytest.mark.parametrize("taken", ["", "sent", "ignored", "linked"])
def test_the_built_in_trainer_writes_outside_of_the_tree(repository: Path, taken: str) -> None:
    (repository / ".gitignore").write_text("")
    words = ["--sync"]
    expected: tuple[Link, ...] = (Link("outputs", f"{repository}/outputs", may_make=True),)
    if taken == "sent":
        expected = ()
        write_files(repository, "outputs/README")
    elif taken == "ignored":
        (repository / ".gitignore").write_text("outputs/\n")
        write_files(repository, "outputs/model.pt")
    elif taken == "linked":
        words += ["--link", "outputs=/scratch"]
        expected = (Link("outputs", "/scratch", may_make=False),)
    assert tree_of(*words, "-m", "launcher.trainer", "--config", "c.yaml").links == expected


@pytest.mark.parametrize(
    ("folder", "words", "name"),
    [
        (".", "--progress-dir out/ckpt train.py", "out/ckpt"),
        ("sub", "--progress-dir ../ckpt/ eval.py", "ckpt"),
        (".", "-m launcher.trainer --save-dir saved", "saved"),
    ],
)
def test_where_a_run_is_known_to_save_is_a_link(
    repository: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch, folder: str, words: str, name: str
) -> None:
    monkeypatch.chdir(repository / folder)
    code, out, err = launch(*PLAN, "--restarts", "1", "--json", "--sync", *words.split())
    links = json.loads(out)["code"]["links"]
    links.pop("outputs", None)  # of the trainer
    assert (code, links, err) == (0, {name: f"{repository}/{name}"}, "")


def test_an_ignored_directory_that_can_t_be_read(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container has made it as root: nobody can tell what is in it, and that is no error."""
    write_files(repository, "data/x")
    scandir = os.scandir

    def refuse(path: str = ".") -> object:
        if Path(path) == repository / "data":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr("os.scandir", refuse)
    assert tree_of("--sync", "train.py").links == (Link("data", f"{repository}/data", may_make=True),)


# ---- what is shown and typed again ----------------------------------------------------------------------------------


def test_a_file_that_says_sync_can_be_overruled(repository: Path, launch: Launch) -> None:
    (repository / "launcher.toml").write_text('sync = true\nlink = ["data=/mnt"]\n')
    assert "<code on a>" in launch(*PLAN, "train.py")[1]
    assert "<code on a>" not in launch(*PLAN, "--no-sync", "train.py")[1]
    code, _, err = launch(*PLAN, "--sync", "--no-sync", "train.py")
    assert (code, err.splitlines()[-2:]) == (
        EXIT_USAGE, ["launch: --sync and --no-sync contradict each other", "  fix: omit one of them"],
    )  # fmt: skip


def test_warnings_are_said_before(repository: Path, launch: Launch) -> None:
    (repository / "away").symlink_to("/etc/passwd")
    code, _, err = launch(*PLAN, "--sync", "train.py")
    assert (code, err) == (
        0, "launch: 1 symbolic link not sent, because they lead out of the directory: away -> /etc/passwd; fix: use "
        "absolute paths instead, and leave the links out with .launchignore\n",
    )  # fmt: skip


def test_a_directory_without_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_repository(tmp_path / "none")
    monkeypatch.chdir(root)
    with pytest.raises(UsageError, match="has no files to send"):
        tree_of("--sync", "--no-python", "true")
    write_files(root, "one")
    (root / "one").write_bytes(b"")
    assert (tree_of("--sync", "--no-python", "true").files, tree_of("--sync=.", "one").bytes_in_all) == (1, 0)
