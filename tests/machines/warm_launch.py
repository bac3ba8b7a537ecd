"""Imports all that `launch` may import on the launch host."""

from __future__ import annotations

import importlib
import pkgutil

import launcher

_IN_RANKS = ("collectives", "distributed", "exchange", "trainer")  # and there alone, since they need torch


def _import_all() -> None:
    for module in pkgutil.walk_packages(launcher.__path__, "launcher.", onerror=lambda name: None):
        if not any(part in _IN_RANKS for part in module.name.split(".")):
            importlib.import_module(module.name)


_import_all()
