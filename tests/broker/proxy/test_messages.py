"""Messages through a proxy: sent, received, acknowledged, given back; on brokers of the test kit, in virtual time."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from mq.client import Admin, Message, Producer
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from mq.proxy.grpc import BrokenCall
from mq.proxy.wire import messaging_pb2 as pb
from mq.testing import Kit
from tests.support.proxies import ENDPOINTS, Call, InMemoryProxy, message, open_proxy, receive_request
from tests.support.virtual_time import VIRTUAL_TIME

pytestmark = VIRTUAL_TIME


def bodies(messages: list[pb.Message]) -> list[str]:
    return [each.body.decode() for each in messages]


async def begin(proxy: InMemoryProxy, group: str, topic: str) -> None:
    """Let a new group begin here: it begins at the end of the topic."""
    status, messages = await proxy.receive(group, topic)
    assert (status.code, messages) == (pb.MESSAGE_NOT_FOUND, [])


async def test_message_is_sent_received_and_acknowledged(kit: Kit, proxy: InMemoryProxy) -> None:
    await begin(proxy, "billing", "Orders")
    sent = await proxy.send("Orders", "one", tag="red", keys=["k1", "k2"], trace_context="trace")
    assert sent.status.code == pb.OK
    [entry] = sent.entries
    assert (entry.status.code, entry.message_id, entry.transaction_id) == (pb.OK, "id-one", "")
    status, [got] = await proxy.receive("billing", "Orders")
    assert status.code == pb.OK
    told = got.system_properties
    assert (got.topic.name, got.body) == ("Orders", b"one")
    assert (told.message_id, told.tag, list(told.keys)) == ("id-one", "red", ["k1", "k2"])
    assert (told.delivery_attempt, told.message_type, told.trace_context) == (1, pb.NORMAL, "trace")
    assert (told.body_digest.type, told.body_encoding) == (pb.MD5, pb.IDENTITY)
    assert told.body_digest.checksum == "F97C5D29941BFB1B2FDAB0874906AB82"  # in the only form that all clients know
    assert told.invisible_duration.seconds == 30
    assert told.born_host == "192.0.2.7:50123"
    answer = await proxy.acknowledge("billing", got)
    assert (answer.status.code, answer.entries[0].status.code) == (pb.OK, pb.OK)
    await kit.advance(seconds=60)
    await begin(proxy, "billing", "Orders")


async def test_grpc_consumers_do_not_see_the_number_of_a_message(kit: Kit, proxy: InMemoryProxy) -> None:
    await begin(proxy, "billing", "Orders")
    async with Producer(kit.namesrv, numbered="desk") as producer:
        await producer.send(Message("Orders", b"one", properties={"color": "red"}))
    _, [got] = await proxy.receive("billing", "Orders")
    assert (got.body, dict(got.user_properties)) == (b"one", {"color": "red"})


async def test_messages_arrive_by_priority_and_retries_keep_the_priority(
    kit: Kit, proxy: InMemoryProxy, admin: Admin
) -> None:
    await admin.create_topic("Urgent", 10, message_type="PRIORITY")
    await begin(proxy, "billing", "Urgent")
    route = await proxy.ask(
        "QueryRoute",
        pb.QueryRouteRequest(topic=pb.Resource(name="Urgent"), endpoints=ENDPOINTS),
        pb.QueryRouteResponse,
    )
    assert {tuple(queue.accept_message_types) for queue in route.message_queues} == {(pb.PRIORITY,)}
    for priority in (1, 9, 5):
        sent = await proxy.send("Urgent", f"p{priority}", priority=priority, message_type=pb.PRIORITY)
        assert sent.status.code == pb.OK
    assert (await proxy.send("Urgent", "none")).status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    _, [got] = await proxy.receive("billing", "Urgent", batch_size=1)
    told = got.system_properties
    assert (got.body, told.priority, told.message_type) == (b"p9", 9, pb.PRIORITY)
    await kit.advance(seconds=31)
    _, [got] = await proxy.receive("billing", "Urgent", batch_size=1)
    assert (got.body, got.system_properties.priority, got.system_properties.delivery_attempt) == (b"p9", 9, 2)
    _, messages = await proxy.receive("billing", "Urgent")
    assert bodies(messages) == ["p5", "p1"]


async def test_unacknowledged_message_is_redelivered_and_then_dead_lettered(
    kit: Kit, proxy: InMemoryProxy, admin: Admin
) -> None:
    await admin.put_consumer_group(SubscriptionGroupConfig(group_name="billing", retry_max_times=1))
    await begin(proxy, "billing", "Orders")
    await proxy.send("Orders", "one")
    for attempt in (1, 2):
        _, [got] = await proxy.receive("billing", "Orders")
        assert got.system_properties.delivery_attempt == attempt
        await kit.advance(seconds=31)
    await begin(proxy, "billing", "Orders")
    await kit.settle()
    assert [each.body for each in kit.dead_letters("billing")] == [b"one"]
    late = await proxy.acknowledge("billing", got)
    assert late.status.code == pb.INVALID_RECEIPT_HANDLE


async def test_message_is_invisible_for_the_requested_duration(kit: Kit, proxy: InMemoryProxy) -> None:
    await begin(proxy, "billing", "Orders")
    await proxy.send("Orders", "one")
    _, [got] = await proxy.receive("billing", "Orders", invisible_duration=Duration(seconds=40))
    assert got.system_properties.invisible_duration.seconds == 40
    await kit.advance(seconds=30)
    await begin(proxy, "billing", "Orders")  # which takes 5 s, and gets nothing
    await kit.advance(seconds=10)
    _, [again] = await proxy.receive("billing", "Orders")
    assert again.body == b"one"


async def test_changing_the_invisible_time_returns_a_new_handle(kit: Kit, proxy: InMemoryProxy) -> None:
    await begin(proxy, "billing", "Orders")
    await proxy.send("Orders", "one")
    _, [got] = await proxy.receive("billing", "Orders")
    changed = await proxy.ask(
        "ChangeInvisibleDuration",
        pb.ChangeInvisibleDurationRequest(
            group=pb.Resource(name="billing"),
            topic=got.topic,
            receipt_handle=got.system_properties.receipt_handle,
            invisible_duration=Duration(seconds=120),
        ),
        pb.ChangeInvisibleDurationResponse,
    )
    assert changed.status.code == pb.OK
    await kit.advance(seconds=60)
    await begin(proxy, "billing", "Orders")
    got.system_properties.receipt_handle = changed.receipt_handle
    assert (await proxy.acknowledge("billing", got)).status.code == pb.OK
    await kit.advance(seconds=120)
    await begin(proxy, "billing", "Orders")


def change(got: pb.Message, seconds: int) -> pb.ChangeInvisibleDurationRequest:
    return pb.ChangeInvisibleDurationRequest(
        group=pb.Resource(name="billing"),
        topic=got.topic,
        receipt_handle=got.system_properties.receipt_handle,
        invisible_duration=Duration(seconds=seconds),
    )


@pytest.mark.parametrize("renewed", [False, True])
async def test_client_can_acknowledge_with_its_handle_before_a_change(
    kit: Kit, proxy: InMemoryProxy, renewed: bool
) -> None:
    """RocketMQ's client for C# does not tell its user the new handle."""
    await begin(proxy, "billing", "Orders")
    await proxy.send("Orders", "one")
    _, [got] = await proxy.receive("billing", "Orders", auto_renew=renewed)
    answer = await proxy.ask("ChangeInvisibleDuration", change(got, 20), pb.ChangeInvisibleDurationResponse)
    assert answer.status.code == pb.OK
    assert (await proxy.acknowledge("billing", got)).status.code == pb.OK
    await kit.advance(seconds=70)
    await begin(proxy, "billing", "Orders")


async def test_suspended_message_is_redelivered_without_counting(kit: Kit, proxy: InMemoryProxy, admin: Admin) -> None:
    await admin.put_consumer_group(SubscriptionGroupConfig(group_name="billing", retry_max_times=1))
    await begin(proxy, "billing", "Orders")
    await proxy.send("Orders", "one")
    for _ in range(3):
        _, [got] = await proxy.receive("billing", "Orders")
        assert got.system_properties.delivery_attempt == 1
        suspension = change(got, 10)
        suspension.suspend = True
        answer = await proxy.ask("ChangeInvisibleDuration", suspension, pb.ChangeInvisibleDurationResponse)
        assert answer.status.code == pb.OK
        await kit.advance(seconds=11)
    _, [got] = await proxy.receive("billing", "Orders")
    assert (await proxy.acknowledge("billing", got)).status.code == pb.OK
    assert kit.dead_letters("billing") == []


@pytest.mark.parametrize(("waits", "changed"), [(0, 30), (0, 10), (10, 20), (29, 1)])
async def test_messages_with_colliding_invisible_times_are_redelivered(
    kit: Kit, proxy: InMemoryProxy, admin: Admin, waits: int, changed: int
) -> None:
    """RocketMQ lost a message whose new invisible time ended in the same millisecond as the old one
    (apache/rocketmq#10276); here also with a change in the millisecond of the pop.
    """
    await admin.create_topic("Single", 1)
    await begin(proxy, "billing", "Single")
    for name in ("one", "two"):
        await proxy.send("Single", name)
    _, got = await proxy.receive("billing", "Single", batch_size=2, invisible_duration=Duration(seconds=30))
    assert bodies(got) == ["one", "two"]
    for _ in range(3):
        if waits:
            await trio.sleep(waits)
        async with trio.open_nursery() as nursery:
            for message in got:
                again = change(message, changed)
                nursery.start_soon(proxy.ask, "ChangeInvisibleDuration", again, pb.ChangeInvisibleDurationResponse)
        await kit.advance(seconds=changed + 1)
        got = []
        while len(got) < 2:
            _, more = await proxy.receive("billing", "Single", invisible_duration=Duration(seconds=30))
            assert more, f"only {bodies(got)} came again"
            got += more
        assert sorted(bodies(got)) == ["one", "two"]
    assert (await proxy.acknowledge("billing", *got)).status.code == pb.OK
    await kit.advance(seconds=61)
    await begin(proxy, "billing", "Single")


async def test_refused_visibility_change_returns_the_current_receipt_handle(kit: Kit, proxy: InMemoryProxy) -> None:
    await begin(proxy, "billing", "Orders")
    await proxy.send("Orders", "one")
    _, [got] = await proxy.receive("billing", "Orders")
    await kit.advance(seconds=31)
    answer = await proxy.ask("ChangeInvisibleDuration", change(got, 20), pb.ChangeInvisibleDurationResponse)
    assert answer.status.code == pb.INVALID_RECEIPT_HANDLE
    assert answer.receipt_handle == got.system_properties.receipt_handle


async def test_client_gives_a_message_up(kit: Kit, proxy: InMemoryProxy) -> None:
    await begin(proxy, "billing", "Orders")
    await proxy.send("Orders", "one")
    _, [got] = await proxy.receive("billing", "Orders")
    answer = await proxy.ask(
        "ForwardMessageToDeadLetterQueue",
        pb.ForwardMessageToDeadLetterQueueRequest(
            group=pb.Resource(name="billing"),
            topic=got.topic,
            receipt_handle=got.system_properties.receipt_handle,
            message_id="id-one",
        ),
        pb.ForwardMessageToDeadLetterQueueResponse,
    )
    assert answer.status.code == pb.OK
    assert [each.body for each in kit.dead_letters("billing")] == [b"one"]
    await kit.advance(seconds=60)
    await begin(proxy, "billing", "Orders")


async def test_handling_keeps_messages_hidden_until_a_minute_after_the_proxy_dies(
    kit: Kit, proxy: InMemoryProxy
) -> None:
    await begin(proxy, "billing", "Orders")
    async with open_proxy(kit) as killed:
        for body in ("one", "two"):
            await proxy.send("Orders", body)
        _, messages = await killed.receive("billing", "Orders", auto_renew=True)
        if len(messages) == 1:
            messages += (await killed.receive("billing", "Orders", auto_renew=True))[1]
        assert sorted(bodies(messages)) == ["one", "two"]
        for _ in range(14):
            await trio.sleep(10)  # heartbeats come this often; meanwhile the proxy keeps the messages hidden
            call = pb.HeartbeatRequest(client_type=pb.PUSH_CONSUMER)
            assert (await killed.ask("Heartbeat", call, pb.HeartbeatResponse)).status.code == pb.OK
        await begin(proxy, "billing", "Orders")
        # The handle that the client has is that of the first pop, two minutes ago.
        [done] = [each for each in messages if each.body == b"one"]
        assert (await killed.acknowledge("billing", done)).status.code == pb.OK
    await kit.advance(seconds=61)
    _, again = await proxy.receive("billing", "Orders")
    assert bodies(again) == ["two"]


async def test_terminated_client_returns_its_messages(proxy: InMemoryProxy) -> None:
    await begin(proxy, "billing", "Orders")
    await proxy.send("Orders", "one")
    _, [_] = await proxy.receive("billing", "Orders", client="c2", auto_renew=True)
    left = await proxy.ask(
        "NotifyClientTermination",
        pb.NotifyClientTerminationRequest(),
        pb.NotifyClientTerminationResponse,
        client="c2",
    )
    assert left.status.code == pb.OK
    _, again = await proxy.receive("billing", "Orders")
    assert bodies(again) == ["one"]


async def test_messages_of_an_abandoned_receive_are_redelivered_at_once(proxy: InMemoryProxy) -> None:
    await begin(proxy, "billing", "Orders")
    call = Call("c2", trio.current_time() + 30)
    await call.to_server.send(receive_request("billing", "Orders").SerializeToString())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(proxy.serve, "ReceiveMessage", call)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    await proxy.send("Orders", "one")
    _, again = await proxy.receive("billing", "Orders")
    assert bodies(again) == ["one"]
    assert again[0].system_properties.delivery_attempt <= 2


class Breaking(Call):
    """A call whose client goes after so many answers."""

    answers_left = 0

    async def send(self, message: bytes) -> None:
        if not self.answers_left:
            raise BrokenCall("the client has cancelled the call, or is gone")
        self.answers_left -= 1
        await super().send(message)


@pytest.mark.parametrize("answers", [0, 1, 2, 3])
async def test_messages_of_an_interrupted_answer_are_not_kept_hidden(proxy: InMemoryProxy, answers: int) -> None:
    await begin(proxy, "steps", "Steps")
    await proxy.send("Steps", "one", "two", message_group="g", message_type=pb.FIFO)
    call = Breaking("c2", trio.current_time() + 30)
    call.answers_left = answers
    await call.to_server.send(receive_request("steps", "Steps", auto_renew=True).SerializeToString())
    with pytest.raises(BrokenCall):
        await proxy.serve("ReceiveMessage", call)
    assert proxy.table.renewals.count == 0
    _, again = await proxy.receive("steps", "Steps")
    assert sorted(bodies(again)) == ["one", "two"]


@pytest.mark.parametrize("arrived", [True, False])
async def test_unreceived_message_is_redelivered_despite_a_reconnect(proxy: InMemoryProxy, arrived: bool) -> None:
    await begin(proxy, "billing", "Orders")
    await proxy.send("Orders", "one")
    call = Call("c2", trio.current_time() + 30)
    await call.to_server.send(receive_request("billing", "Orders", auto_renew=True).SerializeToString())
    await proxy.serve("ReceiveMessage", call)
    call.silent_since = trio.current_time() + (10 if arrived else 0)
    call.is_connection_lost = True
    for _ in range(9):
        await trio.sleep(10)  # the client is connected again, and sends heartbeats
        heartbeat = pb.HeartbeatRequest(client_type=pb.PUSH_CONSUMER)
        await proxy.ask("Heartbeat", heartbeat, pb.HeartbeatResponse, client="c2")
    assert proxy.table.renewals.count == arrived
    _, again = await proxy.receive("billing", "Orders")
    assert bodies(again) == ([] if arrived else ["one"])


async def test_tags_with_equal_hash_codes_are_distinguished(kit: Kit, proxy: InMemoryProxy) -> None:
    await begin(proxy, "billing", "Orders")
    for tag in ("AaTag", "BBTag", "other"):
        await proxy.send("Orders", tag, tag=tag)
    only = pb.FilterExpression(type=pb.TAG, expression="AaTag || none")
    got: list[str] = []
    for _ in range(3):
        got += bodies((await proxy.receive("billing", "Orders", filter_expression=only))[1])
    assert got == ["AaTag"]
    await kit.advance(seconds=31)
    # What is passed over is acknowledged, so it does not come again, either.
    assert bodies((await proxy.receive("billing", "Orders"))[1]) == ["AaTag"]


async def test_simple_consumer_that_names_a_queue_gets_messages_of_all(proxy: InMemoryProxy) -> None:
    await begin(proxy, "billing", "Orders")
    await proxy.send("Orders", "one", "two")
    got: list[str] = []
    while len(got) < 2:
        status, messages = await proxy.receive("billing", "Orders", queue_id=1)
        assert status.code == pb.OK
        got += bodies(messages)
    assert sorted(got) == ["one", "two"]


async def test_message_groups_are_handled_in_order(kit: Kit, proxy: InMemoryProxy, admin: Admin) -> None:
    await admin.put_consumer_group(SubscriptionGroupConfig(group_name="steps", consume_message_orderly=True))
    assigned = await proxy.ask(
        "QueryAssignment",
        pb.QueryAssignmentRequest(
            topic=pb.Resource(name="Steps"), group=pb.Resource(name="steps"), endpoints=ENDPOINTS
        ),
        pb.QueryAssignmentResponse,
    )
    assert [each.message_queue.id for each in assigned.assignments] == [0, 1]
    await begin(proxy, "steps", "Steps")
    sent = await proxy.send("Steps", "1", "2", "3", message_group="g", message_type=pb.FIFO)
    assert sent.status.code == pb.OK
    _, first = await proxy.receive("steps", "Steps")
    assert bodies(first) == ["1", "2", "3"]
    assert {each.system_properties.message_group for each in first} == {"g"}
    assert (await proxy.acknowledge("steps", first[0])).status.code == pb.OK
    await begin(proxy, "steps", "Steps")  # the others are open, and nobody gets any of the queue
    await kit.advance(seconds=31)
    _, again = await proxy.receive("steps", "Steps")
    assert bodies(again) == ["2", "3"]


async def test_delayed_message_up_to_the_limit_can_be_recalled(kit: Kit, proxy: InMemoryProxy) -> None:
    await begin(proxy, "later", "Later")
    due = int(kit.now().timestamp()) + 30 * 86400
    sent = await proxy.send("Later", "a", "b", delivery_timestamp=Timestamp(seconds=due), message_type=pb.DELAY)
    assert sent.status.code == pb.OK
    by_id = {entry.message_id: entry for entry in sent.entries}
    recalled = await proxy.ask(
        "RecallMessage",
        pb.RecallMessageRequest(topic=pb.Resource(name="Later"), recall_handle=by_id["id-a"].recall_handle),
        pb.RecallMessageResponse,
    )
    assert (recalled.status.code, recalled.message_id) == (pb.OK, "id-a")
    too_far = Timestamp(seconds=due + 400 * 86400)
    refused = await proxy.send("Later", "c", delivery_timestamp=too_far, message_type=pb.DELAY)
    assert refused.status.code == pb.ILLEGAL_DELIVERY_TIME
    await kit.advance(days=30, seconds=5)
    _, got = await proxy.receive("later", "Later")
    assert bodies(got) == ["b"]
    assert got[0].system_properties.message_type == pb.DELAY
    assert got[0].system_properties.delivery_timestamp.seconds == due


@pytest.mark.parametrize("replicas", [3])
async def test_clients_get_no_error_at_a_leader_change(kit: Kit, proxy: InMemoryProxy) -> None:
    await begin(proxy, "billing", "Orders")
    await proxy.send("Orders", "one")
    _, [got] = await proxy.receive("billing", "Orders")
    await kit.lose_leader()
    assert (await proxy.acknowledge("billing", got)).status.code == pb.OK
    assert (await proxy.send("Orders", "two")).status.code == pb.OK
    status, got_two = await proxy.receive("billing", "Orders")
    assert (status.code, bodies(got_two)) == (pb.OK, ["two"])


async def test_each_message_of_a_request_has_a_status(proxy: InMemoryProxy) -> None:
    await begin(proxy, "billing", "Orders")
    await proxy.send("Orders", "one")
    _, [got] = await proxy.receive("billing", "Orders")
    bad = message("Orders", "x", receipt_handle="1 2 3")
    answer = await proxy.acknowledge("billing", got, bad)
    assert answer.status.code == pb.MULTIPLE_RESULTS
    assert [each.status.code for each in answer.entries] == [pb.OK, pb.INVALID_RECEIPT_HANDLE]
