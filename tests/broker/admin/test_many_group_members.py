"""Members of many groups in one request: what each one subscribes to, and which queues it has."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.broker.admin.many_group_members import MEMBER_BYTES_MAX, QUEUES_BYTES_MAX
from mq.broker.net.connection import ClientConnection
from mq.broker.net.consumer_group import summary_text
from mq.broker.net.slow_responses import SlowResponses
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.clients import ClientBehindProxy, ConsumerData, HeartbeatOfProxy, SubscriptionData
from mq.protocol.requests.members import GROUPS_MAX, GroupMember, MembersOfGroups, MembersQuestion
from tests.support.running_broker import Client, RunningBroker, limited, running


async def join(broker: RunningBroker, name: str, group: str = "billing", **wanted: str) -> Client:
    """A member with its own connection."""
    client = await broker.connect()
    data = [SubscriptionData(topic, expression=each) for topic, each in wanted.items()]
    heartbeat = HeartbeatOfProxy(client_id=name, consumers=[ConsumerData(group, subscriptions=data)])
    assert (await client.request(RequestCode.HEART_BEAT, body=heartbeat.encode())).code == 0
    return client


async def told(client: Client, **question: object) -> dict[str, list[GroupMember]]:
    answer = await client.request(RequestCode.ASK_MEMBERS, body=json.dumps(question).encode())
    assert answer.code == ResponseCode.SUCCESS, answer
    found = MembersOfGroups.decode(answer.body)
    return {group: list(own) for group, own in (found.groups or found.differing).items()}


async def test_broker_finds_groups_with_differing_subscriptions(broker: RunningBroker) -> None:
    client = await join(broker, "c1", Orders="paid || sent")
    await join(broker, "c2", Orders="sent||paid")
    await join(broker, "m1", "mails", Orders="*")
    assert await told(client, differing=True) == {}, "the order of tags means nothing"
    await join(broker, "c3", Orders="paid")
    await join(broker, "m2", "mails", Orders="*", Prices="*")
    found = await told(client, differing=True)
    assert {group: [(each.client.client_id, each.subscribes) for each in own] for group, own in found.items()} == {
        "billing": [("c1", "Orders paid || sent"), ("c3", "Orders paid")],
        "mails": [("m1", "Orders *"), ("m2", "Orders *, Prices *")],
    }
    await join(broker, "c4", Orders="paid")
    found = await told(client, groups=["billing", "nobody"])
    assert {group: [each.client.client_id for each in own] for group, own in found.items()} == {
        "billing": ["c1", "c2", "c3", "c4"]
    }


async def test_member_that_corrects_its_subscription_no_longer_differs(broker: RunningBroker) -> None:
    client = await join(broker, "c1", Orders="paid")
    other = await join(broker, "c2", Orders="open")
    assert list(await told(client, differing=True)) == ["billing"]
    data = ConsumerData("billing", subscriptions=[SubscriptionData("Orders", expression="paid")])
    heartbeat = HeartbeatOfProxy(client_id="c2", consumers=[data])
    assert (await other.request(RequestCode.HEART_BEAT, body=heartbeat.encode())).code == 0
    assert await told(client, differing=True) == {}


async def test_subscriptions_of_popping_and_proxied_members_are_compared_too(broker: RunningBroker) -> None:
    client = await join(broker, "c1", Orders="paid")
    behind = [
        ClientBehindProxy("p1", "billing", "192.0.2.7:1", subscriptions=[("Orders", "paid", "TAG")]),
        ClientBehindProxy("p2", "billing", "192.0.2.7:2", subscriptions=[("Orders", "a > 1", "SQL92")]),
    ]
    proxy = await broker.connect()
    heartbeat = HeartbeatOfProxy(client_id="proxy", proxied_clients=behind)
    assert (await proxy.request(RequestCode.HEART_BEAT, body=heartbeat.encode())).code == 0
    found = await told(client, differing=True)
    assert [(each.client.client_id, each.subscribes) for each in found["billing"]] == [
        ("c1", "Orders paid"),
        ("p2", "Orders SQL92 a > 1"),
    ]


async def test_long_subscriptions_are_cut_and_still_differ() -> None:
    rows = [(f"topic-{number:03}", "*", "TAG") for number in range(100)]
    one, other = summary_text(rows), summary_text([*rows[:-1], ("topic-099", "x", "TAG")])
    assert one != other
    assert max(len(one), len(other)) < 400
    assert "(100 in all, checksum " in one
    assert summary_text([("%RETRY%billing", "*", "TAG")]) == ""


async def test_queues_of_members_come_in_one_answer(broker: RunningBroker) -> None:
    """Also if a member does not answer, or answers nonsense."""
    asking = await broker.connect()
    one, silent, odd = [await join(broker, name, Orders="*") for name in ("c1", "c2", "c3")]
    async with trio.open_nursery() as nursery:
        found: dict[str, list[GroupMember]] = {}

        async def ask() -> None:
            found.update(await told(asking, groups=["billing"], queues=True))

        nursery.start_soon(ask)
        for client, body in ((one, b'{"mqTable":{}}'), (odd, b"\xff{"), (silent, None)):
            question, _ = await client.question()
            assert question.code == RequestCode.GET_CONSUMER_RUNNING_INFO
            if body is not None:
                await client.reply(question, body=body)
    assert [each.running_info for each in found["billing"]] == ['{"mqTable":{}}', None, "\ufffd{"]


async def test_answers_of_members_are_bounded_as_json(tmp_path: Path) -> None:
    """Of control characters, JSON makes six bytes each: an answer of them would not fit into a frame."""
    count = QUEUES_BYTES_MAX // (6 * MEMBER_BYTES_MAX)
    async with running(tmp_path) as broker:
        asking = await broker.connect()
        members = [await join(broker, f"c{number}", Orders="*") for number in range(count + 1)]
        async with trio.open_nursery() as nursery:
            found: dict[str, list[GroupMember]] = {}

            async def ask() -> None:
                found.update(await told(asking, groups=["billing"], queues=True))

            nursery.start_soon(ask)
            for client in members:
                question, _ = await client.question()
                await client.reply(question, body=b"\x01" * MEMBER_BYTES_MAX)
        assert sum(each.running_info is not None for each in found["billing"]) == count == len(members) - 1


async def test_many_members_are_asked_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands at once would hold everybody up."""
    events: list[str] = []
    ask_client, run_step = ClientConnection.ask, SlowResponses._run_step

    def noting_ask(connection: ClientConnection, code: int, *given: Any) -> None:
        events.append("ask")
        ask_client(connection, code, *given)

    def noting_step(answers: SlowResponses, job: Any) -> bool:
        events.append("step")
        return run_step(answers, job)

    monkeypatch.setattr(ClientConnection, "ask", noting_ask)
    monkeypatch.setattr(SlowResponses, "_run_step", noting_step)
    async with running(tmp_path, limits=limited(net={"slice_seconds": 0.0})) as broker:
        asking = await broker.connect()
        members = [await join(broker, name, Orders="*") for name in ("c1", "c2", "c3")]
        events.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(told, asking, groups=["billing"], queues=True))
            for client in members:
                question, _ = await client.question()
                await client.reply(question, body=b"{}")
        assert events == ["step", "step", "ask", "step", "ask", "step", "ask"]


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({}, "the request names no groups: name some, or ask for those that differ"),
        ({"groups": ["a"], "differing": True, "queues": True}, "the queues of members can be asked for one group only"),
        ({"groups": ["a", "b"], "queues": True}, "the queues of members can be asked for one group only"),
        ({"groups": ["a"] * (GROUPS_MAX + 1)}, f"{GROUPS_MAX + 1} groups; maximum: {GROUPS_MAX}"),
    ],
)
async def test_bad_questions_about_members_are_refused(client: Client, question: dict[str, object], words: str) -> None:
    answer = await client.request(RequestCode.ASK_MEMBERS, body=json.dumps(question).encode())
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert words in (answer.remark or "")
    assert (await client.request(RequestCode.ASK_MEMBERS, body=b"[]")).code == ResponseCode.SYSTEM_ERROR


async def test_empty_group_has_no_members(client: Client) -> None:
    assert await told(client, groups=["billing"], queues=True) == {}
    question = MembersQuestion(groups=["billing"])
    assert (await client.request(RequestCode.ASK_MEMBERS, body=question.encode())).code == 0
