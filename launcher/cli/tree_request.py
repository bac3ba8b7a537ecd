"""Turn --sync and its companions into the tree of a job; every contradiction is a UsageError."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from launcher.cli.job_request import local_workdir, resolve_workdir
from launcher.cli.options.launcher_toml import current_directory
from launcher.cli.options.request import Request
from launcher.cli.repetition import find_repetition
from launcher.errors import UsageError
from launcher.hosts.ranges import shown
from launcher.job.job import Job, Program, ProgramKind
from launcher.job.tree import Link, Tree
from launcher.output.output_streams import tell
from launcher.sync.launchignore import read_small
from launcher.wording import nearest

_EXAMPLE = "write it as --link data=/mnt/data"
_OUTPUTS = "outputs"  # where the built-in trainer writes


def add_tree(job: Job, request: Request) -> Job:
    """Return the job with the code that --sync sends, if it was given; say what is doubtful about that code.

    The directory of --progress-dir, and where the built-in trainer saves, is a link if nothing is sent there.
    """
    if request.no_sync and request.sync is not None:
        raise UsageError("--sync and --no-sync contradict each other", "omit one of them")
    repetition = find_repetition()
    if request.sync is None:
        if repetition is not None and repetition.listing is not None:
            text = f"--same-code: run {repetition.run_id} sent its code, and launcher.toml doesn't say sync any more"
            raise UsageError(text, f"launch again {repetition.run_id} --same-code --sync")
        return job
    workdir, place = resolve_workdir(request.workdir), local_workdir(request.words)
    tree, paths = read_tree(request, workdir, place)
    if repetition is not None and repetition.listing is not None:
        tree, paths = _put_back(tree, repetition.listing, repetition.run_id)
    inside = _find_inside(place, tree)
    program = _move_program(job.program, place, tree.root, inside, paths, tree.left_out)
    saves = [request.progress_dir or ""]
    if program.is_trainer:
        from launcher.runs.execution import find_checkpoints

        checkpoints = find_checkpoints(job, "") or ""
        tree = _add_link(tree, _OUTPUTS, paths, workdir or tree.root)
        saves.append(checkpoints.removesuffix("/checkpoints"))
    for folder in filter(None, (_find_in_tree(path, inside) for path in saves)):
        tree = _add_link(tree, folder, paths, workdir or tree.root)
    return replace(job, program=program, workdir=str(place), tree=replace(tree, inside=inside))


def read_tree(request: Request, workdir: str | None, place: Path) -> tuple[Tree, frozenset[str]]:
    """Return the tree of the named directory, or of the one that `place` belongs to, and the paths in it."""
    from launcher.sync.code_messages import describe_left_out, refuse_large
    from launcher.sync.kept_code import read_listing
    from launcher.sync.selection import find_root, select
    from launcher.sync.snapshot import take_snapshot

    root = current_directory() / request.sync if request.sync else find_root(place)
    selection = select(root, staying=(current_directory() / request.log_dir,))
    refuse_large(selection, request.sync_limit)
    tree = take_snapshot(selection)
    for warning in selection.warnings:
        tell(f"launch: {warning}")
    here = tree.root
    base = workdir or here
    ways = (here, str(root), *_find_typed_way(place, selection.root), base)
    live = tuple(dict.fromkeys(path for path in ways if not path.startswith("~")))
    links = {name: _link_ignored(selection.root, name, base) for name in selection.ignored_folders}
    paths = frozenset(entry.path for entry in read_listing(tree.listing))
    if not paths:
        raise UsageError(f"{here} has no files to send", "look at .gitignore and .launchignore, or name --sync=DIR")
    links |= {link.name: link for link in _read_links(request.link, paths, links)}
    home = os.path.expanduser("~")  # noqa: PTH111 - no error without one
    left_out = describe_left_out(selection)
    return replace(tree, links=tuple(links.values()), home=home, live=live, left_out=left_out), paths


def _put_back(tree: Tree, listing: bytes, run_id: str) -> tuple[Tree, frozenset[str]]:
    """Return the tree with the files of an earlier run instead of those of now, and the paths in it."""
    from launcher.sync.kept_code import read_listing, refuse_lacking
    from launcher.sync.snapshot import make_tree

    entries = read_listing(listing)
    refuse_lacking(entries, tree, run_id, os.environ)
    paths, hashes = frozenset(entry.path for entry in entries), {entry.content for entry in entries}
    kept = {name: content for name, content in tree.kept.items() if name in hashes}
    links = tuple(link for link in tree.links if not _overlaps(link.name, paths))
    earlier = make_tree(tree.root, entries, kept)
    return replace(earlier, links=links, home=tree.home, live=tree.live, left_out=tree.left_out), paths


def _find_typed_way(place: Path, root: Path) -> list[str]:
    """Return the root as the shell names it, if links lead there: PYTHONPATH and others are written in that way."""
    typed = Path(os.environ.get("PWD", ""))
    if not typed.is_absolute() or typed.resolve() != place.resolve() or not place.resolve().is_relative_to(root):
        return []
    depth = len(place.resolve().relative_to(root).parts)
    way = Path(*typed.parts[: len(typed.parts) - depth])
    return [str(way)] if way.resolve() == root else []


def _link_ignored(root: Path, name: str, base: str) -> Link:
    return Link(name, f"{base.rstrip('/')}/{name}", may_make=True, is_filled=_is_data(root / name))


def _is_data(folder: Path) -> bool:
    """Tell whether the hosts may need what is in an ignored directory, which isn't sent."""
    from launcher.sync.selection import PLACEHOLDERS

    is_environment = any(os.path.lexists(folder / name) for name in ("pyvenv.cfg", "conda-meta"))
    if folder.name == _OUTPUTS or is_environment or _ignores_itself(folder):
        return False
    try:
        with os.scandir(folder) as found:
            return any(entry.name not in PLACEHOLDERS for entry in found)
    except OSError:  # another user's, and nobody can tell
        return False


def _ignores_itself(folder: Path) -> bool:
    """Tell whether a program made this directory for what it writes, as `launch` makes one for its logs."""
    try:
        return read_small(folder / ".gitignore").strip() == b"*"
    except OSError:
        return False


def _read_links(texts: Sequence[str], sent: Collection[str], ignored: Iterable[str]) -> list[Link]:
    """Return the links of --link; sent: the paths of the tree, in whose way a link may not be.

    ignored: the names of the links that are made without an option. No link may be below another: it would be made in
    the directory to which that one leads.
    """
    links: list[Link] = []
    for text in texts:
        name, equals, target = text.partition("=")
        path = PurePosixPath(name)
        if not (equals and target.startswith(("/", "~"))):
            raise UsageError(f"--link: must be NAME=PATH with an absolute path, got {shown(text)}", _EXAMPLE)
        if path.is_absolute() or not path.parts or ".." in path.parts:
            raise UsageError(f"--link: {shown(name)} must be a name in the directory that is sent", _EXAMPLE)
        name = str(path)
        if _overlaps(name, sent):
            text = f"--link: {shown(name)} is sent, so it can't be a link"
            raise UsageError(text, "leave it out with .launchignore, or omit the link")
        links.append(Link(name, target, may_make=False))
    names = {*ignored, *(link.name for link in links)}
    for link in links:
        for above in map(str, PurePosixPath(link.name).parents):
            if above in names:
                text = f"--link: {shown(link.name)} is below {shown(above)}, which is a link itself"
                raise UsageError(text, f"omit it, or link the whole directory: --link {above}=PATH")
    return links


def _find_inside(place: Path, tree: Tree) -> str:
    """Return the working directory below the root; the root itself if the user is elsewhere.

    It can't be below a link: from there, a relative path leads to the live directory, so other code would run.
    """
    path = place.resolve()
    if path == Path(tree.root) or not path.is_relative_to(tree.root):
        return ""
    inside = path.relative_to(tree.root)
    for link in tree.links:
        if inside.is_relative_to(link.name):
            text = f"the working directory {shown(str(inside))} isn't sent: the hosts have a link to {link.target}"
            raise UsageError(text, f"cd to another directory of {tree.root}")
    return inside.as_posix()


def _move_program(
    program: Program, place: Path, root: str, inside: str, sent: Collection[str], left_out: str
) -> Program:
    """Return the program with its script's path in the tree; raise UsageError if the script isn't sent.

    A path may also begin in the directory that is sent: the ranks run there if the user is elsewhere.
    """
    if program.kind is not ProgramKind.SCRIPT:
        return program
    script = place / program.target
    if not script.exists() and not inside and (Path(root) / program.target).exists():
        script = Path(root) / program.target
    path = Path(os.path.normpath(script.parent.resolve() / script.name))
    if not path.is_relative_to(root):
        fix = "name a directory that contains it: --sync=DIR"
        raise UsageError(f"the script {shown(program.target)} is not in {root}, which --sync sends", fix)
    name = path.relative_to(root).as_posix()
    if name not in sent and not any(each.startswith(f"{name}/") for each in sent):
        reason = f"; left out: {left_out}" if left_out else ""
        line = f"add a line !{name} to .launchignore, after !D/ and D/* for each ignored directory D above it"
        fix = line if path.exists() and "/" in name else f"add a line !{name} to .launchignore"
        near = None if path.exists() else nearest(name, sent)
        guess = f"; did you mean {shown(near)}?" if near is not None else ""
        fix = fix if path.exists() else "correct its path"
        raise UsageError(f"the script {shown(program.target)} isn't among the files that are sent{reason}{guess}", fix)
    return replace(program, target=os.path.relpath(name, inside or "."))


def _find_in_tree(path: str, inside: str) -> str | None:
    """Return where a relative path of the ranks is, seen from the root of the tree; None for any other."""
    is_relative = path and not path.startswith(("/", "~", "-")) and "://" not in path
    return os.path.normpath(f"{inside or '.'}/{path}") if is_relative else None


def _add_link(tree: Tree, name: str, sent: Collection[str], base: str) -> Tree:
    """Return the tree with a link for a directory where the run saves, unless something is sent or linked there.

    base: the live directory, as the hosts have it.
    """
    if name == "." or name.startswith("..") or _overlaps(name, [*sent, *(link.name for link in tree.links)]):
        return tree
    return replace(tree, links=(*tree.links, Link(name, f"{base.rstrip('/')}/{name}", may_make=True)))


def _overlaps(name: str, others: Iterable[str]) -> bool:
    """Tell whether one of the others is this name, or above or below it."""
    return any(each == name or each.startswith(f"{name}/") or name.startswith(f"{each}/") for each in others)
