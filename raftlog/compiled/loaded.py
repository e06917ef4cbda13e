"""The compiled modules of `raftlog`, or stand-ins where they cannot be used: everything else imports them from here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raftlog.compiled.sources import require_current, require_wanted

IS_COMPILED: bool
"""Whether the compiled modules of `raftlog` are there and used."""

if TYPE_CHECKING:
    from raftlog.compiled import append_queue, sockets

    CompiledAppendQueue = append_queue.CompiledAppendQueue
    send_single_buffers = sockets.send_single_buffers
else:
    try:
        require_wanted()
        from raftlog.compiled import append_queue, sockets

        for _module in (append_queue, sockets):
            require_current(Path(__file__).parent, _module.COMPILED_FROM)
        CompiledAppendQueue = append_queue.CompiledAppendQueue
        send_single_buffers = sockets.send_single_buffers
        IS_COMPILED = True
    except (ImportError, OSError):
        IS_COMPILED = False

        class CompiledAppendQueue:
            """Stand-in for the compiled class, which is not available."""

        def send_single_buffers(streams: Sequence[object], calls: object = None) -> Sequence[object]:
            """Stand in for the compiled function, which is not available: all streams still have to send."""
            return streams


__all__ = ["IS_COMPILED", "CompiledAppendQueue", "send_single_buffers"]
