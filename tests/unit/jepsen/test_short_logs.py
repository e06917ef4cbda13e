"""Messages that were removed with the oldest files are excused, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import trio

from checkers.append_log import check_log
from checkers.history import decode_events, final_reads, gather
from checkers.recording import Worker
from checkers.total_queue import check_total_queue
from jepsen.final_reads import read_queue
from jepsen.recorder import Recorder
from mq.protocol.codes import ResponseCode
from mq.protocol.incoming.headers import Response
from tests.unit.jepsen.histories import NODES, Script

A, B, C = "1.1.10", "1.2.10", "2.1.10"


@pytest.fixture
def script() -> Script:
    script = Script()
    for offset, value in enumerate((A, B, C)):
        script.sent(value, offset, pos=1000 * offset)
    return script


def test_missing_message_below_the_log_base_was_deleted(script: Script) -> None:
    script.final_everywhere([B, C], first=1, base=1000)
    result = check_log(script.history())
    assert result.valid is True
    assert result.counts["removed in their time"] == 3


def test_replicas_may_have_removed_different_prefixes(script: Script) -> None:
    for node, first in zip(NODES, (0, 1, 2), strict=True):
        script.final([A, B, C][first:], node=node, first=first, base=1000 * first)
    assert check_log(script.history()).valid is True


def test_missing_message_above_the_log_base_is_an_anomaly(script: Script) -> None:
    for node in NODES:
        script.final([C] if node == "n1" else [B, C], node=node, first=2 if node == "n1" else 1, base=1000)
    assert check_log(script.history()).anomalies == {"lost-write": 1}


def test_missing_message_of_unknown_position_is_an_anomaly() -> None:
    script = Script(sent=(A, B))
    script.final_everywhere([B], first=1, base=1000)
    assert check_log(script.history()).anomalies == {"lost-write": 3}


def test_message_known_from_a_read_may_miss_below_the_log_base() -> None:
    script = Script()
    script.failed(A, 5, "info")
    script.read({0: A})
    script.sent(B, 1, pos=1000)
    script.final_everywhere([B], first=1, base=1000)
    assert check_log(script.history()).valid is True


def test_hole_behind_the_first_message_is_a_gap(script: Script) -> None:
    script.final_everywhere([A, B, C])
    script.add(91, "ok", "removed", k="Log/0", n="n1", o=1)
    script.add(90, "invoke", "final-read", k="Log/0", n="n1")
    script.add(90, "ok", "final-read", k="Log/0", n="n1", v=[[2, C, 7]])
    anomalies = check_log(script.history()).anomalies
    assert {"gap", "replicas-differ"} <= anomalies.keys()


def test_messages_deleted_before_consumption_are_not_anomalies(script: Script) -> None:
    script.received(B, 1)
    script.received(C, 2)
    script.final_everywhere([B, C], first=1, base=1000)
    result = check_total_queue(script.history())
    assert result.valid is True
    assert result.counts["removed in their time, never consumed"] == 1


def test_message_that_one_replica_still_has_was_to_be_consumed(script: Script) -> None:
    script.received(B, 1)
    script.received(C, 2)
    for node in NODES:
        script.final([A, B, C] if node == "n2" else [B, C], node=node, first=0 if node == "n2" else 1, base=1000)
    assert check_total_queue(script.history()).anomalies == {"unseen": 1}


class RemovedMeanwhile:
    """A replica whose queue ends at 9; it has nothing before 4 when it is read first, and nothing before 9 then."""

    first = 4

    async def ask(self, code: int, ext: dict[str, Any]) -> tuple[Response, bytes]:
        await trio.lowlevel.checkpoint()
        offset = int(ext["queueOffset"])
        told = {"minOffset": str(self.first), "maxOffset": "9", "nextBeginOffset": str(self.first)}
        if offset < self.first:
            return Response(code=ResponseCode.PULL_OFFSET_MOVED, flag=1, opaque=1, ext=told), b""
        if offset == 9:
            return Response(code=ResponseCode.PULL_NOT_FOUND, flag=1, opaque=1, ext=told), b""
        self.first = 9
        return Response(
            code=ResponseCode.SUCCESS, flag=1, opaque=1, ext={**told, "nextBeginOffset": str(offset + 2)}
        ), b""


async def test_replica_is_read_from_its_moving_beginning(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with Recorder(path, lambda: 0) as recorder:
        await read_queue(Worker(recorder), cast("Any", RemovedMeanwhile()), "n1", "T", 0)
    history = gather(decode_events(path.read_bytes().splitlines(keepends=True)))
    read = final_reads(history)["n1", "T/0"]
    assert (read.first, read.complete, read.values) == (9, True, {})


def test_later_queue_start_without_a_log_start_leaves_the_verdict_open() -> None:
    script = Script()
    script.sent("1.0.0", 0, pos=0)
    script.sent("1.1.0", 1, pos=200)
    script.final_everywhere(["1.1.0"], first=1, base=100)
    script.events = [event for event in script.events if event.f != "base" or event.n != "n2"]
    result = check_log(script.history())
    assert result.anomalies == {}
    assert result.unknown == ["n2 did not say where its log begins"]


@pytest.mark.parametrize(("disk_used", "anomalies"), [(0.2, {"removed-too-early": 3}), (0.81, {})])
def test_removal_without_a_reason_is_an_anomaly(disk_used: float, anomalies: dict[str, int]) -> None:
    script = Script()
    script.events[0].v.update({"settings": {"segment_bytes": "262144"}, "disk_used": disk_used})
    script.sent(A, 0, pos=0)
    script.sent(B, 1, pos=100)
    script.final_everywhere([B], first=1, base=100)
    assert check_log(script.history()).anomalies == anomalies
