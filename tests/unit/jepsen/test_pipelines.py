"""What clients write in pipelines, and what the history says of it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import trio

from checkers.history import History, decode_events, gather
from jepsen.recorder import Recorder
from jepsen.wire import Wire
from jepsen.workloads.log import LogWorkload
from jepsen.workloads.pipelines import Pipeline, draw
from mq.protocol.frames import JSON, split_frames
from mq.protocol.incoming.chunks import decode_chunk
from mq.protocol.incoming.headers import Response
from mq.protocol.incoming.server_decoding import decode_header
from mq.protocol.message_ids import offset_message_id
from mq.protocol.messages.batch import split_batch
from mq.protocol.numbers import PhysicalOffset
from mq.protocol.requests.send import SendBatchMessage, SendMessageV2
from mq.protocol.wire.encoding import encode_response


class Stream:
    """Keeps what is written, in pieces."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    async def send_all(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.pieces.append(data)


def run(path: Path, use: Callable[[LogWorkload, Wire, Stream], Any]) -> History:
    with Recorder(path / "history", itertools.count().__next__) as recorder:
        workload = LogWorkload(cast("Any", None), recorder, random.Random(1))
        stream = Stream()
        trio.run(use, workload, Wire(cast("Any", stream)), stream)
    with (path / "history").open("rb") as lines:
        return gather(decode_events(lines))


def test_pipelines_mix_sends_with_other_requests(tmp_path: Path) -> None:
    kinds: set[str] = set()

    async def use(workload: LogWorkload, wire: Wire, stream: Stream) -> None:
        rng = random.Random(3)
        for _ in range(50):
            stream.pieces.clear()
            pipeline = draw(workload, wire, "n1", rng)
            await pipeline.write(rng)
            written = b"".join(stream.pieces)
            assert written == b"".join(pipeline.frames)
            assert 1 <= len(stream.pieces) <= 4
            incoming, consumed = decode_chunk(written)
            assert consumed == len(written)
            kinds.update(type(request).__name__ for request, _, _ in incoming)
            assert pipeline.open_requests == sum(not getattr(request, "flag", 0) & 2 for request, _, _ in incoming)

    run(tmp_path, use)
    assert {SendMessageV2.__name__, SendBatchMessage.__name__, "PullMessage", "GetMaxOffset"} <= kinds


def test_incomplete_last_frame_is_an_unsent_message(tmp_path: Path) -> None:
    async def use(workload: LogWorkload, wire: Wire, stream: Stream) -> None:
        pipeline = Pipeline(workload, wire, "n1")
        pipeline.add_send(random.Random(1))
        await pipeline.write_and_leave(random.Random(2))
        incoming, consumed = decode_chunk(b"".join(stream.pieces))
        assert len(incoming) == 1
        assert consumed == len(pipeline.frames[0]) < len(b"".join(stream.pieces))

    sends = list(run(tmp_path, use).named("send"))
    # The first one got no answer, so nobody knows.
    assert sorted(send.outcome for send in sends) == ["fail", "info"]


def test_messages_of_a_batch_are_recorded_one_behind_the_other(tmp_path: Path) -> None:
    counts: list[int] = []

    async def use(workload: LogWorkload, wire: Wire, stream: Stream) -> None:
        await trio.lowlevel.checkpoint()
        pipeline = Pipeline(workload, wire, "n1")
        pipeline.add_batch(random.Random(5))
        ((request, body, _),), _ = decode_chunk(pipeline.frames[0])
        counts.append(len(split_batch(body)))
        ids = [offset_message_id(bytes(4), 1, PhysicalOffset(100 + number)) for number in range(counts[0])]
        ext = {"queueId": "2", "queueOffset": "7", "msgId": ",".join(ids)}
        ((_, header, _),), _ = split_frames(memoryview(encode_response(request.opaque, 0, ext=ext)))
        answer = decode_header(JSON, header)
        assert isinstance(answer, Response)
        wire._callbacks[request.opaque](answer, b"")
        assert pipeline.open_requests == 0

    sends = list(run(tmp_path, use).named("send"))
    assert counts[0] > 1
    assert [(send.outcome, send.offset, send.queue) for send in sends] == [
        ("ok", 7 + number, "Log/2") for number in range(counts[0])
    ]
