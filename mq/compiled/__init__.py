"""Parts of the data path in compiled form, each with a reference in Python that does the same byte for byte.

They are optional: without a compiler, or with ``RAFTMQ_PURE_PYTHON`` set in the environment, the reference serves
everything. ``python -m mq.compiled`` compiles them for the interpreter that runs it. What was compiled from another
version of the sources is not used: an upgrade leaves it in place.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import raftlog.compiled.loaded
from raftlog.compiled.sources import PURE_PYTHON, require_current, require_wanted

if TYPE_CHECKING:
    from mq.compiled import plain_sends

    CompiledReceiver: type[plain_sends.CompiledReceiver] | None
    """Receives sends; see `mq.broker.produce.send_receiver`. None where it is not compiled."""


def checked_records(data: bytes | bytearray | memoryview, position: int) -> int:
    """Check nothing: stands in for `mq.compiled.received_records`, so that all records are still to be checked."""
    return 0


def merged_entries(
    entries: list[bytes], queue_ids: list[int], wholes: list[bool], bytes_max: int, limit_pos: int
) -> tuple[list[int], bytes, bytes, bytes, bytes] | None:
    """Merge nothing: stands in for `mq.compiled.queue_merge` where that is not compiled."""
    return None


try:
    require_wanted()
    from mq.compiled import plain_sends, queue_merge, received_records

    for _compiled_from in (plain_sends.COMPILED_FROM, received_records.COMPILED_FROM, queue_merge.COMPILED_FROM):
        require_current(Path(__file__).parent, _compiled_from)
except (ImportError, OSError):
    CompiledReceiver = None
else:
    CompiledReceiver = plain_sends.CompiledReceiver
    checked_records = received_records.checked_records
    merged_entries = queue_merge.merged_entries

IS_COMPILED = CompiledReceiver is not None
"""Whether the compiled parts are there and used; for reports and tests."""
ALL_COMPILED = IS_COMPILED and raftlog.compiled.loaded.IS_COMPILED
"""Whether the modules of `raftlog` are compiled, too."""

__all__ = ["ALL_COMPILED", "IS_COMPILED", "PURE_PYTHON", "CompiledReceiver", "checked_records", "merged_entries"]
