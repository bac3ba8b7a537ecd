"""Times as text: local, with the UTC offset that this machine had when the program began."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from launcher.clock import read_time

READ = """
import sys
from launcher.clock import read_time, short_time
at = read_time(sys.argv[1], float(sys.argv[2]))
print(int(at), short_time(at, float(sys.argv[2])), sep="|")
"""
BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"  # summer time ends on 25 October 2026, at 01:00 UTC
NOON = 1_792_843_200  # 24 October 2026, 12:00 UTC
HOUR = 3600
BEFORE = 1_792_889_999.9996  # a second before summer time ended in Berlin, 25 October 2026
SHOW = f"""
from launcher.clock import iso_time, local_time, utc_offset
print(utc_offset(), local_time({BEFORE}), iso_time({BEFORE} + 1), sep="|")
"""


def run(zone: str, *words: str) -> str:
    """Return what a program of Python prints in a time zone."""
    env = {**os.environ, "TZ": zone}
    return subprocess.run([sys.executable, "-c", *words], env=env, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("zone", "offset", "local", "iso"),
    [
        ("CET-1CEST,0/0,365/24", "+02:00", "2026-10-25 02:59:59.999", "2026-10-25T03:00:00.999+02:00"),
        ("NST3:30", "-03:30", "2026-10-24 21:29:59.999", "2026-10-24T21:30:00.999-03:30"),
    ],
)
def test_a_time_has_the_offset_of_the_start(zone: str, offset: str, local: str, iso: str) -> None:
    assert run(zone, SHOW) == f"{offset}|{local}|{iso}\n"


@pytest.mark.parametrize(
    ("zone", "text", "now", "at", "shown"),
    [
        ("UTC", "12:00", NOON, NOON + 24 * HOUR, "2026-10-25 12:00"),
        ("UTC", "12:00", NOON - 0.5, NOON, "12:00"),
        ("UTC", "2026-10-24 11:00", NOON, NOON - HOUR, "11:00"),
        ("UTC", "2026-11-01T00:30", NOON, NOON + 7 * 24 * HOUR + 12.5 * HOUR, "2026-11-01 00:30"),
        ("IST-5:30", "17:30", NOON, NOON + 24 * HOUR, "2026-10-25 17:30"),
        (BERLIN, "14:00", NOON, NOON + 25 * HOUR, "2026-10-25 14:00"),  # that day has 25 hours
        (BERLIN, "2:30", NOON + 13 * HOUR + 600, NOON + 13.5 * HOUR, "02:30"),  # for the second time that night
    ],
)
def test_a_time_that_was_typed_is_the_next_one_here(zone: str, text: str, now: float, at: float, shown: str) -> None:
    assert run(zone, READ, text, str(now)) == f"{int(at)}|{shown}\n"


@pytest.mark.parametrize(
    "text", ["", "18", "24:00", "18:60", "6pm", "18:00:00", "1:5", "2026-02-30 00:00", "26-11-01 18:00", "\u0661:00"]
)
def test_other_texts_are_no_times(text: str) -> None:
    with pytest.raises(ValueError):
        read_time(text, NOON)
