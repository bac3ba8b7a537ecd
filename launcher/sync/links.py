"""Follow the symbolic links of a tree as a host will, where nothing exists but what is sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set

from launcher.node.code.listing import is_inside, parents

_MOST_LINKS = 40  # that Linux follows in one path


def find_useful_links(files: Set[str], links: Mapping[str, str]) -> set[str]:
    """Return the links that lead to a file or directory that is sent, over links that are sent.

    links: the target of each link; a link whose text leads out of the tree is none of them, even if it comes back.
    """
    useful = {path for path, target in links.items() if is_inside(path, target)}
    while True:
        folders = {folder for path in (*files, *useful) for folder in parents(path)} | {""}
        sent = {path: links[path] for path in useful}
        left = {path for path in useful if _is_there(path, files, folders, sent)}
        if left == useful:
            return useful
        useful = left  # and what leads over the others has to go too


def _is_there(path: str, files: Set[str], folders: Set[str], links: Mapping[str, str]) -> bool:
    place, names, followed = "", path.split("/")[::-1], 0
    while names:
        name = names.pop()
        if name in ("", "."):
            continue
        if place in files or (name == ".." and not place):
            return False
        below = place.rpartition("/")[0] if name == ".." else f"{place}/{name}" if place else name
        if below in links:
            followed += 1
            if followed > _MOST_LINKS:
                return False
            names += links[below].split("/")[::-1]
        elif below in folders or below in files:
            place = below
        else:
            return False
    return True
