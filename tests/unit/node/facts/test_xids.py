"""GPU faults in the kernel's log: what counts, and what is no fault."""

from __future__ import annotations

import os

import pytest

from launcher.diagnosis.signatures import HARDWARE_XIDS
from launcher.node.facts import gpus

FELL_OFF = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4411, name=python, GPU has fallen off the bus."
# Of NVLink 5, in public issues about DGX B200 and GB200.
LINK_DOWN = "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000000)"
BIT_ERRORS = (
    "NVRM: Xid (PCI:0018:01:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001 0x00000000)"
)
OTHERS = "NVRM: Xid (PCI:0000:3b:00): none", "NVRM: loading NVIDIA UNIX x86_64 Kernel Module", "eth0: link up"


def test_faults_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe of packets reads as /dev/kmsg does: a record for each read."""
    read_end, write_end = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
    monkeypatch.setattr(gpus, "KERNEL_LOG", f"/proc/self/fd/{read_end}")
    monkeypatch.setattr(os, "lseek", lambda *_: 0)  # to the end
    find = gpus.follow_xids()
    for text in (FELL_OFF, LINK_DOWN, BIT_ERRORS, *OTHERS):
        os.write(write_end, f"4,1234,56789,-;{text}\n".encode())
    assert find() == [{"gpu": "0000:3b:00", "number": 79}, {"gpu": "0018:01:00", "number": 149}]
    assert find() == []
    assert {79, 149} <= HARDWARE_XIDS


def test_a_log_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "KERNEL_LOG", "/nowhere")
    assert gpus.follow_xids()() == []
