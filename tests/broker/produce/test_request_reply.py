"""Replies to messages over real sockets: who replies, who waits, and the replicas between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from tests.support.replica_client import connect_replica
from tests.support.replies import REPLY_TOPIC, V2, produces, pushed, reply_ext, three_replicas
from tests.support.running_broker import LONG_NAMES, Answer, Client, RunningBroker, limited, properties, running
from tests.support.waiting import until


async def refused(client: Client, remark: str, **given: Any) -> Answer:
    """What who replies is told when nobody has the reply, which is stored all the same."""
    answer = await client.request(V2, reply_ext(**given), b"answer")
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert len(answer.ext["msgId"]) == 32
    return answer


@pytest.mark.parametrize("serialization", [JSON, BINARY])
@pytest.mark.parametrize("long_names", [False, True])
async def test_reply_is_pushed_to_the_asker_and_stored(
    broker: RunningBroker, serialization: int, long_names: bool
) -> None:
    asker, replier = await broker.connect(), await broker.connect()
    await produces(asker, "asker", "P", "Q")
    ext, code = reply_ext(h=7), V2
    if long_names:
        ext, code = {LONG_NAMES[name]: value for name, value in ext.items()}, RequestCode.SEND_REPLY_MESSAGE
    opaque = await replier.post(code, ext, b"answer", serialization=serialization)
    question, body = await pushed(asker)
    fields = question.ext.fields()
    named = props.decode(fields.pop("properties"))
    assert int(named.pop("PUSH_REPLY_TIME")) == int(fields.pop("storeTimestamp")) > 1_700_000_000_000
    assert named == {"MSG_TYPE": "reply", "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "asker", "TTL": "3000"}
    host, port = replier.stream.socket.getsockname()
    assert fields == {
        "producerGroup": "P",
        "topic": REPLY_TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "7",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "bornHost": f"{host}:{port}",
        "storeHost": broker.settings.listen,
    }
    assert body == b"answer"
    await asker.reply(question)
    answer = await replier.answer(opaque)
    assert (answer.code, answer.remark, answer.serialization) == (ResponseCode.SUCCESS, None, serialization)
    record = (await replier.pull(REPLY_TOPIC)).records[0]
    assert answer.ext == {
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "msgId": record.offset_message_id,
        "queueId": "0",
        "queueOffset": "0",
    }
    assert (record.body, record.flag, record.properties["CORRELATION_ID"]) == (b"answer", 7, "c-1")
    assert int((await replier.info())["raftmq.repliesUnderWayBytes"]) == 0


async def test_answer_to_an_unstored_reply_has_no_offset(tmp_path: Path) -> None:
    async with running(tmp_path, store_reply_message=False) as broker:
        asker, replier = await broker.connect(), await broker.connect()
        await produces(asker, "asker")
        opaque = await replier.post(V2, reply_ext(), b"answer")
        await asker.reply((await pushed(asker))[0])
        answer = await replier.answer(opaque)
        assert answer.code == ResponseCode.SUCCESS
        region = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
        assert answer.ext == region | {"msgId": "0", "queueId": "0", "queueOffset": "0"}
        nobody = await replier.request(V2, reply_ext("nobody"), b"answer")
        assert (nobody.code, nobody.ext) == (ResponseCode.SYSTEM_ERROR, region)
        assert (await replier.offset(RequestCode.GET_MAX_OFFSET, REPLY_TOPIC)) == 0


async def test_reply_without_receiver_is_refused_but_stored(client: Client) -> None:
    await produces(client, "somebody")
    await refused(client, "push reply message fail, channel of <nobody> not found.", client_id="nobody")
    await refused(client, "reply message properties[REPLY_TO_CLIENT] is null", client_id=None)
    await refused(client, "reply message properties[REPLY_TO_CLIENT] is null", client_id="")
    await refused(client, "push reply message fail, channel of <somebody\r\n> not found.", client_id="somebody\r\n")
    long = "x" * 20_000
    await refused(client, f"push reply message fail, channel of <{long[:255]}> not found.", client_id=long)
    assert await client.offset(RequestCode.GET_MAX_OFFSET, REPLY_TOPIC) == 5
    assert int((await client.info())["raftmq.repliesNotPushed"]) == 5


async def test_properties_beyond_the_greatest_length_are_refused(broker: RunningBroker) -> None:
    asker = await broker.connect()
    await produces(asker, "asker")
    room = props.SENT_PROPERTIES_BYTES_MAX - len(reply_ext(correlation_id="")["i"])
    opaque = await asker.post(V2, reply_ext(correlation_id="\x7f" * room), b"")
    question, body = await pushed(asker)
    assert (len(props.decode(question.ext.properties)["CORRELATION_ID"]), body) == (room, b"")
    await asker.reply(question)
    assert (await asker.answer(opaque)).code == ResponseCode.SUCCESS
    answer = await asker.request(V2, reply_ext(correlation_id="x" * (room + 1)), b"")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


async def test_topic_and_queue_of_a_reply_are_checked(client: Client) -> None:
    for ext, code in (
        ({"b": "a b"}, ResponseCode.INVALID_PARAMETER),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION),
        ({"b": "Unknown", "c": "Nothing"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"e": 1}, ResponseCode.INVALID_PARAMETER),
    ):
        assert (await client.request(V2, reply_ext() | ext, b"x")).code == code, ext
    chosen = await client.request(V2, reply_ext(e=-1), b"x")
    assert chosen.ext["queueId"] == "0"
    made = await client.request(V2, reply_ext() | {"b": "Young"}, b"x")
    assert (made.code, made.ext["queueOffset"]) == (ResponseCode.SYSTEM_ERROR, "0")


async def test_oneway_reply_is_pushed_without_an_answer(broker: RunningBroker) -> None:
    asker, replier = await broker.connect(), await broker.connect()
    await produces(asker, "asker")
    opaque = await replier.post(V2, reply_ext(), b"answer", oneway=True)
    await asker.reply((await pushed(asker))[0])
    await asker.wait_for(lambda info: info["raftmq.repliesPushed"] == "1")
    assert await replier.alive()
    assert opaque not in replier.answers


async def test_replier_gets_an_error_if_the_asker_refuses_or_leaves(tmp_path: Path) -> None:
    async with running(tmp_path, limits=limited(upkeep={"push_seconds": 0.1})) as broker:
        replier = await broker.connect()
        for end in ("refuses", "silent", "leaves"):
            asker = await broker.connect()
            await produces(asker, "asker")
            opaque = await replier.post(V2, reply_ext(), b"answer")
            question, _ = await pushed(asker)
            if end == "refuses":
                await asker.reply(question, ResponseCode.SYSTEM_ERROR)
            elif end == "leaves":
                await asker.stream.aclose()
            answer = await replier.answer(opaque)
            left = "push reply message fail, channel of <asker> not found."
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark == (left if end == "leaves" else "push reply message to askerfail."), end
            if end == "silent":
                await asker.reply(question)  # too late, and harmless
            await asker.stream.aclose()


async def test_latest_connection_of_a_client_gets_the_reply(broker: RunningBroker) -> None:
    first, second, replier = [await broker.connect() for _ in range(3)]
    await produces(first, "asker", "P")
    await produces(second, "asker", "P", "Q")
    for asker in (second, first):
        opaque = await replier.post(V2, reply_ext(), b"answer")
        await asker.reply((await pushed(asker))[0])
        assert (await replier.answer(opaque)).code == ResponseCode.SUCCESS
        if asker is second:
            for group in ("P", "Q"):
                await second.request(RequestCode.UNREGISTER_CLIENT, {"clientID": "asker", "producerGroup": group})
    await first.request(RequestCode.UNREGISTER_CLIENT, {"clientID": "asker", "producerGroup": "P"})
    await refused(replier, "push reply message fail, channel of <asker> not found.")


# -- several replicas --------------------------------------------------------------------------------------------------


async def test_reply_via_any_replica_reaches_a_client_of_any_replica(tmp_path: Path) -> None:
    async with three_replicas(tmp_path) as brokers:
        askers = [await broker.connect() for broker in brokers]
        repliers = [await broker.connect() for broker in brokers]

        # Replicas that never led say where they are; until then their clients are not found.
        for number in range(len(askers)):
            client = await brokers[number].connect()
            await produces(client, f"first{number}")

            async def confirm(client: Client = client) -> None:
                while True:
                    await client.reply((await pushed(client))[0])

            async def is_known(number: int = number) -> bool:
                answer = await repliers[0].request(V2, reply_ext(f"first{number}"), b"first")
                return answer.code == ResponseCode.SUCCESS

            async with trio.open_nursery() as nursery:
                nursery.start_soon(confirm)
                await until(is_known)
                nursery.cancel_scope.cancel()
        for number, asker in enumerate(askers):
            await produces(asker, f"asker{number}")
        for replier in repliers:
            for number, asker in enumerate(askers):
                opaque = await replier.post(V2, reply_ext(f"asker{number}"), b"answer")
                question, body = await pushed(asker)
                assert (body, question.ext.topic) == (b"answer", REPLY_TOPIC)
                await asker.reply(question)
                answer = await replier.answer(opaque)
                assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
            answer = await replier.request(V2, reply_ext("nobody"), b"answer")
            assert answer.remark == "push reply message fail, channel of <nobody> not found."


async def test_replica_accepts_pushed_replies_only_from_replicas(broker: RunningBroker) -> None:
    client = await connect_replica(broker)
    await produces(client, "asker")
    question = {
        "producerGroup": "P", "topic": "T", "defaultTopic": "D", "defaultTopicQueueNums": 1, "queueId": 0,
        "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "bornHost": "1.2.3.4:5", "storeHost": "1.2.3.4:6",
        "storeTimestamp": 2, "properties": properties(CORRELATION_ID="c"),
    }  # fmt: skip
    ours = {"identity": broker.settings.identity, "clientId": "asker"}
    opaque = await client.post(RequestCode.RELAY_REPLY, question | ours, b"answer")
    pushed_question, body = await pushed(client)
    assert (pushed_question.ext.fields()["bornHost"], body) == ("1.2.3.4:5", b"answer")
    await client.reply(pushed_question)
    assert (await client.answer(opaque)).code == ResponseCode.SUCCESS
    for given, code in (
        ({"identity": "another"}, ResponseCode.NO_PERMISSION),
        ({"clientId": "nobody"}, ResponseCode.CONSUMER_NOT_ONLINE),
    ):
        answer = await client.request(RequestCode.RELAY_REPLY, question | ours | given, b"answer")
        assert answer.code == code
    announced = {"identity": broker.settings.identity, "nodeId": "n9", "address": broker.settings.listen}
    for given, code in (
        ({}, ResponseCode.SUCCESS),
        ({"identity": "another"}, ResponseCode.NO_PERMISSION),
        ({"nodeId": "n7"}, ResponseCode.NO_PERMISSION),
        ({"address": "nowhere"}, ResponseCode.INVALID_PARAMETER),
    ):
        answer = await client.request(RequestCode.ANNOUNCE_REPLICA, announced | given)
        assert answer.code == code, given
