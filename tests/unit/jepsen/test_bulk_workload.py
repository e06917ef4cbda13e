"""What the workload of bulk reads records of a replica's answers."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import trio

from checkers.history import History, decode_events, gather
from jepsen.recorder import Recorder
from jepsen.wire import Wire
from jepsen.workloads.bulk import BulkWorkload
from jepsen.workloads.workload import QUEUES
from mq.protocol.bulk import BulkStatus, PlannedQueue, encode_answer_head, encode_no_records, encode_plan
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset


class Replica:
    """Has nothing in any queue, and answers a bulk read with ``body``."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def ask(self, code: int, ext: dict[str, Any], body: bytes = b"") -> tuple[object, bytes]:
        await trio.lowlevel.checkpoint()
        answer = SimpleNamespace(code=ResponseCode.SUCCESS, ext={"topicIdentity": "7"}, remark=None)
        if code == RequestCode.PLAN_TOPIC:
            return answer, encode_plan(
                [PlannedQueue(queue_id, QueueOffset(0), QueueOffset(0)) for queue_id in range(QUEUES)], []
            )
        return answer, self._body


def recorded(path: Path, body: bytes) -> History:
    with Recorder(path / "history", itertools.count().__next__) as recorder:
        workload = BulkWorkload(cast("Any", None), recorder, random.Random(1))
        trio.run(workload._read_newest_apart, cast("Wire", Replica(body)), "n1", 0)
    with (path / "history").open("rb") as lines:
        return gather(decode_events(lines))


def test_unscanned_queue_continues_at_its_beginning(tmp_path: Path) -> None:
    body = encode_answer_head({0: FIRST_OFFSET}, [], [], without_bodies=False)
    reads = list(recorded(tmp_path, body).named("bulk-read"))
    assert [(read.outcome, read.value, read.result, read.offset) for read in reads] == [("ok", 0, [], 0)] * QUEUES


def test_answer_without_records_is_a_refusal_with_its_reason(tmp_path: Path) -> None:
    history = recorded(tmp_path, encode_no_records(BulkStatus.BEHIND, offsets={0: FIRST_OFFSET}, text="soon"))
    assert [(read.outcome, read.error) for read in history.named("bulk-read")] == [("fail", "BEHIND soon")] * QUEUES
    assert [identity.result for identity in history.named("identity")] == ["7"]
