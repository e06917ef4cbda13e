"""Sends what streams have waiting at the end of a turn: in one call for most of them, if that is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import raftlog.compiled
from raftlog.compiled.sources import require_current, require_wanted


class Flushed(Protocol):
    """What has something to send."""

    def flush(self) -> None: ...


def _none_sent(streams: Sequence[Any]) -> Sequence[Any]:
    """Stand-in for the compiled function: all streams still have to send."""
    return streams


send_single_buffers: Callable[[Sequence[Any]], Sequence[Any]] = _none_sent
try:
    require_wanted()
    from raftlog.compiled import sockets

    require_current(Path(raftlog.compiled.__file__).parent, sockets.COMPILED_FROM)
    send_single_buffers = sockets.send_single_buffers
except (ImportError, OSError):
    pass


def flush_streams(streams: Sequence[Flushed]) -> None:
    """Send as much of each stream as the kernel accepts; see `StreamSocket.flush`."""
    for stream in send_single_buffers(streams):
        stream.flush()
