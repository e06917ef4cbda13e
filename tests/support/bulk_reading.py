"""Bulk reads of a test's client: requests, and loops over them."""

from __future__ import annotations

from typing import Any

from mq.protocol.bulk import (
    BulkResponse,
    BulkStatus,
    PlannedPlace,
    PlannedQueue,
    ReadRange,
    decode_answer,
    decode_plan,
    encode_ranges,
)
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.records import StoredMessage, decode_record
from mq.protocol.numbers import QueueOffset
from tests.support.running_broker import Answer, Client

MIB = 1024 * 1024


def bulk_ext(topic: str = "T", **given: Any) -> dict[str, Any]:
    """The fields of a bulk read; by default one that a leader serves as well."""
    return {"topic": topic, "bytesMax": MIB, "allowLeader": True, "clientId": "c"} | given


async def bulk_request(client: Client, *ranges: tuple[int, int, int], **given: Any) -> Answer:
    body = encode_ranges([ReadRange(queue_id, QueueOffset(start), QueueOffset(end)) for queue_id, start, end in ranges])
    return await client.request(RequestCode.BULK_READ, bulk_ext(**given), body)


async def bulk(client: Client, *ranges: tuple[int, int, int], **given: Any) -> BulkResponse:
    answer = await bulk_request(client, *ranges, **given)
    assert answer.code == ResponseCode.SUCCESS, answer
    return decode_answer(answer.body)


def records(answer: BulkResponse) -> list[StoredMessage]:
    assert answer.status is BulkStatus.RECORDS, answer
    found: list[StoredMessage] = []
    at = 0
    for queue_id, size in zip(answer.queue_ids, answer.sizes, strict=True):
        record = decode_record(answer.data[at : at + size])
        assert (record.queue_id, record.size) == (queue_id, size)
        found.append(record)
        at += size
    return found


async def read_all(client: Client, *ranges: tuple[int, int, int], **given: Any) -> list[StoredMessage]:
    """Everything in the ranges, with as many requests as it takes."""
    left = {queue_id: (start, end) for queue_id, start, end in ranges}
    found: list[StoredMessage] = []
    while left:
        answer = await bulk(client, *((queue_id, *ends) for queue_id, ends in left.items()), **given)
        if answer.status is BulkStatus.BUSY:
            continue
        found += records(answer)
        left = {
            queue_id: (answer.offsets.get(queue_id, start), end)
            for queue_id, (start, end) in left.items()
            if answer.offsets.get(queue_id, start) < end
        }
    return found


async def plan(
    client: Client, topic: str = "T", **given: Any
) -> tuple[dict[str, str], list[PlannedQueue], list[PlannedPlace]]:
    answer = await client.request(RequestCode.PLAN_TOPIC, {"topic": topic} | given)
    assert answer.code == ResponseCode.SUCCESS, answer
    return answer.ext, *decode_plan(answer.body)
