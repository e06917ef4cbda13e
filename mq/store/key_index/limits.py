"""Limits of the key index and of searches in it, as a value: production uses the defaults, tests smaller ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyIndexLimits:
    """Limits of a key index."""

    part_bytes_max: int = 64 * 1024 * 1024
    """Bytes of the log with one index file. The files of a directory are found only with the same value."""
    direct_parts_max: int = 6
    """Maximum parts without a file that one search scans: 384 MiB, half a second."""
    chunk_bytes: int = 256 * 1024
    """Searched in one step, without releasing the interpreter: about 100 us."""
    candidates_max: int = 10_000
    """Maximum records that one search reads because of index entries; then it gives up."""
    answer_bytes_max: int = 8 * 1024 * 1024
    """Bytes of records in one answer, unless the first alone is larger: clients refuse frames of 16 MiB."""


DEFAULT: Final = KeyIndexLimits()
