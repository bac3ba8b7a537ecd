"""Our `dataclass` beside the standard library's: the same classes, made by both."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from launcher import lazy_dataclass

Make = Callable[..., Callable[[type], type]]
KINDS = [{}, {"slots": True}, {"frozen": True}, {"frozen": True, "slots": True}]


def make(dataclass: Make, **kind: bool) -> SimpleNamespace:
    """Return some classes of each sort that there are."""

    @dataclass(**kind)
    class Empty:
        """Has no field."""

    @dataclass(**kind)
    class Point:
        """Has defaults of each sort."""

        x: int
        y: int = 2
        names: list[str] = dataclasses.field(default_factory=list)
        note: str = dataclasses.field(default="", repr=False, compare=False)

    @dataclass(**kind)
    class Near(Point):
        """Inherits fields."""

        distance: float = 0.5
        _names: int = 3

    @dataclass(**kind)
    class Own:
        """Has methods that are kept."""

        size: int

        def __post_init__(self) -> None:
            if self.size < 0:
                raise ValueError(self.size)

        def __repr__(self) -> str:
            return f"own {self.size}"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    return SimpleNamespace(Empty=Empty, Point=Point, Near=Near, Own=Own)


@pytest.fixture(params=KINDS, ids=str)
def both(request: pytest.FixtureRequest) -> list[SimpleNamespace]:
    return [make(dataclass, **request.param) for dataclass in (dataclasses.dataclass, lazy_dataclass.dataclass)]


def outcome(call: Callable[[], object]) -> str:
    """Return what a call returns or raises, without what differs by design: the objects of two sorts of a class."""
    try:
        return repr(call())
    except Exception as error:  # noqa: BLE001 - whatever it is, it has to be the same
        return f"{type(error).__name__}: {error}"


def change(value: Any, name: str) -> Any:
    setattr(value, name, 9)
    return value


def drop(value: Any, name: str) -> Any:
    delattr(value, name)
    return value


@pytest.mark.parametrize(
    "use",
    [
        lambda made: made.Empty(),
        lambda made: made.Empty() == made.Empty(),
        lambda made: made.Empty(1),
        lambda made: made.Point(),
        lambda made: made.Point(1, z=2),
        lambda made: made.Point(1),
        lambda made: (made.Point(1), made.Point(2, names=["a"])),
        lambda made: made.Point(1, 3, ["a"], "said").note,
        lambda made: made.Point(1).names is made.Point(1).names,
        lambda made: made.Point(1) == made.Point(1, 2, [], "not compared"),
        lambda made: (made.Point(1) == made.Point(3), made.Point(1) != made.Near(1), made.Point(1) == 1),
        lambda made: made.Near(1, distance=4),
        lambda made: made.Near(1)._names,
        lambda made: made.Near(1, 2, [], "", 1.5, 4),
        lambda made: made.Own(3),
        lambda made: made.Own(-3),
        lambda made: (made.Own(3) == 5, hash(made.Own(3))),
        lambda made: hash(made.Near(1, names=()).x),
        lambda made: hash(made.Point(1, names=())) == hash(made.Point(1, names=())),
        lambda made: hash(made.Point(1)),
        lambda made: change(made.Point(1), "x"),
        lambda made: drop(made.Point(1), "x"),
        lambda made: dataclasses.replace(made.Point(1), x=5),
        lambda made: (dataclasses.asdict(made.Near(1)), dataclasses.astuple(made.Near(1))),
        lambda made: [(each.name, each.default) for each in dataclasses.fields(made.Near)][:2],
        lambda made: copy.deepcopy(made.Near(1)),
        lambda made: (made.Point.__doc__, made.Point.__match_args__),
    ],
)
def test_it_is_as_in_the_standard_library(
    use: Callable[[SimpleNamespace], object], both: list[SimpleNamespace]
) -> None:
    theirs, ours = (outcome(lambda made=made: use(made)) for made in both)
    assert ours == theirs


Pickled = lazy_dataclass.dataclass(frozen=True, slots=True)(type("Pickled", (), {"__annotations__": {"x": int}}))
Pickled.__module__ = __name__


def test_it_is_pickled() -> None:
    assert pickle.loads(pickle.dumps(Pickled(3))) == Pickled(3)


def test_it_is_compiled_for_the_first_object() -> None:
    made = make(lazy_dataclass.dataclass, frozen=True, slots=True)
    before = made.Point.__init__
    made.Point(1)
    assert made.Point.__init__ is not before
    assert made.Point.__init__.__code__.co_varnames == ("self", "x", "y", "names", "note")
