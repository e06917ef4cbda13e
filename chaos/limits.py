"""Limits of the production code, drawn small for a run, so that code beyond them runs often."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def drawn(limits: Mapping[str, int]) -> Iterator[None]:
    """Apply ``limits`` until the end of the block, in every module of the log that imports them by name."""
    before: list[tuple[ModuleType, str, int]] = []
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("raftlog.")]
    try:
        for name, value in limits.items():
            holders = [module for module in modules if name in vars(module)]
            assert holders, f"no module has a limit {name}"
            for holder in holders:
                before.append((holder, name, getattr(holder, name)))
                setattr(holder, name, value)
        yield
    finally:
        for holder, name, value in before:
            setattr(holder, name, value)


@contextmanager
def replaced(module: ModuleType, name: str, value: object) -> Iterator[None]:
    """Replace ``name`` in a module by ``value`` until the end of the block."""
    before = vars(module)[name]
    vars(module)[name] = value
    try:
        yield
    finally:
        vars(module)[name] = before
