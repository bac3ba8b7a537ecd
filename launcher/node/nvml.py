"""GPUs as NVML shows them, NVIDIA's library, through ctypes: a look costs no process, unlike nvidia-smi.

Only functions that return numbers are called, and three whose structures have never changed: NVIDIA has changed others
without a new name (github.com/XuehaiPan/nvitop/issues/75). Their meaning is in NVIDIA's NVML API reference.
"""

from __future__ import annotations

import ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_SM = 1  # the clock of the multiprocessors, in nvmlClockType_t
_CORE = 0  # the sensor of the GPU itself, in nvmlTemperatureSensors_t
_UNKNOWN = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)  # what some drivers answer for what they can't tell
_UNCORRECTED, _SINCE_THE_DRIVER_CAME = 1, 0  # nvmlMemoryErrorType_t, nvmlEccCounterType_t
_NVLINK_RECOVERIES = 59  # NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL
_UNSIGNED = (1, 2, 3)  # of nvmlValueType_t: int, long and long long


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _FieldValue(ctypes.Structure):
    _fields_ = [
        ("field", ctypes.c_uint), ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong), ("latency_us", ctypes.c_longlong),
        ("kind", ctypes.c_int), ("status", ctypes.c_int), ("value", ctypes.c_ulonglong),
    ]  # fmt: skip


class NvmlError(OSError):
    """NVML isn't there, or can't be used."""


class Nvml:
    """The GPUs of this machine, in NVML's order, which is nvidia-smi's."""

    def __init__(self) -> None:
        """Raise NvmlError if there is no NVML that can be used."""
        try:
            self._library = ctypes.CDLL(_LIBRARY)
            status = self._library.nvmlInit_v2()
        except (OSError, AttributeError) as error:
            raise NvmlError(str(error)) from None
        if status:
            raise NvmlError("nvmlInit_v2 returned %d" % status)
        self._gpus = [self._open(index) for index in range(self._ask("nvmlDeviceGetCount_v2", ctypes.c_uint) or 0)]
        self._fixed = [self._read_fixed(gpu) for gpu in self._gpus]

    def read(self) -> list[list[Any]]:
        """Return the values of each GPU, in the order of `GpuSample`; None for what it doesn't tell."""
        rows = []
        for index, (gpu, (name, max_clock)) in enumerate(zip(self._gpus, self._fixed)):
            utilization = self._ask("nvmlDeviceGetUtilizationRates", _Utilization, gpu, is_structure=True)
            memory = self._ask("nvmlDeviceGetMemoryInfo", _Memory, gpu, is_structure=True)
            rows.append([
                index,
                name,
                utilization.gpu if utilization else None,
                memory.used >> 20 if memory else None,
                memory.total >> 20 if memory else None,
                _thousandth(self._ask("nvmlDeviceGetPowerUsage", ctypes.c_uint, gpu)),
                _thousandth(self._ask("nvmlDeviceGetEnforcedPowerLimit", ctypes.c_uint, gpu)),
                self._ask("nvmlDeviceGetTemperature", ctypes.c_uint, gpu, _CORE),
                self._ask("nvmlDeviceGetClockInfo", ctypes.c_uint, gpu, _SM),
                max_clock,
                self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong, gpu),
                self._ask(
                    "nvmlDeviceGetTotalEccErrors", ctypes.c_ulonglong, gpu, _UNCORRECTED, _SINCE_THE_DRIVER_CAME
                ),
                self._ask("nvmlDeviceGetPcieReplayCounter", ctypes.c_uint, gpu),
                self._read_field(gpu, _NVLINK_RECOVERIES),
            ])  # fmt: skip
        return rows

    def _open(self, index: int) -> ctypes.c_void_p | None:
        gpu = ctypes.c_void_p()
        return None if self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(gpu)) else gpu

    def _read_fixed(self, gpu: ctypes.c_void_p | None) -> tuple[str, int | None]:
        """Return the name of a GPU, and the most that its clock can be, in MHz."""
        name = ctypes.create_string_buffer(96)
        has_name = gpu is not None and not self._library.nvmlDeviceGetName(gpu, name, 96)
        return name.value.decode("utf-8", "replace") if has_name else "", self._ask(
            "nvmlDeviceGetMaxClockInfo", ctypes.c_uint, gpu, _SM
        )

    def _read_field(self, gpu: ctypes.c_void_p | None, field: int) -> int | None:
        """Return one of the values that NVML has by number; None if this GPU doesn't have it."""
        read = getattr(self._library, "nvmlDeviceGetFieldValues", None)
        found = _FieldValue(field)
        if read is None or gpu is None or read(gpu, 1, ctypes.byref(found)) or found.status:
            return None
        return int(found.value) if found.kind in _UNSIGNED and found.value not in _UNKNOWN else None

    def _ask(self, name: str, kind: Any, *arguments: Any, is_structure: bool = False) -> Any:
        """Return what a function of NVML puts where its last argument points; None if it fails, or isn't there."""
        function = getattr(self._library, name, None)
        if function is None or None in arguments:
            return None
        found = kind()
        if function(*arguments, ctypes.byref(found)):
            return None
        return found if is_structure else None if found.value in _UNKNOWN else found.value


def _thousandth(value: int | None) -> float | None:
    return None if value is None else round(value / 1000.0, 1)
