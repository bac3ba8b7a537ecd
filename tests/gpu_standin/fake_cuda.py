"""A stand-in for torch.cuda on a machine without a GPU: its tensors are in main memory, but say that they aren't.

Python code sees them on `cuda`, must copy them to read them, and waits forever for that while the device is stuck
behind a collective. What C++ code allocates is on neither side until Python code computes with it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

COUNT = 8
MEMORY_BYTES = 80 << 30
READS = ("item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__", "is_nonzero")

stuck = threading.Event()  # what the device does never ends, so whoever waits for it waits forever
_current = 0
_random = [torch.Generator().manual_seed(number) for number in range(COUNT)]


def fake() -> None:
    """Let torch see GPUs."""
    for name in vars(_Cuda):
        if not name.startswith("_"):
            setattr(torch.cuda, name, getattr(_Cuda, name))
    torch.Tensor.device = property(partial(_find_device, torch.Tensor.device))
    torch.Tensor.is_cuda = property(lambda tensor: tensor.device.type == "cuda")
    torch.autocast = partial(_autocast, torch.autocast)
    plain: Any = torch.Tensor._make_wrapper_subclass
    torch.Tensor._make_wrapper_subclass = staticmethod(partial(_make_wrapper, plain))
    torch._C._group_tensors_by_device_and_dtype = partial(_group, torch._C._group_tensors_by_device_and_dtype)
    torch.cuda.nccl.version = lambda: (2, 28, 9)
    torch.save = partial(_save, torch.save)
    torch.accelerator.is_available = lambda: True
    torch.accelerator.current_accelerator = lambda check_available=False: torch.device("cuda")
    torch.accelerator.current_stream = _Cuda.current_stream
    torch.autograd._engine_run_backward = partial(_run_backward, torch.autograd._engine_run_backward)
    _Devices().__enter__()


def is_on_device(tensor: torch.Tensor) -> bool | None:
    """Return where a tensor is: True on the GPU, False in main memory, None if C++ code has made it."""
    storage = _storage(tensor)
    return getattr(storage, "is_on_device", None)


def synchronize(device: object = None) -> None:
    """Wait until the device has done everything."""
    while stuck.is_set():
        threading.Event().wait()


def _index(device: Any) -> int:
    return device if isinstance(device, int) else torch.device(device).index or 0


def _storage(tensor: Any) -> Any:
    tensor = getattr(tensor, "_local_tensor", tensor)  # a DTensor
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # it has none
        return None


def _find_device(plain: Any, tensor: torch.Tensor) -> torch.device:
    device = plain.__get__(tensor)
    return torch.device("cuda", _current) if device.type == "cpu" and is_on_device(tensor) is not False else device


def _mark(tensor: torch.Tensor, *, is_on_device: bool) -> None:
    storage = _storage(tensor)
    if storage is not None and getattr(storage, "is_on_device", None) is None:
        storage.is_on_device = is_on_device


def _autocast(plain: Any, device_type: str, *args: Any, **kwargs: Any) -> Any:
    return plain("cpu", *args, **kwargs)


def _make_wrapper(plain: Any, *args: Any, **kwargs: Any) -> Any:
    return plain(*args, **{**kwargs, "device": torch.device("cpu")})


def _save(plain: Any, state: Any, *args: Any, **kwargs: Any) -> None:
    # Torch would write it, but a machine without a GPU couldn't read it.
    if any(is_on_device(tensor) for tensor in _find_tensors(state)):
        raise AssertionError("a CUDA tensor in a file")
    plain(state, *args, **kwargs)


def _group(plain: Any, tensors: Any, *args: Any) -> Any:
    groups = plain(tensors, *args)
    if any(is_on_device(tensor) is False for tensor in _find_tensors(tensors)):
        return groups
    return {(torch.device("cuda", _current), dtype): group for (_, dtype), group in groups.items()}


def _run_backward(plain: Any, *args: Any, **kwargs: Any) -> Any:
    with _Devices():  # torch has left it, but this calls back to Python code
        return plain(*args, **kwargs)


def _find_tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _find_tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _find_tensors(part)


class _Devices(TorchFunctionMode):
    """Keep for each tensor on which side it is: where it was made, or where that is from which it was computed."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if function is torch.device:
            return function(*args, **(kwargs or {}))
        if name == "record_stream":
            return None
        target, args, kwargs = _find_target(args, kwargs or {})
        target = {"cpu": False, "cuda": True}.get(name, target)
        sides = {is_on_device(tensor) for tensor in _find_tensors([args, kwargs])}
        is_copied = name == "copy_" and is_on_device(args[0]) is False
        if True in sides and (name in READS or target is False or is_copied):
            synchronize()
        kwargs.pop("pin_memory", None)
        result = args[0] if name in ("cuda", "pin_memory") else function(*args, **kwargs)
        if target is not None and isinstance(result, torch.Tensor) and is_on_device(result) not in (None, target):
            result = result.clone()
        side = target if target is not None else True in sides
        if target is not None or None not in sides or side:
            for tensor in _find_tensors(result):
                _mark(tensor, is_on_device=side)
        return result


def _find_target(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool | None, tuple[Any, ...], dict[str, Any]]:
    """Return on which side the result was requested, if it was, and the arguments with the CPU as its device."""
    target = None
    values = [*args, *kwargs.values()]
    for number, value in enumerate(values):
        if isinstance(value, torch.device) or (isinstance(value, str) and value.startswith(("cuda", "cpu"))):
            device = torch.device(value)
            if device.type in ("cuda", "cpu"):
                target, values[number] = device.type == "cuda", torch.device("cpu")
    return target, tuple(values[: len(args)]), dict(zip(kwargs, values[len(args) :], strict=True))


class _Event:
    def __init__(self, *args: object, **kwargs: object) -> None: ...
    def record(self, stream: object = None) -> _Event:
        return self

    def wait(self, stream: object = None) -> None: ...
    def query(self) -> bool:
        return not stuck.is_set()

    synchronize = staticmethod(synchronize)


class _Stream(_Event):
    def wait_event(self, event: object) -> None: ...
    def wait_stream(self, stream: object) -> None: ...
    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: object = None) -> _Event:
        return _Event()


class _Cuda:
    """What replaces the names of torch.cuda."""

    Stream, Event = _Stream, _Event
    _stream = _Stream()

    @staticmethod
    def is_available() -> bool:
        return True

    is_initialized = is_available

    @staticmethod
    def device_count() -> int:
        return COUNT

    @staticmethod
    def init() -> None: ...

    @staticmethod
    def set_device(device: Any) -> None:
        global _current
        _current = _index(device)
        if threading.current_thread() is not threading.main_thread():
            _Devices().__enter__()  # a thread that pins memory

    @staticmethod
    def current_device() -> int:
        return _current

    @staticmethod
    def current_stream(device: object = None) -> _Stream:
        return _Cuda._stream

    @staticmethod
    def stream(stream: object) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()

    synchronize = staticmethod(synchronize)

    @staticmethod
    def get_device_name(device: object = None) -> str:
        return "GPU stand-in"

    @staticmethod
    def get_device_properties(device: Any) -> SimpleNamespace:
        uuid = f"{os.uname().nodename}-{_index(device)}"
        return SimpleNamespace(name="GPU stand-in", uuid=uuid, total_memory=MEMORY_BYTES, major=9, minor=0)

    @staticmethod
    def get_device_capability(device: object = None) -> tuple[int, int]:
        return 9, 0

    @staticmethod
    def max_memory_allocated(device: object = None) -> int:
        return 1 << 30

    @staticmethod
    def get_rng_state(device: Any) -> torch.Tensor:
        return _random[_index(device)].get_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, device: Any) -> None:
        _random[_index(device)].set_state(state)
