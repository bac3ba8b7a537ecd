"""JSON through the C functions that the json module itself uses.

`import json` also imports re and enum, and takes 6 ms of a start of 20 ms. These functions are private to Python: if
they are missing, or fail on a sample, `loads` and `dumps` are those of the json module.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Reader = Callable[[str], Any]
    Writer = Callable[[Any], str]


class _Context:
    """The attributes of a json.JSONDecoder that its scanner reads."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: dict[str, str] = {}  # noqa: RUF012 - the scanner needs it, and clears it


def _refuse(value: object) -> Any:
    raise TypeError("not a JSON value: %r" % (value,))


def _fast() -> tuple[Reader, Writer]:
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    context: Any = _Context
    scan = make_scanner(context)
    encode = make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, True)

    def read(text: str) -> Any:
        try:
            value, end = scan(text, 0)
        except (StopIteration, SystemError):  # the latter while json, and so its exception, is not imported
            raise ValueError("not JSON") from None
        if text[end:].strip():
            raise ValueError("more than one JSON value")
        return value

    def write(value: Any) -> str:
        return "".join(encode(value, 0))

    sample = {"a": [1, -2.5, None, True, 'x"\n\u20ac'], "b": {}}
    if read(write(sample)) != sample:
        raise ValueError("these functions do not work as expected")
    return read, write


def _plain() -> tuple[Reader, Writer]:
    import json

    return json.loads, lambda value: json.dumps(value, separators=(",", ":"))


try:
    loads, dumps = _fast()
except Exception:  # noqa: BLE001 - another Python's private functions may fail in any way
    loads, dumps = _plain()
