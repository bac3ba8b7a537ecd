"""The nodes that share a cache directory: all of them read the same word in a file there."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.node.code.store import Store

LOOK_S = 5.0  # for a network file system to show what another node has written


class Group:
    """This node's part in a group; the first node to come writes the word."""

    def __init__(self, store: Store, nonce: str) -> None:
        """nonce: of this delivery, since cloned machines have equal directories that they don't share."""
        self._path = os.path.join(store.base, "group-" + nonce)
        self._is_mine = False
        self.name = os.urandom(8).hex()
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            self.name = self._read() or self.name
            return
        os.write(fd, self.name.encode())
        os.close(fd)
        self._is_mine = True

    def _read(self) -> str:
        """Return the word, once it is there; empty if it doesn't come, or the file is gone."""
        deadline = time.monotonic() + LOOK_S
        while time.monotonic() < deadline:
            try:
                with open(self._path) as file:
                    word = file.read(64)
            except OSError:
                return ""
            if word:
                return word
            time.sleep(0.02)
        return ""

    def leave(self) -> None:
        """Remove the file, if it is this node's; all others have read it by then."""
        try:
            if self._is_mine:
                os.unlink(self._path)
        except FileNotFoundError:  # somebody has emptied the cache
            pass
