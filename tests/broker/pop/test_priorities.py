"""Messages with priorities over real sockets: their queue, the order of pops, retries, and what lower ones are owed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.batch import BatchedMessage, encode_batch
from tests.support.popping import Popped, ack, again, pop_ext, popped, read_popped
from tests.support.running_broker import Answer, Client, RunningBroker, broker_client, properties, send_ext

QUEUES = 10
PRIORITY = "_SYS_MSG_PRIORITY_"
ILLEGAL = ResponseCode.MESSAGE_ILLEGAL


async def make_topic(client: Client, queues: int = QUEUES, **given: Any) -> None:
    answer = await client.create_topic("T", queues, **{"attributes": "+message.type=PRIORITY"} | given)
    assert answer.code == 0, answer


def with_priority(priority: object, **more: str) -> str:
    return properties(**{PRIORITY: str(priority), "UNIQ_KEY": "K"} | more)


async def send(client: Client, priority: object, body: bytes = b"", **more: str) -> Answer:
    return await client.send(body=body or b"%d" % int(str(priority)), i=with_priority(priority, **more), e=0)


async def sent(client: Client, *priorities: int) -> None:
    for priority in priorities:
        assert (await send(client, priority)).code == 0


def bodies(messages: list[Popped]) -> list[int]:
    return [int(each.body) for each in messages]


async def test_pops_receive_the_highest_priority_first(client: Client) -> None:
    await make_topic(client)
    await sent(client, 1, 5, 9, 0, 5, 9)
    assert bodies(await popped(client, maxMsgNums=3)) == [9, 9, 5]
    await sent(client, 7)
    assert bodies(await popped(client, maxMsgNums=1)) == [7]
    assert bodies(await popped(client)) == [5, 1, 0]


async def test_broker_chooses_the_queue_over_the_client(client: Client) -> None:
    await make_topic(client, 4)
    for priority, queue in ((0, 0), (2, 2), (3, 3), (4, 3), (2**31 - 1, 3)):
        answer = await client.send(i=with_priority(priority), e=1)
        assert (answer.code, answer.ext["queueId"]) == (0, str(queue))
    answer = await client.send(i=properties(UNIQ_KEY="K"), e=3)  # without one: the least urgent
    assert answer.ext["queueId"] == "0"
    await client.create_topic("Plain", 4)  # as in RocketMQ: in any topic
    answer = await client.send("Plain", i=with_priority(2), e=1)
    assert answer.ext["queueId"] == "2"
    answer = await client.send("Plain", e=1)
    assert answer.ext["queueId"] == "1"


async def test_non_numeric_priority_is_refused(client: Client) -> None:
    await make_topic(client)
    for text in ("-1", str(10**30), str(2**31), "1.5", "high", "1e3", "\u0663"):
        answer = await client.send(i=with_priority(text))
        assert answer.code == ILLEGAL
        assert "is not a number from 0 to 2147483647" in str(answer.remark)
    assert await popped(client) == []


async def test_priority_excludes_other_queue_choices(client: Client) -> None:
    await make_topic(client)
    for name, value, said in (
        ("__SHARDINGKEY", "k", "a sharding key (message group)"),
        ("DELAY", "3", "a delay"),
        ("TIMER_DELAY_SEC", "3", "a delay"),
        ("TIMER_DELAY_MS", "3", "a delay"),
        ("TIMER_DELIVER_MS", "3", "a delay"),
        ("__LITE_TOPIC", "l", "a lite topic"),
    ):
        answer = await client.send(i=with_priority(3, **{name: value}))
        assert (answer.code, str(answer.remark)) == (ILLEGAL, f"a message with a priority cannot have {said}, too")
    assert (await send(client, 3, DELAY="0")).code == 0
    two = with_priority(1) + with_priority(8)  # the last one counts, as for every property
    assert (await client.send(i=two)).ext["queueId"] == "8"


async def test_batch_has_one_priority(tmp_path: Path) -> None:
    def batch(*texts: str) -> bytes:
        return encode_batch([BatchedMessage(b"b", text, 0) for text in texts])

    async with broker_client(tmp_path) as client:
        await make_topic(client)
        code, head = RequestCode.SEND_BATCH_MESSAGE, send_ext(m=True, e=1)
        one = batch(with_priority(4), with_priority(4))
        answer = await client.request(code, head, one)
        assert (answer.code, answer.ext["queueId"]) == (0, "4")
        answer = await client.request(code, head | {"i": with_priority(6)}, batch(properties(UNIQ_KEY="K")))
        assert (answer.code, answer.ext["queueId"]) == (0, "6")
        answer = await client.request(code, head, batch(properties(UNIQ_KEY="K")))
        assert (answer.code, answer.ext["queueId"]) == (0, "0")
        for mixed in (batch(with_priority(4), with_priority(5)), batch(with_priority(4), properties(UNIQ_KEY="K"))):
            answer = await client.request(code, head, mixed)
            assert answer.code == ILLEGAL
            assert "must have one priority" in str(answer.remark)
        assert (await client.request(code, head, batch(with_priority(-4)))).code == ILLEGAL
        assert len(await popped(client)) == 4


async def test_retried_message_keeps_its_priority(tmp_path: Path) -> None:
    """RocketMQ forgets it (apache/rocketmq issue 10350), and reads the retry topic last."""
    async with broker_client(tmp_path, lower_priorities_percent=0) as client:
        await make_topic(client)
        await sent(client, 2, 8)
        assert bodies(await popped(client, maxMsgNums=2, invisibleTime=1)) == [8, 2]
        await client.wait_for(lambda info: info["raftmq.popRevived"] == "2")
        await sent(client, 5, 1)
        got = [each async for each in one_by_one(client, 4)]
        assert [int(each.body) for each in got] == [8, 5, 2, 1]
        assert [each.message.reconsume_times for each in got] == [1, 0, 1, 0]
        assert got[0].message.properties[PRIORITY] == "8"
        # The copies fail again, and keep it further on.
        for each in got:
            assert await ack(client, each) == 0


async def one_by_one(client: Client, count: int, **given: Any) -> Any:
    for _ in range(count):
        (message,) = await popped(client, maxMsgNums=1, **given)
        yield message


async def test_repeatedly_redelivered_message_keeps_its_priority(client: Client) -> None:
    await make_topic(client)
    await sent(client, 9)
    await popped(client, invisibleTime=1)
    for times in (1, 2):
        (message,) = await again(client, invisibleTime=1)
        assert (message.message.queue_id, message.message.reconsume_times) == (9, times)


async def test_retry_topic_with_one_queue_gets_the_others(client: Client) -> None:
    """It is there from when the topic had another type."""
    await make_topic(client, attributes="+message.type=NORMAL")
    await client.send(body=b"0")
    (message,) = await popped(client, invisibleTime=1)
    (message,) = await again(client)
    await ack(client, message)
    await make_topic(client)
    await sent(client, 9)
    await popped(client, invisibleTime=1)
    (message,) = await again(client)
    assert message.message.queue_id == 9
    assert message.body == b"9"


async def test_lower_priorities_keep_their_share_under_constant_load(tmp_path: Path) -> None:
    """RabbitMQ's and RocketMQ's starve for as long as urgent messages come."""
    async with broker_client(tmp_path, lower_priorities_percent=10) as client:
        await make_topic(client)
        for priority in (0, 4, 9):
            await client.request(
                RequestCode.SEND_BATCH_MESSAGE,
                send_ext(m=True),
                encode_batch([BatchedMessage(b"%d" % priority, with_priority(priority), 0)] * 400),
            )
        got = Counter([int(each.body) async for each in one_by_one(client, 200)])
        assert got == {9: 182, 4: 9, 0: 9}  # every tenth, in turns; two are owed
        for _ in range(5):
            batch = bodies(await popped(client, maxMsgNums=32))
            assert len(batch) == 32
            assert batch == sorted(batch, reverse=True)
            got += Counter(batch)
        assert got.total() // 10 - 8 <= got[4] + got[0] <= got.total() // 10  # each may still be owed its part of a pop
        assert abs(got[4] - got[0]) <= 4
        assert int((await client.info())["raftmq.popGivenBelow"]) == got[4] + got[0]


async def test_last_level_gets_its_share_while_the_second_fills_every_pop(tmp_path: Path) -> None:
    """Each pop finds one urgent message and takes the rest of the second level: that pays nothing to the third."""
    async with broker_client(tmp_path, lower_priorities_percent=10) as client:
        await make_topic(client)
        for priority in (0, 4):
            await client.request(
                RequestCode.SEND_BATCH_MESSAGE,
                send_ext(m=True),
                encode_batch([BatchedMessage(b"%d" % priority, with_priority(priority), 0)] * 400),
            )
        got = Counter[int]()
        for _ in range(10):
            await sent(client, 9)
            got += Counter(bodies(await popped(client, maxMsgNums=32)))
        assert got.total() == 320
        assert got[9] == 10
        assert got.total() // 20 - 4 <= got[0] <= got.total() // 20 + 4  # the lower levels take turns


async def test_lower_priority_does_not_accumulate_share_while_empty(tmp_path: Path) -> None:
    async with broker_client(tmp_path, lower_priorities_percent=50) as client:
        await make_topic(client)
        await sent(client, *[9] * 20)
        assert len([each async for each in one_by_one(client, 10)]) == 10
        await sent(client, 0, 0, 0)
        assert [int(each.body) async for each in one_by_one(client, 6)] == [9, 9, 0, 9, 0, 9]


async def test_retries_of_lower_priorities_keep_a_share_too(tmp_path: Path) -> None:
    async with broker_client(tmp_path, lower_priorities_percent=50) as client:
        await make_topic(client)
        await sent(client, 0)
        await popped(client, invisibleTime=1)
        await client.wait_for(lambda info: info["raftmq.popRevived"] == "1")
        await sent(client, *[9] * 20)
        assert 0 in bodies([each async for each in one_by_one(client, 4)])


async def test_smaller_numbers_can_be_more_urgent(tmp_path: Path) -> None:
    async with broker_client(tmp_path, priority_order_asc=False) as client:
        await make_topic(client, 4)
        await sent(client, 2, 0, 1)
        assert (await client.send(body=b"99", i=properties(UNIQ_KEY="K"), e=0)).ext["queueId"] == "3"
        assert bodies(await popped(client)) == [0, 1, 2, 99]


async def test_waiting_pop_gets_the_most_urgent_message_of_an_entry(broker: RunningBroker) -> None:
    client, producer = await broker.connect(), await broker.connect()
    await make_topic(client)
    waiting = await client.post(RequestCode.POP_MESSAGE, pop_ext(maxMsgNums=1, pollTime=30_000))
    await client.wait_for(lambda info: info["raftmq.heldPops"] == "1")
    frames = [
        producer.frame(RequestCode.SEND_MESSAGE_V2, send_ext(i=with_priority(each)), b"%d" % each)[1]
        for each in (3, 9, 6)
    ]
    await producer.stream.send_all(b"".join(frames))  # one entry
    assert bodies(read_popped(await client.answer(waiting))) == [9]


async def test_group_may_have_a_factor(tmp_path: Path) -> None:
    async def put(client: Client, factor: object) -> Answer:
        body = b'{"groupName":"G","attributes":{"+priority.factor":"%s"}}' % str(factor).encode()
        return await client.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    async with broker_client(tmp_path, lower_priorities_percent=0) as client:
        await make_topic(client)
        for bad in (-1, 101, 10**30, "all", "0050", "0100000"):
            answer = await put(client, bad)
            assert answer.code == ResponseCode.INVALID_PARAMETER, bad
            assert "not a number from 0 to 100" in str(answer.remark)
        assert (await put(client, 50)).code == 0
        assert (await put(client, 30)).code == 0
        shown = await client.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G"})
        assert b'"attributes":{"priority.factor":"30"}' in shown.body
        await sent(client, *[9] * 100, *[5] * 100, *[0] * 100)
        got = [int(each.body) async for each in one_by_one(client, 100)]
        assert got[:30] == [9] * 30
        assert set(got[30:]) == {9, 5, 0}


async def test_pops_in_order_or_of_one_queue_ignore_priorities(client: Client) -> None:
    await make_topic(client)
    await sent(client, 2, 8)
    assert bodies(await popped(client, queueId=2)) == [2]
    assert bodies(await popped(client, order=True)) == [8]


async def test_peeks_return_the_same_order_and_change_nothing(tmp_path: Path) -> None:
    async with broker_client(tmp_path, lower_priorities_percent=50) as client:
        await make_topic(client)
        await sent(client, 2, 8, 8)
        ext = {name: pop_ext()[name] for name in ("consumerGroup", "topic", "queueId")} | {"maxMsgNums": 2}
        for _ in range(3):
            answer = await client.request(RequestCode.PEEK_MESSAGE, ext)
            assert [record.body for record in answer.records] == [b"8", b"8"]
        assert bodies(await popped(client, maxMsgNums=2)) == [8, 8]


async def test_number_of_queues_and_the_type_may_change_while_messages_wait(tmp_path: Path) -> None:
    async with broker_client(tmp_path, lower_priorities_percent=0) as client:
        await make_topic(client, 3)
        await sent(client, 7, 1)
        await make_topic(client, 10)
        await sent(client, 7)
        assert bodies(await popped(client, maxMsgNums=1)) == [7]  # the new one: in queue 7, above queue 2
        await make_topic(client, attributes="+message.type=NORMAL")
        assert (await client.send(body=b"5", i=properties(UNIQ_KEY="K"), e=5)).ext["queueId"] == "5"
        await make_topic(client)
        assert bodies(await popped(client)) == [5, 7, 1]


async def test_unknown_message_type_is_refused(client: Client) -> None:
    answer = await client.create_topic("T", attributes="+message.type=priority")
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "allowed: DELAY, FIFO, LITE, MIXED, NORMAL, PRIORITY, TRANSACTION, UNSPECIFIED" in str(answer.remark)
    for kind in ("PRIORITY", "LITE", "MIXED"):
        assert (await client.create_topic(kind, attributes=f"+message.type={kind}")).code == 0
    assert (await client.create_topic("MIXED", attributes="-message.type")).code == 0


async def test_retry_copies_are_stored_in_the_queue_of_their_priority(client: Client) -> None:
    await make_topic(client)
    body = b'{"groupName":"G"}'
    assert (await client.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0
    copy = with_priority(9, DELAY="3", RETRY_TOPIC="T")
    assert (await client.send("%RETRY%G", i=copy, j=1)).code == 0
