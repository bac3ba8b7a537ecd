"""What is said of the code: its size, what was sent, what stays here, and the refusal of too much."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.job.tree import Tree
from launcher.sync.candidates import STAYING
from launcher.sync.code_messages import (
    code_line,
    describe_left_out,
    progress_words,
    refuse_large,
)
from launcher.sync.selection import Selection

TREE = Tree("/proj", b"", "5f3a91c" + 57 * "0", 212, 1_800_000, left_out="data/ (git-ignored)")
IGNORED = "git-ignored"


def selection_of(files: dict[str, int], **left_out: str) -> Selection:
    return Selection(Path("/home/ann/proj"), tuple(files), tuple(files.values()), left_out, (), ())


@pytest.mark.parametrize(
    ("files", "sent_bytes", "words"),
    [
        (0, 0, "nothing sent"), (3, 14_000, "3 changed, 14 kB sent"), (1, 1, "1 changed, 1 byte sent"),
        (212, 600_000, "all, 600 kB sent"), (0, 340, "only the list of files changed, 340 bytes sent"),
    ],
)  # fmt: skip
def test_what_was_sent(files: int, sent_bytes: int, words: str) -> None:
    """A listing is sent even if no file is, such as after a file was removed here."""
    assert code_line(TREE, files, sent_bytes) == (
        f"code 5f3a91c: 212 files, 1.8 MB ({words}); left out: data/ (git-ignored)"
    )
    assert code_line(replace(TREE, left_out=""), files, sent_bytes) == f"code 5f3a91c: 212 files, 1.8 MB ({words})"


@pytest.mark.parametrize(
    ("done", "size", "hosts", "words"),
    [
        (0, 40_000_000, 2, "[....................]   0% of 40 MB of code sent to 2 hosts"),
        (19_999_999, 40_000_000, 1, "[#########...........]  50% of 40 MB of code sent to 1 host"),
        (40_000_000, 40_000_000, 3, "[####################] 100% of 40 MB of code sent to 3 hosts"),
        (0, 0, 1, "[####################] 100% of 0 bytes of code sent to 1 host"),
    ],
)
def test_progress(done: int, size: int, hosts: int, words: str) -> None:
    assert progress_words(done, size, hosts) == words


def test_what_is_left_out_is_named_by_reason() -> None:
    left_out = {
        "a.log": IGNORED, ".venv/": "virtual environment", "__pycache__/": "cache", "logs/": STAYING,
        ".env": "secrets", "a\nb/": IGNORED, "data/": IGNORED,
    }  # fmt: skip
    assert describe_left_out(selection_of({}, **left_out)) == (
        ".venv/ (virtual environment); 'a\\nb/', data/, a.log (git-ignored); .env (secrets)"
    )
    many = selection_of({}, **{f"{letter}/": IGNORED for letter in "abcdefg"})
    assert describe_left_out(many) == "a/, b/, c/, d/, e/ (git-ignored) and 2 more"
    assert describe_left_out(selection_of({})) == ""


FIX = "leave them out with .gitignore or .launchignore, or pass --sync-limit SIZE"
TOO_MUCH = [
    ({"a": 60, "b": 50}, 100, "110 bytes to send, more than 100 bytes: a 60 bytes, b 50 bytes"),
    (
        {"model.pt": 900_000_000, "src/a.py": 10, "src/b.py": 10, "z": 1}, 100_000_000,
        "900 MB to send, more than 100 MB: model.pt 900 MB, src/ 20 bytes, z 1 byte",
    ),
    (
        {"ckpt/last/model.pt": 900, "ckpt/x": 1, "src/a": 400, "src/b": 400, "w": 5, "x": 2}, 1000,
        "1.7 kB to send, more than 1.0 kB: ckpt/ 901 bytes, src/ 800 bytes, w 5 bytes",
    ),
    ({"a\nb": 101}, 100, "101 bytes to send, more than 100 bytes: 'a\\nb' 101 bytes"),
    ({"a": 1}, 0, "1 byte to send, more than 0 bytes: a 1 byte"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "limit", "words"), TOO_MUCH)
def test_too_much_is_refused_with_what_is_largest(files: dict[str, int], limit: int, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        refuse_large(selection_of(files), limit)
    assert (str(caught.value), caught.value.fix) == (f"/home/ann/proj has {words}", FIX)


@pytest.mark.parametrize(("files", "limit"), [({}, 0), ({"a": 0}, 0), ({"a": 60, "b": 40}, 100)])
def test_what_fits_is_not_refused(files: dict[str, int], limit: int) -> None:
    refuse_large(selection_of(files), limit)
