"""What isn't sent by default: caches, secrets, virtual environments and version control.

In a repository, what git tracks is sent nevertheless; a line of `.launchignore` overrides all of this.
"""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path

# Why something isn't sent.
IGNORED = "git-ignored"
LAUNCHIGNORE = ".launchignore"
CACHE = "cache"
ENVIRONMENT = "virtual environment"
SECRETS = "secrets"
STAYING = "logs"

CACHES = (
    "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".tox", ".nox",
    "node_modules", "*.egg-info",
)  # fmt: skip
SECRET_FILES = (".env", ".env.*", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk")
VERSION_CONTROL = (".git", ".hg", ".svn")


def classify(name: str) -> str | None:
    """Return why a file or directory is left out by its name alone; None for any other name."""
    last = name.rstrip("/").rpartition("/")[2]
    if name.endswith("/") and any(fnmatchcase(last, pattern) for pattern in CACHES):
        return CACHE
    return SECRETS if any(fnmatchcase(last, pattern) for pattern in SECRET_FILES) else None


def is_environment(folder: Path) -> bool:
    """Tell whether a directory is a virtual environment, of venv or of conda."""
    return os.path.lexists(folder / "pyvenv.cfg") or os.path.lexists(folder / "conda-meta")
