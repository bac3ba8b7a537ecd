"""What is sent and what isn't, in words, and the refusal of too much. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.errors import UsageError
from launcher.escapes import shown
from launcher.job.tree import Tree
from launcher.sync.candidates import CACHE, STAYING
from launcher.wording import count, size

if TYPE_CHECKING:
    from launcher.sync.selection import Selection

_BAR_CHARACTERS = 20
_MOST_NAMES = 5
_MOST_LARGE = 3


def describe_left_out(selection: Selection) -> str:
    """Return `.venv/, data/ (git-ignored); .env (secrets)`, directories first, without caches and logs."""
    found = [(name, why) for name, why in selection.left_out.items() if why not in (CACHE, STAYING)]
    ordered = sorted(found, key=lambda each: (not each[0].endswith("/"), each[0]))
    groups: dict[str, list[str]] = {}
    for name, reason in ordered[:_MOST_NAMES]:
        groups.setdefault(reason, []).append(shown(name))
    texts = [f"{', '.join(names)} ({reason})" for reason, names in groups.items()]
    more = len(ordered) - _MOST_NAMES
    return "; ".join(texts) + (f" and {more} more" if more > 0 else "")


def refuse_large(selection: Selection, limit_bytes: int) -> None:
    """Raise UsageError if more than the limit would be sent, naming what is largest; nothing was read for that yet."""
    total = sum(selection.sizes)
    if total <= limit_bytes:
        return
    parts = sorted(_split(selection).items(), key=lambda item: (-item[1], item[0]))[:_MOST_LARGE]
    named = ", ".join(f"{shown(name)} {size(bytes_in_all)}" for name, bytes_in_all in parts)
    raise UsageError(
        f"{shown(selection.root)} has {size(total)} to send, more than {size(limit_bytes)}: {named}",
        "leave them out with .gitignore or .launchignore, or pass --sync-limit SIZE",
    )


def describe_tree(tree: Tree) -> str:
    """Return `code 5f3a91c: 212 files, 1.8 MB`."""
    return f"code {tree.name}: {count(tree.files, 'file')}, {size(tree.bytes_in_all)}"


def code_line(tree: Tree, files: int, sent_bytes: int) -> str:
    """Return `code 5f3a91c: 212 files, 1.8 MB (3 changed, 14 kB sent); left out: data/ (git-ignored)`.

    files: that some host lacked; none if files were only removed or renamed; sent_bytes: to all hosts together.
    """
    which = "all" if files >= tree.files else f"{files} changed" if files else "only the list of files changed"
    sent = f"{which}, {size(sent_bytes)} sent" if sent_bytes else "nothing sent"
    return f"{describe_tree(tree)} ({sent}){_left_out_words(tree)}"


def plan_line(tree: Tree) -> str:
    """Return `code 5f3a91c: 212 files, 1.8 MB; left out: data/ (git-ignored)`, before anything is sent."""
    return f"{describe_tree(tree)}{_left_out_words(tree)}"


def _left_out_words(tree: Tree) -> str:
    return f"; left out: {tree.left_out}" if tree.left_out else ""


def progress_words(done_bytes: int, size_bytes: int, hosts: int) -> str:
    """Return a progress bar in one line."""
    part = done_bytes / size_bytes if size_bytes else 1.0
    full = int(part * _BAR_CHARACTERS)
    bar = "#" * full + "." * (_BAR_CHARACTERS - full)
    return f"[{bar}] {part:4.0%} of {size(size_bytes)} of code sent to {count(hosts, 'host')}"


def _split(selection: Selection) -> dict[str, int]:
    """Return the bytes of each file and directory right below the root."""
    parts: dict[str, int] = {}
    for path, size_bytes in zip(selection.paths, selection.sizes, strict=True):
        top, slash, _ = path.partition("/")
        parts[top + slash] = parts.get(top + slash, 0) + size_bytes
    return parts
