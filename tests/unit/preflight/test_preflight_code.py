"""The Python files beside the script: which of them differ on which host."""

from __future__ import annotations

import pytest
from machines.example_facts import JOB, facts, nodes_of, told

from launcher.job.facts import Checks
from launcher.preflight.code import MOST_ASKED, check, choose_asked

FIX = "fix: copy the same code to all hosts, or pass --sync"
FILES = {f"src/{name}.py": "a" for name in ("data", "loss", "model", "optim")}
USUAL = facts(checks=Checks(code_hash="usual"), code_files=FILES)


def has(changed=(), missing=(), extra=(), code_hash="other"):
    """Return a node that was asked for its files, since it has another hash."""
    files = FILES | {f"src/{name}.py": "b" for name in (*changed, *extra)}
    kept = {path: content for path, content in files.items() if path not in {f"src/{name}.py" for name in missing}}
    return facts(checks=Checks(code_hash=code_hash), code_files=kept)


def silent(code_hash):
    return facts(checks=Checks(code_hash=code_hash))


@pytest.mark.parametrize(
    ("every_fact", "findings"),
    [
        ([], []),
        ([USUAL, silent("usual"), facts(), silent(None)], []),
        (
            [USUAL, silent("usual"), has(["model"])],
            [f"warning: gpu3: src/model.py differs from the others; {FIX}"],
        ),
        (
            [has(["model"], ["data"]), silent("other"), USUAL, silent("usual"), silent("usual")],
            [f"warning: gpu[1-2]: src/model.py differs from the others, src/data.py is missing; {FIX}"],
        ),
        (
            [USUAL, silent("usual"), has(["data", "model"], extra=["x"])],
            [
                "warning: gpu3: src/data.py and src/model.py differ from the others, src/x.py is not on the others; "
                + FIX
            ],
        ),
        (
            [USUAL, silent("usual"), silent("usual"), has(["model"]), has([], extra=["x"], code_hash="third")],
            [
                f"warning: gpu4: src/model.py differs from most hosts; {FIX}",
                f"warning: gpu5: src/x.py is not on most hosts; {FIX}",
            ],
        ),
        (
            [USUAL, silent("usual"), has(["model", "data"], ["loss"], [f"n{number}" for number in range(9)])],
            [
                "warning: gpu3: src/data.py, src/model.py and 10 more files differ from the others "
                f"(1 missing, 9 not on the others); {FIX}"
            ],
        ),
        # of two, neither is the usual one
        (
            [USUAL, has(["model"], ["data"], ["x"])],
            [
                "warning: gpu[1-2]: src/model.py is not the same, src/data.py is missing on gpu2, "
                f"src/x.py is missing on gpu1; {FIX}"
            ],
        ),
        (
            [USUAL, has(["model", "loss", "optim"], ["data"])],
            [
                "warning: gpu[1-2]: src/loss.py, src/model.py and 2 more files are not the same (1 missing on some); "
                + FIX
            ],
        ),
        # where nobody could be asked, or nothing differs any more
        ([silent("usual"), silent("other")], [f"warning: gpu[1-2]: their Python files are not the same; {FIX}"]),
        (
            [USUAL, silent("usual"), silent("other")],
            [f"warning: gpu3: its Python files differ from the others; {FIX}"],
        ),
        ([USUAL, silent("usual"), has()], []),
        ([USUAL, has()], []),
        (
            [USUAL, silent("usual"), facts(checks=Checks(code_is_complete=False))],
            ["note: gpu3: its Python files are not compared: there are too many, or reading them took too long"],
        ),
    ],
)  # fmt: skip
def test_who_differs(every_fact, findings):
    assert told(check(nodes_of(JOB, every_fact))) == findings


def test_a_long_path_is_cut():
    long = "src/" + "x" * 300
    pair = [facts(checks=Checks(code_hash=content), code_files={long: content}) for content in "ab"]
    text = "..." + "x" * 97
    assert told(check(nodes_of(JOB, pair))) == [f"warning: gpu[1-2]: {text} is not the same; {FIX}"]


def test_one_host_of_each_hash_is_asked():
    assert choose_asked({}) == []
    assert choose_asked({0: "a", 1: "a"}) == []
    assert choose_asked({0: "b", 2: "a", 3: "a", 5: "c", 6: "b", 7: "a"}) == [2, 0, 5]
    assert choose_asked({index: str(index) for index in range(100)}) == list(range(MOST_ASKED))
