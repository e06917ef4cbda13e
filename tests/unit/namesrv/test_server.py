"""A name server over real loopback connections, spoken to with bytes."""

from __future__ import annotations

import struct

import pytest
import trio
from structlog.testing import capture_logs

from mq.namesrv.server import serve
from mq.namesrv.settings import NamesrvSettings
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.requests.broker import KVTable
from mq.protocol.requests.namesrv import ClusterInfo
from mq.protocol.requests.registration import RegisterBrokerBody
from mq.protocol.requests.topics import DataVersion, TopicConfig, TopicList
from mq.protocol.wire.encoding import encode_request, encode_response
from tests.unit.namesrv.serving import Peer, broker_fields, name_server

TLS_CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(194)
REGISTRATION = {**broker_fields(), "haServerAddr": "10.0.0.1:10912"}


async def dribble(peer: Peer) -> None:
    """A byte now and then, for ever: ends only because the server hangs up."""
    while True:
        await peer.stream.send_all(b"x")
        await trio.sleep(0.005)


async def until_gone(client: Peer, topic: str) -> None:
    """The server learns of a closed connection in its own time; ask until it has."""
    while await client.route(topic) is not None:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("serialization", [JSON, BINARY], ids=["json", "binary"])
async def test_client_finds_registered_broker(serialization: int) -> None:
    async with name_server() as server:
        broker, client = await server.connect(), await server.connect()
        assert await client.route() is None
        response, body = await broker.register()
        assert (response.code, body) == (ResponseCode.SUCCESS, b"")

        route = await client.route(serialization=serialization)

        assert route is not None
        assert [data.broker_addrs for data in route.broker_datas] == [{0: "10.0.0.1:10911"}]
        assert [data.write_queue_nums for data in route.queue_datas] == [4]
        _, body = await client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        assert ClusterInfo.decode(body).clusters == {"c1": ["b-a"]}
        _, body = await client.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert TopicList.decode(body).topics == ["T1"]


async def test_name_server_answers_followers_with_the_leader_address() -> None:
    async with name_server() as server:
        leader, follower = await server.connect(), await server.connect()
        await leader.register(compressed=True)
        response, _ = await follower.register(broker_id=1, address="10.0.0.2:10911")
        assert response.ext == {"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}
        route = await follower.route()
        assert route is not None
        assert [data.broker_addrs for data in route.broker_datas] == [{0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}]


async def test_broker_that_dies_is_out_of_the_route() -> None:
    async with name_server() as server:
        broker, client = await server.connect(), await server.connect()
        await broker.register()
        await broker.stream.aclose()
        await until_gone(client, "T1")


async def test_name_server_serves_administration_requests() -> None:
    async with name_server() as server:
        broker, admin = await server.connect(), await server.connect()
        await broker.register()
        response, body = await admin.ask(RequestCode.QUERY_DATA_VERSION, broker_fields(), DataVersion(1, 2).encode())
        assert (response.ext, DataVersion.decode(body)) == ({"changed": "false"}, DataVersion(1, 2))
        response, _ = await admin.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b-a"})
        assert response.ext == {"wipeTopicCount": "1"}
        route = await admin.route()
        assert route is not None
        assert route.queue_datas[0].perm == 4
        response, _ = await admin.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "b-a"})
        assert response.ext == {"addTopicCount": "1"}
        await admin.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T1"})
        assert await admin.route() is None
        await admin.ask(RequestCode.UNREGISTER_BROKER, broker_fields())
        _, body = await admin.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        assert ClusterInfo.decode(body).brokers == {}


async def test_key_values_are_stored_and_deleted() -> None:
    async with name_server() as server:
        admin = await server.connect()
        where = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T1"}
        response, _ = await admin.ask(RequestCode.GET_KV_CONFIG, where)
        assert response.code == ResponseCode.QUERY_NOT_FOUND
        await admin.ask(RequestCode.PUT_KV_CONFIG, {**where, "value": "b-a:4"})
        response, _ = await admin.ask(RequestCode.GET_KV_CONFIG, where)
        assert response.ext == {"value": "b-a:4"}
        _, body = await admin.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "ORDER_TOPIC_CONFIG"})
        assert KVTable.decode(body).table == {"T1": "b-a:4"}
        _, body = await admin.register()
        assert KVTable.decode(body).table == {"T1": "b-a:4"}, "brokers get the order configuration"
        await admin.ask(RequestCode.DELETE_KV_CONFIG, where)
        response, _ = await admin.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "ORDER_TOPIC_CONFIG"})
        assert response.code == ResponseCode.QUERY_NOT_FOUND


async def test_all_requests_of_a_chunk_are_answered_in_order() -> None:
    async with name_server() as server:
        peer = await server.connect()
        requests = [encode_request(105, opaque, ext={"topic": f"T{opaque}"}) for opaque in range(200)]
        await peer.stream.send_all(b"".join(requests))
        assert [response.opaque for response, _ in await peer.answers(200)] == list(range(200))


async def test_request_in_single_bytes() -> None:
    async with name_server() as server:
        peer = await server.connect()
        for byte in encode_request(106, 9):
            await peer.stream.send_all(bytes([byte]))
        ((response, _),) = await peer.answers(1)
        assert (response.opaque, response.code) == (9, ResponseCode.SUCCESS)


async def test_oneway_requests_are_not_answered() -> None:
    async with name_server() as server:
        peer = await server.connect()
        await peer.stream.send_all(encode_request(106, 1, oneway=True) + encode_request(106, 2))
        ((response, _),) = await peer.answers(1)
        assert response.opaque == 2


@pytest.mark.parametrize(
    ("code", "ext", "body", "expected", "remark"),
    [
        (9999, None, b"", ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "9999 not supported"),
        (34, None, b"", ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "34 not supported"),
        (105, None, b"", ResponseCode.SYSTEM_ERROR, "topic is missing"),
        (103, {**broker_fields(), "brokerId": "x", "haServerAddr": "a:1"}, b"", ResponseCode.SYSTEM_ERROR, "brokerId"),
        (103, {**broker_fields(), "haServerAddr": "a:1"}, b"no json", ResponseCode.SYSTEM_ERROR, "JSON"),
        (
            103,
            {**broker_fields(), "haServerAddr": "a:1", "compressed": "true"},
            b"no zlib",
            ResponseCode.SYSTEM_ERROR,
            "",
        ),
        (
            103,
            {**broker_fields(), "haServerAddr": "a:1", "bodyCrc32": "5"},
            b"{}",
            ResponseCode.SYSTEM_ERROR,
            "crc32 not",
        ),
        (322, broker_fields(), b"[]", ResponseCode.SYSTEM_ERROR, "DataVersion"),
    ],
)
async def test_refused_requests_leave_the_connection_open(
    code: int, ext: dict[str, object] | None, body: bytes, expected: ResponseCode, remark: str
) -> None:
    async with name_server() as server:
        peer = await server.connect()
        response, _ = await peer.ask(code, ext, body, opaque=77)
        assert response.code == expected
        assert response.remark is not None
        assert remark in response.remark
        assert (await peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO))[0].code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">ii", 2**31 - 1, 0),
        struct.pack(">ii", 10, 100),
        struct.pack(">iI", 10, 0x05000006) + bytes(6),
        struct.pack(">ii", 6, 2) + b"{]",
        struct.pack(">iI", 6, 0x01000002) + b"xx",
    ],
)
async def test_garbage_closes_its_own_connection_only(data: bytes) -> None:
    async with name_server() as server:
        other = await server.connect()
        await other.register()
        peer = await server.connect()
        await peer.stream.send_all(data)
        assert await peer.closed()
        assert await other.route() is not None


async def test_name_server_enforces_connection_and_frame_limits() -> None:
    async with name_server(connections_max=1, frame_bytes_max=65536) as server:
        first = await server.connect()
        assert (await first.ask(RequestCode.GET_BROKER_CLUSTER_INFO))[0].code == 0
        second = await server.connect()
        assert await second.closed()
        await first.stream.send_all(struct.pack(">ii", 65537, 0))
        assert await first.closed()


async def test_large_requests_wait_for_memory_freed_by_stalled_ones() -> None:
    async with name_server(partial_request_bytes_max=1024 * 1024) as server:
        stopped, waits, small = await server.connect(), await server.connect(), await server.connect()
        await stopped.stream.send_all(struct.pack(">ii", 1024 * 1024 - 4, 100) + bytes(100_000))
        await small.register()
        filler = {**broker_fields(address="10.0.0.2:1", group="b-b"), "haServerAddr": ""}
        response, _ = await waits.ask(103, filler, b"{" + b" " * 500_000 + b"}")
        assert response.code == ResponseCode.SUCCESS
        assert await stopped.closed()
        assert await small.route() is not None


async def test_stalled_request_is_closed_without_other_clients() -> None:
    async with name_server(partial_request_seconds_max=0.02) as server:
        stopped = await server.connect()
        await stopped.stream.send_all(struct.pack(">ii", 100_000, 100) + bytes(1000))
        assert await stopped.closed()


async def test_of_too_many_unread_answers_the_oldest_is_dropped() -> None:
    with capture_logs() as logs:
        async with name_server(unread_replies_bytes_max=2 * 1024 * 1024) as server:
            broker = await server.connect()
            body = RegisterBrokerBody(topics={name: TopicConfig(name) for name in (f"{n:0>500}" for n in range(3000))})
            response, _ = await broker.ask(103, {**broker_fields(), "haServerAddr": ""}, body.encode())
            assert response.code == ResponseCode.SUCCESS
            deaf = [await server.connect() for _ in range(3)]
            for peer in deaf:  # more than buffers hold
                await peer.stream.send_all(b"".join(encode_request(206, opaque) for opaque in range(20)))
            dropped: set[str] = set()
            while len(dropped) < 2:
                assert await broker.route("0" * 500) is not None
                dropped = {entry["peer"] for entry in logs if entry["event"] == "peer_does_not_read"}
            response, names = await broker.ask(206)
            assert (response.code, len(TopicList.decode(names).topics)) == (ResponseCode.SUCCESS, 3000)


@pytest.mark.slow
async def test_answer_longer_than_a_frame_is_refused() -> None:
    async with name_server() as server:
        broker = await server.connect()
        for part in range(2):
            names = (f"{part}{n:0>510}" for n in range(17_000))
            body = RegisterBrokerBody(topics={name: TopicConfig(name) for name in names})
            fields = {**broker_fields(part, f"10.0.0.{part}:1", f"b-{part}"), "brokerId": 0, "haServerAddr": ""}
            fields |= {"compressed": "true"}
            response, _ = await broker.ask(103, fields, body.encode_compressed())
            assert response.code == ResponseCode.SUCCESS
        response, body_bytes = await broker.ask(206)
        assert (response.code, body_bytes) == (ResponseCode.SYSTEM_ERROR, b"")
        assert "fit into a frame" in str(response.remark)


async def test_connection_without_a_request_is_closed_after_the_idle_time() -> None:
    async with name_server(idle_seconds_max=0.02) as server:
        peer = await server.connect()
        assert await peer.closed()


async def test_oldest_of_too_many_silent_connections_is_closed() -> None:
    async with name_server(unidentified_connections_max=2, unidentified_seconds_max=1e-9) as server:
        client = await server.connect()
        assert (await client.ask(RequestCode.GET_BROKER_CLUSTER_INFO))[0].code == 0
        unidentified = [await server.connect() for _ in range(2)]
        await unidentified[0].stream.send_all(b"\0\0")  # a part of a request does not count
        unidentified.append(await server.connect())
        assert await unidentified[0].closed()
        for peer in (client, unidentified[1], unidentified[2]):
            assert (await peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO))[0].code == 0


async def test_many_clients_connecting_at_once_are_all_served() -> None:
    async with name_server(unidentified_connections_max=2) as server:
        peers = [await server.connect() for _ in range(50)]
        for peer in peers:
            assert (await peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO))[0].code == 0


async def test_connections_that_never_ask_leave_room_for_another_address() -> None:
    async with name_server(connections_max=20) as server:
        silent = [await server.connect() for _ in range(20)]
        assert await (await server.connect()).closed(), "the address has all places"
        for _ in range(5):
            client = await server.connect(source="127.0.0.2")
            assert (await client.ask(RequestCode.GET_BROKER_CLUSTER_INFO))[0].code == 0
        for peer in silent[:5]:
            assert await peer.closed()
        assert (await silent[19].ask(RequestCode.GET_BROKER_CLUSTER_INFO))[0].code == 0


async def test_broker_unregistered_by_another_is_disconnected() -> None:
    """Then it connects and registers again."""
    async with name_server() as server:
        leader, follower, third = [await server.connect() for _ in range(3)]
        await leader.register()
        await follower.register(broker_id=1, address="10.0.0.2:10911")
        await third.ask(RequestCode.UNREGISTER_BROKER, broker_fields())
        assert await leader.closed()
        route = await third.route()
        assert route is not None
        assert [data.broker_addrs for data in route.broker_datas] == [{1: "10.0.0.2:10911"}]
        leader = await server.connect()
        await leader.register()
        await leader.ask(RequestCode.UNREGISTER_BROKER, broker_fields())
        assert (await leader.ask(RequestCode.GET_BROKER_CLUSTER_INFO))[0].code == 0, "it unregistered itself"


@pytest.mark.parametrize("serialization", [JSON, BINARY], ids=["json", "binary"])
async def test_name_server_ignores_unexpected_responses(serialization: int) -> None:
    async with name_server() as server:
        peer = await server.connect()
        await peer.stream.send_all(encode_response(77, 0, remark="late", serialization=serialization))
        response, _ = await peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO, opaque=78)
        assert (response.opaque, response.code) == (78, ResponseCode.SUCCESS)


async def test_log_names_unexpected_tls_of_a_client() -> None:
    with capture_logs() as logs:
        async with name_server() as server:
            peer = await server.connect()
            await peer.stream.send_all(TLS_CLIENT_HELLO)
            assert await peer.closed()
    (line,) = [line for line in logs if line["event"] == "bad_frame"]
    assert "TLS" in line["error"]


async def test_only_complete_requests_keep_a_connection() -> None:
    async with name_server(idle_seconds_max=0.05) as server:
        peer = await server.connect()
        assert (await peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO))[0].code == 0
        await peer.stream.send_all(struct.pack(">ii", 1_000_000, 0))
        with pytest.raises(trio.BrokenResourceError):
            await dribble(peer)


async def test_silent_broker_expires_on_an_open_connection() -> None:
    async with name_server(broker_expiry_seconds=0.02, scan_seconds=0.01) as server:
        broker, client = await server.connect(), await server.connect()
        await broker.register()
        await until_gone(client, "T1")
        await broker.register()


async def test_name_servers_are_independent() -> None:
    async with name_server() as one, name_server() as other:
        at_one, at_other = await one.connect(), await other.connect()
        await at_one.register("T1")
        await at_other.register("T2", group="b-b", address="10.0.0.9:10911")
        assert await at_one.route("T2") is None
        assert await at_other.route("T1") is None
        assert await at_one.route("T1") is not None


async def test_cancelling_stops_the_server() -> None:
    async with name_server() as server:
        peer = await server.connect()
        await peer.register()
    with pytest.raises(OSError, match=r"."):
        await trio.open_tcp_stream(*server.address)


async def test_port_in_use_is_reported() -> None:
    async with name_server() as server:
        host, port = server.address
        with pytest.raises(OSError, match=r"."):
            await serve(NamesrvSettings(listen_host=host, listen_port=port))
