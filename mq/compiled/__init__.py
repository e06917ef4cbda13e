"""Parts of the data path in compiled form, each with a reference in Python that does the same byte for byte.

They are optional: without a compiler, or with ``RAFTMQ_PURE_PYTHON`` set in the environment, the reference serves
everything. ``python -m mq.compiled`` compiles them for the interpreter that runs it. What was compiled from another
version of the source is not used: an upgrade leaves it in place.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

PURE_PYTHON = "RAFTMQ_PURE_PYTHON"
"""With this variable in the environment, and not empty, the compiled parts are not used."""

IS_COMPILED: bool
"""Whether the compiled parts are there and used."""


def source_sha256(source: Path) -> str:
    """The SHA-256 of a source file, in hex; a library says which one it was compiled from. Raises OSError."""
    return sha256(source.read_bytes()).hexdigest()


if TYPE_CHECKING:
    from mq.compiled.plain_sends import PlainSends, SendBlock, checked_records
else:
    try:
        if os.environ.get(PURE_PYTHON):
            raise ImportError(f"{PURE_PYTHON} is set")
        from mq.compiled.plain_sends import COMPILED_FROM, PlainSends, SendBlock, checked_records

        if source_sha256(Path(__file__).with_name("plain_sends.pyx")) != COMPILED_FROM:
            raise ImportError("compiled from another version of plain_sends.pyx: python -m mq.compiled")
        IS_COMPILED = True
    except (ImportError, OSError):
        IS_COMPILED = False

        class PlainSends:
            """Stand-in for the compiled class, which is not available."""

        class SendBlock:
            """Stand-in for the compiled class, which is not available: no block is ever pending."""

        def checked_records(data: bytes | bytearray | memoryview, position: int) -> int:
            """Stand-in for the compiled function, which is not available: all records are still to be checked."""
            return 0


__all__ = ["IS_COMPILED", "PURE_PYTHON", "PlainSends", "SendBlock", "checked_records", "source_sha256"]
