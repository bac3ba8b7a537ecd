"""The names of hosts in ssh_config and known_hosts, for completion: no host is contacted, and ssh isn't run.

What can't be read is skipped. A file that others can write may name hosts here, since a name alone does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from launcher.transports.ssh.config_lines import (
    MAX_DEPTH,
    SYSTEM_FILE,
    USER_FILE,
    ConfigLine,
    LeftToSsh,
    Origin,
    every_line,
    read_lines,
)
from launcher.transports.ssh.known_hosts import parse_known_hosts
from launcher.transports.ssh.known_hosts_paths import default_files, read_paths

_PATTERN = {*"*?!"}
_KNOWN_HOSTS = ("userknownhostsfile", "globalknownhostsfile")


def find_named_hosts(config: Path | None = None) -> Iterator[str]:
    """Yield the names of Host lines, and then those of known_hosts that aren't hashed, each as often as it is there.

    config: the file of --ssh-config, which is read instead of the user's and the system's.
    """
    lines = [*every_line(_read_files(config))]
    for line in lines:
        if line.keyword == "host":
            yield from (word for word in line.words if _PATTERN.isdisjoint(word))
    words = [word for line in lines if line.keyword in _KNOWN_HOSTS for word in line.words]
    named = [path for word in words for path in read_paths(f'"{word}"')]
    for path in dict.fromkeys([*named, *default_files()]):
        with suppress(OSError):  # a name that is too long
            if path.is_file():
                yield from _find_known(path)


def _read_files(config: Path | None) -> Iterator[tuple[ConfigLine, ...]]:
    paths = {USER_FILE: True, SYSTEM_FILE: False} if config is None else {config: True}
    for path, is_users in paths.items():
        folder = (path if config is None else USER_FILE).parent
        with suppress(LeftToSsh, OSError):
            yield read_lines(path.expanduser(), Origin(folder, is_users=is_users, checked_from=MAX_DEPTH + 1))


def _find_known(path: Path) -> Iterator[str]:
    for line in parse_known_hosts(path.read_text("utf-8", "replace")):
        if line.marker is None:
            for name in line.plain_names or ():
                yield name[1:].partition("]")[0] if name.startswith("[") else name  # [host]:port
