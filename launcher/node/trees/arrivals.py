"""The files that are arriving, in pieces from the launcher and from other nodes at once."""

from __future__ import annotations

import threading
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    from launcher.node.trees.listing import Entry
    from launcher.node.trees.store import Arrival, Store


class Arrivals:
    """Takes pieces; several threads may call `take`, also for parts of one file."""

    def __init__(self, store: Store, entries: list[Entry]) -> None:
        self._store = store
        self._entries = entries
        self._files: dict[int, Arrival] = {}  # by the entry's place in the listing
        self._lock = threading.Lock()
        self._fault: Exception | None = None
        self._is_closed = False

    def take(self, header: Dict[str, Any], payload: bytes) -> None:
        """Take parts of files, each given by its place in the listing, and where the part begins and ends."""
        data = memoryview(zlib.decompress(payload) if header["is_packed"] else payload)
        for index, begin, end in header["parts"]:
            part, data = data[: end - begin], data[end - begin :]
            with self._lock:
                if self._is_closed:
                    return
                if index not in self._files:
                    self._files[index] = self._store.receive(self._entries[index])
                file = self._files[index]
            if file.write(begin, part):
                with self._lock:
                    is_last = self._files.get(index) is file
                    if is_last:
                        del self._files[index]
                if is_last:
                    file.finish()

    def take_safely(self, header: Dict[str, Any], payload: bytes) -> None:
        """Take a piece in a thread of its own: `close` raises what went wrong."""
        try:
            self.take(header, payload)
        except Exception as error:  # noqa: BLE001 - such as a full disk
            self._fault = error

    def close(self) -> None:
        """Drop what isn't complete; raise what went wrong in another thread."""
        with self._lock:
            self._is_closed = True
            files, self._files = list(self._files.values()), {}
        for file in files:
            file.abandon()
        if self._fault is not None:
            raise self._fault
