"""A broker that records when entries pass certain points: ``python -m benchmarks.critical_path.traced``.

Takes the arguments of ``raftmq``. Wraps functions of the broker before it starts: brokers started otherwise have
none of this. Times are of CLOCK_MONOTONIC, which all processes of a machine share. When the broker ends, it writes its
`Event`s to ``RAFTMQ_TRACE_DIRECTORY``, to a file with the name of the node.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, Final

import msgspec

from benchmarks.critical_path.steps import Event, Point
from mq.cli import main as run_raftmq
from raftlog.consensus.messages import AppendReq
from raftlog.finished_writes import FinishedWrites
from raftlog.net import reactor
from raftlog.net.frames import Kind
from raftlog.net.reactor import Reactor
from raftlog.replica import Replica
from raftlog.segment.log import SegmentLog
from raftlog.segment.writer import Writer

DIRECTORY_VARIABLE: Final = "RAFTMQ_TRACE_DIRECTORY"
_EVENTS_MAX: Final = 2_000_000

_events: deque[Event] = deque(maxlen=_EVENTS_MAX)


def _record(point: Point, index: int = 0, peer: str = "", at: float | None = None) -> None:
    _events.append(Event(monotonic() if at is None else at, point, index, peer))


def _wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    inner = getattr(owner, name)
    setattr(owner, name, functools.wraps(inner)(make(inner)))


def _turn(inner: Callable[..., Any]) -> Callable[..., Any]:
    def turn(self: Reactor, ready: object) -> None:
        _record(Point.TURN_BEGINS)
        inner(self, ready)
        _record(Point.TURN_ENDS)

    return turn


def _flush(inner: Callable[..., Any]) -> Callable[..., Any]:
    def flush(*arguments: Any) -> None:
        _record(Point.SENDING)
        inner(*arguments)
        _record(Point.SENT)

    return flush


def _append(inner: Callable[..., Any]) -> Callable[..., Any]:
    def append(self: Replica, *arguments: Any) -> Any:
        index = inner(self, *arguments)
        if isinstance(index, int):
            _record(Point.APPENDED, index)
        return index

    return append


def _submit(inner: Callable[..., Any]) -> Callable[..., Any]:
    def submit(self: SegmentLog, *arguments: Any, **options: Any) -> None:
        inner(self, *arguments, **options)
        _record(Point.WRITE_QUEUED, self.last_index)

    return submit


def _entries_sent(inner: Callable[..., Any]) -> Callable[..., Any]:
    def send(self: Replica, message: Any) -> None:
        inner(self, message)
        if type(message) is AppendReq and message.spans:
            _record(Point.ENTRIES_SENT, message.spans[-1].last, message.dst)

    return send


def _receive(inner: Callable[..., Any]) -> Callable[..., Any]:
    def receive(self: Replica, source: str, kind: Kind, payload: memoryview) -> None:
        inner(self, source, kind, payload)
        if kind is Kind.APPEND:
            _record(Point.ENTRIES_RECEIVED, self.core.last_index, source)
        elif kind is Kind.APPENDED:
            progress = next(peer for peer in self.core.status().peers if peer.peer == source)
            _record(Point.ACKNOWLEDGEMENT_RECEIVED, progress.match, source)

    return receive


def _trace_done(inner: Callable[..., Any]) -> Callable[..., Any]:
    def trace(self: FinishedWrites, ticket: int) -> None:
        queue = _queues[-1]
        inner(self, ticket)
        durable = self._core.durable
        _record(Point.WRITE_BEGAN, durable, at=queue.began_at)
        _record(Point.WRITE_ENDED, durable, at=queue.written_at)
        _record(Point.DURABLE, durable)

    return trace


def _apply(inner: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Replica) -> None:
        inner(self)
        _record(Point.APPLIED, self.applied_index)

    return apply


_queues: list[Any] = []


def _start_writer(inner: Callable[..., Any]) -> Callable[..., Any]:
    def start(self: Writer, store: Any) -> None:
        _queues.append(self._queue)
        inner(self, store)

    return start


def install() -> None:
    """Wrap the functions at the points, so that this process records when entries pass them."""
    _wrap(Reactor, "_turn", _turn)
    _wrap(reactor, "flush_streams", _flush)
    _wrap(Replica, "append", _append)
    _wrap(SegmentLog, "submit", _submit)
    _wrap(Replica, "_send", _entries_sent)
    _wrap(Replica, "receive", _receive)
    _wrap(FinishedWrites, "on_durable", _trace_done)
    _wrap(Replica, "_apply", _apply)
    _wrap(Writer, "start", _start_writer)


def main() -> None:
    """Run ``raftmq`` with the arguments of this process, and write the recorded events."""
    arguments = sys.argv[1:]
    if arguments[0] != "broker":
        run_raftmq()
        return
    install()
    name = arguments[arguments.index("--node-id") + 1]
    try:
        run_raftmq()
    finally:
        path = Path(os.environ[DIRECTORY_VARIABLE]) / name
        path.write_bytes(msgspec.msgpack.encode(list(_events)))


if __name__ == "__main__":
    main()
