"""Which files are sent: a real git, real directories."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from machines.repositories import make_repository, run_git, write_files

from launcher.errors import UsageError
from launcher.runs.code_version import find_version
from launcher.sync.selection import find_root, select

NOBODY = 65534


def without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: str = "") -> None:
    """Let `git` be missing, or a program of these lines."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "env").symlink_to(shutil.which("env") or "")
    if stand_in:
        (folder / "git").write_text(f"#!/bin/sh\n{stand_in}\n")
        (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


# ---- in a repository ------------------------------------------------------------------------------------------------


def test_a_repository_sends_what_git_would_add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ignore = "data/\nout\n.env\n*.log\n__pycache__/\n.venv\n*.egg-info\nscratch\nnote\n"
    names = ("train.py", "gone.py", "was_folder/x.py", "was_folder/deep/x.py", "now_folder", "src/m.py", "forced.log")
    root = make_repository(tmp_path / "r", *names[:-1], ignore=ignore)
    write_files(root, "forced.log")
    run_git(root, "add", "-f", "forced.log")
    write_files(root, "data/a", "data/deep/b", "out/x", ".env", "src/x.log", "src/__pycache__/m.pyc", "p.egg-info/x")
    write_files(root, ".venv/pyvenv.cfg", "new.py", "new/\nline", "b\udcff", "staged.py", ":(top)x", "*")
    (root / "train.py").write_text("changed")
    (root / "gone.py").unlink()
    shutil.rmtree(root / "was_folder")
    (root / "was_folder").symlink_to("src")  # git sees was_folder/x.py as deleted, whatever the link leads to
    write_files(root, "src/x.py", "src/deep/x.py", "src/out/x")
    (root / "now_folder").unlink()
    write_files(root, "now_folder/y")
    (root / "scratch").symlink_to("/tmp")
    (root / "note").symlink_to("/etc/hostname")
    run_git(root, "add", "staged.py")
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(root)
        server.bind("socket")
        monkeypatch.setenv("GIT_DIR", str(tmp_path / "other"))  # as a git hook sets it
        monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
        found = select(root)
    assert found.paths == (
        "*", ".gitignore", ":(top)x", "b\udcff", "forced.log", "new.py", "new/\nline", "now_folder/y",
        "src/deep/x.py", "src/m.py", "src/x.py", "staged.py", "train.py", "was_folder",
    )  # fmt: skip
    assert dict(zip(found.paths, found.sizes, strict=True))["train.py"] == len("changed")
    assert found.root == root
    assert found.warnings == ()
    caches, ignored = ("p.egg-info/", "src/__pycache__/"), (
        ".env", ".venv/", "data/", "note", "out/", "scratch", "src/out/", "src/x.log",
    )  # fmt: skip
    assert found.left_out == dict.fromkeys(ignored, "git-ignored") | dict.fromkeys(caches, "cache")
    assert found.ignored_folders == (".venv", "data", "out", "scratch")


def test_the_root_is_the_repository_to_which_the_directory_belongs(tmp_path: Path) -> None:
    write_files(tmp_path, "plain/x")
    root = make_repository(tmp_path / "r", "a/b/x.py", "c.py", ignore="private/\n")
    write_files(root, "private/deep/y.py", "a/new/z.py")
    assert find_root(root / "a/b") == find_root(root / "a/new") == root
    assert find_root(tmp_path / "plain") == tmp_path / "plain"
    # git lists nothing there: home directories are repositories of dotfiles that ignore everything else.
    assert find_root(root / "private/deep") == root / "private/deep"
    assert select(root / "private/deep").paths == ("y.py",)
    with pytest.raises(UsageError, match="missing is not a directory"):
        select(root / "missing")


def test_a_directory_of_a_repository_is_sent_alone(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "r", "sub[1]/a.py", "sub[1]/deep/b.py", "sub[1]/drop/c.py", "other.py")
    (root / ".gitignore").write_text("*.log\n")
    (root / ".launchignore").write_text("*.py\n")  # of the whole repository
    write_files(root, "sub[1]/x.log", "sub[1]/new.py", "sub[1]/deep/drop/d.py")
    (root / "sub[1]/.launchignore").write_text("/drop\nsub*\n!x.log\ndeep/b.py\n")
    found = select(root / "sub[1]")
    assert found.paths == (".launchignore", "a.py", "deep/drop/d.py", "new.py", "x.log")
    assert found.left_out == {"drop/": ".launchignore", "deep/b.py": ".launchignore"}
    assert found.root == root / "sub[1]"


def test_launchignore_has_the_last_word(tmp_path: Path) -> None:
    names = ("a.py", "big/one", "big/two", "notes/x.md", "notes/keep.md", "w/deep/x.bin")
    root = make_repository(tmp_path / "r", *names, ignore="data/\n*.so\n")
    write_files(root, "data/a", "data/b.bin", "fast.so", "slow.so", "tmp.txt", ".gitignore.d/x")
    (root / "w/.gitignore").write_text("!ext.so\n/gen/\n")
    write_files(root, "w/ext.so", "w/gen/g.py")
    lines = "# weights\n/big/\n!data/\n*.bin\n!fast.so\n*.md\n!keep.md\ntmp.txt  \next.so\n!/w/gen/\n"
    (root / ".launchignore").write_text(lines)
    found = select(root)
    assert found.paths == (
        ".gitignore", ".gitignore.d/x", ".launchignore", "a.py", "data/a", "fast.so", "notes/keep.md",
        "w/.gitignore", "w/gen/g.py",
    )  # fmt: skip
    assert found.left_out == {
        "big/": ".launchignore",
        "data/b.bin": "git-ignored",
        "notes/x.md": ".launchignore",
        "slow.so": "git-ignored",
        "tmp.txt": ".launchignore",
        "w/deep/": ".launchignore",
        "w/ext.so": ".launchignore",
    }
    assert found.ignored_folders == ()
    (root / ".launchignore").write_text("data/b\n.launchignore\n")  # and what git ignores stays so
    assert select(root).left_out["data/"] == "git-ignored"
    assert ".launchignore" not in select(root).paths


def test_repositories_in_a_repository_are_sent(tmp_path: Path) -> None:
    inner = make_repository(tmp_path / "inner", "i.py")
    library = make_repository(tmp_path / "library", "l.py", "tests/t.py", "docs/d.md", ignore="*.o\ngen/\n")
    run_git(library, "submodule", "-q", "add", str(inner), "inner")
    run_git(library, "commit", "-q", "-m", "second")
    root = make_repository(tmp_path / "r", "a.py", ignore="cloned/\n")
    for name in ("third/lib", "empty", "refused"):
        run_git(root, "submodule", "-q", "add", str(library), name)
    run_git(root, "submodule", "-q", "update", "--init", "--recursive", "third/lib")
    run_git(root, "submodule", "-q", "deinit", "-f", "empty")
    write_files(root, "third/lib/new.py", "third/lib/x.o", "third/lib/gen/g.py", "third/lib/inner/new.py")
    make_repository(root / "nested", "n.py")
    make_repository(root / "cloned", "n.c")
    (root / "third/.git").unlink(missing_ok=True)
    (root / ".launchignore").write_text("/refused\n/third/lib/tests\n*.md\n!/third/lib/gen/\nthird/lib/inner/i.py\n")
    found = select(root)
    assert found.paths == (
        ".gitignore", ".gitmodules", ".launchignore", "a.py", "nested/n.py", "third/lib/.gitignore",
        "third/lib/.gitmodules", "third/lib/gen/g.py", "third/lib/inner/new.py", "third/lib/l.py", "third/lib/new.py",
    )  # fmt: skip
    assert found.warnings == ("1 submodule without files: empty; fix: git submodule update --init --recursive",)
    assert found.left_out == {
        "cloned/": "git-ignored",
        "refused": ".launchignore",
        "third/lib/docs/": ".launchignore",
        "third/lib/inner/i.py": ".launchignore",
        "third/lib/tests/": ".launchignore",
        "third/lib/x.o": "git-ignored",
    }
    assert found.ignored_folders == ("cloned",)
    (root / "empty").rmdir()
    assert select(root).warnings == found.warnings
    (root / "empty/.git").mkdir(parents=True)  # which git disregards: it would list the files of the repository above
    assert select(root).warnings == found.warnings


def test_a_repository_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_repository(tmp_path / "r", "a.py")
    if os.geteuid() == 0:
        for path in (root, root / ".git"):
            os.chown(path, NOBODY, NOBODY)
    else:
        monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    for ask in (find_root, select):
        with pytest.raises(UsageError) as raised:
            ask(root)
        assert raised.value.message == f"git refuses {root}: it belongs to another user"
        assert raised.value.fix == f"git config --global --add safe.directory {root}"


def test_no_program_of_a_repository_s_configuration_runs(tmp_path: Path) -> None:
    """Of a partial clone, git would fetch what is missing, with the program that the configuration names."""
    make_repository(tmp_path / "whole", "a.py", "sub/.gitignore", "sub/b.py")
    run_git(tmp_path / "whole", "config", "uploadpack.allowFilter", "true")
    run_git(tmp_path, "clone", "--filter=blob:none", "--no-checkout", f"file://{tmp_path}/whole", "part")
    root, ran = tmp_path / "part", tmp_path / "ran"
    run_git(root, "read-tree", "HEAD")
    run_git(root, "update-index", "--skip-worktree", "a.py", "sub/.gitignore", "sub/b.py")
    write_files(root, "sub/c.py")
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    for name in ("remote.origin.uploadpack", "core.fsmonitor", "core.sshCommand", "diff.external"):
        run_git(root, "config", name, str(program))
    for hook in ("post-index-change", "reference-transaction"):
        (root / ".git/hooks").mkdir(exist_ok=True)
        (root / ".git/hooks" / hook).symlink_to(program)
    with pytest.raises(UsageError, match=r"git ls-files failed: fatal: .* from promisor remote"):
        select(root)
    version = find_version(root)
    assert version is not None and version.dirty is None
    assert not ran.exists()


def test_other_failures_of_git_are_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_repository(tmp_path / "r", "a.py")
    with pytest.raises(UsageError) as raised:
        find_root(root / ".git")
    assert raised.value.message == (
        f"{root}/.git: git rev-parse failed: fatal: this operation must be run in a work tree"
    )
    write_files(tmp_path, "broken/.git")
    (tmp_path / "broken/.git").write_text("gitdir: /nowhere\n")  # as in a worktree whose repository has moved
    with pytest.raises(UsageError, match="fatal: not a git repository: /nowhere"):
        select(tmp_path / "broken")
    (root / ".git/index").write_bytes(b"damaged")
    with pytest.raises(UsageError, match="git ls-files failed: fatal: "):
        select(root)
    without_git(tmp_path, monkeypatch, "kill -9 $$")
    with pytest.raises(UsageError, match="git rev-parse failed: exit code "):
        select(root)


def test_a_directory_with_placeholders_alone_is_left_out(tmp_path: Path) -> None:
    """It is in the repository only so that it exists; the hosts have what belongs into it."""
    names = ("train.py", "data/.gitkeep", "data/raw/.gitkeep", "cache/.gitignore", "empty/.keep", "mixed/.gitkeep")
    root = make_repository(tmp_path / "r", *names, "mixed/sub/x.py", ".gitkeep", ignore="data/raw/*\n!.gitkeep\n")
    write_files(root, "data/raw/large")
    found = select(root)
    assert found.paths == (".gitignore", ".gitkeep", "mixed/.gitkeep", "mixed/sub/x.py", "train.py")
    assert found.ignored_folders == ("cache", "data", "empty")
    assert found.left_out == dict.fromkeys(("cache/", "data/", "empty/"), "git has only a placeholder")


def test_a_directory_with_a_placeholder_is_sent_if_more_belongs_to_it(tmp_path: Path) -> None:
    """A link would lead to what hosts have there: stale code, or what .launchignore leaves out on purpose."""
    root = make_repository(tmp_path / "r", "gone/.gitignore", "gone/__init__.py", "ckpt/.gitkeep", "data/.gitkeep")
    (root / "gone/__init__.py").unlink()
    (root / ".launchignore").write_text("*.pt\n")
    write_files(root, "ckpt/best.pt", "data/__pycache__/x.pyc")
    found = select(root)
    assert (found.paths, found.ignored_folders) == (
        (".launchignore", "ckpt/.gitkeep", "gone/.gitignore"), ("data",),
    )  # fmt: skip


def test_a_repository_whose_files_are_elsewhere_is_refused(tmp_path: Path) -> None:
    """Whoever wrote its configuration would choose what is sent."""
    root = make_repository(tmp_path / "r", "train.py")
    run_git(root, "config", "core.worktree", str(tmp_path / "secrets"))
    (tmp_path / "secrets").mkdir()
    with pytest.raises(UsageError, match=r"^git takes .*/secrets for the work tree of .*/r$"):
        find_root(root)


def test_what_looks_like_a_secret_is_sent_only_if_somebody_chose_that(tmp_path: Path) -> None:
    """Somebody did who tracks it, or takes it from the rest with a line of .launchignore."""
    root = make_repository(tmp_path / "r", "tracked/.env", "x.py", ignore=".env.mine\n")
    write_files(root, ".env", "a/.env.local", ".env.mine", "a/id_rsa", "a/id_rsa.pub", "id_ed25519")
    (root / ".launchignore").write_text("!.env.mine\n!/id_ed25519\n")
    found = select(root)
    assert found.paths == (
        ".env.mine", ".gitignore", ".launchignore", "a/id_rsa.pub", "id_ed25519", "tracked/.env", "x.py",
    )  # fmt: skip
    assert found.left_out == dict.fromkeys((".env", "a/.env.local", "a/id_rsa"), "secrets")


# ---- without a repository -------------------------------------------------------------------------------------------

PLAIN = ("a.py", "src/b.py", "src/deep/c", "data/x.bin", "venv.txt", "old.git/x", ".environment", "env/readme")
DEFAULTS = {
    ".hg/": "cache",
    "src/.svn/": "cache",
    ".env": "secrets",
    ".env.local": "secrets",
    "src/.env": "secrets",
    "my-env/": "virtual environment",
    "conda/": "virtual environment",
    "src/__pycache__/": "cache",
    ".mypy_cache/": "cache",
    ".pytest_cache/": "cache",
    ".ruff_cache/": "cache",
    ".ipynb_checkpoints/": "cache",
    ".tox/": "cache",
    ".nox/": "cache",
    "web/": "cache",
    "p.egg-info/": "cache",
}


def write_plain(folder: Path) -> Path:
    write_files(folder, *PLAIN, ".hg/x", "src/.svn/x", "my-env/pyvenv.cfg", "my-env/lib/x.py", "conda/lib/x")
    write_files(folder, "conda/conda-meta/history", "web/node_modules/x/index.js", "src/.git")
    write_files(folder, *(name for name, reason in DEFAULTS.items() if reason == "secrets"))
    write_files(folder, *(f"{name}x" for name, reason in DEFAULTS.items() if reason == "cache" and name != "web/"))
    return folder


def test_a_directory_without_a_repository_is_sent_less_the_defaults(tmp_path: Path) -> None:
    root = write_plain(tmp_path / "r")
    found = select(root)
    assert found.paths == tuple(sorted(PLAIN))
    assert found.left_out == DEFAULTS
    assert found.ignored_folders == ("conda", "my-env")
    assert find_root(root) == root


def test_a_gitignore_holds_without_a_repository_too(tmp_path: Path) -> None:
    """As in a copy of one."""
    write_files(tmp_path / "r", "a.py", "data/x", "cloned/b.py", "cloned/b.log")
    (tmp_path / "r/.gitignore").write_text("data/\n")
    make_repository(tmp_path / "r/cloned", "c.py", ignore="*.log\n")
    found = select(tmp_path / "r")
    assert found.paths == (".gitignore", "a.py", "cloned/.gitignore", "cloned/b.py", "cloned/c.py")
    assert found.left_out == {"data/": "git-ignored", "cloned/b.log": "git-ignored"}
    assert found.ignored_folders == ("data",)


@pytest.mark.parametrize(
    "stand_in", ["", "test $LC_ALL = C && echo 'xcrun: error: invalid active developer path' >&2; exit 1"]
)
def test_without_git_nothing_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: str) -> None:
    """On a Mac without developer tools there is a program of that name."""
    write_files(tmp_path, "r/a.py")
    without_git(tmp_path, monkeypatch, stand_in)
    with pytest.raises(UsageError, match="git isn't installed on this machine") as raised:
        select(tmp_path / "r")
    assert raised.value.fix == "install git"


def test_launchignore_has_the_last_word_without_a_repository_too(tmp_path: Path) -> None:
    root = write_plain(tmp_path / "r")
    make_repository(root / "cloned", "n.py", "drop.py", ignore="*.log\n")
    write_files(root, "cloned/x.log")
    lines = "*.bin\n!/.env\n!node_modules/\n/src/deep\n/cloned/drop.py\n!cloned/x.log\n"
    (root / ".launchignore").write_text(lines)
    found = select(root)
    added = {
        ".launchignore", ".env", "web/node_modules/x/index.js",
        "cloned/n.py", "cloned/x.log", "cloned/.gitignore",
    }  # fmt: skip
    assert set(found.paths) == {*PLAIN, *added} - {"data/x.bin", "src/deep/c"}
    gone = {".env", "web/"}
    assert found.left_out == {name: reason for name, reason in DEFAULTS.items() if name not in gone} | {
        "data/": ".launchignore",
        "src/deep/": ".launchignore",
        "cloned/drop.py": ".launchignore",
    }
    assert found.warnings == ()


# ---- everywhere -----------------------------------------------------------------------------------------------------


def test_what_stays_is_left_out_with_everything_below_it(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "r", "a.py", "logs/tracked", "logs2/x", "deep/logs/y", ignore="*.log\n")
    write_files(root, "logs/run/new", "logs/x.log")
    make_repository(root / "logs/nested", "n")
    write_files(tmp_path, "elsewhere/")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    staying = [root / "logs", root / "deep/../linked", root / "missing", tmp_path / "elsewhere", root, tmp_path]
    found = select(root, staying=staying)
    assert found.paths == (".gitignore", "a.py", "deep/logs/y", "logs2/x")
    assert found.left_out == {"linked/": "logs", "logs/": "logs"}
    assert (found.ignored_folders, found.warnings) == ((), ())
    (tmp_path / "alias").symlink_to(root)
    assert select(tmp_path / "alias", staying=[tmp_path / "alias/logs", root / "linked"]).paths == found.paths
    assert "logs/tracked" in select(root).paths


def test_links_are_sent_if_they_stay_inside(tmp_path: Path) -> None:
    """Also one to what isn't sent, since the hosts may have that: ignored directories are links there."""
    root = make_repository(tmp_path / "r", "a.py", "d/x", ignore="data/\n")
    inside = {"file": "a.py", "d/up": "../a.py", "folder": "d", "through": "folder/../d/x", "data_x": "data/x"}
    outside = {
        "absolute": str(root / "a.py"), "up": "../outside", "back": "../r/a.py", "d/deep": "x/../../../a", "b\n": "..",
    }  # fmt: skip
    for name, target in (inside | outside).items():
        (root / name).symlink_to(target)
    found = select(root)
    assert set(found.paths) == {".gitignore", "a.py", "d/x", *inside}
    assert found.warnings == (
        "5 symbolic links not sent, because they lead out of the directory: "
        f"absolute -> {root}/a.py, 'b\\n -> ..', back -> ../r/a.py and 2 more; "
        "fix: use absolute paths instead, and leave the links out with .launchignore",
    )


@pytest.fixture
def folder_of_nobody() -> Iterator[Path]:
    """Be a user whom permissions bind, in a directory of that user."""
    folder = Path(tempfile.mkdtemp(prefix="launch-test-"))
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    yield folder
    if is_root:
        os.seteuid(0)
    shutil.rmtree(folder)


def test_what_cannot_be_read_is_an_error_and_not_skipped(folder_of_nobody: Path) -> None:
    root = make_repository(folder_of_nobody / "r", "tracked/x", ignore="ignored/\n")
    write_files(root, "shut/x", "ignored/x")
    (root / "ignored").chmod(0)
    (root / "shut").chmod(0)
    with pytest.raises(UsageError, match="git can't open the directory shut/: Permission denied") as raised:
        select(root)
    assert raised.value.fix == "leave it out with .gitignore or .launchignore, or make it readable"
    (root / ".launchignore").write_text("shut\n")
    assert select(root).paths == (".gitignore", ".launchignore", "tracked/x")
    (root / "tracked").chmod(0o400)
    with pytest.raises(UsageError, match="tracked/x can't be read: Permission denied"):
        select(root)
    shutil.rmtree(root / ".git")
    write_files(root, "keep")
    (root / ".launchignore").write_text("/tracked\n")
    with pytest.raises(UsageError, match="git can't open the directory shut/: Permission denied"):
        select(root)
    (root / ".launchignore").write_text("shut\n/tracked\n")
    assert select(root).paths == (".gitignore", ".launchignore", "keep")
    for name in ("ignored", "shut", "tracked"):
        (root / name).chmod(0o700)


def test_a_home_directory_is_not_sent_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "train.py").touch()
    with pytest.raises(UsageError, match="would be sent as a whole, since it is no git repository"):
        select(tmp_path)
