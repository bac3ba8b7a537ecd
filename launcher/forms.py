"""Read what another machine sent into the type that describes it, within limits, and with harmless texts. Pure.

A reader returns a value of its type or raises FormError, whatever it is given: a broken or hostile machine harms only
its own part of a run. The types are those of a dataclass's fields, so its module must not postpone annotations.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from launcher.escapes import one_line, without_controls

MOST_LETTERS = 4096  # no path is longer
MOST_VALUES = 20_000  # of a list without another limit: more processes than most systems let a user have
_MAX_NUMBER = 1 << 64  # JSON has no limit, and arithmetic with 4,000 digits may raise later on; a float still holds it

MOST_IN_JSON = 1_000_000  # values in one text, of which each takes up to 100 bytes of memory
MOST_DEPTH = 100  # of what is in each other there

Reader = Callable[..., Any]


class FormError(ValueError):
    """A value doesn't have the form that its type describes."""


@dataclass(frozen=True, slots=True)
class Most:
    """How many values, or letters, there may be."""

    number: int


@dataclass(frozen=True, slots=True)
class Within:
    """The limits of a number."""

    least: float
    most: float


@dataclass(frozen=True, slots=True)
class SentAs:
    """Where a message has a field that has another name here, such as `search.version`."""

    path: str


AS_TEXT = "as a text"  # of any length, which may have several lines
AS_ROW = "as a row"  # of values, in the order of the fields of a dataclass
NOT_SENT = "not sent"  # of a field that is known only later


def is_address(value: str) -> bool:
    """Tell whether a text is an IP address, so that a machine can be reached by it without looking up a name."""
    try:
        return bool(ipaddress.ip_address(value))
    except ValueError:
        return False


Count = Annotated[int, Within(0, (1 << 32) - 1)]
Address = Annotated[str, is_address]
Text = Annotated[str, AS_TEXT]


def load_json(text: bytes) -> Any:
    """Return what JSON from another machine holds; raise FormError for what is none, or too much for any reader.

    Whoever reads the bytes limits their number.
    """
    if sum(map(text.count, (b"[", b"{", b","))) > MOST_IN_JSON:
        raise FormError(f"JSON of more than {MOST_IN_JSON} values")
    try:
        found = json.loads(text)
    except RecursionError:
        raise FormError("JSON that is too deep") from None
    except ValueError as error:
        raise FormError(f"no JSON: {error}") from None
    level = [found]
    for _ in range(MOST_DEPTH):
        level = [
            part
            for each in level
            if isinstance(each, (list, dict))
            for part in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return found
    raise FormError("JSON that is too deep")


@cache
def reader_of(form: Any) -> Reader:
    """Return what reads values of a type: a dataclass, or what its fields may be."""
    origin, args = get_origin(form), get_args(form)
    if origin is Annotated:
        if AS_TEXT in args:
            return _read_long_text
        if AS_ROW in args:
            read_row = _read_row(tuple(field.type for field in fields(args[0])))
            return lambda value: args[0](*read_row(value))
        read = reader_of(args[0])
        for rule in args[1:]:
            read = _limit(read, rule)
        return read
    if NoneType in args:
        read_value = reader_of(args[0])
        return lambda value: None if value is None else read_value(value)
    if origin is Literal:
        return lambda value: value if value in args else _refuse(value)
    if origin in (tuple, list):
        return _read_row(args) if origin is tuple and args[-1] is not ... else _read_list(origin, reader_of(args[0]))
    if origin is Mapping:
        return _read_mapping(*map(reader_of, args))
    if isinstance(form, type) and issubclass(form, Enum):
        members = {member.value: member for member in form}
        return lambda value: members[value] if isinstance(value, str) and value in members else _refuse(value)
    if isinstance(form, type) and is_dataclass(form):
        sent = [field for field in fields(form) if NOT_SENT not in getattr(field.type, "__metadata__", ())]
        has_default = {f.name for f in sent if f.default is not MISSING or f.default_factory is not MISSING}
        read_fields = fields_reader({field.name: field.type for field in sent}, has_default)
        return lambda value, **more: form(**read_fields(value), **more)
    return _SCALARS[form]


def fields_reader(forms: Mapping[str, Any], may_miss: Collection[str] = ()) -> Callable[[Any], dict[str, Any]]:
    """Return what reads an object's fields, given the type of each; no other field is kept.

    may_miss: those that are left out if they are missing or null.
    """
    readers = []
    for name, form in forms.items():
        paths = [rule.path for rule in getattr(form, "__metadata__", ()) if isinstance(rule, SentAs)]
        first, *deeper = (paths or [name])[0].split(".")
        readers.append((name, first, deeper, reader_of(form), name in may_miss))

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            _refuse(value)
        found, name = {}, ""
        try:
            for name, first, deeper, read_field, is_optional in readers:
                part = value.get(first)
                for step in deeper:
                    part = None if part is None else part.get(step) if isinstance(part, dict) else _refuse(part)
                if part is not None or not is_optional:
                    found[name] = read_field(part)
        except FormError as error:
            raise FormError(f"{name}: {error}") from None
        return found

    return read


def _limit(read: Reader, rule: Any) -> Reader:
    def read_few(value: Any) -> Any:  # before any of them is read
        if isinstance(value, list | dict | str) and len(value) > rule.number:
            raise FormError(f"{len(value)} of them; at most {rule.number} are accepted")
        return read(value)

    def read_within(value: Any) -> Any:
        return found if rule.least <= (found := read(value)) <= rule.most else _refuse(value)

    def read_right(value: Any) -> Any:
        return found if rule(found := read(value)) else _refuse(value)

    if isinstance(rule, SentAs):
        return read
    return read_few if isinstance(rule, Most) else read_within if isinstance(rule, Within) else read_right


def _read_list(make: type, read_value: Reader) -> Reader:
    def read(value: Any) -> Any:
        return make(map(read_value, value)) if isinstance(value, list) else _refuse(value)

    return _limit(read, Most(MOST_VALUES))


def _read_row(forms: tuple[Any, ...]) -> Reader:
    readers = [reader_of(form) for form in forms]

    def read(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            _refuse(value)
        return tuple([read(part) for read, part in zip(readers, value, strict=True)])

    return read


def _read_mapping(read_key: Reader, read_value: Reader) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            _refuse(value)
        return {read_key(key): read_value(part) for key, part in value.items()}

    return _limit(read, Most(MOST_VALUES))


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        _refuse(value)
    is_harmless = len(value) <= MOST_LETTERS and value.isprintable()  # as nearly all are, and soon known
    return value if is_harmless else one_line(value, MOST_LETTERS)


def _read_long_text(value: Any) -> str:
    if not isinstance(value, str):
        _refuse(value)
    return value if value.isprintable() else without_controls(value)


def _read_flag(value: Any) -> bool:
    return value if isinstance(value, bool) else _refuse(value)


def _read_integer(value: Any) -> int:
    return value if type(value) is int and -_MAX_NUMBER < value < _MAX_NUMBER else _refuse(value)


def _read_number(value: Any) -> float:
    """Read an int or a float, but no bool, infinity or NaN."""
    is_number = type(value) in (int, float) and -_MAX_NUMBER < value < _MAX_NUMBER
    return value if is_number else _refuse(value)  # type: ignore[no-any-return]


def _refuse(value: Any) -> Any:
    raise FormError(_shown(value))


def _shown(value: Any) -> str:
    """Return a wrong value in short; not what it contains, which may be deep and large."""
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    return f"{value!r:.80}"


_SCALARS: Mapping[Any, Reader] = {str: _read_text, bool: _read_flag, int: _read_integer, float: _read_number}
