"""Which popped messages come out, and when."""

from __future__ import annotations

import anyio

from mq.client.consume.popped_messages import Inbox
from tests.unit.client.popping import popped_message


async def test_ordered_message_popped_again_replaces_its_former_copy() -> None:
    inbox = Inbox(32, ordered=True)
    inbox.put([popped_message(0, 1000), popped_message(1, 1000)])
    inbox.put([popped_message(0, 2000), popped_message(1, 2000)])
    got = []
    for _ in range(2):
        got.append(await inbox.get())
        inbox.done(got[-1])
    assert [(each.receipt.offset, each.receipt.pop_time_ms) for each in got] == [(0, 2000), (1, 2000)]
    with anyio.fail_after(10):
        await inbox.room()
    inbox.put([popped_message(2, 3000)])
    assert (await inbox.get()).receipt.offset == 2


async def test_replaced_messages_free_their_room() -> None:
    inbox = Inbox(2, ordered=True)
    for pop_time_ms in (1000, 2000, 3000):
        inbox.put([popped_message(0, pop_time_ms), popped_message(1, pop_time_ms)])
    for _ in range(2):
        inbox.done(await inbox.get())
    with anyio.fail_after(10):
        await inbox.room()
