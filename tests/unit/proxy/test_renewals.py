"""Messages that are kept hidden, in virtual time: brokers that do not answer, and refusals."""

from __future__ import annotations

import pytest
import structlog
import trio
import trio.testing
from trio.testing import MockClock

from mq.client.errors import BrokerError
from mq.protocol.codes import ResponseCode
from mq.proxy.callers import Fields
from mq.proxy.mapping.handles import Handle
from mq.proxy.mapping.refusals import CodedError
from mq.proxy.renewals import Renewals
from mq.proxy.wire import messaging_pb2 as pb
from tests.support.proxies import Call


class Broker:
    """Hides messages, unless its broker group is slow: then it fails after ten seconds, as without a leader."""

    def __init__(self) -> None:
        self.hidden: list[float] = []
        self.asked = 0

    async def defer(self, group: str, topic: str, handle: Handle, invisible_ms: int, extra: Fields) -> Handle:
        self.asked += 1
        if handle.receipt.broker == "slow":
            await trio.sleep(10)  # as long as a request may take
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "no leader", "slow")
        self.hidden.append(trio.current_time())
        return handle


def handle(broker: str, offset: int) -> Handle:
    return Handle.decode(f"{offset} 1 60000 0 0 {broker} 0 {offset} {offset}")


async def test_unresponsive_broker_does_not_delay_renewals_at_other_brokers(autojump_clock: MockClock) -> None:
    broker = Broker()
    renewals = Renewals(broker.defer, lambda client_id: True, structlog.get_logger("test"))
    began = trio.current_time()
    for offset in range(300):
        renewals.hold("c1", "billing", "Orders", handle("slow", offset), {}, Call("c1"))
    renewals.hold("c1", "billing", "Orders", handle("fast", 0), {}, Call("c1"))
    with trio.move_on_after(140):
        await renewals.run()
    # 60 s after it was hidden it would be visible.
    assert len(broker.hidden) == 3
    for earlier, later in zip([began, *broker.hidden], broker.hidden, strict=False):
        assert later - earlier < 45
    assert renewals.count == 1
    assert broker.asked < 300 + 2 * 64


async def test_only_the_client_that_settles_nothing_is_refused_new_messages(autojump_clock: MockClock) -> None:
    def may(renewals: Renewals, client_id: str) -> bool:
        try:
            renewals.check_room(client_id)
        except CodedError as refused:
            return refused.code != pb.TOO_MANY_REQUESTS
        return True

    log = structlog.get_logger("test")
    renewals = Renewals(Broker().defer, lambda client_id: True, log, held_max=5, held_by_client_max=3)
    for offset in range(3):
        assert may(renewals, "c1")
        renewals.hold("c1", "billing", "Orders", handle("fast", offset), {}, Call("c1"))
    assert not may(renewals, "c1")
    for offset in range(3, 5):
        assert may(renewals, "c2")
        renewals.hold("c2", "billing", "Orders", handle("fast", offset), {}, Call("c2"))
    assert not may(renewals, "c3")
    async with renewals.take("c1", "billing", handle("fast", 0).encode()):
        pass
    assert may(renewals, "c1")
    assert may(renewals, "c3")
    renewals.hold("c1", "billing", "Orders", handle("fast", 1), {}, Call("c1"))  # popped again
    renewals.forget("c1", "billing", handle("fast", 1))
    await renewals.release("c1")
    await renewals.release("c2")
    assert renewals.count == 0
    assert may(renewals, "c2")


async def test_settlement_after_a_failed_one_uses_the_newest_handle(autojump_clock: MockClock) -> None:
    """The client knows the handle of its pop only, which is outdated once the proxy has hidden the message again."""

    class Renewing(Broker):
        async def defer(self, group: str, topic: str, handle: Handle, invisible_ms: int, extra: Fields) -> Handle:
            await trio.lowlevel.checkpoint()
            self.asked += 1
            return Handle.decode(f"{handle.receipt.offset} {1 + self.asked} 60000 0 0 fast 0 {handle.receipt.offset} 7")

    broker = Renewing()
    renewals = Renewals(broker.defer, lambda client_id: True, structlog.get_logger("test"))
    popped = handle("fast", 7)
    renewals.hold("c1", "billing", "Orders", popped, {}, Call("c1"))
    with trio.move_on_after(45):
        await renewals.run()
    assert broker.asked == 1
    with pytest.raises(BrokerError):
        async with renewals.take("c1", "billing", popped.encode()):
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "no leader", "fast")
    assert renewals.count == 1
    async with renewals.take("c1", "billing", popped.encode()) as newest:
        assert newest.receipt.pop_time_ms == 2
    assert renewals.count == 0
