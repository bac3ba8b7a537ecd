"""The packages of the Python that is found on a node, and the hashes of the Python files beside its script."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from node_process import STAND_IN, Message, Nodes

from launcher.node import messages
from launcher.node.facts import machine, packages
from launcher.session.node_state import read_facts

TRIES = 4  # a look ends after 0.3 s, in which a busy machine may not let it run


def install(site: Path, *names: str) -> None:
    for name in names:
        (site / name).mkdir(parents=True)


def install_editable(site: Path, name: str, source: Path) -> None:
    install(site, f"{name}-1.0.dist-info")
    origin = {"url": source.as_uri(), "dir_info": {"editable": True}}
    (site / f"{name}-1.0.dist-info" / "direct_url.json").write_text(json.dumps(origin))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def find_packages(nodes: Nodes, tmp_path: Path, *sites: Path, **wanted: object) -> Message:
    """Ask a node for the packages of a Python that has no others."""
    write(tmp_path / "python", f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (tmp_path / "python").chmod(0o700)
    paths = ":".join(map(str, [STAND_IN, *sites]))
    asked = {"checks": True, "packages": True, "gpus": False, "plain": True, **wanted}
    for _ in range(TRIES):
        node = nodes.start()
        node.prepare(facts=True, pythons=[str(tmp_path / "python")], env={"PYTHONPATH": paths}, **asked)
        facts = node.wait_for(messages.FACTS)
        if facts["search"].get("packages", {}) is not None:
            break
    return facts


# ---- packages -------------------------------------------------------------------------------------------------------


def test_packages_are_named_after_their_directories(nodes: Nodes, tmp_path: Path) -> None:
    first, second = tmp_path / "a" / "site-packages", tmp_path / "b" / "dist-packages"
    install(
        first, "Foo.Bar__baz-1.2.dist-info", "typing_extensions-4.15.0.dist-info", "~umpy-2.0.dist-info", "foo_bar_baz",
    )  # fmt: skip
    install(second, "foo_bar_baz-9.dist-info", "PyYAML-6.0.1.egg-info", "six-1.16.0-py3.11.egg-info", "mine.egg-info")
    install(tmp_path / "elsewhere", "other-1.0.dist-info")  # on the path, but nothing is installed there
    facts = read_facts(find_packages(nodes, tmp_path, first, second, tmp_path / "elsewhere"), "")
    assert facts.torch_version == "2.13.0+stand.in"
    found = {"foo-bar-baz": "1.2", "typing-extensions": "4.15.0", "pyyaml": "6.0.1", "six": "1.16.0"}
    assert facts.packages == found


def test_an_editable_package_has_a_commit(nodes: Nodes, tmp_path: Path) -> None:
    site, source = tmp_path / "site-packages", tmp_path / "my sources"
    write(source / "x", "")
    git = ["git", "-C", str(source), "-c", "user.name=a", "-c", "user.email=a"]
    for words in (["init", "-q"], ["add", "x"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    install_editable(site, "mine", source)
    install_editable(site, "bare", tmp_path)
    install(site, "wrong-1.0.dist-info", "hung-1.0.dist-info")
    write(site / "wrong-1.0.dist-info" / "direct_url.json", '["no object"]')
    os.mkfifo(site / "hung-1.0.dist-info" / "direct_url.json")
    found = find_packages(nodes, tmp_path, site)["search"]
    own = {"mine": f"1.0 (editable, {commit[:7]})", "bare": "1.0 (editable)"}
    assert found["packages"] == {**own, **dict.fromkeys(("wrong", "hung"), "1.0")}
    assert found["editables"] == {"mine": str(source), "bare": str(tmp_path)}


def test_more_of_either_than_any_python_or_run_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "MOST_PACKAGES", 2)
    monkeypatch.setattr(machine, "MOST_CODE_FILES", 2)
    for number in range(2):
        install(tmp_path, f"p{number}-1.dist-info")
        write(tmp_path / f"{number}.py", "")
    wanted = {"workdir": str(tmp_path), "code": {"folder": "", "script": None}}
    assert packages.list_packages([str(tmp_path)])["packages"] == {"p0": "1", "p1": "1"}
    assert machine.hash_code(wanted)["code_hash"]
    install(tmp_path, "p2-1.dist-info")
    write(tmp_path / "2.py", "")
    assert packages.list_packages([str(tmp_path)])["packages"] is None
    assert machine.hash_code(wanted)["code_hash"] is None


def test_packages_are_listed_for_the_checks_only(nodes: Nodes, tmp_path: Path) -> None:
    install(tmp_path / "site-packages", "foo-1.2.dist-info")
    search = find_packages(nodes, tmp_path, tmp_path / "site-packages", checks=False, packages=False)["search"]
    assert "packages" not in search
    assert "site" not in search


# ---- code -----------------------------------------------------------------------------------------------------------


def ask_code(nodes: Nodes, workdir: Path, folder: str = "") -> str | None:
    code = {"folder": folder, "script": "train.py"}
    for _ in range(TRIES):
        node = nodes.start()
        node.prepare(facts=True, pythons=[], gpus=False, checks=True, workdir=str(workdir), code=code)
        found: str | None = node.wait_for(messages.FACTS)["checks"]["code_hash"]
        if found is not None:
            break
    return found


def hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_what_a_run_may_import_is_hashed(nodes: Nodes, tmp_path: Path) -> None:
    root = tmp_path / "repo" / "src"
    for path in ("model.py", "lib/data.py", "lib/train.py", "läuft.py"):
        write(root / path, path)
    skipped = ("train.py", "notes.txt", ".hidden.py", ".git/hook.py", "__pycache__/a.py", "node_modules/a.py",
               "lib/site-packages/a.py", "env/pyvenv.cfg", "env/a.py", "../outside.py")  # fmt: skip
    for path in skipped:
        write(root / path, path)
    (root / "linked").symlink_to(tmp_path / "repo")
    (root / "loop.py").symlink_to("loop.py")
    (root / "link.py").symlink_to("notes.txt")
    os.mkfifo(root / "fifo.py")
    found = ask_code(nodes, tmp_path, "repo/src")
    texts = {path: path for path in ("lib/data.py", "lib/train.py", "läuft.py", "model.py")} | {"link.py": "notes.txt"}
    assert found == hash_text("".join(f"{path}\0{hash_text(texts[path])}\n" for path in sorted(texts)))
    write(root / "notes.txt", "other")
    changed = ask_code(nodes, tmp_path, "repo/src")
    write(root / "notes.txt", "notes.txt")
    write(root / "train.py", "other")  # has a hash of its own
    assert changed not in (None, found)
    assert ask_code(nodes, tmp_path, str(root)) == found


def test_a_place_that_can_not_be_read(nodes: Nodes, tmp_path: Path) -> None:
    assert ask_code(nodes, tmp_path, "missing") is None
