"""ssh_config where there is no ssh to read it, for Fabric: by paramiko's parser, for files that it reads right."""

from __future__ import annotations

import getpass
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from paramiko import SSHConfig
from paramiko.ssh_exception import ConfigParseError

from launcher.errors import UsageError

_USER_FILE = Path("~/.ssh/config")
# paramiko ignores Include, applies some Match blocks to every host, and looks up canonical names by rules of its own.
_FOR_SSH = re.compile(r"\s*(include|match|canonicalizehostname)\b", re.IGNORECASE)
_ASK = "install openssh-client, so that `launch` can run `ssh -G`"


def read_plain(named: Path | None, args: Sequence[str]) -> Iterator[str]:
    """Yield lines as `ssh -G` with these arguments prints them; raise UsageError for what takes ssh to read.

    named: --ssh-config; without it the user's own file is read, and the system's is not.
    """
    path = named or _USER_FILE.expanduser()
    try:
        text = path.read_text("utf-8", "replace")
    except OSError as error:
        if named is not None:
            raise UsageError(f"{path}: {error.strerror}", "make it readable") from None
        text = ""
    for number, line in enumerate(text.splitlines(), 1):
        found = _FOR_SSH.match(line)
        if found is not None:
            raise UsageError(f"{path}:{number}: only ssh can tell what `{found[1]}` changes", _ASK)
    given = dict(zip(args[:-2:2], args[1:-2:2], strict=True))  # -p PORT -l USER -- NAME
    try:
        options = SSHConfig.from_text(text).lookup(args[-1])
    except ConfigParseError as error:
        raise UsageError(f"{path}: {error}", "correct that line") from None
    defaults = {"port": "22", "user": getpass.getuser()}
    named_here = {"port": given["-p"]} if "-p" in given else {}
    named_here |= {"user": given["-l"]} if "-l" in given else {}
    for key, value in {**defaults, **options, **named_here}.items():
        for each in value if isinstance(value, list) else [value]:
            yield f"{key} {each}".replace('"', "")  # of a path; paramiko removes some of them
