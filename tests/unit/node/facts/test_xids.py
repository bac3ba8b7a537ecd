"""GPU faults in the kernel's log: what counts, and what is no fault or too old."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.diagnosis.signatures import HARDWARE_XIDS
from launcher.node.facts.gpus import find_xids

DAY_S = 24 * 3600
UPTIME_S = 10 * DAY_S
FELL_OFF = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4411, name=python, GPU has fallen off the bus."
DOUBLE_BIT = "NVRM: Xid (PCI:0000:5e:00): 48, pid='<unknown>', An uncorrectable double bit error"


# Of NVLink 5, in public issues about DGX B200 and GB200.
LINK_DOWN = "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000000)"
BIT_ERRORS = (
    "NVRM: Xid (PCI:0018:01:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001 0x00000000)"
)


def make_log(*records: str) -> str:
    """Make what reads as /dev/kmsg does: a record for each read, as a pipe of packets gives it."""
    read_end, write_end = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
    for text in records:
        os.write(write_end, text.encode())
    return f"/proc/self/fd/{read_end}"


def record(text: str, age_s: float = 5) -> str:
    return f"4,1234,{int((UPTIME_S - age_s) * 1e6)},-;{text}\n"


def test_faults_of_the_last_day() -> None:
    log = make_log(record("eth0: link up"), record(FELL_OFF, DAY_S - 1), record(FELL_OFF), record(DOUBLE_BIT))
    assert find_xids(log, UPTIME_S) == [{"gpu": "0000:3b:00", "number": 79}, {"gpu": "0000:5e:00", "number": 48}]


def test_a_fault_of_nvlink_counts_if_it_is_fatal() -> None:
    log = make_log(record(BIT_ERRORS), record(LINK_DOWN))
    assert find_xids(log, UPTIME_S) == [{"gpu": "0018:01:00", "number": 149}]
    assert 149 in HARDWARE_XIDS


@pytest.mark.parametrize(
    "text",
    [
        record(FELL_OFF, DAY_S + 1),
        f"no head {FELL_OFF}",
        f"4,1,-5,-;{FELL_OFF}",
        record("NVRM: Xid (PCI:0000:3b:00): none"),
        record("NVRM: loading NVIDIA UNIX x86_64 Kernel Module"),
    ],
    ids=["old", "no head", "no time", "no number", "other"],
)
def test_what_is_none(text: str) -> None:
    assert find_xids(make_log(text), UPTIME_S) == []


def test_a_log_that_may_not_be_read(tmp_path: Path) -> None:
    assert find_xids(str(tmp_path / "none")) == []
