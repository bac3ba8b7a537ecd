"""The form of each message that a supervisor may send, checked before anything relies on it.

A node is another machine: a broken or hostile one must not harm anything but its own part of the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from launcher.node import messages
from launcher.session.facts_message import MOST_PROCESSES, is_address

MAX_LOCAL_RANK = 4095
MAX_AGE_S = 1e6
MAX_CLOCK_S = 1e11  # seconds since 1970
_MAX_KEEPERS = 2  # supervisor and guardian
_MOST_LEVELS = 4096  # of a path
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")  # a name in the log directory, and no path

_Test = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_address_or_none(value: Any) -> bool:
    return value is None or is_address(value)


def _is_age(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MAX_AGE_S


def _is_age_or_none(value: Any) -> bool:
    return value is None or _is_age(value)


def _is_clock(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MAX_CLOCK_S


def _is_clock_or_none(value: Any) -> bool:
    return value is None or _is_clock(value)


def _are_texts_or_none(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text_or_none, value))


def _are_few_texts_or_none(value: Any) -> bool:
    return value is None or _are_few_texts(value)


def _are_addresses(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= messages.MOST_NAMES and all(map(is_address, value))


def _are_few_texts(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= messages.MOST_NAMES and all(map(_is_text, value))


def _are_links(value: Any) -> bool:
    """Return whether each link is None, or seconds of a round trip, packets sent and packets lost."""
    return isinstance(value, list) and all(
        link is None
        or (isinstance(link, list) and len(link) == 3 and _is_age(link[0]) and all(map(_is_count, link[1:])))
        for link in value
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _is_file_count_or_none(value: Any) -> bool:
    return value is None or (_is_count(value) and value <= messages.MAX_FILES)


def _is_port_or_none(value: Any) -> bool:
    return value is None or (_is_count(value) and value <= 65535)


def _is_code_or_none(value: Any) -> bool:
    return value is None or (_is_count(value) and value <= 255)


def _is_signal_or_none(value: Any) -> bool:
    return value is None or (_is_count(value) and value <= 64)


def _is_certainty_or_none(value: Any) -> bool:
    return value in (None, "certain", "probable")


def _is_ending_or_none(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict) and all(is_right(value.get(name)) for name, is_right in _ENDING.items())
    )


def _is_local_rank(value: Any) -> bool:
    return _is_count(value) and value <= MAX_LOCAL_RANK


def _is_local_rank_or_none(value: Any) -> bool:
    return value is None or _is_local_rank(value)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_flag_or_none(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _is_level_or_none(value: Any) -> bool:
    return value is None or (_is_count(value) and value <= _MOST_LEVELS)


def _is_stream(value: Any) -> bool:
    return value in (1, 2)


def _is_census(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(entry, list) and len(entry) == 3 and _is_count(entry[0]) and all(map(_is_text, entry[1:]))
        for entry in value
    )


def _are_pairs_of_texts_or_none(value: Any) -> bool:
    return value is None or (
        isinstance(value, list)
        and all(isinstance(entry, list) and len(entry) == 2 and all(map(_is_text, entry)) for entry in value)
    )


def _are_unfinished_or_none(value: Any) -> bool:
    return value is None or (
        isinstance(value, list)
        and len(value) <= messages.MOST_NAMES
        and all(
            isinstance(entry, list) and len(entry) == 2 and (entry[0] is None or _is_count(entry[0]))
            and _is_text(entry[1])
            for entry in value
        )
    )  # fmt: skip


def _are_code_files_or_none(value: Any) -> bool:
    return _are_pairs_of_texts_or_none(value) and len(value or ()) <= messages.MAX_CODE_FILES


def _is_file_name(value: Any) -> bool:
    return isinstance(value, str) and _FILE_NAME.fullmatch(value) is not None


def _is_stack_source_or_none(value: Any) -> bool:
    return value in (None, "py-spy", "faulthandler")


def _is_stack_state_or_none(value: Any) -> bool:
    return value in (None, "D", "T")


def _is_stack_size_or_none(value: Any) -> bool:
    return value is None or (_is_count(value) and value <= messages.MAX_STACK_BYTES)


def _are_keepers(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _MAX_KEEPERS
        and all(isinstance(entry, list) and len(entry) == 2 and all(map(_is_count, entry)) for entry in value)
    )


_ENDING: Mapping[str, _Test] = {"code": _is_code_or_none, "signal": _is_signal_or_none}
_FORMS: Mapping[str, Mapping[str, _Test]] = {
    messages.BEAT: {"echo": _is_clock_or_none, "held_s": _is_age_or_none},
    messages.HELLO: {"folder": _is_text, "keepers": _are_keepers, "sleeps_along": _is_flag_or_none},
    messages.FACTS: {},  # `facts_message.read_facts` knows their form
    messages.ROUTED: {"interface": _is_text_or_none, "address": _is_address_or_none, "port": _is_port_or_none,
                      "error": _is_text_or_none, "probe_port": _is_port_or_none, "clock": _is_clock,
                      "held_s": _is_age_or_none},
    messages.PROBED: {"errors": _are_texts_or_none, "links": _are_links, "reverse_dns_s": _is_age_or_none,
                      "own_address": _is_text_or_none},
    messages.SHARED: {"up": _is_level_or_none, "is_there": _is_flag_or_none},
    messages.WANTED: {"group": _is_text, "needs_listing": _is_flag},
    messages.TOOK: {},
    messages.MET: {"port": _is_port_or_none, "addresses": _are_addresses},
    messages.JOINED: {"is_complete": _is_flag},
    messages.PLACED: {"path": _is_text, "hash": _is_text, "wrong_count": _is_count,
                      **dict.fromkeys(("wrong", "extras", "repaired", "empty", "unmade"), _are_few_texts)},
    messages.UNPLACED: {"text": _is_text, "is_disk": _is_flag, "is_full": _is_flag},
    messages.PRUNED: {"runs": _is_count, "bytes": _is_size, "left": _are_few_texts},
    messages.CODE: {"files": _are_code_files_or_none},
    messages.STARTED: {"local_rank": _is_local_rank, "pid": _is_count},
    messages.OUTPUT: {"local_rank": _is_local_rank_or_none, "stream": _is_stream},
    messages.EXIT: {"local_rank": _is_local_rank, "age_s": _is_age, "was_stopping": _is_flag,
                    "oom": _is_certainty_or_none, **_ENDING},
    messages.ENDED: _ENDING,
    messages.CENSUS: {"left": _is_census, "reason": _is_text_or_none, "supervisor": _is_ending_or_none,
                      "files": _is_file_count_or_none, "folders": _are_pairs_of_texts_or_none,
                      "tree": _is_text_or_none, "written": _are_few_texts_or_none,
                      "unfinished": _are_unfinished_or_none},
    messages.SEEN: {"has_saved": _is_flag_or_none, "is_missing": _is_flag_or_none},
    messages.RAS_STATUS: {},
    messages.STACK: {"number": _is_count, "local_rank": _is_local_rank, "pid": _is_count,
                     "source": _is_stack_source_or_none, "state": _is_stack_state_or_none, "wchan": _is_text_or_none,
                     "reason": _is_text_or_none, "size": _is_stack_size_or_none},
    messages.FILE: {"name": _is_file_name},
    messages.FAILED: {"text": _is_text, "supervisor": _is_ending_or_none},
}  # fmt: skip


def check_message(header: Mapping[str, Any]) -> None:
    """Raise MalformedMessage unless `header` has the form of a message that a node may send."""
    form = _FORMS.get(header["type"])
    if form is None:
        raise messages.MalformedMessage(f"unknown type {header['type']!r:.80}")
    for name, is_right in form.items():
        if isinstance(header.get(name), list) and len(header[name]) > MOST_PROCESSES:
            text = f"{header['type']} with {len(header[name])} entries in {name}; at most {MOST_PROCESSES} are accepted"
            raise messages.MalformedMessage(text)
        if not is_right(header.get(name)):
            raise messages.MalformedMessage(f"{header['type']} with {name} {header.get(name)!r:.80}")
