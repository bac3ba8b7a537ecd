"""The contents of small files, kept in memory by hash: whoever edits one doesn't change what a run sends."""

from __future__ import annotations

_MOST_EACH_BYTES = 256 << 10
_MOST_TOGETHER_BYTES = 32 << 20


class SmallFiles:
    """Keeps what is small enough, as long as there is room."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self._room = _MOST_TOGETHER_BYTES

    def has_room(self, content_hash: str, size_bytes: int) -> bool:
        """Tell whether a content of this hash and size would be added."""
        return size_bytes <= min(_MOST_EACH_BYTES, self._room) and content_hash not in self.contents

    def add(self, content_hash: str, content: bytes) -> None:
        """Keep a content, if there is room."""
        if self.has_room(content_hash, len(content)):
            self.contents[content_hash] = content
            self._room -= len(content)
