"""How the tests of the command line call it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from launcher.cli import main as cli

Entry = Callable[[list[str]], None]


@pytest.fixture
def launch(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that calls a command, by a line, a list or its words, and gives (exit code, stdout, stderr)."""

    def call(line: str | Sequence[str] = "", *words: str, entry: Entry = cli.main) -> tuple[int, str, str]:
        first = line.split() if isinstance(line, str) and not words else [line] if isinstance(line, str) else line
        with pytest.raises(SystemExit) as end:
            entry([*first, *words])
        out, err = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, out, err

    return call
