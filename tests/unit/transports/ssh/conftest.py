"""An ssh that tells for which hosts it was asked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], list[str]]]:
    """Put an ssh into PATH that writes down about which host it is asked; give the hosts since the last look."""
    folder = tmp_path_factory.mktemp("bin")
    log = folder / "asked"
    log.touch()
    script = folder / "ssh"
    script.write_text(f'#!/bin/sh\nfor name; do :; done\necho "$name" >>{log}\nexec {shutil.which("ssh")} "$@"\n')
    script.chmod(0o755)

    def take() -> list[str]:
        names = log.read_text().split()
        log.write_text("")
        return names

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder), prepend=os.pathsep)
        yield take
