"""A screen that keeps what is said."""

from __future__ import annotations

from collections.abc import Collection

from launcher.output.style import Style


class Screen:
    """Where the words of a run go, in a list."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def say(self, text: str, style: Style = Style.AS_IS) -> None:
        self.words.append(text)

    def show(self, text: str) -> None:
        self.words.append(text)

    def withhold(self) -> None: ...

    def release(
        self, ranks: Collection[int | None] | None = None, alike: Collection[int | None] = ()
    ) -> frozenset[int]:
        return frozenset()

    def emit(self, event: str, **values: object) -> None: ...
