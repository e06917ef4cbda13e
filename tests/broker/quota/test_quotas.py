"""Quotas of topics and users, over sockets: what waits, what is refused, and what is never touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from mq.broker.broker import Broker
from mq.client.send_outcome import Retry, judge_send
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.batch import BatchedMessage, encode_batch
from mq.protocol.requests.quota_attributes import Quota
from mq.protocol.requests.quotas import QuotaList, UserQuota
from mq.protocol.requests.users import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from tests.support.guarded import USER, connect, guarded
from tests.support.running_broker import Client, broker_client, limited, send_ext

SEND, PULL = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE
SUSPENDED = 4 | 2


async def put_quota(admin: Client, user: str, **given: int) -> int:
    body = UserQuota(quota=Quota(**given)).encode()
    return (await admin.request(RequestCode.PUT_USER_QUOTA, {"username": user}, body)).code


async def quotas(client: Client) -> QuotaList:
    return QuotaList.decode((await client.request(RequestCode.LIST_QUOTAS)).body)


async def limit(client: Client, topic: str = "T", **given: object) -> int:
    said = ",".join(f"+quota.{name.replace('_', '.')}={value}" for name, value in given.items())
    return (await client.create_topic(topic, attributes=said)).code


async def all_codes(client: Client, count: int, **given: Any) -> list[int]:
    """Send so many messages at once; what each is answered with, in their order."""
    posted = [await client.post(SEND, send_ext("T"), b"x" * 100, **given) for _ in range(count)]
    return [(await client.answer(opaque)).code for opaque in posted]


async def user(admin: Client, keys: tuple[str, str] = USER) -> None:
    name, secret = keys
    body = UserInfo(name=name, password=secret, user_type="Normal").encode()
    assert (await admin.request(RequestCode.AUTH_CREATE_USER, {"username": name}, body)).code == 0
    entries = [PolicyEntryInfo(resource=each, actions=["All"], decision="Allow") for each in ("Topic:*", "Group:*")]
    acl = AclInfo(subject=f"User:{name}", policies=[PolicyInfo(policy_type="Custom", entries=entries)])
    assert (await admin.request(RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, acl.encode())).code == 0


async def test_quota_delays_sends_and_refuses_long_waits(tmp_path: Path) -> None:
    async with broker_client(tmp_path, group="q-a") as client:
        assert await limit(client, produce_messages=10) == 0
        start = trio.current_time()
        with capture_logs() as logs:
            codes = await all_codes(client, 60)
        seconds = trio.current_time() - start
        # 10 at once and one that owes; 10 more within a second; the rest is refused, and said to be not stored.
        stored = codes.count(0)
        assert 11 <= stored <= 12 + 10 * (seconds + 1), codes
        assert set(codes) == {0, ResponseCode.SYSTEM_BUSY}
        answer = await client.request(SEND, send_ext("T"), b"x")
        if answer.code:
            assert "was not stored" in str(answer.remark)
            assert judge_send(answer.code, answer.remark).stored == "no"
            assert judge_send(answer.code, answer.remark).retry is Retry.UNTIL_TIMEOUT
        assert await client.offset(RequestCode.GET_MAX_OFFSET) in (stored, stored + 1)
        told = [each for each in logs if each["event"] == "quota_exceeded"]
        assert [(each["kind"], each["name"], each["direction"]) for each in told] == [("topic", "T", "produce")]
        (throttled,) = (await quotas(client)).throttled
        assert (throttled.kind, throttled.name, throttled.direction) == ("topic", "T", "produce")
        assert throttled.refused >= 60 - stored
        info = await client.info()
        assert int(info["raftmq.quotaRefused"]) >= 60 - stored
        assert int(info["raftmq.quotaDelayed"]) > 0


async def test_refused_client_that_repeats_at_once_is_slowed_down(tmp_path: Path) -> None:
    async with broker_client(tmp_path, group="q-b") as client:
        await limit(client, produce_bytes=100)
        assert (await client.request(SEND, send_ext("T"), b"x" * 1000)).code == 0
        attempts, start = 0, trio.current_time()
        while trio.current_time() < start + 2.0:
            attempts += 1
            assert (await client.request(SEND, send_ext("T"), b"x")).code == ResponseCode.SYSTEM_BUSY
        assert attempts <= 3


async def test_waiting_sends_keep_their_order(tmp_path: Path) -> None:
    async with broker_client(tmp_path, group="q-c") as client:
        await limit(client, produce_messages=20)
        posted = [await client.post(SEND, send_ext("T"), b"%d" % number) for number in range(35)]
        codes = [(await client.answer(opaque)).code for opaque in posted]
        assert codes == [0] * 35
        bodies: list[bytes] = []
        while len(bodies) < 35:
            bodies += [each.body for each in (await client.pull(offset=len(bodies))).records]
        assert bodies == [b"%d" % number for number in range(35)]


async def test_quota_charges_each_message_of_a_batch(tmp_path: Path) -> None:
    async with broker_client(tmp_path, group="q-d") as client:
        await limit(client, produce_messages=10)
        batch = encode_batch(BatchedMessage(b"x", "") for _ in range(50))
        assert (await client.request(RequestCode.SEND_BATCH_MESSAGE, send_ext("T", m=True), batch)).code == 0
        assert (await client.request(SEND, send_ext("T"), b"x")).code == ResponseCode.SYSTEM_BUSY


async def test_quota_only_delays_pulls(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=1, group="q-e") as client:
        await client.fill(40)
        await limit(client, consume_messages=10)
        assert len((await client.pull(maxMsgNums=20)).records) == 20
        # One second is owed. A client that does not wait is told to come again, at the same offset.
        answer = await client.pull(offset=20, maxMsgNums=5)
        if answer.code == ResponseCode.SUCCESS:
            assert len(answer.records) == 5
        else:
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert answer.ext["nextBeginOffset"] == "20"
        start = trio.current_time()
        answer = await client.pull(offset=20, maxMsgNums=20, sysFlag=SUSPENDED)
        assert (answer.code, len(answer.records)) == (0, 20)
        answer = await client.pull(offset=39, sysFlag=SUSPENDED)
        assert (answer.code, len(answer.records)) == (0, 1)
        assert trio.current_time() - start >= 0.9
        (throttled,) = (await quotas(client)).throttled
        assert (throttled.direction, throttled.refused) == ("consume", 0)


async def test_quota_only_delays_pops(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=1, group="q-f") as client:
        await client.fill(30)
        await limit(client, consume_bytes=1000)
        ext = {"consumerGroup": "G", "topic": "T", "queueId": -1, "maxMsgNums": 16, "invisibleTime": 60_000}
        ext |= {"pollTime": 10_000, "bornTime": 0, "initMode": 0}
        start = trio.current_time()
        codes = [(await client.request(RequestCode.POP_MESSAGE, ext)).code for _ in range(2)]
        assert codes == [0, 0]
        assert trio.current_time() - start >= 0.5
        patient = ext | {"pollTime": 100}
        assert (await client.request(RequestCode.POP_MESSAGE, patient)).code == ResponseCode.POLLING_TIMEOUT


async def test_heartbeats_commits_and_administration_are_never_throttled(tmp_path: Path) -> None:
    async with guarded(tmp_path, group="q-g", level=8) as (broker, admin):
        await user(admin)
        assert await put_quota(admin, USER[0], produce_messages=1, consume_messages=1) == 0
        client = await connect(broker, USER)
        assert await all_codes(client, 2) == [0, 0]
        before = (await quotas(admin)).throttled
        assert (await client.heartbeat("c1", "G")).code == 0
        commit = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1}
        assert (await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
        assert await client.committed() == 1
        assert await client.offset(RequestCode.GET_MAX_OFFSET) >= 1
        after = (await quotas(admin)).throttled
        assert [(each.delayed, each.refused) for each in after] == [(each.delayed, each.refused) for each in before]


async def test_each_user_has_its_own_quota(tmp_path: Path) -> None:
    another = ("another", "another-SECRET")
    async with guarded(tmp_path, group="q-h", level=8) as (broker, admin):
        await user(admin)
        await user(admin, another)
        assert await put_quota(admin, "*", produce_messages=5) == 0
        first, second = await connect(broker, USER), await connect(broker, another)
        assert await all_codes(first, 6) == [0] * 6
        assert await all_codes(second, 6) == [0] * 6
        assert ResponseCode.SYSTEM_BUSY in await all_codes(first, 30)
        # Its own quota holds in place of that of everybody; a removed one frees at once.
        assert await put_quota(admin, USER[0], produce_messages=1000) == 0
        assert await all_codes(first, 100) == [0] * 100
        assert await put_quota(admin, USER[0]) == 0
        assert await put_quota(admin, "*") == 0
        assert await all_codes(first, 300) == [0] * 300
        assert not (await quotas(admin)).users


async def test_quota_limits_connections_of_a_user(tmp_path: Path) -> None:
    async with guarded(tmp_path, group="q-i", level=8) as (broker, admin):
        await user(admin)
        assert await put_quota(admin, USER[0], connections=2) == 0
        clients = [await connect(broker, USER) for _ in range(3)]
        answers = [await each.request(SEND, send_ext("T"), b"x") for each in clients]
        assert [each.code for each in answers] == [0, 0, ResponseCode.NO_PERMISSION]
        assert "has 2 connections" in str(answers[2].remark)
        assert (await quotas(admin)).users[0].connections == 2
        await clients[0].stream.aclose()
        with trio.fail_after(5):
            codes = {(await clients[2].request(SEND, send_ext("T"), b"x")).code for _ in range(100)}
            assert 0 in codes


async def test_full_topic_refuses_until_messages_expire(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=1, group="q-j") as client:
        await limit(client, stored_bytes=20_000)
        codes = [(await client.request(SEND, send_ext("T"), b"x" * 1000)).code for _ in range(30)]
        assert codes.count(0) in range(17, 21), codes
        answer = await client.request(SEND, send_ext("T"), b"x")
        assert answer.code == ResponseCode.FLOW_CONTROL
        assert "quota is 20000" in str(answer.remark)
        assert "was not stored" in str(answer.remark)
        assert (await client.request(SEND, send_ext("Another"), b"x")).code == 0
        await limit(client, stored_bytes=200_000)
        assert (await client.request(SEND, send_ext("T"), b"x")).code == 0


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("produce_messages", "0", "whole numbers from 1"),
        ("produce_messages", "ten", "whole numbers from 1"),
        ("produce_bytes", "9" * 17, "whole numbers from 1"),
        ("produce_megabytes", "1", "there is no attribute"),
    ],
)
async def test_unknown_or_invalid_topic_quota_is_refused(client: Client, name: str, value: str, part: str) -> None:
    answer = await client.create_topic("T", attributes=f"+quota.{name.replace('_', '.')}={value}")
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert part in str(answer.remark)


async def test_broker_without_accounts_has_no_user_quotas(client: Client) -> None:
    assert await put_quota(client, "ann", produce_messages=1) == ResponseCode.NO_PERMISSION


async def test_quotas_are_refused_while_a_replica_is_too_old(tmp_path: Path) -> None:
    async with broker_client(tmp_path, format_level_max=7) as client:
        await client.wait_for(lambda info: int(info["raftmq.formatLevel"]) == 7)
        assert await limit(client, produce_messages=1) == ResponseCode.VERSION_NOT_SUPPORTED


async def test_requests_without_quotas_are_not_delayed(tmp_path: Path, brokers: list[Broker]) -> None:
    async with broker_client(tmp_path, queues=1) as client:
        await client.create_topic("Another")
        services = brokers[0].services
        gated = [services.requests.is_gated]
        await limit(client, produce_messages=1000)
        gated.append(services.requests.is_gated)
        for topic in ("T", "Another"):
            assert (await client.request(SEND, send_ext(topic), b"x")).code == 0
        assert "T" not in services.sends._messages.writable  # its sends are looked at one by one
        assert "Another" in services.sends._messages.writable
        assert (await client.create_topic("T", attributes="-quota.produce.messages")).code == 0
        gated.append(services.requests.is_gated)
        assert gated == [False, True, False]
        assert (await client.request(SEND, send_ext("T"), b"x")).code == 0
        assert "T" in services.sends._messages.writable


async def test_sends_delayed_by_a_quota_are_bounded(tmp_path: Path) -> None:
    limits = limited(quota={"held_max": 3})
    async with broker_client(tmp_path, group="q-k", limits=limits) as client:
        await limit(client, produce_messages=5)
        start = trio.current_time()
        codes = await all_codes(client, 100)
        assert 6 <= codes.count(0) <= 7 + 5 * (trio.current_time() - start + 1)


async def test_quota_belongs_to_the_name_of_a_user(tmp_path: Path) -> None:
    async with guarded(tmp_path, group="q-l", level=8) as (broker, admin):
        await user(admin)
        assert await put_quota(admin, USER[0], produce_messages=5) == 0
        client = await connect(broker, USER)
        assert await all_codes(client, 2) == [0, 0]
        assert (await admin.request(RequestCode.AUTH_DELETE_USER, {"username": USER[0]})).code == 0
        assert await all_codes(client, 1) == [ResponseCode.NO_PERMISSION]
        await user(admin)
        assert ResponseCode.SYSTEM_BUSY in await all_codes(client, 40)
        assert await put_quota(admin, USER[0]) == 0
        assert await all_codes(client, 40) == [0] * 40


@pytest.mark.parametrize("limits", [{"produce_messages": -1}, {"consume_bytes": 10**15 + 1}, {"stored_bytes": 1}])
async def test_invalid_user_quota_is_refused(tmp_path: Path, limits: dict[str, int]) -> None:
    async with guarded(tmp_path, group="q-m", level=8) as (_, admin):
        assert await put_quota(admin, USER[0], **limits) == ResponseCode.INVALID_PARAMETER
        for body in (b"{}", b"", b'{"quota":{"produce_messages":NaN}}', b'{"quota":{"produce_messages":1.5}}'):
            answer = await admin.request(RequestCode.PUT_USER_QUOTA, {"username": USER[0]}, body)
            assert answer.code != 0 or body == b"{}", (body, answer)
        assert not (await quotas(admin)).users
