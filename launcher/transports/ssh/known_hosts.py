"""Which files of known_hosts ssh_config names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_DEFAULT_FILES = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_DEFAULT_GLOBAL_FILES = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"


def find_files(settings: Mapping[str, str]) -> list[Path]:
    """Return the files that UserKnownHostsFile and GlobalKnownHostsFile name, of which the first is written.

    settings: as `ssh -G` prints them, with their tokens replaced.
    """
    words = " ".join(_values(settings)).split()
    return [Path(word).expanduser() for word in words if word != "none"]


def find_unclear(settings: Mapping[str, str]) -> str:
    """Return the value of which it isn't clear what files it names; an empty text if both are clear.

    `ssh -G` prints no quotes: `"/a b/kh"` is `/a b/kh`. It may also leave a token, a variable or `~ann` to ssh itself.
    """
    for value in _values(settings):
        are_paths = all(word.startswith(("/", "~/")) for word in value.split())
        if value.strip() != "none" and (not are_paths or "%" in value or "${" in value):
            return value
    return ""


def _values(settings: Mapping[str, str]) -> tuple[str, str]:
    own = settings.get("userknownhostsfile", _DEFAULT_FILES)
    return own, settings.get("globalknownhostsfile", _DEFAULT_GLOBAL_FILES)
