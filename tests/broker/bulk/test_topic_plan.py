"""Planning requests: what queues hold, how large they are, and where log files begin in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mq.protocol.bulk import PlannedQueue
from mq.protocol.codes import RequestCode, ResponseCode
from tests.support.bulk_reading import plan, read_all
from tests.support.running_broker import Client, RunningBroker, broker_client, limited
from tests.support.sent_messages import sent
from tests.support.short_logs import SMALL_SEGMENT_BYTES


async def test_plan_contains_the_offsets_of_queues(broker: RunningBroker, client: Client) -> None:
    await client.create_topic("T", 4)
    await sent(client, 10, 3)
    for current in (False, True):
        ext, queues, places = await plan(client, current=current)
        assert queues == [(0, 0, 4, 0), (1, 0, 3, 0), (2, 0, 3, 0), (3, 0, 0, 0)]
        assert places == []
        assert (ext["readQueues"], ext["nextQueue"], ext["role"]) == ("4", "-1", "leader")
        config = await client.request(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})
        assert ext["topicIdentity"] == config.ext["topicIdentity"] != ""
        assert ext["logIdentity"] == broker.settings.identity


@pytest.mark.slow
async def test_stripes_between_places_equal_the_content_of_files(tmp_path: Path) -> None:
    small = {"segment_bytes": SMALL_SEGMENT_BYTES, "message_bytes_max": 32 * 1024, "entry_bytes_max": 4096}
    async with broker_client(tmp_path, queues=3, **small) as client:
        await sent(client, 600, 3, body_bytes=900)
        _, queues, places = await plan(client, detail=True)
        found = await read_all(client, *((queue_id, 0, 200) for queue_id in range(3)))
        for queue in queues:
            nbytes = sum(record.size for record in found if record.queue_id == queue.queue_id)
            assert abs(queue.nbytes - nbytes) < nbytes / 10
        assert [place.position for place in places] == list(
            range(SMALL_SEGMENT_BYTES, found[-1].physical_offset, SMALL_SEGMENT_BYTES)
        )
        for place in places:
            before = [record for record in found if record.physical_offset < place.position]
            assert list(place.offsets) == [sum(each.queue_id == queue for each in before) for queue in range(3)]


async def test_many_queues_come_in_pages_and_with_fewer_places(tmp_path: Path) -> None:
    limits = limited(bulk={"plan_queues_max": 4, "plan_offsets_max": 8})
    small = {"segment_bytes": SMALL_SEGMENT_BYTES, "message_bytes_max": 32 * 1024}
    async with broker_client(tmp_path, queues=10, limits=limits, **small) as client:
        await sent(client, 500, 10, body_bytes=1800)
        seen: list[PlannedQueue] = []
        positions: set[tuple[int, ...]] = set()
        first = 0
        while first >= 0:
            ext, queues, places = await plan(client, firstQueue=first, detail=True)
            assert 0 < len(places) <= 2
            positions.add(tuple(place.position for place in places))
            seen += queues
            first = int(ext["nextQueue"])
        assert len(positions) == 1, "pages that do not go together"
        assert [(each.queue_id, each.end) for each in seen] == [(queue_id, 50) for queue_id in range(10)]


@pytest.mark.parametrize(
    ("ext", "code"),
    [
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": "Written"}, ResponseCode.NO_PERMISSION),
        ({"topic": "T", "firstQueue": -1}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "T", "firstQueue": 2}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "T", "firstQueue": "first"}, ResponseCode.SYSTEM_ERROR),
        ({"topic": "T", "firstQueue": 2**31}, ResponseCode.SYSTEM_ERROR),
        ({}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_bad_requests_are_refused(client: Client, ext: dict[str, Any], code: ResponseCode) -> None:
    await client.create_topic("T", 2)
    await client.create_topic("Written", 1, perm=2)
    for detail in (False, True):
        answer = await client.request(RequestCode.PLAN_TOPIC, {**ext, "detail": detail})
        assert (answer.code, answer.body) == (code, b"")
        assert answer.remark
