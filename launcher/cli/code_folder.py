"""The value of --sync: a directory that may be omitted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class CodeFolder(click.types.StringParamType):
    """A directory, or nothing, which means the default one; a file may say true."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, bool) or value is None:
            return "" if value else None
        return os.path.expanduser(str(value))  # noqa: PTH111 - no error for an unknown user: there is no such directory


def settle_folders(args: list[str], options: list[click.Option]) -> list[str]:
    """Return the words with a directory as part of its option: `--sync lib` becomes `--sync=lib`.

    A word that is no directory is the script, so `--sync train.py` becomes `--sync= train.py`.
    """
    flags = {flag: option for option in options for flag in option.opts}
    settled = list(args)
    index = 0
    while index < len(settled) and settled[index].startswith("-") and settled[index] != "--":
        option = flags.get(settled[index])
        if option is not None and isinstance(option.type, CodeFolder):
            folder = settled[index + 1 : index + 2]
            has_folder = bool(folder) and Path(folder[0]).is_dir()
            settled[index : index + 1 + has_folder] = [f"{settled[index]}={folder[0] if has_folder else ''}"]
        elif option is not None and not option.is_flag:
            index += 1
        index += 1
    return settled
