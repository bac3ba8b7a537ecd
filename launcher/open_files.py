"""How many files and sockets this process may have open."""

from __future__ import annotations

import contextlib
import resource


def allow_open_files(count: int) -> None:
    """Raise this process's limit of open files if it is lower and may be raised: a shell on a Mac starts with 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS has limits beside the hard one; what fails says so
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
