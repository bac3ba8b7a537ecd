"""The directory of a run that several processes make or mend at once, on one host or on hosts that share a cache."""

from __future__ import annotations

import fcntl
import hashlib
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from launcher.node.code import folders, listing, proof
from launcher.node.code.folders import Folder
from launcher.node.code.listing import Entry
from launcher.node.code.store import Store

DATA = bytes(range(256)) * 1000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(str(tmp_path))
    store.make()
    return store


def keep(store: Store, *paths: str, data: bytes = DATA) -> list[Entry]:
    """Return the entries of files with this content, which is kept."""
    content = hashlib.sha256(data).hexdigest()
    arrival = store.receive(content)
    arrival.write(data)
    arrival.finish()
    return [Entry(path, listing.FILE, len(data), content) for path in paths]


def test_who_comes_second_gets_the_directory_at_once(store: Store) -> None:
    first, second = (folders.begin(store, "proj") for _ in range(2))
    place = Folder(folders.open_folder(store, "run", "f" * 64, "proj").path, "proj")
    assert folders.appear(first, place) is first
    assert folders.appear(second, place) is place
    assert place.lock(fcntl.LOCK_SH)
    assert not Path(second.path).exists()


def test_all_who_mend_a_directory_at_once_find_it_whole(store: Store) -> None:
    entries = keep(store, "changed", "missing", "pkg/missing", "unchanged")
    fresh = folders.begin(store, "proj")
    assert fresh.put(store, entries) == []
    folder = folders.appear(fresh, Folder(folders.open_folder(store, "run", "f" * 64, "proj").path, "proj"))
    root = Path(folder.root)
    (root / "changed").write_bytes(b"mine")
    (root / "missing").unlink()
    (root / "pkg/missing").unlink()
    (root / "pkg").rmdir()
    begin = threading.Barrier(6)
    results: list[list[Entry]] = []
    halves: list[bytes] = []

    def mend() -> None:
        begin.wait()
        results.append(folder.put(store, entries[:3]))

    threads = [threading.Thread(target=mend) for _ in range(5)]
    for thread in threads:
        thread.start()
    begin.wait()
    while any(thread.is_alive() for thread in threads):
        for path in (path for path in root.rglob("*") if path.is_file()):
            with suppress(FileNotFoundError):  # it has just got its other name
                halves += {path.read_bytes()} - {DATA, b"mine"}
    assert (results, halves) == ([[]] * 5, [])
    assert proof.find_wrong(folder.root, entries) == []
    kept = [path.read_bytes() for path in root.glob("changed.replaced-*")]
    assert kept.count(b"mine") == 1
    assert (folder.put(store, entries), len(list(root.glob("*.replaced-*")))) == ([], len(kept)), "what is right stays"
