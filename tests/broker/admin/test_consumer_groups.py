"""Consumer offsets, members of groups and topic administration over real sockets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.clients import ConsumerData, ConsumerList, HeartbeatData, SubscriptionData
from tests.support.running_broker import Answer, Client, RunningBroker, broker_client, limited, running

SYSTEM_TOPICS = 12
"""What a new group makes for itself: the template, and those of cluster, broker, self test and delays."""

REBALANCE = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


def update_ext(offset: int, topic: str = "T", queue_id: int = 0, group: str = "G") -> dict[str, Any]:
    return {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset}


async def update(client: Client, *args: Any) -> Answer:
    return await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, update_ext(*args))


async def members(client: Client, group: str = "G") -> list[str]:
    answer = await client.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    if answer.code == ResponseCode.SYSTEM_ERROR:
        assert answer.body == b""
        return []
    assert answer.code == ResponseCode.SUCCESS
    return list(ConsumerList.decode(answer.body).consumer_ids)


async def two_members(first: Client, second: Client) -> None:
    """The clients C1 and C2 are members of G; the topic T has a queue with 20 messages."""
    await first.create_topic("T", 1)
    await first.fill(20)
    await first.heartbeat("C1", "G")
    await second.heartbeat("C2", "G")


async def unregister(client: Client, client_id: str, group: str = "G") -> Answer:
    return await client.request(RequestCode.UNREGISTER_CLIENT, {"clientID": client_id, "consumerGroup": group})


# -- offsets -----------------------------------------------------------------------------------------------------------


async def test_new_group_gets_the_first_offset_of_existing_queues(client: Client) -> None:
    await client.create_topic("T", 2)
    assert await client.committed() == 0  # whoever asked for its end instead might skip the first message
    assert await client.committed(queue_id=2) is None
    assert await client.committed(queue_id=-1) is None
    assert await client.committed(topic="Nothing") is None
    assert await client.committed(setZeroIfNotFound=False) is None
    await client.send()
    assert await client.committed() == 0  # a young queue is read from its beginning
    assert await client.committed(queue_id=1) == 0
    assert await client.committed(setZeroIfNotFound=False) is None


async def test_new_group_gets_messages_sent_while_it_asks_for_its_offset(client: Client) -> None:
    """It wants to begin at the end: a message that is stored between its two questions was skipped for good."""
    await client.create_topic("T", 1)
    stored = await client.committed()
    await client.send(body=b"first")
    begin = await client.offset(RequestCode.GET_MAX_OFFSET) if stored is None else stored
    assert [record.body for record in (await client.pull(offset=begin)).records] == [b"first"]


async def test_cold_queue_beginning_gives_a_new_group_no_offset(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=1, slow_consumer_bytes=64 * 1024) as client:
        await client.send()
        assert await client.committed() == 0
        await client.send(body=bytes(64 * 1024))
        assert await client.committed() is None


async def test_acknowledged_offset_update_is_readable_at_once(broker: RunningBroker) -> None:
    client, other = await broker.connect(), await broker.connect()
    await client.create_topic("T", 2)
    await client.fill(5)
    assert (await update(client, 5)).code == ResponseCode.SUCCESS
    assert await other.committed() == 5
    assert await other.committed(group="Other", setZeroIfNotFound=False) is None
    assert await other.committed(queue_id=1) == 0
    assert (await update(client, 2**63 - 1, "T", 1)).code == ResponseCode.INVALID_PARAMETER
    assert await other.committed(queue_id=1) == 0


async def test_operator_moves_the_offset_of_an_offline_group_back(client: Client) -> None:
    """As mqadmin and consoles do it, by request 15."""
    await client.create_topic("T", 1)
    await client.fill(10)
    for offset in (10, 3, 7, 0):
        assert (await update(client, offset)).code == ResponseCode.SUCCESS
        assert await client.committed() == offset
    await client.post(RequestCode.UPDATE_CONSUMER_OFFSET, update_ext(8), oneway=True)
    assert (await update(client, 4)).code == ResponseCode.SUCCESS
    assert await client.committed() == 4, "what was gathered before does not come behind it"


async def test_late_commit_is_refused_and_does_not_move_the_offset_back(broker: RunningBroker) -> None:
    owner, late, nobody = [await broker.connect() for _ in range(3)]
    await two_members(owner, late)
    await late.pull(offset=0)
    assert (await update(late, 5)).code == ResponseCode.SUCCESS
    await owner.pull(offset=5)
    assert (await update(owner, 12)).code == ResponseCode.SUCCESS
    for sender in (late, nobody, owner):
        answer = await update(sender, 7)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "12" in (answer.remark or "")
        await sender.post(RequestCode.UPDATE_CONSUMER_OFFSET, update_ext(7), oneway=True)
        assert await sender.committed() == 12
    # Whoever only wants the group to be there or further on is content.
    ext = update_ext(7) | {"forwardOnly": True}
    assert (await late.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == ResponseCode.SUCCESS
    assert await owner.committed() == 12


async def test_forward_only_commit_of_a_new_owner_never_moves_offsets_back(tmp_path: Path) -> None:
    """It asked where to begin just before the former owner committed its last messages."""
    async with running(tmp_path, offset_commit_seconds=0.01) as broker:
        former, new = await broker.connect(), await broker.connect()
        await two_members(former, new)
        assert (await update(former, 5)).code == ResponseCode.SUCCESS
        begin = await new.committed()
        assert begin == 5
        assert (await update(former, 8)).code == ResponseCode.SUCCESS
        for commit in (begin, begin + 1):
            await new.pull(offset=begin, sysFlag=5, commitOffset=commit, forwardOnly=True)
            assert await new.committed() == 8
        await new.pull(offset=10, sysFlag=5, commitOffset=10, forwardOnly=True)
        assert await new.committed() == 10


async def test_commits_of_the_previous_queue_owner_are_ignored(tmp_path: Path) -> None:
    async with running(tmp_path, offset_commit_seconds=0.01) as broker:
        former, new = await broker.connect(), await broker.connect()
        await two_members(former, new)
        await former.pull(offset=0)
        assert (await update(former, 10)).code == ResponseCode.SUCCESS
        await former.pull(offset=3)  # it has gone back, and loses the queue before it commits
        await new.pull(offset=10, forwardOnly=True)
        await former.post(RequestCode.UPDATE_CONSUMER_OFFSET, update_ext(4), oneway=True)
        assert await new.committed() == 10


@pytest.mark.parametrize("oneway", [True, False])
async def test_consumer_continues_after_seeking_back_and_committing(tmp_path: Path, oneway: bool) -> None:
    """As a lite pull consumer of Java's, whose commits are one-way."""
    async with running(tmp_path, offset_commit_seconds=0.01) as broker:
        client, other = await broker.connect(), await broker.connect()
        await two_members(client, other)

        async def commit(sender: Client, offset: int) -> None:
            await sender.post(RequestCode.UPDATE_CONSUMER_OFFSET, update_ext(offset), oneway=oneway)

        await client.pull(offset=0)
        await commit(client, 10)
        assert await client.committed() == 10
        await client.pull(offset=3)
        await commit(client, 2)
        assert await client.committed() == 10, "it has not read from there"
        await commit(client, 3)
        assert await client.committed() == 3
        await commit(client, 6)
        assert await client.committed() == 6
        await client.pull(offset=1)
        await other.pull(offset=6)
        await commit(client, 2)
        assert await client.committed() == 6, "another client reads the queue by now"


async def test_oneway_offset_commits_are_visible_to_later_requests(tmp_path: Path) -> None:
    """They gather for a while before they are replicated; a question brings them into the log at once."""
    async with broker_client(tmp_path, queues=1, offset_commit_seconds=3600) as client:
        await client.fill(7)
        last_index = int((await client.info())["raftmq.lastIndex"])
        for offset in (1, 7, 4):
            await client.post(RequestCode.UPDATE_CONSUMER_OFFSET, update_ext(offset), oneway=True)
        assert int((await client.info())["raftmq.lastIndex"]) == last_index
        assert await client.committed() == 7
        assert int((await client.info())["raftmq.lastIndex"]) == last_index + 1
        await client.post(RequestCode.UPDATE_CONSUMER_OFFSET, update_ext(6), oneway=True)
        assert await client.committed() == 7


async def test_oneway_offset_commits_are_replicated_without_further_requests(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=1, offset_commit_seconds=0.01) as client:
        await client.fill(1)
        last_index = int((await client.info())["raftmq.lastIndex"])
        await client.post(RequestCode.UPDATE_CONSUMER_OFFSET, update_ext(1), oneway=True)
        await client.wait_for(lambda info: int(info["raftmq.appliedIndex"]) > last_index)
        assert await client.committed() == 1


async def test_offsets_exceeding_one_log_file_are_stored(tmp_path: Path) -> None:
    """They go into the log in several commands, and a question is answered behind the last of them."""
    small = {"segment_bytes": 128 * 1024, "message_bytes_max": 1024, "offset_commit_seconds": 3600}
    async with broker_client(tmp_path, **small) as client:
        topic, groups = "t" * 127, [f"{number:0120}" for number in range(600)]
        await client.create_topic(topic, 1)
        await client.fill(7, topic)
        frames = [
            client.frame(RequestCode.UPDATE_CONSUMER_OFFSET, update_ext(7, topic, 0, group), oneway=True)[1]
            for group in groups
        ]
        await client.stream.send_all(b"".join(frames))
        for group in (groups[-1], groups[0]):
            assert await client.committed(group, topic) == 7


async def test_broker_refuses_offsets_of_unknown_queues(client: Client) -> None:
    await client.create_topic("T", 1)
    last_index = (await client.info())["raftmq.lastIndex"]
    for what, ext, code in (
        ("unknown topic", update_ext(1, "Nothing"), ResponseCode.TOPIC_NOT_EXIST),
        ("queue too large", update_ext(1, "T", 1), ResponseCode.TOPIC_NOT_EXIST),
        ("queue below zero", update_ext(1, "T", -1), ResponseCode.TOPIC_NOT_EXIST),
        ("topic outside", update_ext(1, "../T"), ResponseCode.INVALID_PARAMETER),
        ("group outside", update_ext(1, group="../G"), ResponseCode.INVALID_PARAMETER),
        ("empty group", update_ext(1, group=""), ResponseCode.INVALID_PARAMETER),
        ("long group", update_ext(1, group="g" * 121), ResponseCode.INVALID_PARAMETER),
    ):
        answer = await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        assert answer.code == code, (what, answer)
        await client.post(RequestCode.UPDATE_CONSUMER_OFFSET, ext, oneway=True)
    assert (await client.info())["raftmq.lastIndex"] == last_index
    assert await client.committed(setZeroIfNotFound=False) is None


async def test_ends_of_a_queue(client: Client) -> None:
    await client.create_topic("T", 2)
    for _ in range(3):
        await client.send()
    assert await client.offset(RequestCode.GET_MAX_OFFSET) == 3
    assert await client.offset(RequestCode.GET_MIN_OFFSET) == 0
    assert await client.offset(RequestCode.GET_MAX_OFFSET, queue_id=1) == 0
    assert await client.offset(RequestCode.GET_MAX_OFFSET, topic="Nothing", queue_id=-7) == 0


# -- members -----------------------------------------------------------------------------------------------------------


async def test_members_are_notified_when_others_join_or_leave(broker: RunningBroker) -> None:
    first, second, third, asking = [await broker.connect() for _ in range(4)]
    assert (await first.heartbeat("c1", "G")).code == ResponseCode.SUCCESS
    assert await first.notice() == (REBALANCE, {"consumerGroup": "G"})
    assert await members(asking) == ["c1"]

    await second.heartbeat("c2", "G", "Other")
    assert await first.notice() == (REBALANCE, {"consumerGroup": "G"})
    assert {(await second.notice())[1]["consumerGroup"] for _ in range(2)} == {"G", "Other"}
    await third.heartbeat("c0", "G")
    for client in (first, second, third):
        assert await client.notice() == (REBALANCE, {"consumerGroup": "G"})
    assert await members(asking) == ["c0", "c1", "c2"]
    assert await members(asking, "Other") == ["c2"]

    await second.heartbeat("c2", "G", "Other")  # nothing new
    assert (await unregister(second, "c2")).code == ResponseCode.SUCCESS
    for client in (first, third):
        assert await client.notice() == (REBALANCE, {"consumerGroup": "G"})
    assert await members(asking) == ["c0", "c1"]
    assert await members(asking, "Other") == ["c2"]

    await third.stream.aclose()
    assert await first.notice() == (REBALANCE, {"consumerGroup": "G"})
    assert await members(asking) == ["c1"]
    assert (await unregister(first, "c1")).code == ResponseCode.SUCCESS
    assert await members(asking) == []
    for client in (first, second, asking):
        assert await client.alive()
        assert client.notices == []


async def test_client_cannot_unregister_another_client(broker: RunningBroker) -> None:
    client, other = await broker.connect(), await broker.connect()
    await client.heartbeat("c1", "G")
    assert (await unregister(other, "c1")).code == ResponseCode.SUCCESS
    assert (await unregister(client, "somebody")).code == ResponseCode.SUCCESS
    assert await members(other) == ["c1"]


async def test_heartbeat_makes_the_group_and_its_retry_topic(client: Client) -> None:
    assert (await client.pull("%RETRY%G", sysFlag=4)).code == ResponseCode.TOPIC_NOT_EXIST
    await client.heartbeat("c1", "G", topics=("T", "%RETRY%G"))
    assert (await update(client, 1, "%RETRY%Other")).code == ResponseCode.TOPIC_NOT_EXIST
    await client.wait_for(lambda info: info["raftmq.appliedIndex"] == info["raftmq.lastIndex"])
    last_index = int((await client.info())["raftmq.lastIndex"])
    assert (await client.pull("%RETRY%G", sysFlag=4)).code == ResponseCode.PULL_NOT_FOUND
    assert (await client.pull("%RETRY%G", queue_id=1)).code == ResponseCode.INVALID_PARAMETER
    assert (await client.send("%RETRY%G", b"again")).code == ResponseCode.SUCCESS
    assert [record.body for record in (await client.pull("%RETRY%G")).records] == [b"again"]
    await client.heartbeat("c1", "G")
    assert int((await client.info())["raftmq.lastIndex"]) == last_index + 1  # the message, and nothing twice


async def test_clients_cannot_make_names_without_end(tmp_path: Path) -> None:
    limits = limited(state={"topics_max": 1 + SYSTEM_TOPICS + 1, "offset_tables_max": 2})
    async with broker_client(tmp_path, queues=1, limits=limits) as client:
        await client.fill(1)
        assert (await client.send("T2", d=1)).code == ResponseCode.SUCCESS
        assert (await client.send("T3", d=1)).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await client.create_topic("T3")).code == ResponseCode.SYSTEM_ERROR
        assert (await client.create_topic("T2", 4)).code == ResponseCode.SUCCESS
        assert (await client.heartbeat("c", "G")).code == ResponseCode.SUCCESS
        assert (await client.pull("%RETRY%G")).code == ResponseCode.TOPIC_NOT_EXIST  # the group has not been made
        for group, code in (
            ("G1", ResponseCode.SUCCESS),
            ("G2", ResponseCode.SUCCESS),
            ("G3", ResponseCode.TOPIC_NOT_EXIST),
            ("G1", ResponseCode.SUCCESS),
        ):
            answer = await update(client, 1, "T", 0, group)
            assert answer.code == code, group
            if code != ResponseCode.SUCCESS:
                assert "no room for offsets of G3 in T: 2 pairs of a group and a topic" in str(answer.remark)


async def test_broker_sends_no_rebalance_notices_to_quiet_and_broadcasting_groups(broker: RunningBroker) -> None:
    one, two = await broker.connect(), await broker.connect()
    config = {"groupName": "Quiet", "notifyConsumerIdsChangedEnable": False, "retryQueueNums": 3}
    body = json.dumps(config).encode()
    answer = await one.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.SUCCESS, answer
    for client, client_id in ((one, "c1"), (two, "c2")):
        await client.heartbeat(client_id, "Quiet")
        body = heartbeat_body(group="Wide", message_model="BROADCASTING").replace(b'"c1"', f'"{client_id}"'.encode())
        assert (await client.request(RequestCode.HEART_BEAT, body=body)).code == ResponseCode.SUCCESS
    assert await members(one, "Quiet") == await members(one, "Wide") == ["c1", "c2"]
    assert await one.alive()
    assert await two.alive()
    assert one.notices == two.notices == []
    # Its retry topic is made as the group is configured.
    await one.wait_for(lambda info: info["raftmq.appliedIndex"] == info["raftmq.lastIndex"])
    assert (await one.pull("%RETRY%Quiet", queue_id=2)).code == ResponseCode.PULL_NOT_FOUND
    assert (await one.pull("%RETRY%Quiet", queue_id=3)).code == ResponseCode.INVALID_PARAMETER


def heartbeat_body(**given: Any) -> bytes:
    consumer: dict[str, Any] = {"group": "G", "subscriptions": [SubscriptionData(topic="T")]} | given
    return HeartbeatData(client_id="c1", consumers=[ConsumerData(**consumer)]).encode()


async def test_refused_heartbeats_register_no_client(client: Client) -> None:
    for what, body in (
        ("empty", b""),
        ("no JSON", b"\xff\x00{"),
        ("deep", b"[" * 10_000),
        ("an array", b"[]"),
        ("no client id", b"{}"),
        ("numbers for text", b'{"clientID":1,"consumerDataSet":7}'),
        ("empty client id", HeartbeatData(client_id="", consumers=[ConsumerData(group="G")]).encode()),
        ("long client id", HeartbeatData(client_id="c" * 256, consumers=[ConsumerData(group="G")]).encode()),
        ("group outside", heartbeat_body(group="../G")),
        ("long group", heartbeat_body(group="g" * 121)),
        ("topic outside", heartbeat_body(subscriptions=[SubscriptionData(topic="../T")])),
        ("no tag", heartbeat_body(subscriptions=[SubscriptionData(topic="T", expression="||")])),
    ):
        answer = await client.request(RequestCode.HEART_BEAT, body=body)
        assert answer.code == ResponseCode.SYSTEM_ERROR, what
        assert str(answer.remark).startswith("heartbeat refused"), what
    assert await members(client) == []
    assert client.notices == []


# -- topics and figures ------------------------------------------------------------------------------------------------


async def test_topics_are_made_and_changed(client: Client) -> None:
    await client.heartbeat("c", "x")
    for topic in ("T", "t" * 127, "%RETRY%x", "a|b-c_D9"):
        assert (await client.create_topic(topic, 2)).code == ResponseCode.SUCCESS
        assert (await client.send(topic, e=1)).code == ResponseCode.SUCCESS
        assert (await client.send(topic, e=2)).code == ResponseCode.INVALID_PARAMETER
    assert (await client.create_topic("T", 3)).code == ResponseCode.SUCCESS
    assert (await client.send("T", e=2)).ext["queueOffset"] == "0"
    assert (await client.send("T", e=1)).ext["queueOffset"] == "1"
    assert (await client.create_topic("T", 1)).code == ResponseCode.SUCCESS
    assert (await client.send("T", e=1)).code == ResponseCode.INVALID_PARAMETER
    assert (await client.create_topic("T", 2)).code == ResponseCode.SUCCESS
    assert (await client.send("T", e=1)).ext["queueOffset"] == "2"


async def test_benchmark_topic_exists_and_may_be_changed(client: Client) -> None:
    assert (await client.send("BenchmarkTest", e=1023)).code == ResponseCode.SUCCESS
    assert (await client.create_topic("BenchmarkTest", 4)).code == ResponseCode.SUCCESS
    assert (await client.send("BenchmarkTest", e=4)).code == ResponseCode.INVALID_PARAMETER


async def test_impossible_topics_are_refused(tmp_path: Path) -> None:
    with capture_logs() as log:
        await refuse_topics(tmp_path)
    assert "request_failed" not in {line["event"] for line in log}


async def refuse_topics(directory: Path) -> None:
    async with broker_client(directory, cluster="Clu", group="Bro") as client:
        last_index = (await client.info())["raftmq.lastIndex"]
        reserved = (
            "TBW102",
            "SELF_TEST_TOPIC",
            "RMQ_SYS_TRACE_TOPIC",
            "rmq_sys_x",
            "rmq_sys_raftmq_meta",
            "Clu",
            "Bro",
        )
        for topic in ("", "../x", "a.b", "a b", "t" * 128, *reserved):
            answer = await client.create_topic(topic)
            assert answer.code == ResponseCode.INVALID_PARAMETER, topic
            assert answer.remark, topic
        for field, value in (
            ("readQueueNums", 0),
            ("readQueueNums", -1),
            ("readQueueNums", 1025),
            ("writeQueueNums", 0),
            ("writeQueueNums", 2**31 - 1),
            ("perm", -1),
            ("perm", 8),
            ("topicSysFlag", -1),
        ):
            answer = await client.create_topic("T", **{field: value})
            assert answer.code == ResponseCode.INVALID_PARAMETER, field
            assert str(value) in str(answer.remark), field
        assert (await client.info())["raftmq.lastIndex"] == last_index


async def test_figures_of_a_broker(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=1, cluster="Clu", group="Bro") as client:
        for _ in range(3):
            await client.send()
        info = await client.info()
        assert info["brokerVersion"] == "409"
        assert info["brokerVersionDesc"] == "V4_9_8"
        assert int(info["bootTimestamp"]) > 1_700_000_000_000
        assert (info["raftmq.cluster"], info["raftmq.group"], info["raftmq.nodeId"]) == ("Clu", "Bro", "n0")
        assert (info["raftmq.role"], info["raftmq.leaderId"], info["raftmq.term"]) == ("leader", "n0", "1")
        indexes = {info[f"raftmq.{name}Index"] for name in ("last", "commit", "applied", "durable")}
        assert indexes == {"7"}  # the term's start, the system topics, the format level, the topic, three messages
        assert info["raftmq.commitPosition"] == info["raftmq.endPosition"]
        assert info["raftmq.durability"] == "quorum-fsync"
        assert json.loads(info["raftmq.peers"]) == {}
        assert int(info["raftmq.connections"]) >= 1
        assert (info["raftmq.pendingBytes"], info["raftmq.heldPulls"]) == ("0", "0")


async def test_connections_beyond_the_limit_are_closed(tmp_path: Path) -> None:
    async with running(tmp_path, connections_max=2) as broker:
        kept = [await broker.connect() for _ in range(2)]
        for client in kept:
            assert await client.alive()
        assert await (await broker.connect()).closed()
        await kept.pop().stream.aclose()
        await kept[0].wait_for(lambda info: info["raftmq.connections"] == "1")
        assert await (await broker.connect()).alive()


async def test_silent_connections_are_closed_except_waiting_pulls(tmp_path: Path) -> None:
    async with running(tmp_path, idle_seconds_max=0.5) as broker:
        silent, waiting = await broker.connect(), await broker.connect()
        await waiting.create_topic("T", 1)
        opaque = await waiting.post(
            RequestCode.PULL_MESSAGE,
            {"consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 6,
             "commitOffset": 0, "suspendTimeoutMillis": 15_000, "subVersion": 0, "subscription": "*"},
        )  # fmt: skip
        assert await silent.closed()
        assert await (await broker.connect()).closed()
        sender = await broker.connect()
        await sender.send()
        assert (await waiting.answer(opaque)).code == ResponseCode.SUCCESS
