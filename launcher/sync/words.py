"""How messages describe the code of a run."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.hosts.ranges import fold_names
from launcher.job.tree import Tree
from launcher.wording import count

_BAR_CHARACTERS = 20


def size_words(size_bytes: int) -> str:
    """Return `812 bytes`, `14 kB`, `1.8 MB` or `41 GB`."""
    if size_bytes < 1000:
        return count(size_bytes, "byte")
    size, unit = float(size_bytes), ""
    for unit in ("kB", "MB", "GB", "TB"):  # noqa: B007 - the one that fits is used
        size /= 1000
        if size < 999.5:
            break
    return f"{size:.1f} {unit}" if size < 9.95 and unit != "kB" else f"{size:.0f} {unit}"


def code_line(tree: Tree, files: int, sent_bytes: int) -> str:
    """Return `code 5f3a91c: 212 files, 1.8 MB (3 changed, 14 kB sent); left out: data/ 41 GB (git-ignored)`.

    files: that some host lacked; sent_bytes: to all hosts together.
    """
    which = "all" if files >= tree.files else f"{files} changed"
    sent = f"{which}, {size_words(sent_bytes)} sent" if sent_bytes else "nothing sent"
    left_out = f"; left out: {tree.left_out}" if tree.left_out else ""
    return f"code {tree.name}: {count(tree.files, 'file')}, {size_words(tree.bytes_in_all)} ({sent}){left_out}"


def place_lines(paths: Mapping[str, str]) -> list[str]:
    """Return a line for each directory in which hosts have the code."""
    hosts: dict[str, list[str]] = {}
    for host, path in paths.items():
        hosts.setdefault(path, []).append(host)
    return [f"  {fold_names(names)}: {path}" for path, names in hosts.items()]


def progress_words(done_bytes: int, size_bytes: int, hosts: int) -> str:
    """Return a progress bar in one line."""
    part = done_bytes / size_bytes if size_bytes else 1.0
    full = int(part * _BAR_CHARACTERS)
    bar = "#" * full + "." * (_BAR_CHARACTERS - full)
    return f"[{bar}] {part:4.0%} of {size_words(size_bytes)} of code sent to {count(hosts, 'host')}"
