"""The workload of bulk reads and its checker, with histories that break its promise."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from checkers.append_log import check_log
from checkers.bulk import check_bulk
from checkers.history import History, decode_events, gather
from jepsen.recorder import Recorder
from jepsen.wire import Wire
from jepsen.workloads.bulk import BulkWorkload
from jepsen.workloads.workload import QUEUES
from mq.protocol.bulk import BulkStatus, PlannedQueue, encode_answer_head, encode_no_records, encode_plan
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset
from tests.unit.jepsen.histories import QUEUE, Script

A, B, C = "1.0.0", "1.1.0", "1.2.0"


def read(script: Script, start: int, following: int, values: dict[int, str]) -> None:
    process = 100 + len(script.events)
    script.add(process, "invoke", "bulk-read", k=QUEUE, n="n1", v=start)
    found = [[offset, value, 7] for offset, value in values.items()]
    script.add(process, "ok", "bulk-read", k=QUEUE, n="n1", v=found, o=following)


def identity(script: Script, name: str) -> None:
    script.add(50, "ok", "identity", v=name, n="n1")


@pytest.fixture
def script() -> Script:
    script = Script(sent=(A, B))
    identity(script, "7")
    read(script, 0, 2, {0: A, 1: B})
    return script


def test_whole_read_is_valid(script: Script) -> None:
    script.add(60, "invoke", "bulk-read", k=QUEUE, n="n1", v=2)
    script.add(60, "fail", "bulk-read", k=QUEUE, n="n1", err="BEHIND ")
    script.final_everywhere([A, B])
    history = script.history()
    result = check_bulk(history)
    assert result.valid is True
    assert (result.counts["messages read in bulk"], result.counts["answered BEHIND"]) == (2, 1)
    assert check_log(history).anomalies == {}


def hole(script: Script) -> None:
    script.sent(C, 2)
    read(script, 0, 3, {0: A, 2: C})


def end_missing(script: Script) -> None:
    read(script, 0, 2, {0: A})


def more_than_wanted(script: Script) -> None:
    read(script, 1, 2, {0: A, 1: B})


def two_topics(script: Script) -> None:
    identity(script, "8")


@pytest.mark.parametrize(
    ("anomaly", "broken"),
    [
        ("int-poll-skip", hole),
        ("int-poll-skip", end_missing),
        ("not-asked-for", more_than_wanted),
        ("identity-changed", two_topics),
    ],
)
def test_checker_finds_wrong_bulk_reads(script: Script, anomaly: str, broken: Callable[[Script], None]) -> None:
    broken(script)
    assert check_bulk(script.history()).anomalies == {anomaly: 1}


def test_log_checker_finds_a_row_missing_in_the_final_read(script: Script) -> None:
    script.failed(C, 9, "info")
    read(script, 2, 3, {2: C})
    script.final_everywhere([A, B])
    assert check_log(script.history()).anomalies == {"flicker": 3}


def test_run_without_bulk_reads_leaves_the_verdict_open() -> None:
    assert check_bulk(Script().history()).valid == "unknown"


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
