"""Which popped messages come out, and when."""

from __future__ import annotations

import anyio
import pytest

from mq.client.consume.popped_messages import Inbox, PoppedMessage
from mq.client.message import MessageQueue, ReceivedMessage
from mq.protocol.receipts import NORMAL, Receipt
from mq.protocol.records import decode_record, encode_host, encode_record

QUEUE = MessageQueue("T", "broker", 0)


def message(offset: int, pop_time_ms: int) -> PoppedMessage:
    """A message of `QUEUE`, hidden for a minute from now on as far as the client knows."""
    host = encode_host("127.0.0.1", 1)
    record = decode_record(
        memoryview(
            encode_record(
                topic="T",
                queue_id=0,
                body=b"%d" % offset,
                properties="",
                queue_offset=offset,
                physical_offset=100 * offset,
                born_timestamp_ms=1,
                born_host=host,
                store_timestamp_ms=1,
                store_host=host,
            )
        )
    )
    receipt = Receipt(0, pop_time_ms, 60_000, 0, NORMAL, "broker", 0, offset)
    return PoppedMessage(ReceivedMessage(record, QUEUE, record.body), receipt, anyio.current_time() + 60)


@pytest.mark.trio
async def test_in_order_what_was_popped_anew_takes_the_place_of_what_came_before_it() -> None:
    inbox = Inbox(32, ordered=True)
    inbox.put([message(0, 1000), message(1, 1000)])
    inbox.put([message(0, 2000), message(1, 2000)])
    got = []
    for _ in range(2):
        got.append(await inbox.get())
        inbox.done(got[-1])
    assert [(each.receipt.offset, each.receipt.pop_time_ms) for each in got] == [(0, 2000), (1, 2000)]
    with anyio.fail_after(10):
        await inbox.room()
    inbox.put([message(2, 3000)])
    assert (await inbox.get()).receipt.offset == 2


@pytest.mark.trio
async def test_what_is_replaced_leaves_its_room_to_others() -> None:
    inbox = Inbox(2, ordered=True)
    for pop_time_ms in (1000, 2000, 3000):
        inbox.put([message(0, pop_time_ms), message(1, pop_time_ms)])
    for _ in range(2):
        inbox.done(await inbox.get())
    with anyio.fail_after(10):
        await inbox.room()
