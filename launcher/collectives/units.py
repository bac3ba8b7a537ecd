"""Numbers with their units, as the tables show them. Pure."""

from __future__ import annotations


def number_words(value: float) -> str:
    """Return three digits, and all digits before the point: `0.123`, `12.3`, `1230`."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def size_words(size_bytes: int) -> str:
    """Return `4 KiB`, `64 MiB`."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return f"{size_bytes} B"


def time_words(seconds: float) -> str:
    """Return `12.3 us`, `4.56 ms`, `1.23 s`."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def bandwidth_words(bytes_per_s: float) -> str:
    """Return `1.23 GB/s`, `45.6 MB/s`, in steps of 1000 as in nccl-tests."""
    return f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s >= 1e8 else f"{bytes_per_s / 1e6:.3g} MB/s"
