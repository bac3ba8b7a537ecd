"""What isn't sent by default: caches, secrets, virtual environments and version control.

What git tracks is sent nevertheless, and a line of `.launchignore` overrides the names here.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

# Why something isn't sent.
IGNORED = "git-ignored"
LAUNCHIGNORE = ".launchignore"
CACHE = "cache"
ENVIRONMENT = "virtual environment"
SECRETS = "secrets"
STAYING = "logs"

CACHES = (
    "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".tox", ".nox",
    "node_modules", "*.egg-info", ".hg", ".svn",
)  # fmt: skip
SECRET_FILES = (".env", ".env.*", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk")
PATTERNS = (*SECRET_FILES, *(f"{name}/" for name in CACHES))  # as a .gitignore file would have them


def classify(name: str) -> str | None:
    """Return why a file or directory is left out by its name alone; None for any other name."""
    last = name.rstrip("/").rpartition("/")[2]
    if name.endswith("/") and any(fnmatchcase(last, pattern) for pattern in CACHES):
        return CACHE
    return SECRETS if any(fnmatchcase(last, pattern) for pattern in SECRET_FILES) else None
