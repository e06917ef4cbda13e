"""Requests that are well formed: without credentials, with wrong or stolen ones, and such as would write files."""

from __future__ import annotations

import json
import random
import struct
import zlib
from typing import Any

import pytest
import trio

from mq.client import Credentials, MessageQueue, PullConsumer, ReceivedMessage, RemotingSettings
from mq.protocol.access.signing import sign_fields
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.messages.compression import COMPRESSED, ZLIB
from tests.attacks.target import ACCOUNTS, ADMIN, CONSUMER, HOST, MIB, PRODUCER, Target, connected
from tests.support.odd_requests import all_requests, asked, code_of
from tests.support.running_broker import pull_ext, send_ext

pytestmark = pytest.mark.process

NO_PERMISSION = ResponseCode.NO_PERMISSION
REFUSALS = {NO_PERMISSION, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR}
"""Only of a request whose header cannot be read SYSTEM_ERROR is the answer."""

PATHS = (
    "../../escaped",
    "/tmp/escaped",
    "..",
    ".",
    "a/b",
    "a\\b",
    "a\x00b",
    "a\nb",
    "a\x1b[2J",
    "%2e%2e/x",
    "x" * 2000,
)


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_unsigned_requests_change_no_state(target: Target, serialization: int) -> None:
    """Every request that there is, with every field as it should be and as it should not."""
    rng = random.Random(serialization)
    for request in all_requests(serialization):
        async with target.client() as client:
            posted = [
                await client.post(code_of(request), fields, body, serialization=serialization)
                for fields, body in asked(request, rng, serialization)
            ]
            for opaque in posted:
                answer = await client.answer(opaque)
                assert answer.code in REFUSALS, (request.__name__, answer)
                assert answer.body == b"", request.__name__


async def test_wrong_credentials_are_refused(target: Target) -> None:
    """Of an account that is not there, with another secret, another algorithm, or without one of the fields."""
    fields = {name: str(value) for name, value in send_ext("T").items()}
    good = sign_fields(*PRODUCER, fields, b"x")
    wrong: list[dict[str, str]] = [
        sign_fields("nobody-here", PRODUCER[1], fields, b"x"),
        sign_fields(PRODUCER[0], PRODUCER[1] + "x", fields, b"x"),
        sign_fields(PRODUCER[0], CONSUMER[1], fields, b"x"),
        good | {"AccessKey": CONSUMER[0]},
        good | {"AccessKey": ADMIN[0]},
        good | {"Signature": ""},
        good | {"Signature": good["Signature"].lower()},
        good | {"Signature": good["Signature"] + "="},
        good | {"b": "U"},
        good | {"e": "00"},
        good | {"extra": "x"},
        {name: value for name, value in good.items() if name != "Signature"},
        {name: value for name, value in good.items() if name != "AccessKey"},
        {name: value for name, value in good.items() if name != "j"},
        good | {"SecurityToken": "x"},
    ]
    async with target.client() as client:
        for each in wrong:
            answer = await client.request(RequestCode.SEND_MESSAGE_V2, each, b"x")
            assert answer.code == NO_PERMISSION, each
            assert not [secret for _, secret in (ADMIN, PRODUCER, CONSUMER) if secret in str(answer.remark)]
        assert (await client.request(RequestCode.SEND_MESSAGE_V2, good, b"y")).code == NO_PERMISSION, "another body"


async def test_recorded_request_can_only_be_replayed_unchanged(target: Target) -> None:
    """Signatures have no time and no number, as RocketMQ's: TLS keeps others from recording requests."""
    fields = sign_fields(*CONSUMER, {name: str(value) for name, value in pull_ext("T").items()}, b"")
    for _ in range(2):
        async with target.client() as client:
            answer = await client.request(RequestCode.PULL_MESSAGE, fields)
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND)
            changed = await client.request(RequestCode.PULL_MESSAGE, fields | {"queueOffset": "1"})
            assert changed.code == NO_PERMISSION
            # The code of a request is not signed; what another one needs, these fields do not say.
            for code in (RequestCode.GET_BROKER_CONFIG, RequestCode.DELETE_TOPIC_IN_BROKER):
                assert (await client.request(code, fields)).code == NO_PERMISSION


async def test_recorded_request_of_our_clients_is_refused_under_another_code(target: Target) -> None:
    """A query about a topic has all fields of its deletion, and the code itself is not signed."""
    fields = Credentials(*ADMIN).sign(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}, b"")
    async with target.client() as client:
        assert (await client.request(RequestCode.GET_TOPIC_STATS_INFO, fields)).code == ResponseCode.SUCCESS
        refused = await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, fields)
        assert (refused.code, refused.remark) == (NO_PERMISSION, "the request was signed for code 202, not 215")
        without = {name: value for name, value in fields.items() if name != "SignedCode"}
        assert (await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, without)).code == NO_PERMISSION


async def test_removed_account_loses_its_rights_on_open_connections(target: Target) -> None:
    async with target.client(PRODUCER) as producer:
        await target.send(producer)
        try:
            kept = [line for line in ACCOUNTS.splitlines() if PRODUCER[0] not in line]
            target.acl_file.write_text("\n".join(kept))
            with trio.fail_after(30):
                while (answer := await producer.request(RequestCode.SEND_MESSAGE_V2, send_ext("T"))).code == 0:
                    target.note_sent()
            assert answer.code == NO_PERMISSION
            assert "unknown access key" in str(answer.remark)
        finally:
            target.acl_file.write_text(ACCOUNTS)
            with trio.fail_after(30):
                while (await producer.request(RequestCode.SEND_MESSAGE_V2, send_ext("T"))).code != 0:
                    pass
            target.note_sent()


# -- files -------------------------------------------------------------------------------------------------------------


BROKER_SETTINGS = (
    "rocketmqHome=/tmp/escaped;touch /tmp/escaped",  # CVE-2023-33246
    "filterServerNums=1\nrocketmqHome=-c $@|sh . echo touch /tmp/escaped;",
    "brokerConfigPath=/tmp/escaped\naclFile=/tmp/escaped",
    "storePathRootDir=/tmp/escaped",
    "raftmq.data_dir=/tmp/escaped",
    "raftmq.acl_file=",
    "raftmq.tls_mode=permissive",
    "listenPort=1\x00",
)
NAMESRV_SETTINGS = (
    "kvConfigPath=/tmp/escaped",  # CVE-2023-37582
    "configStorePath=/tmp/escaped\nproductEnvName=a/../../b",
    "configBlackList=x",
    "raftmq.data_dir=/tmp/escaped",
    "raftmq.tls_mode=enforcing",
    "rocketmqHome=/tmp/escaped",
)


@pytest.mark.parametrize("text", BROKER_SETTINGS)
async def test_broker_settings_from_clients_do_not_write_files(target: Target, text: str) -> None:
    """Neither for anybody nor for an administrator."""
    for keys in (None, PRODUCER, ADMIN):
        async with target.client(keys) as client:
            answer = await client.request(RequestCode.UPDATE_BROKER_CONFIG, {}, text.encode())
            assert answer.code in REFUSALS, answer


@pytest.mark.parametrize("text", NAMESRV_SETTINGS)
async def test_name_server_settings_from_clients_do_not_write_files(target: Target, text: str) -> None:
    async with connected(target.namesrv) as client:
        answer = await client.request(RequestCode.UPDATE_NAMESRV_CONFIG, {}, text.encode())
        assert answer.code in REFUSALS, answer


@pytest.mark.parametrize("name", PATHS)
async def test_names_cannot_be_paths(target: Target, name: str) -> None:
    """Topics, groups and clients, by an administrator, who may name what it likes otherwise."""
    group: dict[str, Any] = {"consumerGroup": name, "topic": "T", "queueId": 0, "commitOffset": 0}
    requests: list[tuple[int, dict[str, Any], bytes]] = [
        (RequestCode.SEND_MESSAGE_V2, send_ext(name), b"x"),
        (RequestCode.UPDATE_CONSUMER_OFFSET, group, b""),
        (RequestCode.UPDATE_CONSUMER_OFFSET, group | {"consumerGroup": "G", "topic": name}, b""),
        (RequestCode.PULL_MESSAGE, pull_ext(name), b""),
        (RequestCode.PULL_MESSAGE, pull_ext("T") | {"consumerGroup": name}, b""),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json_text(groupName=name)),
        (RequestCode.HEART_BEAT, {}, json_text(clientID="c", consumerDataSet=[{"groupName": name}])),
        (RequestCode.LOCK_BATCH_MQ, {}, json_text(consumerGroup=name, clientId="c", mqSet=[])),
        (RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": 0, "group": name, "delayLevel": 0}, b""),
        (RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": name, "destGroup": name, "topic": "T"}, b""),
    ]
    async with target.client(ADMIN) as admin:
        assert (await admin.create_topic(name)).code != ResponseCode.SUCCESS
        for code, fields, body in requests:
            answer = await admin.request(code, fields, body)
            assert answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND), (code, answer)
    assert not await trio.Path("/tmp/escaped").exists()


@pytest.mark.parametrize("name", [name for name in PATHS if name not in ("..", ".")])
async def test_names_in_a_registration_cannot_be_paths(target: Target, name: str) -> None:
    broker = {"brokerName": "b", "brokerAddr": "10.0.0.1:1", "clusterName": "c", "haServerAddr": "", "brokerId": 0}
    topic = json_text(
        topicConfigSerializeWrapper={"topicConfigTable": {name: {"topicName": name}}}, filterServerList=[]
    )
    async with connected(target.namesrv) as client:
        for fields, body in (
            (broker | {"brokerName": name}, b""),
            (broker | {"clusterName": name}, b""),
            (broker, topic),
        ):
            answer = await client.request(RequestCode.REGISTER_BROKER, fields | {"bodyCrc32": 0}, body)
            assert answer.code == ResponseCode.SYSTEM_ERROR, (name, fields, answer)


def json_text(**fields: Any) -> bytes:
    """A body."""
    return json.dumps(fields).encode()


# -- bombs -------------------------------------------------------------------------------------------------------------


def zeros(mebibytes: int) -> bytes:
    """So many MiB, compressed to a thousandth."""
    stream = zlib.compressobj(1)
    return b"".join(stream.compress(bytes(MIB)) for _ in range(mebibytes)) + stream.flush()


async def test_registration_that_inflates_to_gigabytes_is_refused(target: Target) -> None:
    broker = {"brokerName": "b", "brokerAddr": "10.0.0.1:1", "clusterName": "c", "haServerAddr": "", "brokerId": 0}
    fields = broker | {"bodyCrc32": 0, "compressed": "true"}
    bomb = zeros(300)
    nested = zlib.compress(struct.pack(">i", 2**31 - 1) + bytes(100))
    many = zlib.compress(struct.pack(">i", 2) + b"{}" + struct.pack(">i", 2**31 - 1) + struct.pack(">i", 0) * 1_000_000)
    async with connected(target.namesrv) as client:
        for body in (bomb, nested, many, bomb[:-10], b"x" * 100):
            answer = await client.request(RequestCode.REGISTER_BROKER, fields, body)
            assert answer.code == ResponseCode.SYSTEM_ERROR, answer
        many_topics = b"{" + b'"t":{},' * 2_000_000 + b'"t":{}}'
        plain = b'{"topicConfigSerializeWrapper":{"topicConfigTable":' + many_topics + b"}}"
        answer = await client.request(RequestCode.REGISTER_BROKER, broker | {"bodyCrc32": 0}, plain)
        assert answer.code == ResponseCode.SYSTEM_ERROR, answer


async def test_broker_does_not_inflate_compressed_messages(target: Target) -> None:
    """It is stored and handed out as it is. A consumer gives it to the application as it is, and reads on."""
    bomb = zeros(200)
    async with target.client(PRODUCER) as producer:
        sent = await target.send(producer, bomb, f=COMPRESSED | ZLIB)
        await target.send(producer)
    remoting = RemotingSettings(credentials=Credentials(*CONSUMER))
    async with PullConsumer(f"{HOST}:{target.namesrv}", "G", consume_from="first", remoting=remoting) as consumer:
        queue = MessageQueue("T", "broker-a", 0)
        await consumer.assign([queue])
        await consumer.seek(queue, int(sent.ext["queueOffset"]))
        messages: list[ReceivedMessage] = []
        with trio.fail_after(30):
            while len(messages) < 2:
                messages += await consumer.poll(timeout=10.0)
    assert [message.body for message in messages] == [bomb, b"body"], (
        "what cannot be inflated is handed out as it is stored"
    )
