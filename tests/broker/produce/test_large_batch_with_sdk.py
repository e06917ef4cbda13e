"""Batches of thousands of tiny messages with the SDK: a name server and a broker, real sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq.client import Admin, Message, MessageQueue, Producer, SendRejected
from mq.protocol.frames import HEADER_BYTES_MAX
from tests.support.name_server_and_broker import cluster_and_broker


async def test_batch_with_more_ids_than_a_header_holds_returns_all_results(tmp_path: Path) -> None:
    async with (
        cluster_and_broker(tmp_path) as (namesrv, _),
        Admin(namesrv) as admin,
        Producer(namesrv, "P") as producer,
    ):
        await admin.create_topic("T", 1)
        messages = [Message("T", b"%d" % number) for number in range(15_000)]
        results = await producer.send_batch(messages)
        assert [each.queue_offset for each in results] == list(range(15_000))
        assert sum(len(each.offset_message_id) for each in results) > HEADER_BYTES_MAX
        last = await admin.message_by_id(results[-1].offset_message_id)
        assert last is not None
        assert (last.body, last.message_id) == (b"14999", results[-1].message_id)


async def test_oversized_batch_is_refused_with_a_reason_and_not_stored(tmp_path: Path) -> None:
    async with (
        cluster_and_broker(tmp_path) as (namesrv, broker),
        Admin(namesrv) as admin,
        Producer(namesrv, "P") as producer,
    ):
        await admin.create_topic("T", 1)
        with pytest.raises(SendRejected, match="a batch of more than") as refused:
            await producer.send_batch([Message("T", b"x")] * 40_000)
        assert refused.value.stored == "no"
        assert await admin.max_offset(MessageQueue("T", broker.settings.group, 0)) == 0
