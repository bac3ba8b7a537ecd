"""A libnvidia-ml.so.1 without a driver, whose GPUs do what a file says while it is read."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.node import nvml

HANGS = 255  # as the number of GPUs
RESERVED_MIB = 483  # by the driver for itself, of an H100; nvidia-smi doesn't show it as used
ADDRESSES = ("00000000:3b:00.0", "00000000:5e:00.0")  # of the first two
# What each call about a GPU returns, from NVIDIA's nvml.h.
LOST, UNSUPPORTED = 15, 3
_NUMBERS = 10
# Without libc's headers, which may be missing.
_SOURCE = r"""
typedef unsigned int number;
typedef unsigned long long wide;
enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, WRONG_VERSION = 25 };
enum { UTIL, USED, TOTAL, POWER, LIMIT, HEAT, CLOCK, REASONS, ECC, STATUS, NUMBERS };
extern char *getenv(const char *);
extern int open(const char *, int, ...), close(int), pause(void);
extern long read(int, void *, unsigned long);
static wide table[1 + 64 * NUMBERS];

static wide *look(long gpu) {
    int fd = open(getenv("DRIVEN_NVML"), 0);
    read(fd, table, sizeof table);
    close(fd);
    if (table[0] == 255) pause();
    return table + 1 + (gpu - 1) * NUMBERS;
}
static int find(const char *name, const char *first, const char *second, long *gpu) {
    for (*gpu = 1; *gpu <= 2; ++*gpu) {
        const char *one = name, *other = *gpu == 1 ? first : second;
        for (; *one && *one == *other; one++, other++) ;
        if (*one == *other) return SUCCESS;
    }
    return NOT_FOUND;
}
#define ANSWER(type, field) { *value = (type)look(gpu)[field]; return look(gpu)[STATUS]; }
int nvmlInit_v2(void) { return getenv("DRIVEN_NVML") ? SUCCESS : NOT_FOUND; }
int nvmlDeviceGetCount_v2(number *count) { look(1); *count = table[0]; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(number index, long *gpu) { *gpu = index + 1; return SUCCESS; }
int nvmlDeviceGetHandleByUUID(const char *uuid, long *gpu) { return find(uuid, "GPU-aa", "GPU-bb", gpu); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *address, long *gpu) {
    return find(address, FIRST, SECOND, gpu);
}
int nvmlDeviceGetIndex(long gpu, number *index) { *index = gpu - 1; return look(gpu)[STATUS]; }
int nvmlDeviceGetName(long gpu, char *name, number size) { name[0] = 'H'; name[1] = '1'; name[2] = 0; return SUCCESS; }
int nvmlDeviceGetUtilizationRates(long gpu, number *value) ANSWER(number, UTIL)
int nvmlDeviceGetMemoryInfo(long gpu, wide *value) {
    value[0] = look(gpu)[TOTAL]; value[2] = look(gpu)[USED] + RESERVED; return look(gpu)[STATUS];
}
#ifndef OLD
struct memory { number version; wide total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(long gpu, struct memory *found) {
    if (found->version != (sizeof *found | 2 << 24)) return WRONG_VERSION;
    found->total = look(gpu)[TOTAL]; found->used = look(gpu)[USED]; return look(gpu)[STATUS];
}
#endif
int nvmlDeviceGetPowerUsage(long gpu, number *value) ANSWER(number, POWER)
int nvmlDeviceGetEnforcedPowerLimit(long gpu, number *value) ANSWER(number, LIMIT)
int nvmlDeviceGetTemperature(long gpu, number sensor, number *value) {
    *value = look(gpu)[HEAT]; return sensor == 0 ? look(gpu)[STATUS] : NOT_SUPPORTED;
}
int nvmlDeviceGetClockInfo(long gpu, number clock, number *value) {
    *value = look(gpu)[CLOCK]; return clock == 1 ? look(gpu)[STATUS] : NOT_SUPPORTED;
}
int nvmlDeviceGetMaxClockInfo(long gpu, number clock, number *value) { *value = 1980; return SUCCESS; }
int nvmlDeviceGetCurrentClocksThrottleReasons(long gpu, wide *value) ANSWER(wide, REASONS)
int nvmlDeviceGetTotalEccErrors(long gpu, number kind, number since, wide *value) {
    *value = kind == 1 ? look(gpu)[ECC] : 0; return since == 0 ? look(gpu)[STATUS] : NOT_SUPPORTED;
}
"""


class DrivenNvml:
    """The library, and the file that it reads."""

    def __init__(self, folder: Path, *options: str) -> None:
        """Compile it; options: of the compiler, such as -DOLD for a driver without nvmlDeviceGetMemoryInfo_v2."""
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler (Debian: apt-get install gcc)")
        self.folder = folder
        self._table = folder / "gpus"
        source = folder / "nvml.c"
        source.write_text(_SOURCE)
        argv = [compiler, "-shared", "-fPIC", "-nostdlib", "-fno-stack-protector", "-w"]
        argv += [f'-D{name}="{address}"' for name, address in zip(("FIRST", "SECOND"), ADDRESSES, strict=True)]
        argv += [f"-DRESERVED={RESERVED_MIB << 20}ull", *options]
        subprocess.run([*argv, "-o", folder / "libnvidia-ml.so.1", source], check=True)

    @property
    def env(self) -> dict[str, str]:
        """What a process needs in its environment to see the GPUs."""
        return {"LD_LIBRARY_PATH": str(self.folder), "DRIVEN_NVML": str(self._table)}

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Be the library of this process until the test ends."""
        monkeypatch.setattr(nvml, "LIBRARY", str(self.folder / "libnvidia-ml.so.1"))
        monkeypatch.setenv("DRIVEN_NVML", str(self._table))

    def drive(self, *gpus: Sequence[int] | int) -> None:
        """Let the GPUs do this; one that is LOST or UNSUPPORTED answers each call with that error.

        Each is utilization in percent, used and whole memory in MiB, power and its limit in W, temperature, clock in
        MHz, the reasons for that, and memory errors.
        """
        units = (1, 1 << 20, 1 << 20, 1000, 1000, 1, 1, 1, 1)
        rows = []
        for gpu in gpus:
            values, status = ([0] * len(units), gpu) if isinstance(gpu, int) else (gpu, 0)
            rows += [*(value * unit for value, unit in zip(values, units, strict=True)), status]
        self._write(len(gpus), rows)

    def hang(self) -> None:
        """Never answer any more."""
        self._write(HANGS, [0] * _NUMBERS)

    def _write(self, number: int, rows: Sequence[int]) -> None:
        fresh = self._table.with_suffix(".new")
        fresh.write_bytes(struct.pack(f"{1 + len(rows)}Q", number, *rows))
        fresh.replace(self._table)
