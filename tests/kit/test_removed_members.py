"""An operator removes members from consumer groups: they give up what they have, stay out, and come back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from mq.client import Admin, Message, PopConsumer, Producer, PushConsumer, ReceivedMessage
from mq.client.errors import BrokerError
from mq.client.events import ClientEvent
from mq.protocol.codes import RequestCode
from mq.protocol.requests.clients import (
    ConsumerData,
    ConsumerGroupExt,
    ConsumerList,
    HeartbeatData,
    LockedQueues,
    QueueLocks,
    SubscriptionData,
)
from mq.protocol.requests.removed_members import NOBODY
from mq.protocol.wire.queue_tables import QueueRef
from mq.testing import Kit, open_kit
from tests.support.virtual_time import VIRTUAL_TIME

pytestmark = VIRTUAL_TIME


@pytest.fixture
async def kit(replicas: int) -> AsyncIterator[Kit]:
    async with open_kit(replicas=replicas) as kit, Admin(kit.namesrv) as admin:
        await admin.create_topic("Orders", queues=4)
        yield kit


class Member:
    """A push consumer, what it got and what happened to it."""

    def __init__(self, kit: Kit, *, ordered: bool = False) -> None:
        self.got: list[bytes] = []
        self.events: list[ClientEvent] = []
        self.consumer = PushConsumer(
            kit.namesrv, group="billing", consume_from="first", ordered=ordered, on_event=self.events.append
        )

        @self.consumer.on("Orders")
        async def handle(message: ReceivedMessage) -> None:
            self.got.append(message.body)

    @property
    def removals(self) -> list[ClientEvent]:
        return [event for event in self.events if event.kind == "removed"]

    @property
    def queues(self) -> int:
        return sum(queue.topic == "Orders" for queue in self.consumer.assignment)


@asynccontextmanager
async def consuming(*members: Member) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        for member in members:
            nursery.start_soon(_run, member)
        yield
        for member in members:
            member.consumer.stop()


async def _run(member: Member) -> None:
    async with member.consumer:
        await member.consumer.run()


async def until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    with trio.move_on_after(seconds):
        while not condition():  # noqa: ASYNC110 - the consumers have no event for it
            await trio.sleep(0.05)
        return
    pytest.fail(f"not within {seconds} s: {what}")


@pytest.mark.parametrize("ordered", [False, True])
async def test_other_members_take_the_queues_of_a_removed_member(
    kit: Kit, producer: Producer, admin: Admin, ordered: bool
) -> None:
    one, other = Member(kit, ordered=ordered), Member(kit, ordered=ordered)
    async with consuming(one, other):
        await until(lambda: (one.queues, other.queues) == (2, 2), "each has a half")
        leaver = one.consumer.client_id
        removal = await admin.removed_members.remove("billing", leaver, keep_out=120, reason="it hangs")
        assert (removal.was_member, removal.unreached) == (True, {})
        began = trio.current_time()
        await until(lambda: (one.queues, other.queues) == (0, 4), "the other one has all queues")
        assert trio.current_time() - began < 10, "it does not wait for the next regular rebalancing"
        [event] = one.removals
        assert event.subject == "billing"
        assert "it hangs" in event.reason
        [kept] = await admin.removed_members.kept_out("billing")
        assert (kept.client_id, kept.reason, kept.connected) == (leaver, "it hangs", True)
        assert [each.client_id for each in await admin.group_members("billing")] == [other.consumer.client_id]

        one.got.clear()
        for number in range(20):
            await producer.send(Message("Orders", b"%d" % number))
        await until(lambda: len(other.got) == 20, "the other one gets every message")
        assert one.got == []
        await trio.sleep(60)  # beyond two heartbeats
        assert one.queues == 0, "heartbeats do not bring it back"

        await until(lambda: (one.queues, other.queues) == (2, 2), "it is a member again", 90)
        assert len(one.removals) == 1
        assert await admin.removed_members.kept_out("billing") == []


async def test_readmitted_member_rejoins_at_once(kit: Kit, producer: Producer, admin: Admin) -> None:
    member = Member(kit)
    async with consuming(member):
        await until(lambda: member.queues == 4, "it has all queues")
        await admin.removed_members.remove("billing", member.consumer.client_id, keep_out=3600)
        await until(lambda: member.queues == 0, "the only member goes, too")
        await producer.send(Message("Orders", b"waits"))
        assert not (await admin.removed_members.let_in("billing", "nobody")).was_member
        assert (await admin.removed_members.let_in("billing", member.consumer.client_id)).was_member
        began = trio.current_time()
        await until(lambda: member.got == [b"waits"], "it goes on where it was")
        assert trio.current_time() - began < 10


@pytest.mark.parametrize("replicas", [3])
async def test_removed_member_stays_out_after_a_leader_failure(kit: Kit, admin: Admin) -> None:
    one, other = Member(kit), Member(kit)
    async with consuming(one, other):
        await until(lambda: (one.queues, other.queues) == (2, 2), "each has a half")
        removal = await admin.removed_members.remove("billing", one.consumer.client_id, keep_out=3600)
        assert not removal.unreached
        await until(lambda: (one.queues, other.queues) == (0, 4), "the other one has all queues")
        await kit.lose_leader()
        await trio.sleep(35)  # more than a heartbeat
        assert (one.queues, other.queues) == (0, 4)


@pytest.mark.parametrize("replicas", [3])
async def test_member_is_removed_while_a_replica_is_down(kit: Kit, admin: Admin) -> None:
    member = Member(kit)
    async with consuming(member):
        await until(lambda: member.queues == 4, "it has all queues")
        lost = await kit.lose_leader()
        await until(lambda: kit.leader not in (None, lost), "another one leads")
        removal = await admin.removed_members.remove("billing", member.consumer.client_id, keep_out=60)
        assert removal.was_member
        await until(lambda: member.queues == 0, "it goes")


async def test_removed_popping_member_receives_no_messages(kit: Kit, producer: Producer, admin: Admin) -> None:
    events: list[ClientEvent] = []
    popped: list[bytes] = []
    async with (
        PopConsumer(kit.namesrv, "poppers", "Orders", consume_from="first", on_event=events.append) as consumer,
        trio.open_nursery() as nursery,
    ):

        async def pop() -> None:
            async for message in consumer:
                popped.append(message.body)
                await consumer.ack(message)

        nursery.start_soon(pop)
        await producer.send(Message("Orders", b"first"))
        await until(lambda: popped == [b"first"], "it pops")
        assert [each.client_id for each in await admin.group_members("poppers")] == [consumer.client_id]
        assert (await admin.removed_members.remove("poppers", consumer.client_id, keep_out=90)).was_member
        await producer.send(Message("Orders", b"second"))
        await trio.sleep(60)  # it pops in vain every five seconds
        assert popped == [b"first"]
        assert [each.connected for each in await admin.removed_members.kept_out("poppers")] == [True]
        assert [event.kind for event in events if event.kind == "removed"] == ["removed"]
        assert "removed from consumer group poppers" in str(consumer.health())
        assert [each.client_id for each in await admin.group_members("poppers")] == []
        await until(lambda: popped == [b"first", b"second"], "it goes on when the time is over")
        assert consumer.health()
        nursery.cancel_scope.cancel()


async def test_broker_refuses_locks_and_messages_to_removed_stock_clients(admin: Admin) -> None:
    """A Java client gives up its queues only if the list of members has somebody, and it is not in it."""
    address = (await admin.route("Orders")).leader_address("broker-a")
    assert address is not None
    remoting = admin._open_core()
    heartbeat = HeartbeatData(
        client_id="10.0.0.7@1", consumers=[ConsumerData("javas", [SubscriptionData("Orders")])]
    ).encode()
    await remoting.call(address, RequestCode.HEART_BEAT, body=heartbeat)
    asked = ConsumerGroupExt(consumer_group="javas").fields()
    locks = QueueLocks(client_id="10.0.0.7@1", group="javas", queues=[QueueRef("Orders", "broker-a", 0)]).encode()
    _, body = await remoting.call(address, RequestCode.LOCK_BATCH_MQ, body=locks)
    assert len(LockedQueues.decode(bytes(body)).queues) == 1

    await admin.removed_members.remove("javas", "10.0.0.7@1", keep_out=60)
    await remoting.call(address, RequestCode.HEART_BEAT, body=heartbeat)
    response, body = await remoting.call(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked)
    assert list(ConsumerList.decode(bytes(body)).consumer_ids) == [NOBODY]
    assert int(response.ext["raftmqKeptOutMs"]) > 0
    _, body = await remoting.call(address, RequestCode.LOCK_BATCH_MQ, body=locks)
    assert not LockedQueues.decode(bytes(body)).queues

    other = locks.replace(b"10.0.0.7@1", b"10.0.0.8@1")
    _, body = await remoting.call(address, RequestCode.LOCK_BATCH_MQ, body=other)
    assert len(LockedQueues.decode(bytes(body)).queues) == 1, "another member gets the lock at once"

    await trio.sleep(61)  # longer than it is kept out
    await remoting.call(address, RequestCode.HEART_BEAT, body=heartbeat)
    _, body = await remoting.call(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked)
    assert list(ConsumerList.decode(bytes(body)).consumer_ids) == ["10.0.0.7@1"]


async def test_invalid_removals_are_refused(admin: Admin) -> None:
    for seconds in (0, -1, 7 * 24 * 3600 + 1, float("nan")):
        with pytest.raises(ValueError, match="keep_out"):
            await admin.removed_members.remove("billing", "a", keep_out=seconds)
    removal = await admin.removed_members.remove("billing", "not there", keep_out=60)
    assert not removal.was_member, "it is kept out in case that it comes"
    assert len(await admin.removed_members.kept_out("billing")) == 1
    assert (await admin.removed_members.remove("billing", "not there", keep_out=10)).was_member
    [kept] = await admin.removed_members.kept_out("billing")
    assert kept.seconds <= 10, "what is said last counts"

    user_and_client = "u" * 127 + "/" + "c" * 256  # as long as that of a client behind a proxy may be
    assert not (await admin.removed_members.remove("billing", user_and_client, keep_out=60)).was_member
    with pytest.raises(BrokerError, match="385 characters"):
        await admin.removed_members.remove("billing", user_and_client + "c", keep_out=60)
