"""Which queues members of a group are assigned, and how groups get their messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.broker.consume.rebalance import assigned_queues
from mq.broker.consume.routes import QUEUES_MAX, Routes, readable_queues
from mq.broker.state.commands import DeleteGroup, DeleteTopic, PutTopic, TopicConfig, decode_command, encode_command
from mq.broker.state.metadata import Metadata
from mq.broker.state.request_modes import PutRequestMode, RequestMode
from mq.client import Admin
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.requests import allocation
from mq.protocol.requests.allocation import STRATEGIES
from mq.protocol.requests.assignment import AssignmentQuery
from mq.protocol.requests.namesrv import QueueData, Route
from mq.protocol.wire.queue_tables import QueueRef
from tests.free_ports import free_ports
from tests.support.running_broker import Answer, Client, RunningBroker, broker_client, running
from tests.unit.namesrv.serving import name_server

ENCODINGS = pytest.mark.parametrize("serialization", [JSON, BINARY])
QUEUES = st.dictionaries(st.sampled_from(["b-a", "b-b", "b-c"]), st.integers(1, 5), max_size=3).map(
    lambda counts: [QueueRef("T", name, number) for name in sorted(counts) for number in range(counts[name])]
)
MEMBERS = st.sets(st.sampled_from([f"c{n}" for n in range(8)]), min_size=1).map(sorted)


@given(QUEUES, MEMBERS, st.sampled_from(sorted(STRATEGIES)), st.integers(-1, 9))
def test_every_queue_has_its_readers(queues: list[QueueRef], members: list[str], strategy: str, shared: int) -> None:
    def assigned(member: str, mode: RequestMode) -> list[QueueRef]:
        query = AssignmentQuery("T", "G", member, strategy)
        found = assigned_queues(query, queues, members, mode)
        assert found is not None
        assert len(found) == len(set(found))
        return list(found)

    pulled = {member: assigned(member, RequestMode()) for member in members}
    assert sorted(queue for share in pulled.values() for queue in share) == queues
    assert assigned("nobody", RequestMode()) == []
    if strategy != "CONSISTENT_HASH":
        assert max(map(len, pulled.values())) - min(map(len, pulled.values())) <= 1

    for position, member in enumerate(members):
        popped = assigned(member, RequestMode("POP", shared))
        if shared <= 0 or shared >= len(members) - 1:
            assert popped == [QueueRef("T", name, -1) for name in sorted({queue.broker_name for queue in queues})]
        elif len(members) > len(queues):
            assert popped == ([queues[position % len(queues)]] if queues else [])
        else:
            sharing = [members[(position + step) % len(members)] for step in range(shared + 1)]
            assert set(popped) == {queue for each in sharing for queue in pulled[each]}


def test_sharing_with_many_members_hashes_the_ring_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    ring_hash = allocation.ring_hash

    def note_and_hash(text: str) -> int:
        hashed.append(text)
        return ring_hash(text)

    monkeypatch.setattr(allocation, "ring_hash", note_and_hash)
    queues, members = [QueueRef("T", "b", number) for number in range(64)], sorted(f"member{n}" for n in range(60))
    for member in members[:3]:
        query = AssignmentQuery("T", "G", member, "CONSISTENT_HASH")
        assert assigned_queues(query, queues, members, RequestMode("POP", 50))
    assert len(hashed) <= 60 * allocation.VIRTUAL_NODES + 3 * 64


def test_assignment_needs_members_and_a_supported_strategy() -> None:
    queues = [QueueRef("T", "b", 0)]
    assert assigned_queues(AssignmentQuery("T", "G", "c", "CONFIG"), queues, ["c"], RequestMode()) is None
    assert assigned_queues(AssignmentQuery("T", "G", "c"), queues, [], RequestMode()) is None
    everything = AssignmentQuery("T", "G", "c", message_model="BROADCASTING")
    assert assigned_queues(everything, queues, [], RequestMode()) == queues


def test_route_is_its_readable_queues() -> None:
    datas = [QueueData("b", 2, 0, 6), QueueData("a", 1, 9, 4), QueueData("c", 5, 5, 2), QueueData("d", -1, 1, 6)]
    assert readable_queues("T", Route(datas)) == (QueueRef("T", "a", 0), QueueRef("T", "b", 0), QueueRef("T", "b", 1))
    assert readable_queues("T", Route([QueueData("b", QUEUES_MAX + 1, 1, 6)])) is None
    assert readable_queues("T", Route([QueueData("b", QUEUES_MAX + 1, 1, 6), QueueData("c", -9, 1, 6)])) is None


def test_request_modes_are_deleted_with_their_topic_or_group() -> None:
    metadata = Metadata()
    for topic in "TU":
        metadata.apply(PutTopic(config=TopicConfig(name=topic, read_queues=1, write_queues=1), timestamp_ms=1))
        for group in "GH":
            command = PutRequestMode(group=group, topic=topic, mode="POP", shared=3)
            metadata.apply(decode_command(encode_command(command)))
    assert metadata.request_modes.get("T", "G") == RequestMode("POP", 3)
    assert metadata.request_modes.get("T", "X") == RequestMode("PULL", 0)
    again = Metadata()
    again.restore(metadata.snapshot())
    assert again.request_modes.table == metadata.request_modes.table
    assert again.snapshot() == metadata.snapshot()
    metadata.apply(DeleteTopic(name="T", timestamp_ms=2))
    metadata.apply(DeleteGroup(name="H", timestamp_ms=3))
    assert metadata.request_modes.table == {("U", "G"): RequestMode("POP", 3)}


def body(value: object) -> bytes:
    return json.dumps(value).encode()


async def set_mode(client: Client, serialization: int = JSON, **given: Any) -> Answer:
    wanted = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 0} | given
    return await client.request(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body(wanted), serialization=serialization)


async def assignment(client: Client, client_id: str = "c1", serialization: int = JSON, **given: Any) -> Any:
    query = {"clientId": client_id, "consumerGroup": "G", "messageModel": "CLUSTERING", "strategyName": "AVG"}
    answer = await client.request(
        RequestCode.QUERY_ASSIGNMENT, body=body(query | {"topic": "T"} | given), serialization=serialization
    )
    assert (answer.code, answer.ext, answer.remark, answer.serialization) == (0, {}, None, serialization)
    return json.loads(answer.body)


def queues_of(mode: str, *numbers: int, broker: str = "broker-a") -> Any:
    return {
        "messageQueueAssignments": [
            {"messageQueue": {"topic": "T", "brokerName": broker, "queueId": number}, "mode": mode}
            for number in numbers
        ]
    }


async def test_empty_group_can_be_switched_to_pop(client: Client) -> None:
    await client.create_topic("T", 5)
    assert (await set_mode(client)).code == ResponseCode.SUCCESS
    await client.heartbeat("c1", "G")
    assert await assignment(client) == queues_of("POP", -1)
    refused = await set_mode(client, consumerGroup="not a name")
    assert refused.code == ResponseCode.INVALID_PARAMETER


@ENCODINGS
@pytest.mark.parametrize(
    ("field", "what"),
    [
        ("clientId", "client id"),
        ("consumerGroup", "consumer group"),
        ("strategyName", "strategy"),
        ("messageModel", "message model"),
    ],
)
async def test_names_above_255_characters_are_refused(
    client: Client, serialization: int, field: str, what: str
) -> None:
    query = body({"clientId": "c1", "consumerGroup": "G", "topic": "T"} | {field: "x" * 256})
    answer = await client.request(RequestCode.QUERY_ASSIGNMENT, body=query, serialization=serialization)
    remark = f"the {what} has 256 characters; maximum: 255"
    assert (answer.code, answer.ext, answer.remark) == (ResponseCode.INVALID_PARAMETER, {}, remark)


@ENCODINGS
async def test_group_with_members_can_be_switched_to_pop(broker: RunningBroker, serialization: int) -> None:
    client, other = await broker.connect(), await broker.connect()
    await client.create_topic("T", 5)
    nobody = {"messageQueueAssignments": None}
    assert await assignment(client, serialization=serialization) == nobody
    await client.heartbeat("c1", "G")
    await other.heartbeat("c2", "G")
    assert await assignment(client, serialization=serialization) == queues_of("PULL", 0, 1, 2)
    assert await assignment(other, "c2", serialization) == queues_of("PULL", 3, 4)
    assert await assignment(client, topic="N") == nobody
    assert await assignment(client, strategyName="MACHINE_ROOM") == nobody
    assert await assignment(client, messageModel="BROADCASTING") == queues_of("PULL", *range(5))

    answer = await set_mode(client, serialization)
    assert (answer.code, answer.ext, answer.body) == (ResponseCode.SUCCESS, {}, b"")
    assert await assignment(client, serialization=serialization) == queues_of("POP", -1)
    answer = await client.request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, serialization=serialization)
    mode = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 0}
    assert json.loads(answer.body) == {"messageRequestModeMap": {"T": {"G": mode}}}
    await set_mode(client, mode="PULL")
    assert await assignment(client) == queues_of("PULL", 0, 1, 2)
    bad = await client.request(RequestCode.QUERY_ASSIGNMENT, body=b"[" * 10_000)
    assert (bad.code, "JSON" in str(bad.remark)) == (ResponseCode.SYSTEM_ERROR, True)


async def test_queues_of_other_broker_groups_are_assigned_too(tmp_path: Path) -> None:
    async with name_server() as server:
        namesrv = f"{server.address[0]}:{server.address[1]}"
        [nobody] = free_ports(1)
        async with running(tmp_path, namesrv=f"127.0.0.1:{nobody};{namesrv}") as broker, Admin(namesrv) as admin:
            client = await broker.connect()
            await admin.create_topic("T", 2)
            await (await server.connect()).register("T", group="broker-b")
            await client.heartbeat("c1", "G")
            assert await assignment(client, "c1") == {
                "messageQueueAssignments": [
                    *queues_of("PULL", 0, 1)["messageQueueAssignments"],
                    *queues_of("PULL", 0, 1, 2, 3, broker="broker-b")["messageQueueAssignments"],
                ]
            }
            assert await assignment(client, topic="Nowhere") == {"messageQueueAssignments": None}


async def test_invalid_topic_names_are_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def find_none(_: Routes, topic: str, on_queues: Callable[[None], None]) -> None:
        asked.append(topic)
        on_queues(None)

    monkeypatch.setattr(Routes, "find", find_none)
    async with broker_client(tmp_path) as client:
        for topic in ("t" * 100_000, "", "a b", "N"):
            assert await assignment(client, topic=topic) == {"messageQueueAssignments": None}
    assert asked == ["N"]
