"""Parts of the data path in compiled form, each with a reference in Python that does the same byte for byte.

They are optional: without a compiler, or with ``RAFTMQ_PURE_PYTHON`` set in the environment, the reference serves
everything. ``python -m mq.compiled`` compiles them for the interpreter that runs it. What was compiled from another
version of the sources is not used: an upgrade leaves it in place.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from raftlog.compiled.sources import PURE_PYTHON, require_current, require_wanted

IS_COMPILED: bool
"""Whether the compiled parts are there and used."""

if TYPE_CHECKING:
    from mq.compiled.plain_sends import PlainSends, ReadySenders, SendBlock
    from mq.compiled.received_records import checked_records
else:
    try:
        require_wanted()
        from mq.compiled import plain_sends, received_records
        from mq.compiled.plain_sends import PlainSends, ReadySenders, SendBlock
        from mq.compiled.received_records import checked_records

        for _module in (plain_sends, received_records):
            require_current(Path(__file__).parent, _module.COMPILED_FROM)
        IS_COMPILED = True
    except (ImportError, OSError):
        IS_COMPILED = False

        class PlainSends:
            """Stand-in for the compiled class, which is not available."""

        class ReadySenders:
            """Stand-in for the compiled class, which is not available."""

        class SendBlock:
            """Stand-in for the compiled class, which is not available: no block is ever pending."""

        def checked_records(data: bytes | bytearray | memoryview, position: int) -> int:
            """Stand-in for the compiled function, which is not available: all records are still to be checked."""
            return 0


__all__ = ["IS_COMPILED", "PURE_PYTHON", "PlainSends", "ReadySenders", "SendBlock", "checked_records"]
