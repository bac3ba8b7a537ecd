"""Read what the driver knows of one NVIDIA GPU, through NVML (libnvidia-ml.so.1) and the standard library's ctypes.

Only calls with scalar results: NVML's structs have changed without a new version.
https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import ctypes
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0
_GPU_SENSOR, _SM_CLOCK = 0, 1  # NVML_TEMPERATURE_GPU, NVML_CLOCK_SM
_CORRECTED, _UNCORRECTED, _SINCE_BOOT = 0, 1, 0  # NVML_MEMORY_ERROR_TYPE_*, NVML_VOLATILE_ECC


class Gpu:
    """One GPU; each reading is None if the driver doesn't give it."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._library = library
        self._handle = handle

    def read_number(self) -> int | None:
        """Return the number that nvidia-smi gives it, which is often not CUDA's."""
        return self._read("nvmlDeviceGetIndex", ctypes.c_uint)

    def read_temperature(self) -> int | None:
        """Return degrees Celsius."""
        return self._read("nvmlDeviceGetTemperature", ctypes.c_uint, _GPU_SENSOR)

    def read_clock(self) -> int | None:
        """Return the clock of its multiprocessors in MHz."""
        return self._read("nvmlDeviceGetClockInfo", ctypes.c_uint, _SM_CLOCK)

    def read_power(self) -> int | None:
        """Return milliwatts."""
        return self._read("nvmlDeviceGetPowerUsage", ctypes.c_uint)

    def read_reasons(self) -> int:
        """Return why its clock is held down now, as the bits of nvmlClocksThrottleReasons."""
        return self._read("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong) or 0

    def count_errors(self, *, corrected: bool) -> int | None:
        """Return how many memory errors (ECC) there were since the driver was loaded."""
        kind = _CORRECTED if corrected else _UNCORRECTED
        return self._read("nvmlDeviceGetTotalEccErrors", ctypes.c_ulonglong, kind, _SINCE_BOOT)

    def _read(self, name: str, kind: Any, *which: int) -> int | None:
        value = kind()
        is_known = _call(self._library, name, self._handle, *map(ctypes.c_uint, which), ctypes.byref(value))
        return int(value.value) if is_known else None


def find_gpu(uuid: str | None, bus_id: str | None) -> Gpu | None:
    """Return the GPU with this UUID, else the one at this PCI address; None without NVML, or if it knows neither.

    CUDA numbers GPUs by speed and by CUDA_VISIBLE_DEVICES, NVML by PCI address. A MIG device has a UUID of its own, and
    the address of the GPU that it is part of, whose sensors it shares.
    """
    try:
        nvml = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    if not _call(nvml, "nvmlInit_v2"):
        return None
    handle = ctypes.c_void_p()
    for name, word in (("nvmlDeviceGetHandleByUUID", uuid), ("nvmlDeviceGetHandleByPciBusId_v2", bus_id)):
        if word and _call(nvml, name, word.encode(), ctypes.byref(handle)):
            return Gpu(nvml, handle)
    return None


def _call(library: ctypes.CDLL, name: str, *args: Any) -> bool:
    """Tell whether a call succeeded; an old driver lacks some."""
    function = getattr(library, name, None)
    return function is not None and function(*args) == _SUCCESS
