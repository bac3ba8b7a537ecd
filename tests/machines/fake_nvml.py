"""A libnvidia-ml.so.1 without a driver: two GPUs, of which one gets hot and has memory errors while it is read."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HOT_C = 84
# GPU 0 is well, and has no ECC. GPU 1 is a degree hotter at each look, from 80 on; at HOT_C it is slowed down for a
# while, and each look at its uncorrected errors finds another one. Without libc, whose headers may be missing.
SOURCE = r"""
typedef unsigned int number;
typedef unsigned long long wide;
enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
static int gpus[2] = {0, 1}, looks;
static wide errors;

static int is_equal(const char *one, const char *other) {
    for (; *one && *one == *other; one++, other++) ;
    return *one == *other;
}
static int find(const char *name, const char *first, const char *second, int **gpu) {
    *gpu = is_equal(name, first) ? gpus : is_equal(name, second) ? gpus + 1 : 0;
    return *gpu ? SUCCESS : NOT_FOUND;
}
int nvmlInit_v2(void) { return SUCCESS; }
int nvmlDeviceGetHandleByUUID(const char *uuid, int **gpu) { return find(uuid, "GPU-aa", "GPU-bb", gpu); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *address, int **gpu) {
    return find(address, "00000000:3b:00.0", "00000000:5e:00.0", gpu);
}
int nvmlDeviceGetIndex(int *gpu, number *index) { *index = *gpu; return SUCCESS; }
int nvmlDeviceGetTemperature(int *gpu, number sensor, number *degrees) {
    *degrees = *gpu ? 80 + looks++ : 45;
    return sensor ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetClockInfo(int *gpu, number clock, number *mhz) {
    *mhz = *gpu && looks > 4 ? 800 : 1980;
    return clock == 1 ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(int *gpu, wide *reasons) {
    *reasons = *gpu && looks == 4 ? 0x48 : *gpu ? 0x04 : 0x01;
    return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(int *gpu, number kind, number counter, wide *count) {
    *count = kind ? 7 + errors++ : 0;
    return *gpu && !counter ? SUCCESS : NOT_SUPPORTED;
}
#ifndef OLD
int nvmlDeviceGetPowerUsage(int *gpu, number *milliwatts) { *milliwatts = *gpu ? 700000 : 71000; return SUCCESS; }
#endif
"""


def build(folder: Path, *options: str) -> Path:
    """Compile the library into a directory; options: of the compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (Debian: apt-get install gcc)")
    source, library = folder / "nvml.c", folder / "libnvidia-ml.so.1"
    source.write_text(SOURCE)
    argv = [compiler, "-shared", "-fPIC", "-nostdlib", "-fno-stack-protector", *options, "-o", library, source]
    subprocess.run(argv, check=True)
    return library
