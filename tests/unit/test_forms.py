"""What another machine sent is read by the type that describes it, or refused in one line."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, nan
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.forms import MOST_LETTERS, NOT_SENT, Address, Count, FormError, Most, SentAs, Within, load_json, reader_of


@dataclass(frozen=True, slots=True)
class Disk:
    """One of a list."""

    size: Count
    label: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """Every kind of field."""

    name: str
    share: Annotated[float, Within(0, 1)] | None = None
    address: Address | None = None
    disks: Annotated[tuple[Disk, ...], Most(2)] = ()
    pairs: list[tuple[int, str | None]] = field(default_factory=list)
    state: Literal["on", "off", None] = None
    used: Annotated[Mapping[str, bool], SentAs("more.used"), Most(2)] = field(default_factory=dict)
    seen: Annotated[str | None, NOT_SENT] = None


READ = reader_of(Machine)


def test_what_is_well_formed_becomes_a_value() -> None:
    told = {
        "name": "a\x1b[2J\nb", "share": 1, "address": "::1", "disks": [{"size": 5, "more": 1}], "pairs": [[1, None]],
        "state": "off", "more": {"used": {"x": True}}, "seen": "by the machine itself",
    }  # fmt: skip
    assert READ(told) == Machine("a?[2J?b", 1, "::1", (Disk(5),), [(1, None)], "off", {"x": True})
    assert READ({"name": "x" * 5000, "disks": None, "more": None}, seen="here") == Machine(
        "x" * MOST_LETTERS + "...", seen="here"
    )


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ([], "a list of 0"),
        ({}, "name: None"),
        ({"name": 5}, "name: 5"),
        ({"name": "a", "share": 1.5}, "share: 1.5"),
        ({"name": "a", "share": nan}, "share: nan"),
        ({"name": "a", "share": -inf}, "share: -inf"),
        ({"name": "a", "share": True}, "share: True"),
        ({"name": "a", "share": 10**400}, "share: 1" + 79 * "0"),
        ({"name": "a", "address": "evil.example.com"}, "address: 'evil.example.com'"),
        ({"name": "a", "disks": [{"size": 1}] * 3}, "disks: 3 of them; at most 2 are accepted"),
        ({"name": "a", "disks": {"size": 1}}, "disks: an object of 1"),
        ({"name": "a", "disks": [{"size": 1}, {}]}, "disks: size: None"),
        ({"name": "a", "disks": [{"size": 1 << 32}]}, "disks: size: 4294967296"),
        ({"name": "a", "pairs": [[1]]}, "pairs: a list of 1"),
        ({"name": "a", "pairs": [[1 << 64, None]]}, "pairs: 18446744073709551616"),
        ({"name": "a", "pairs": [[1, None]] * 20_001}, "pairs: 20001 of them; at most 20000 are accepted"),
        ({"name": "a", "state": "x\n"}, r"state: 'x\n'"),
        ({"name": "a", "more": [1]}, "used: a list of 1"),
        ({"name": "a", "more": {"used": {"a": True, "b": 0}}}, "used: 0"),
    ],
)
def test_anything_else_is_refused(told: Any, text: str) -> None:
    with pytest.raises(FormError) as error:
        READ(told)
    assert str(error.value) == text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.sampled_from(["size", "label", "used", "x"]), values),
    max_leaves=6,
)
NAMES = ["name", "share", "address", "disks", "pairs", "state", "more", "seen"]


@given(VALUES | st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_nothing_else_is_raised_and_no_text_has_a_second_line(told: Any) -> None:
    try:
        machine = READ(told)
    except FormError as error:
        assert str(error).isprintable()
    else:
        assert isinstance(machine, Machine)
        assert "\n" not in machine.name + "".join(machine.used) + "".join(disk.label for disk in machine.disks)


def nested(depth: int) -> bytes:
    return b'{"a": [' * (depth // 2) + b"7" + b"]}" * (depth // 2)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"[" + b"[]," * 1_000_000 + b"0]", "more than 1000000 values"), (nested(100), "too deep"),
        (nested(1_000_000), "too deep"), (b"[", "no JSON"), (b"", "no JSON"), (b"\xff", "no JSON"),
        (b"9" * 5000, "no JSON"),
    ],
)  # fmt: skip
def test_json_that_no_reader_takes(text: bytes, error: str) -> None:
    with pytest.raises(FormError, match=error):
        load_json(text)


def test_json_is_loaded() -> None:
    text = b'{"a": [1, 2.5, {"b": null}], "c": "\xc3\xa9"}'
    assert load_json(text) == {"a": [1, 2.5, {"b": None}], "c": "\u00e9"}
    assert load_json(nested(98))["a"][0]["a"]
