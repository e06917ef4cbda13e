"""What counts for quotas besides plain sends, pulls and pops: transactions, replies, looks, bulk reads, filters."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from mq.client import Credentials, Message, Producer, PushConsumer, WasmFilter
from mq.client.net.client_core import RemotingSettings
from mq.client.users import UserAdmin
from mq.filter.programs import CLASS_FILTER, name_of
from mq.protocol import properties as props
from mq.protocol.access.signing import sign_fields
from mq.protocol.bulk import BulkStatus
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import JSON
from mq.protocol.messages.transaction_sets import SetMessage, TransactionSet
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.pull import PullExt
from mq.protocol.requests.quota_attributes import Quota
from mq.protocol.requests.quotas import QuotaList, UserQuota
from mq.protocol.wire.encoding import encode_request
from mq.testing import open_kit
from tests.support.bulk_reading import bulk
from tests.support.filter_servers import begins_with, filter_server
from tests.support.guarded import ADMIN, FILE, connect
from tests.support.replies import V2, reply_ext, three_replicas
from tests.support.running_broker import Answer, Client, broker_client, running
from tests.support.waiting import until

BUSY = ResponseCode.SYSTEM_BUSY
USER = ("limited", "user-SECRET-1")
PERMISSIONS = "defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB|FILTER"
ACCOUNTS = f"{FILE[:-1]}, {{accessKey: {USER[0]}, secretKey: {USER[1]}, {PERMISSIONS}}}]"


async def limit(client: Client, topic: str = "T", **given: object) -> None:
    said = ",".join(f"+quota.{name.replace('_', '.')}={value}" for name, value in given.items())
    assert (await client.create_topic(topic, attributes=said)).code == 0


async def limit_user(admin: Client, **given: int) -> None:
    body = UserQuota(quota=Quota(**given)).encode()
    assert (await admin.request(RequestCode.PUT_USER_QUOTA, {"username": USER[0]}, body)).code == 0


async def throttled(client: Client) -> set[tuple[str, str, str]]:
    found = QuotaList.decode((await client.request(RequestCode.LIST_QUOTAS)).body).throttled
    return {(each.kind, each.name, each.direction) for each in found}


async def stage(client: Client, *topics: str, body: bytes = b"x" * 100) -> Answer:
    messages = [
        SetMessage(topic, 0, body, props.encode({"UNIQ_KEY": f"U{number}"})) for number, topic in enumerate(topics)
    ]
    fields = {"producerGroup": "P", "transactionId": "0A0B", "bornTimestampMs": 1_700_000_000_000}
    return await client.request(RequestCode.STAGE_TRANSACTION, fields, TransactionSet(messages, []).encode())


async def test_quota_charges_a_transaction_to_each_topic_of_its_messages(tmp_path: Path) -> None:
    async with broker_client(tmp_path, group="q-s") as client:
        await client.create_topic("Free")
        await limit(client, "T", produce_messages=5)
        assert (await stage(client, "Free", *["T"] * 20)).code == 0
        refused = await stage(client, "Free", "T")
        assert (refused.code, "topic T sends more" in str(refused.remark)) == (BUSY, True)
        assert (await stage(client, *["Free"] * 50)).code == 0
        assert (await client.request(RequestCode.STAGE_TRANSACTION, refused.ext, b"garbage")).code not in (0, BUSY)
        assert await throttled(client) == {("topic", "T", "produce")}


async def test_transaction_to_a_full_topic_is_refused(tmp_path: Path) -> None:
    async with broker_client(tmp_path, group="q-t") as client:
        await client.create_topic("Free")
        await limit(client, "T", stored_bytes=3_000)
        assert (await stage(client, "T", body=b"x" * 4_000)).code == 0
        full = await stage(client, "Free", "T")
        assert (full.code, "was not stored" in str(full.remark)) == (ResponseCode.FLOW_CONTROL, True)


async def test_quota_charges_a_reply_to_its_user(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    async with running(tmp_path / "n0", group="q-u", keys=ADMIN, acl_file=path) as broker:
        admin, client = await connect(broker, ADMIN), await connect(broker, USER)
        await admin.wait_for(lambda info: int(info["raftmq.formatLevel"]) >= 8)
        await limit_user(admin, produce_bytes=100)
        first = await client.request(V2, reply_ext(), b"x" * 1_000)
        assert first.code != BUSY, first
        assert (await client.request(V2, reply_ext(), b"x")).code == BUSY
        assert await throttled(admin) == {("user", USER[0], "produce")}


async def test_lookup_that_would_exceed_a_quota_is_refused(tmp_path: Path) -> None:
    """An answer without messages would say that there are none."""
    async with broker_client(tmp_path, queues=1, group="q-v") as client:
        await client.fill(30)
        await limit(client, consume_messages=2)
        ext = {"consumerGroup": "G", "topic": "T", "queueId": -1, "maxMsgNums": 20}
        assert len((await client.request(RequestCode.PEEK_MESSAGE, ext)).records) == 20
        start = trio.current_time()
        answer = await client.request(RequestCode.PEEK_MESSAGE, ext)
        assert (answer.code, "topic T reads more" in str(answer.remark)) == (BUSY, True)
        assert trio.current_time() - start >= 0.9
        await limit(client, consume_messages=1_000_000)
        assert len((await client.request(RequestCode.PEEK_MESSAGE, ext)).records) == 20


async def test_bulk_read_waits_for_the_quota_of_its_topic(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=1, group="q-w") as client:
        await client.fill(40)
        await limit(client, consume_messages=20)
        assert (await bulk(client, (0, 0, 40))).status is BulkStatus.RECORDS
        refused = await bulk(client, (0, 0, 40))
        assert refused.status is BulkStatus.BUSY
        assert 0 < refused.pause_ms <= 1000

        async def is_read() -> bool:
            return len((await bulk(client, (0, 0, 40))).sizes) == 40

        await until(is_read)
        assert await throttled(client) == {("topic", "T", "consume")}


@asynccontextmanager
async def a_group_with_a_limited_user(tmp_path: Path, **given: int) -> AsyncIterator[tuple[Client, Client, Client]]:
    """The administrator at the leader of three replicas, and the user at the leader and at a follower."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    async with three_replicas(tmp_path, keys=ADMIN, acl_file=path) as brokers:
        admin, leader, follower = [
            await connect(brokers[number], keys) for number, keys in ((0, ADMIN), (0, USER), (1, USER))
        ]
        await admin.wait_for(lambda info: int(info["raftmq.formatLevel"]) >= 8)
        await admin.create_topic("T", 1)
        await limit_user(admin, **given)
        at_follower = await connect(brokers[1], ADMIN)

        async def knows_quota() -> bool:
            return bool(QuotaList.decode((await at_follower.request(RequestCode.LIST_QUOTAS)).body).users)

        await until(knows_quota)
        yield admin, leader, follower


async def test_pops_through_a_follower_count_for_their_user(tmp_path: Path) -> None:
    async with a_group_with_a_limited_user(tmp_path, consume_messages=2) as (admin, leader, follower):
        await admin.fill(40)
        ext = {"consumerGroup": "G", "topic": "T", "queueId": -1, "maxMsgNums": 16, "invisibleTime": 60_000}
        ext |= {"pollTime": 300, "bornTime": 0, "initMode": 0}
        assert (await follower.request(RequestCode.POP_MESSAGE, ext)).code == 0
        assert (await follower.request(RequestCode.POP_MESSAGE, ext)).code == ResponseCode.POLLING_TIMEOUT
        assert (await leader.request(RequestCode.POP_MESSAGE, ext)).code == ResponseCode.POLLING_TIMEOUT
        assert await throttled(admin) == {("user", USER[0], "consume")}


async def test_sends_through_a_follower_and_the_leader_share_one_quota(tmp_path: Path) -> None:
    async with a_group_with_a_limited_user(tmp_path, produce_bytes=100) as (admin, leader, follower):
        ext = {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 0, "h": 0, "i": "", "j": 0, "k": False}
        assert (await follower.request(RequestCode.SEND_MESSAGE_V2, ext, b"x" * 1_000)).code == 0
        assert (await leader.request(RequestCode.SEND_MESSAGE_V2, ext, b"x")).code == BUSY
        assert (await follower.request(RequestCode.SEND_MESSAGE_V2, ext, b"x")).code == BUSY
        assert await throttled(admin) == {("user", USER[0], "produce")}


async def test_quota_charges_users_for_filtered_messages(tmp_path: Path) -> None:
    """Before, only the account of the filter server paid."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    admin, mine = (RemotingSettings(credentials=Credentials(*keys), tls=None) for keys in (ADMIN, USER))
    program = begins_with("a")
    fields = PullExt(
        consumer_group="billing",
        topic="Orders",
        queue_id=0,
        queue_offset=QueueOffset(0),
        max_messages=32,
        sys_flag=4 | CLASS_FILTER,
        commit_offset=QueueOffset(0),
        suspend_timeout_ms=0,
        sub_version=0,
        subscription=name_of("wasm", program).text,
    ).fields()
    async with open_kit(acl_file=path) as kit:
        async with Producer(kit.namesrv, remoting=admin) as producer:
            for _ in range(40):
                await producer.send(Message("Orders", b"apple"))
        async with filter_server(kit, "Orders", remoting=admin) as address:
            consumer = PushConsumer(kit.namesrv, group="billing", consume_from="first", remoting=mine)
            consumer.subscribe("Orders", filter=WasmFilter(program))
            async with consumer:
                await anext(aiter(consumer))
            async with UserAdmin(kit.namesrv, remoting=admin) as users:
                await users.put_quota(USER[0], Quota(consume_messages=1))
            server = await _direct(address)
            answers = [await _ask(server, RequestCode.PULL_MESSAGE, sign_fields(*USER, fields, b"")) for _ in range(2)]
            await server.aclose()
    assert [each["code"] for each in answers] == [0, ResponseCode.PULL_RETRY_IMMEDIATELY]
    assert (answers[1]["remark"], answers[1]["extFields"]["nextBeginOffset"]) == ("QUOTA_EXCEEDED", "0")


async def _direct(address: str) -> trio.SocketStream:
    host, _, port = address.rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


async def _ask(stream: trio.SocketStream, code: int, ext: dict[str, str]) -> dict[str, Any]:
    """The header of the answer."""
    await stream.send_all(encode_request(code, 1, ext=ext, serialization=JSON))
    with trio.fail_after(20):
        frame = await stream.receive_some(65536)
    header: dict[str, Any] = json.loads(frame[8 : 8 + int.from_bytes(frame[5:8], "big")])
    return header
