"""Pops that wait take a message in the round that stores it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mq.broker.broker import Broker
from mq.broker.write_path.appender import Appender
from mq.protocol.codes import RequestCode
from tests.support.popping import ack, now_ms, pop, pop_ext, popped, read_popped
from tests.support.running_broker import Client, RunningBroker, properties, running, send_ext

POP, SEND = RequestCode.POP_MESSAGE, RequestCode.SEND_MESSAGE_V2
FOUND = 0


class Rounds:
    """Counts the rounds of the brokers that start from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        start_round = Appender.start_round

        def counted(appender: Appender) -> bool:
            started = start_round(appender)
            self.count += started
            return started

        monkeypatch.setattr(Appender, "start_round", counted)


async def waiting(client: Client, held: int, topic: str = "T", **given: Any) -> int:
    """Have a pop wait; ``held`` are all that wait then."""
    posted = await client.post(POP, pop_ext(topic, pollTime=20_000, bornTime=now_ms(), **given))
    await client.wait_for(lambda info: info["raftmq.heldPops"] == str(held))
    return posted


async def taken(client: Client, posted: int) -> list[bytes]:
    """The bodies that a pop got which waited; they are acknowledged."""
    got = read_popped(await client.answer(posted))
    for each in got:
        assert await ack(client, each) == FOUND
    return [each.body for each in got]


async def three_clients(broker: RunningBroker) -> tuple[Client, Client, Client]:
    """Two consumers and a producer; topic T has one queue."""
    clients = await broker.connect(), await broker.connect(), await broker.connect()
    await clients[2].create_topic("T", 1)
    return clients


@pytest.mark.parametrize("queue_id", [0, -1])
async def test_waiting_pop_receives_a_message_in_its_storing_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue_id: int
) -> None:
    rounds = Rounds(monkeypatch)
    async with running(tmp_path) as broker:
        consumer, _, producer = await three_clients(broker)
        for number in range(3):
            posted = await waiting(consumer, 1, queueId=queue_id)
            before = rounds.count
            assert (await producer.send(body=b"%d" % number)).code == FOUND
            assert await taken(consumer, posted) == [b"%d" % number]
            assert rounds.count == before + 2  # one for the message and its pop, one for the acknowledgement
        assert await consumer.committed() == 3
        info = await consumer.info()
        assert (info["raftmq.popCheckpoints"], info["raftmq.heldPops"]) == ("0", "0")


async def test_each_group_gets_the_message_and_one_pop_of_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch)
    async with running(tmp_path) as broker:
        one, other, producer = await three_clients(broker)
        of_g = await waiting(one, 1)
        again_of_g = await waiting(other, 2)
        of_h = await waiting(one, 3, consumerGroup="H")
        before = rounds.count
        await producer.send(body=b"first")
        assert [each.body for each in read_popped(await one.answer(of_g))] == [b"first"]
        assert [each.body for each in read_popped(await one.answer(of_h))] == [b"first"]
        assert rounds.count == before + 1
        assert (await producer.info())["raftmq.heldPops"] == "1"
        await producer.send(body=b"second")
        assert [each.body for each in read_popped(await other.answer(again_of_g))] == [b"second"]
        assert [each.body for each in await popped(one, consumerGroup="H")] == [b"second"]


async def test_pops_share_the_messages_of_an_entry(broker: RunningBroker) -> None:
    one, other, producer = await three_clients(broker)
    first = await waiting(one, 1, maxMsgNums=2)
    second = await waiting(other, 2, maxMsgNums=2)
    sends = [await producer.post(SEND, send_ext(), body=b"%d" % number) for number in range(5)]
    for each in sends:
        assert (await producer.answer(each)).code == FOUND
    got = [*await taken(one, first), *await taken(other, second)]
    got += [each.body for each in await popped(one)]
    assert sorted(got) == [b"0", b"1", b"2", b"3", b"4"]
    assert await one.committed() == 5


async def test_pop_keeps_waiting_when_its_tags_do_not_match(broker: RunningBroker) -> None:
    one, other, producer = await three_clients(broker)
    of_a = await waiting(one, 1, exp="a")
    of_b = await waiting(other, 2, consumerGroup="H", exp="b")
    for number, tag in enumerate("cbbaa"):
        await producer.send(body=b"%d" % number, i=properties(TAGS=tag))
    assert [each.body for each in read_popped(await other.answer(of_b))] == [b"1"]
    assert await taken(one, of_a) == [b"3"]
    assert [each.body for each in await popped(one, exp="a")] == [b"4"]
    assert [each.body for each in await popped(other, consumerGroup="H", exp="b")] == [b"2"]


@pytest.mark.parametrize("given", [{"order": True, "queueId": 0}, {"expType": "SQL92", "exp": "TAGS IS NOT NULL"}])
async def test_ordered_and_filtered_pops_take_committed_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    rounds = Rounds(monkeypatch)
    async with running(tmp_path) as broker:
        consumer, _, producer = await three_clients(broker)
        posted = await waiting(consumer, 1, **given)
        before = rounds.count
        await producer.send(body=b"here", i=properties(TAGS="a"))
        assert await taken(consumer, posted) == [b"here"]
        assert rounds.count == before + 3


async def test_popped_message_is_redelivered_when_its_client_is_gone(
    broker: RunningBroker, brokers: list[Broker]
) -> None:
    """The client goes between the two: its pop is in the log, and nobody gets the answer."""
    consumer, other, producer = await three_clients(broker)
    await waiting(consumer, 1)
    pops = brokers[0].services.pops
    (held,) = pops.polling.waiting_for(("T", -1))
    queued = brokers[0].appender.on_queued

    def queued_and_gone(runs: Any) -> None:
        queued(runs)
        held.call.connection.close("gone")

    brokers[0].appender.on_queued = queued_and_gone
    await producer.send(body=b"here")
    brokers[0].appender.on_queued = queued
    posted = await other.post(POP, pop_ext(pollTime=20_000, bornTime=now_ms()))
    (back,) = read_popped(await other.answer(posted))
    assert (back.body, back.message.reconsume_times) == (b"here", 1)


async def test_unreadable_record_fails_one_pop_and_is_redelivered(
    broker: RunningBroker, brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer, _, producer = await three_clients(broker)
    posted = await waiting(consumer, 1)
    queues = brokers[0].services.pops.queues

    def broken(taken: object) -> Any:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(queues, "with_records", broken)
        assert (await producer.send(body=b"here")).code == FOUND
        assert (await consumer.answer(posted)).code != FOUND
    posted = await consumer.post(POP, pop_ext(pollTime=20_000, bornTime=now_ms()))
    assert [each.body for each in read_popped(await consumer.answer(posted))] == [b"here"]
    assert (await pop(consumer)).code != FOUND


@pytest.mark.parametrize(("tag", "calls"), [("a", 0), ("b", 1)])
async def test_pops_of_a_group_read_a_message_only_once(
    broker: RunningBroker, brokers: list[Broker], monkeypatch: pytest.MonkeyPatch, tag: str, calls: int
) -> None:
    """Nobody wants the tag of the message; or the group wants it, and has not examined those before."""
    consumer, _, producer = await three_clients(broker)
    for held in range(1, 21):
        await waiting(consumer, held, exp=tag)
    await producer.send(body=b"before", i=properties(TAGS="c"))
    counted = 0
    queues = brokers[0].services.pops.queues
    take_queued = queues.take_queued

    def counting(*args: Any) -> Any:
        nonlocal counted
        counted += 1
        return take_queued(*args)

    monkeypatch.setattr(queues, "take_queued", counting)
    await producer.send(body=b"here", i=properties(TAGS="b"))
    assert counted == calls
