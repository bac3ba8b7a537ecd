"""GPUs as NVML shows them, NVIDIA's library, through ctypes: a look costs no process, unlike nvidia-smi.

A host's sampler reads with it, and the ranks of the load test (launcher/collectives/load.py).
Only functions that return numbers are called, and three whose structures have never changed: NVIDIA has changed others
without a new name (github.com/XuehaiPan/nvitop/issues/75). Their meaning is in NVIDIA's NVML API reference.
"""

from __future__ import annotations

import ctypes
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_UNKNOWN = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)  # what some drivers answer for what they can't tell
_SENSOR, _SM = 0, 1  # NVML_TEMPERATURE_GPU, NVML_CLOCK_SM
_CORRECTED, _UNCORRECTED, _SINCE_THE_DRIVER_CAME = 0, 1, 0  # nvmlMemoryErrorType_t, nvmlEccCounterType_t
_NAME_BYTES = 96

# Of each reading: the function, the type of its number, and which one of several is asked for.
_READINGS: dict[str, Any] = {
    "index": ("nvmlDeviceGetIndex", ctypes.c_uint),
    "power_mw": ("nvmlDeviceGetPowerUsage", ctypes.c_uint),
    "power_limit_mw": ("nvmlDeviceGetEnforcedPowerLimit", ctypes.c_uint),
    "temperature_c": ("nvmlDeviceGetTemperature", ctypes.c_uint, _SENSOR),
    "clock_mhz": ("nvmlDeviceGetClockInfo", ctypes.c_uint, _SM),
    "max_clock_mhz": ("nvmlDeviceGetMaxClockInfo", ctypes.c_uint, _SM),
    "reasons": ("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong),  # why its clock is held down
    "corrected_errors": ("nvmlDeviceGetTotalEccErrors", ctypes.c_ulonglong, _CORRECTED, _SINCE_THE_DRIVER_CAME),
    "uncorrected_errors": ("nvmlDeviceGetTotalEccErrors", ctypes.c_ulonglong, _UNCORRECTED, _SINCE_THE_DRIVER_CAME),
}


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Memory2(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint)] + [
        (name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")
    ]


class NvmlError(OSError):
    """NVML isn't there, or can't be used."""


class Gpu:
    """One GPU; what its driver doesn't tell, or tells no more as of a lost one, is None."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p | None) -> None:
        self._library = library
        self._handle = handle
        name = ctypes.create_string_buffer(_NAME_BYTES)
        self._call("nvmlDeviceGetName", name, _NAME_BYTES)
        self._name = name.value.decode("utf-8", "replace")
        self._max_clock_mhz = self.read("max_clock_mhz")

    def read(self, reading: str) -> int | None:
        """Return one number; `_READINGS` names them all. `index` is nvidia-smi's, which is often not CUDA's."""
        name, kind, *which = _READINGS[reading]
        found: Any = kind()
        is_known = self._call(name, *which, ctypes.byref(found)) and found.value not in _UNKNOWN
        return int(found.value) if is_known else None

    def read_memory(self) -> tuple[int | None, int | None]:
        """Return used and total MiB. As used, the older function also counts what the driver reserves for itself."""
        found: Any
        for name, found in (
            ("nvmlDeviceGetMemoryInfo_v2", _Memory2(ctypes.sizeof(_Memory2) | 2 << 24)),
            ("nvmlDeviceGetMemoryInfo", _Memory()),
        ):
            if self._call(name, ctypes.byref(found)):
                return found.used >> 20, found.total >> 20
        return None, None

    def sample(self, index: int) -> list[Any]:
        """Return the values of a `GpuSample`, in its order."""
        use = _Utilization()
        is_used = self._call("nvmlDeviceGetUtilizationRates", ctypes.byref(use))
        return [
            index,
            self._name,
            use.gpu if is_used else None,
            *self.read_memory(),
            *(_thousandth(self.read(name)) for name in ("power_mw", "power_limit_mw")),
            self.read("temperature_c"),
            self.read("clock_mhz"),
            self._max_clock_mhz,
            *(self.read(name) for name in ("reasons", "uncorrected_errors")),
        ]

    def _call(self, name: str, *arguments: Any) -> bool:
        return self._handle is not None and _call(self._library, name, self._handle, *arguments)


def list_gpus() -> list[Gpu]:
    """Return the GPUs of this machine, in the order of nvidia-smi; raise NvmlError if there is no NVML to ask."""
    library, count = _open_library(), ctypes.c_uint()
    _call(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
    return [Gpu(library, _find(library, "nvmlDeviceGetHandleByIndex_v2", index)) for index in range(count.value)]


def find_gpu(uuid: str | None, address: str | None) -> Gpu | None:
    """Return the GPU with this UUID, else the one at this PCI address; None without NVML, or if it knows neither.

    CUDA numbers GPUs by speed and by CUDA_VISIBLE_DEVICES, NVML by PCI address. A MIG device has a UUID of its own, and
    the address of the GPU that it is part of, whose sensors it shares.
    """
    try:
        library = _open_library()
    except NvmlError:
        return None
    for name, word in (("nvmlDeviceGetHandleByUUID", uuid), ("nvmlDeviceGetHandleByPciBusId_v2", address)):
        handle = _find(library, name, word.encode()) if word else None
        if handle is not None:
            return Gpu(library, handle)
    return None


def _open_library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(LIBRARY)
        status = library.nvmlInit_v2()
    except (OSError, AttributeError) as error:
        raise NvmlError(str(error)) from None
    if status:
        raise NvmlError("nvmlInit_v2 returned %d" % status)
    return library


def _find(library: ctypes.CDLL, name: str, which: int | bytes) -> ctypes.c_void_p | None:
    handle = ctypes.c_void_p()
    return handle if _call(library, name, which, ctypes.byref(handle)) else None


def _call(library: ctypes.CDLL, name: str, *arguments: Any) -> bool:
    """Tell whether a call succeeded; an older driver lacks some."""
    function = getattr(library, name, None)
    return function is not None and function(*arguments) == 0


def _thousandth(value: int | None) -> float | None:
    return None if value is None else round(value / 1000.0, 1)
