"""Prints which of our functions a sent message passes: ``python -m benchmarks.hops [--walk]``.

A broker with a single replica, in this process, gets sends from a client that already produces; its log is synced. A
*hop* is an entry of a Python function of `mq` or `raftlog` on the event loop's thread, from the turn in which the sends
are received to the one in which their replies leave. Comprehensions and compiled code are not hops, but functions that
compiled code calls are. The walk of the fewest hops of several is counted, as a turn of something else may come in
between.

Hops that come with each further message of a chunk are *per message*; all others are *per round*: messages that are
received and stored together share them. ``--walk`` prints each function of the walk of one message, indented by its
callers. With ``RAFTMQ_PURE_PYTHON=1``, no compiled modules are used.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import structlog
import trio
from trio.testing import MockClock

from benchmarks.gate.whole_broker import ask, create_topic
from benchmarks.load.frames import send_frame
from benchmarks.load.generators import ROOT
from mq.broker.server import serve
from mq.broker.settings import BrokerSettings
from mq.compiled import IS_COMPILED
from mq.local_cluster import HOST, Ports
from mq.local_cluster.any_disk import ANY_DISK

BODY_BYTES: Final = 1024
FEW, MANY = 1, 33
"""Messages in a chunk, whose walks are compared."""
WARM_UP, ATTEMPTS = 5, 30
_OURS: Final = (f"{ROOT}/mq/", f"{ROOT}/raftlog/")
_COMPREHENSIONS: Final = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}


@dataclass
class Walk:
    """The functions that a message passes, in order: how many of ours have called each, its file and its name."""

    hops: list[tuple[int, str, str]] = field(default_factory=list)

    def on_call(self, frame: FrameType, event: str, argument: object) -> None:
        """Record a call of one of our functions. It is a profile function, see `sys.setprofile`."""
        code = frame.f_code
        if event != "call" or not _is_ours(code):
            return
        depth, caller = 0, frame.f_back
        while caller is not None:
            depth += _is_ours(caller.f_code)
            caller = caller.f_back
        name = getattr(code, "co_qualname", code.co_name)
        self.hops.append((depth, code.co_filename.removeprefix(f"{ROOT}/"), name))

    def __str__(self) -> str:
        return "\n".join(f"{'  ' * depth}{file} {name}" for depth, file, name in self.hops)


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(_OURS) and code.co_name not in _COMPREHENSIONS


@contextmanager
def _profile(on_call: Callable[[FrameType, str, object], None]) -> Iterator[None]:
    sys.setprofile(on_call)
    try:
        yield
    finally:
        sys.setprofile(None)


async def walks(directory: Path, clock: MockClock) -> dict[int, Walk]:
    """Return the shortest walk of a chunk for each number of messages in it."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    ports = Ports.free(1)
    settings = BrokerSettings(
        listen=f"{HOST}:{ports.clients[0]}",
        peers=f"n0@{HOST}:{ports.replication[0]}",
        data_dir=directory,
        metrics_listen="off",
        key_index_poll_seconds=3600.0,
        **{name: float(value) for name, value in ANY_DISK.items()},  # type: ignore[arg-type]
    )
    shortest: dict[int, Walk] = {}
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, settings)
        stream = await trio.open_tcp_stream(HOST, ports.clients[0])
        await create_topic(stream)
        clock.rate = 0.0  # no timer runs
        for count in (FEW, MANY):
            sends = [send_frame(slot, BODY_BYTES, 0) for slot in range(1, count + 1)]
            for attempt in range(WARM_UP + ATTEMPTS):
                walk = Walk()
                with _profile(walk.on_call):
                    codes = await ask(stream, sends)
                assert set(codes) == {b"0"}, f"sends were answered with {codes}"
                if attempt >= WARM_UP and (count not in shortest or len(walk.hops) < len(shortest[count].hops)):
                    shortest[count] = walk
        clock.rate = 1.0
        await stream.aclose()
        nursery.cancel_scope.cancel()
    return shortest


def per_message(few: int, many: int) -> int:
    """Compute the hops per further message, from a chunk with few messages and one with many. One hop more or less in a
    chunk, as when a write is durable sooner, does not change the result.
    """
    return round((many - few) / (MANY - FEW))


def main() -> None:
    """Print the hops per round and per message as JSON, or print the walk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--walk", action="store_true", help="print each function of the walk of one message")
    options = parser.parse_args()
    clock = MockClock(rate=1.0)
    with tempfile.TemporaryDirectory(prefix="raftmq-hops-") as name:
        walks_by_count = trio.run(walks, Path(name) / "broker", clock, clock=clock)
    few = len(walks_by_count[FEW].hops)
    each = per_message(few, len(walks_by_count[MANY].hops))
    if options.walk:
        print(walks_by_count[FEW])
    form = "compiled" if IS_COMPILED else "python"
    print(json.dumps({"form": form, "per_round": few - each, "per_message": each}))


if __name__ == "__main__":
    main()
