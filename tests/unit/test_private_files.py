"""Files that take the place of others: never through a link that somebody has put there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.private_files import replace_private


def test_a_link_in_a_shared_directory_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name can be known, as that of `launch report -o page.html` once was; a name that was drawn can't."""
    target = tmp_path / "mine"
    target.write_text("mine")
    for name in ("page", "page.new", "page.00000000.new"):
        (tmp_path / name).symlink_to(target)
    replace_private(tmp_path / "page", "new")
    assert (tmp_path / "page").read_text() == "new" and not (tmp_path / "page").is_symlink()
    assert (tmp_path / "page").stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(os, "urandom", bytes)  # the worst case
    with pytest.raises(FileExistsError):
        replace_private(tmp_path / "page", "new")
    assert target.read_text() == "mine"
