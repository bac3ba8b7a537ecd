"""Which files of NCCL's flight recorder may be unpickled: real dumps, and not what a hostile rank would send."""

from __future__ import annotations

import base64
import os
import pickle
import zlib
from pathlib import Path

import pytest

from launcher.diagnosis.flight_recorder import MAX_FILE_BYTES, MAX_STRINGS, check_dump, find_unsafe

# What torch 2.13 wrote of two all_reduces (torch._C._distributed_c10d._dump_fr_trace, with gloo).
DUMP = zlib.decompress(
    base64.b64decode(
        """
eNptU8luE0EQtR07+2YSyA5ZiQOJt5gsCCFOHDKKL1xaQtZoMtNxjRjPTPWSKEhInKLAT/AFfAV/w5UPgOq2TQLKXKaWV1Wv
lv6c+1RiQ5lM5oILGSYxZlietHq5VsUsGyExbbt+Ep+HbTRQMmRwgASDir0OxzwMWCXg0scCKQVShBd/kDjIBkh+X23hkNZs
mmQ/6XTcKDxz++WGKaBXRSpPaYkjlDxLliqOkjRPUuRJ5fIYNdc8IDJRxH0VXnAcc3Jsrg+gcKH+9Y+f/KaPLfQhVD2N+H+g
CSdH5MwIeKxEyCVOtkpUeZAs54I6lDhlDJBno2TyosgVPNA+x2k2bDBhxO0gimyLVJUIHypBKCnXmaZad2XXr1WDcnqFD+zI
ojDmOHP6fVzjrC1gWFwKL025wIdQZKv3JjRJ3Chpt7kwuR7BjPNO45zNYNJKxVOcp/AJUiqqk1aU8MLYYBcIW9C4aLGG/atO
EuiIv8YlKILxDmpc5nYlgvuJCNwwwBUnY7dKSyLtMWkmcyoSn0vptkWiU3wCo3Y+AT/3dKTctI2r12zMNACCe4FrZ7Rmx5pe
KaDdr9syPTcl3mBTpNf2j4/qjXqjdnh8VK0d4CYr2sPpL8yVHA16y8nagmk97Zue9ngmqdG2CTDZ5Uk7CuN2l0LJVmlHSfLy
zi53rFWFHe76xMfsKpb47OvwwrfWrw32c962EsappksLP9JRPG+VWqXT3ayT55yN/3UG6iol726rZKm8jRJP4V4XkWh1G1++
Gz9x6+0lqLRKQGEFu0/ig1U7LekDNwsLsMYW+4zpOPyEXhSR7r8CIl9vsuV7ELePgDD7TXtzgquQfNi4sSM1IcTG7Uh8cfLm
ciljtxZKl2aNB180XQ89CZiFOViEZQ4rThboKoBuAFavYQ3WYQM2YcvJAa0Etulfgh2gaeZ+eHaa0J3enu0edm2vUL5r6/YP
VahBvQn7TWjcQJcMEAOu8bD8B6uRZzs=
        """
    )
)


class Trap:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch pwned",)


def test_a_real_dump_is_plain_data() -> None:
    assert check_dump(DUMP) == ""
    assert {*pickle.loads(DUMP)} == {"version", "pg_config", "comm_lib_version", "pg_status", "entries"}


def test_a_dump_that_is_cut_off_is_refused() -> None:
    assert {check_dump(DUMP[:end]) for end in range(2, len(DUMP))} == {"is cut off"}


@pytest.mark.parametrize("protocol", range(6))
def test_a_dump_that_would_run_a_command_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in (Trap(), {"entries": [Trap()], "version": "2.10", "pg_config": {}}):
        assert check_dump(pickle.dumps(value, protocol)) != ""
    assert not Path("pwned").exists()


CALL = b"cos\nsystem\n(Vtouch pwned\ntR"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x80\x02}.", ""),
        (b"", "isn't a dump of the flight recorder"),
        (b"dump\n", "isn't a dump of the flight recorder"),
        (b"\x80\x02N", "is cut off"),
        (b"\x80\x02X\xff\xff\xff\xffa.", "is cut off"),
        (b"\x80\x02" + CALL + b".", "holds more than plain data at byte 2 and could run code here"),
        (b"\x80\x02}" + CALL + b".", "holds more than plain data at byte 3 and could run code here"),
        (DUMP[:-1] + CALL + b".", f"holds more than plain data at byte {len(DUMP) - 1} and could run code here"),
        # A string of which the length is a lie hides no call.
        (b"\x80\x02X\x02\0\0\0ab" + CALL + b".", "holds more than plain data at byte 9 and could run code here"),
        # A table for 2**31 entries, a number of a gigabyte.
        (b"\x80\x02Nr\xff\xff\xff\x7f..........", "holds more than plain data at byte 3 and could run code here"),
        (b"\x80\x02\x8b\xff\xff\xff\x3f.", "holds more than plain data at byte 2 and could run code here"),
        (b"\x80\x02" + b"X\0\0\0\0" * (MAX_STRINGS + 1) + b".", f"holds more than {MAX_STRINGS} texts"),
        (b"\x80\x02" + b"(" * MAX_FILE_BYTES, f"is larger than {MAX_FILE_BYTES >> 20} MiB"),
    ],
)
def test_what_is_no_dump_of_torch(content: bytes, reason: str) -> None:
    assert check_dump(content) == reason


def test_every_file_is_looked_at(tmp_path: Path) -> None:
    for name, content in {"a": DUMP, "b": b"x", "c": DUMP[:-1]}.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "d").mkdir()
    assert find_unsafe(sorted(tmp_path.iterdir())) == {
        tmp_path / "b": "isn't a dump of the flight recorder",
        tmp_path / "c": "is cut off",
        tmp_path / "d": "can't be read: Is a directory",
    }
