"""Each request of operators' tools to a name server over a real connection, in both header encodings."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mq.protocol.codes import RequestCode as Code
from mq.protocol.codes import ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.requests.namesrv import QueueData, Route
from mq.protocol.requests.registration import RegisterBrokerBody
from mq.protocol.requests.settings_text import decode_properties
from mq.protocol.requests.topics import DataVersion, TopicConfig, TopicList
from tests.unit.namesrv.serving import Peer, broker_fields, name_server

A, B = "10.0.0.1:10911", "10.0.0.2:10911"
KEY = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T0"}

Asked = Mapping[str, object] | None


async def fill(peer: Peer) -> None:
    """A leader with the topics T0 to T3, the numbers being their unit flags, a follower, and a value."""
    topics = {f"T{flags}": TopicConfig(f"T{flags}", 4, 4, 6, topic_sys_flag=flags) for flags in range(4)}
    body = RegisterBrokerBody(topics=topics, data_version=DataVersion(1, 2))
    for number, address in ((0, A), (1, B)):
        ext = broker_fields(number, address) | {"haServerAddr": address}
        assert (await peer.ask(Code.REGISTER_BROKER, ext, body.encode()))[0].code == ResponseCode.SUCCESS
    assert (await peer.ask(Code.PUT_KV_CONFIG, KEY | {"value": "b-a:4"}))[0].code == ResponseCode.SUCCESS


def names(*topics: str) -> dict[str, object]:
    return {"topicList": list(topics)}


MEMBERS = {"brokerAddrs": {"0": A, "1": B}, "brokerName": "b-a", "cluster": "c1", "enableActingMaster": False}

ANSWERS: list[tuple[Code, Asked, bytes, dict[str, str], object]] = [
    # code, fields, body, response fields, response body
    (Code.PUT_KV_CONFIG, KEY | {"value": "x"}, b"", {}, None),
    (Code.GET_KV_CONFIG, KEY, b"", {"value": "b-a:4"}, None),
    (Code.DELETE_KV_CONFIG, KEY, b"", {}, None),
    (Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "ORDER_TOPIC_CONFIG"}, b"", {}, {"table": {"T0": "b-a:4"}}),
    (Code.UNREGISTER_BROKER, broker_fields(), b"", {}, None),
    (Code.BROKER_HEARTBEAT, broker_fields(), b"", {}, None),
    (
        Code.QUERY_DATA_VERSION,
        broker_fields(),
        DataVersion(1, 2).encode(),
        {"changed": "false"},
        {"counter": 1, "timestamp": 2, "stateVersion": 0},
    ),
    (Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b-a"}, b"", {"wipeTopicCount": "4"}, None),
    (Code.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "b-a"}, b"", {"addTopicCount": "4"}, None),
    (Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None, b"", {}, names("T0", "T1", "T2", "T3")),
    (Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "T0", "clusterName": "c1"}, b"", {}, None),
    (Code.REGISTER_TOPIC_IN_NAMESRV, {"topic": "N"}, Route([QueueData("b-a", 1, 1, 6)]).encode(), {}, None),
    (Code.GET_TOPICS_BY_CLUSTER, {"cluster": "c1"}, b"", {}, names("T0", "T1", "T2", "T3")),
    (Code.GET_TOPICS_BY_CLUSTER, {"cluster": "c2"}, b"", {}, names()),
    (Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, None, b"", {}, names("c1", "b-a") | {"brokerAddr": A}),
    (Code.GET_UNIT_TOPIC_LIST, None, b"", {}, names("T1", "T3")),
    (Code.GET_HAS_UNIT_SUB_TOPIC_LIST, None, b"", {}, names("T2", "T3")),
    (Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, None, b"", {}, names("T2")),
    (Code.GET_BROKER_MEMBER_GROUP, {"clusterName": "c1", "brokerName": "b-a"}, b"", {}, {"brokerMemberGroup": MEMBERS}),
    (Code.UPDATE_NAMESRV_CONFIG, None, b"orderMessageEnable=true\n", {}, None),
]


@pytest.mark.parametrize("serialization", [JSON, BINARY])
@pytest.mark.parametrize(("code", "ext", "body", "fields", "answer"), ANSWERS)
async def test_name_server_answers_each_request(
    code: Code, ext: Asked, body: bytes, fields: dict[str, str], answer: object, serialization: int
) -> None:
    async with name_server() as server:
        broker, peer = await server.connect(), await server.connect()
        await fill(broker)
        response, data = await peer.ask(code, ext, body, serialization=serialization, opaque=7)
        assert (response.code, response.opaque, response.flag & 1, response.remark) == (0, 7, 1, None)
        assert response.ext == fields
        assert (json.loads(data) if data else None) == answer


@pytest.mark.parametrize(
    ("code", "ext", "body", "expected", "remark"),
    [
        (Code.GET_KV_CONFIG, KEY | {"key": "x"}, b"", ResponseCode.QUERY_NOT_FOUND, "No config item"),
        (Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "x"}, b"", ResponseCode.QUERY_NOT_FOUND, "No config item"),
        (Code.PUT_KV_CONFIG, KEY, b"", ResponseCode.SYSTEM_ERROR, "value is missing"),
        (Code.PUT_KV_CONFIG, KEY | {"value": "v" * 70_000}, b"", ResponseCode.SYSTEM_ERROR, "65536"),
        (Code.PUT_KV_CONFIG, KEY | {"key": "k" * 300, "value": "v"}, b"", ResponseCode.SYSTEM_ERROR, "255"),
        (Code.UPDATE_NAMESRV_CONFIG, None, b"listenPort=1", ResponseCode.NO_PERMISSION, "listenPort"),
        (Code.UPDATE_NAMESRV_CONFIG, None, b"configStorePath=/x", ResponseCode.NO_PERMISSION, "configStorePath"),
        (Code.UPDATE_NAMESRV_CONFIG, None, b"unheard=1", ResponseCode.SYSTEM_ERROR, "no setting unheard"),
        (Code.UPDATE_NAMESRV_CONFIG, None, b"\xff=1", ResponseCode.SYSTEM_ERROR, "UTF-8"),
        (Code.UPDATE_NAMESRV_CONFIG, None, b"x\n" * 2000, ResponseCode.SYSTEM_ERROR, "2000 lines"),
        (Code.REGISTER_TOPIC_IN_NAMESRV, {"topic": "N"}, b"[", ResponseCode.SYSTEM_ERROR, "JSON"),
        (Code.REGISTER_TOPIC_IN_NAMESRV, {"topic": "N"}, b"[" * 1_000_000, ResponseCode.SYSTEM_ERROR, "JSON"),
    ],
)
@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_name_server_refuses_invalid_requests(
    code: Code, ext: Asked, body: bytes, expected: ResponseCode, remark: str, serialization: int
) -> None:
    async with name_server() as server:
        peer = await server.connect()
        await fill(peer)
        response, _ = await peer.ask(code, ext, body, serialization=serialization)
        assert response.code == expected
        assert response.remark is not None
        assert remark in response.remark
        assert await peer.route("T0") is not None


async def test_registered_topic_has_a_route_until_deleted() -> None:
    async with name_server() as server:
        peer = await server.connect()
        await fill(peer)
        await peer.ask(Code.REGISTER_TOPIC_IN_NAMESRV, {"topic": "ns%N"}, Route([QueueData("b-a", 3, 2, 6)]).encode())
        route = await peer.route("ns%N")
        assert route is not None
        assert [(each.read_queue_nums, each.write_queue_nums) for each in route.queue_datas] == [(3, 2)]
        await peer.ask(Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "ns%N"})
        assert await peer.route("ns%N") is None


async def test_route_contains_order_configuration_when_enabled() -> None:
    async with name_server() as server:
        peer = await server.connect()
        await fill(peer)
        assert b"orderTopicConf" not in (await peer.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T0"}))[1]
        await peer.ask(Code.UPDATE_NAMESRV_CONFIG, None, b"# on\norderMessageEnable = true\n")
        _, body = await peer.ask(Code.GET_NAMESRV_CONFIG)
        assert decode_properties(body)["orderMessageEnable"] == "true"
        for topic, expected in (("T0", True), ("T1", False)):
            _, body = await peer.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            assert (b'"orderTopicConf":"b-a:4"' in body) is expected


async def test_values_outlive_the_server(tmp_path: Path) -> None:
    async def stored(ask: Callable[..., Awaitable[Any]]) -> str | None:
        response, _ = await ask(Code.GET_KV_CONFIG, KEY)
        return response.ext.get("value")  # type: ignore[no-any-return]

    async with name_server(data_dir=tmp_path) as server:
        peer = await server.connect()
        await peer.ask(Code.PUT_KV_CONFIG, KEY | {"value": "1"})
        assert await stored(peer.ask) == "1"
    async with name_server(data_dir=tmp_path) as server:
        peer = await server.connect()
        assert await stored(peer.ask) == "1"
        await peer.ask(Code.DELETE_KV_CONFIG, KEY)
    async with name_server(data_dir=tmp_path) as server:
        assert await stored((await server.connect()).ask) is None


async def test_unstorable_change_closes_the_connection(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    async with name_server(data_dir=tmp_path / "absent") as server:
        (tmp_path / "absent").write_bytes(b"in the way of the directory")
        peer = await server.connect()
        with pytest.raises(AssertionError, match="closed after 0 of 1"):
            await peer.ask(Code.PUT_KV_CONFIG, KEY | {"value": "1"})
        other = await server.connect()
        assert TopicList.decode((await other.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))[1]).topics == []
