"""Checks that a compiled module was built from the present sources; other modules are not used."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Final

PURE_PYTHON: Final = "RAFTMQ_PURE_PYTHON"
"""The variable of the environment that, if not empty, keeps compiled modules from being used."""

_SUFFIXES: Final = (".pyx", ".pxi", ".pxd")


def source_sha256(directory: Path) -> str:
    """Return the SHA-256 in hex of all Cython sources in ``directory``, with their names. Raises OSError."""
    digest = sha256()
    for source in sorted(path for path in directory.iterdir() if path.suffix in _SUFFIXES):
        content = source.read_bytes()
        digest.update(b"%s %d\n" % (source.name.encode(), len(content)))
        digest.update(content)
    return digest.hexdigest()


def require_wanted() -> None:
    """Raise ImportError if the environment switches compiled modules off."""
    if os.environ.get(PURE_PYTHON):
        raise ImportError(f"{PURE_PYTHON} is set")


def require_current(directory: Path, compiled_from: str) -> None:
    """Raise ImportError unless the module with this ``compiled_from`` was built from the sources in ``directory``.

    Raises OSError if they cannot be read.
    """
    if source_sha256(directory) != compiled_from:
        raise ImportError(f"compiled from other sources than those in {directory}: python -m mq.compiled")
