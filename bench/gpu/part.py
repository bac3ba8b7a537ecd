"""What a part is, and what it can report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.gpu.trial import Trial


class Verdict(Enum):
    """The second column of the table; only FAIL makes the exit code 1."""

    PASS = "pass"
    FAIL = "FAIL"
    ON_CPUS = "on CPUs"  # the form without a GPU held
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a part measured, and what it saw; it held, since a part that doesn't hold raises PartError."""

    figure: str
    seen: str


class PartError(Exception):
    """What a part requires was not seen; the text says what was."""


class NotRunError(Exception):
    """This machine can't show what the part requires; the text says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """One line of the table.

    `run` gets a trial with as many GPUs as the machine has, or with none if those are fewer than `gpus`.
    """

    name: str
    does: str
    passes: str  # what counts as pass
    run: Callable[[Trial], Outcome]
    gpus: int = 1
    limit_s: float = 60
    has_cpu_form: bool = True


def require(seen: object, text: str) -> None:
    """Raise PartError with the text unless something was seen."""
    if not seen:
        raise PartError(text)
