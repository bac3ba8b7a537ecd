"""Times as text: local, with the UTC offset that this machine had when the program began."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

BEFORE = 1_792_889_999.9996  # a second before summer time ended in Berlin, 25 October 2026
SHOW = f"""
from launcher.clock import iso_time, local_time, utc_offset
print(utc_offset(), local_time({BEFORE}), iso_time({BEFORE} + 1), sep="|")
"""


@pytest.mark.parametrize(
    ("zone", "offset", "local", "iso"),
    [
        ("UTC", "+00:00", "2026-10-25 00:59:59.999", "2026-10-25T01:00:00.999+00:00"),
        ("CET-1CEST,0/0,365/24", "+02:00", "2026-10-25 02:59:59.999", "2026-10-25T03:00:00.999+02:00"),
        ("IST-5:30", "+05:30", "2026-10-25 06:29:59.999", "2026-10-25T06:30:00.999+05:30"),
        ("NST3:30", "-03:30", "2026-10-24 21:29:59.999", "2026-10-24T21:30:00.999-03:30"),
    ],
)
def test_a_time_has_the_offset_of_the_start(zone: str, offset: str, local: str, iso: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOW], env={**os.environ, "TZ": zone}, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{offset}|{local}|{iso}\n"
