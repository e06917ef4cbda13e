"""A broker with accounts, over sockets: who gets what, and what happens to a file that is changed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import trio
from structlog.testing import capture_logs

from mq.broker.access.control import OfLimitedUser
from mq.broker.access.needs import ROWS
from mq.broker.broker import Broker
from mq.broker.security import StartRefused, access_control
from mq.broker.settings import BrokerSettings
from mq.cli.errors import CommandFailed
from mq.cli.produce_consume import consume
from mq.client import (
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RemotingSettings,
    SendRejected,
    TransactionProducer,
)
from mq.client.net.credentials import Credentials
from mq.namesrv.server import serve
from mq.namesrv.settings import NamesrvSettings
from mq.protocol.access.signing import sign_fields
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.messages.transaction_sets import ConsumedRange, SetMessage, TransactionSet
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.filters import RegisterMessageFilterClass
from mq.protocol.wire.encoding import encode_request
from tests.support.check_backs import FAST
from tests.support.running_broker import Answer, Client, RunningBroker, limited, pull_ext, running
from tests.support.waiting import until

FILE = """
accounts:
- {accessKey: administrator, secretKey: 1234567890, admin: true}
- {accessKey: producer, secretKey: 1234567890, topicPerms: [T=PUB]}
- {accessKey: consumer, secretKey: 1234567890, topicPerms: [T=SUB], groupPerms: [G=SUB]}
- {accessKey: neighbour, secretKey: 1234567890, whiteRemoteAddress: 127.0.0.1, defaultTopicPerm: PUB}
"""
SECRET = "1234567890"
SEND = {"a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "j": "0"}
NO_PERMISSION = ResponseCode.NO_PERMISSION


@asynccontextmanager
async def guarded(tmp_path: Path, text: str = FILE, **given: Any) -> AsyncIterator[RunningBroker]:
    """A broker with accounts."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(text)
    async with running(tmp_path / "n0", keys=("administrator", SECRET), acl_file=path, **given) as broker:
        yield broker


@asynccontextmanager
async def cluster(tmp_path: Path, **given: Any) -> AsyncIterator[str]:
    """The address of a name server that knows a broker with accounts and the topic T."""
    names = NamesrvSettings(listen_host="127.0.0.1", listen_port=0, data_dir=None, metrics_listen="off")
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(serve, names)
        async with guarded(tmp_path, namesrv=f"{host}:{port}", **given) as broker:
            client = await broker.connect()
            client.keys = ("administrator", SECRET)
            await client.create_topic("T", 1)
            yield f"{host}:{port}"
        nursery.cancel_scope.cancel()


async def ask(
    client: Client,
    code: int,
    ext: dict[str, Any],
    body: bytes = b"",
    *,
    key: str | None = None,
    secret: str = SECRET,
    serialization: int = JSON,
) -> Answer:
    """A request that is signed if a key is given."""
    fields = {name: str(value) for name, value in ext.items()}
    if key is not None:
        fields = sign_fields(key, secret, fields, body)
    return await client.request(code, fields, body, serialization=serialization)


async def test_every_request_that_is_served_has_a_row(tmp_path: Path, brokers: list[Broker]) -> None:
    async with running(tmp_path):
        judged = {RegisterMessageFilterClass}  # for filter servers, which serve it
        served = brokers[0].services.requests.types - {OfLimitedUser}  # no client can send that
        assert served | judged == set(ROWS)


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_accounts_get_their_permissions_only(tmp_path: Path, serialization: int) -> None:
    async with guarded(tmp_path) as broker:
        client = await broker.connect()
        create = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        create |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
        steps: list[tuple[str | None, int, dict[str, Any], bool]] = [
            (None, RequestCode.UPDATE_AND_CREATE_TOPIC, create, False),
            ("producer", RequestCode.UPDATE_AND_CREATE_TOPIC, create, False),
            ("administrator", RequestCode.UPDATE_AND_CREATE_TOPIC, create, True),
            (None, RequestCode.SEND_MESSAGE_V2, SEND, False),
            ("consumer", RequestCode.SEND_MESSAGE_V2, SEND, False),
            ("producer", RequestCode.SEND_MESSAGE_V2, SEND, True),
            ("producer", RequestCode.SEND_MESSAGE_V2, SEND | {"b": "U"}, False),
            ("neighbour", RequestCode.SEND_MESSAGE_V2, SEND | {"b": "U"}, True),
            ("administrator", RequestCode.SEND_MESSAGE_V2, SEND, True),
            ("producer", RequestCode.PULL_MESSAGE, pull_ext(consumerGroup="G"), False),
            ("consumer", RequestCode.PULL_MESSAGE, pull_ext(consumerGroup="H"), False),
            ("consumer", RequestCode.PULL_MESSAGE, pull_ext(consumerGroup="G"), True),
            ("consumer", RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 0}, False),
            ("consumer", RequestCode.GET_BROKER_RUNTIME_INFO, {}, True),
            (None, RequestCode.GET_BROKER_RUNTIME_INFO, {}, False),
        ]
        for key, code, ext, may in steps:
            body = b"x" if code == RequestCode.SEND_MESSAGE_V2 else b""
            answer = await ask(client, code, ext, body, key=key, serialization=serialization)
            assert (answer.code == ResponseCode.SUCCESS) == may, (key, code, answer.remark)
            assert may or answer.code == NO_PERMISSION, (key, code, answer.code)


async def test_connection_survives_refused_signatures(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        client = await broker.connect()
        for key, secret, fault in (
            ("nobody1", SECRET, "unknown access key nobody1"),
            ("producer", "1234567891", "signature does not match"),
            (None, SECRET, "must be signed"),
        ):
            answer = await ask(client, RequestCode.SEND_MESSAGE_V2, SEND, key=key, secret=secret)
            assert answer.code == NO_PERMISSION
            assert fault in str(answer.remark)
            assert "1234567890" not in str(answer.remark)
        fields = sign_fields("producer", SECRET, SEND, b"x") | {"e": "1"}
        assert (await client.request(RequestCode.SEND_MESSAGE_V2, fields, b"x")).code == NO_PERMISSION
        fields = sign_fields("producer", SECRET, SEND, b"x")
        assert (await client.request(RequestCode.SEND_MESSAGE_V2, fields, b"y")).code == NO_PERMISSION
        assert (await client.request(RequestCode.SEND_MESSAGE_V2, fields, b"x")).code == ResponseCode.SUCCESS


async def test_replayed_signed_request_cannot_be_changed_into_another(tmp_path: Path) -> None:
    """The signed text is the same, divided in another way."""
    async with guarded(tmp_path) as broker:
        client = await broker.connect()
        delete = sign_fields("administrator", SECRET, {"topic": "R1"}, b"")
        for code, recorded, changed, body, fault in (
            (
                RequestCode.SEND_MESSAGE_V2,
                sign_fields("producer", SECRET, SEND, b"pay 5"),
                {"z": "p"},
                b"ay 5",
                "field 'z'",
            ),
            (
                RequestCode.SEND_MESSAGE_V2,
                sign_fields("producer", SECRET, SEND, b"pay 5"),
                {"n": "p"},
                b"ay 5",
                "another broker, 'p'",
            ),
            (RequestCode.DELETE_TOPIC_IN_BROKER, delete, {"topic": "R", "zz": "1"}, b"", "field 'zz'"),
            (RequestCode.DELETE_TOPIC_IN_BROKER, delete, {"topic": "R"}, b"1", "a body of 1 bytes"),
            (RequestCode.DELETE_TOPIC_IN_BROKER, delete, {"topic": "", "bname": "R1"}, b"", "another broker, 'R1'"),
        ):
            answer = await client.request(code, recorded | changed, body)
            assert answer.code == NO_PERMISSION, (code, changed)
            assert fault in str(answer.remark), (code, changed)


async def test_good_and_bad_requests_in_one_chunk_are_answered_separately(tmp_path: Path) -> None:
    """Each is judged by itself, and answered in turn."""
    async with guarded(tmp_path) as broker:
        client = await broker.connect()
        frames = b"".join(
            encode_request(RequestCode.SEND_MESSAGE_V2, number, ext=sign_fields(key, SECRET, SEND, b"x"), body=b"x")
            for number, key in enumerate(("producer", "consumer", "nobody1", "producer"), 1000)
        )
        await client.stream.send_all(frames)
        codes = [(await client.answer(number)).code for number in range(1000, 1004)]
    assert codes == [ResponseCode.SUCCESS, NO_PERMISSION, NO_PERMISSION, ResponseCode.SUCCESS]


async def test_changed_account_file_is_reloaded_unless_invalid(tmp_path: Path) -> None:
    limits = limited(upkeep={"refresh_files_seconds": 0.01})
    path = tmp_path / "plain_acl.yml"
    with capture_logs() as logs:
        async with guarded(tmp_path, limits=limits) as broker:
            client = await broker.connect()

            async def send(key: str = "producer") -> int:
                return (await ask(client, RequestCode.SEND_MESSAGE_V2, SEND, b"x", key=key)).code

            assert await send() == ResponseCode.SUCCESS
            path.write_text(FILE.replace("topicPerms: [T=PUB]", "topicPerms: [T=DENY]"))

            async def is_refused() -> bool:
                return await send() == NO_PERMISSION

            await until(is_refused)
            path.write_text("accounts: [")

            async def is_noted() -> bool:
                return await send() == NO_PERMISSION and any(each["event"] == "acl_file_unusable" for each in logs)

            await until(is_noted)
            assert await send("administrator") == ResponseCode.SUCCESS, "the old accounts are kept"
            os.unlink(path)
            with trio.fail_after(10):
                while sum(each["event"] == "acl_file_unusable" for each in logs) < 2:
                    await send("administrator")
            path.write_text(FILE)

            async def is_allowed() -> bool:
                return await send() == ResponseCode.SUCCESS

            await until(is_allowed)
    assert not [each for each in logs if "1234567890" in str(each)], "a secret is in the log"


@pytest.mark.parametrize("text", ["accounts: [", "accounts: [{accessKey: RocketMQ}]", None])
async def test_broker_does_not_start_with_an_unusable_account_file(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "acl.yml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ExceptionGroup) as caught:
        async with running(tmp_path / "n0", acl_file=path):
            pass
    assert caught.group_contains(StartRefused, match="acl.yml")


@pytest.mark.parametrize(("listen", "warnings"), [("0.0.0.0:10911", 1), ("10.0.0.1:10911", 1), ("127.0.0.1:10911", 0)])
async def test_reachable_broker_without_accounts_logs_a_warning(listen: str, warnings: int) -> None:
    settings = BrokerSettings(listen=listen, advertise="127.0.0.1:10911")
    with capture_logs() as logs:
        assert access_control(settings, structlog.get_logger()) is None
    assert [each["event"] for each in logs] == ["clients_not_authenticated"] * warnings


async def test_sdk_signs_its_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(tmp_path) as namesrv:
        settings = {key: RemotingSettings(credentials=Credentials(key, SECRET)) for key in ("producer", "consumer")}
        async with Producer(namesrv, "P", remoting=settings["producer"]) as producer:
            result = await producer.send(Message("T", b"hello"))
        async with Producer(namesrv, "P", remoting=settings["consumer"], timeout=1.0, retries=0) as producer:
            with pytest.raises(SendRejected) as refused:
                await producer.send(Message("T", b"hello"))
            assert refused.value.stored == "no"
            assert "no permission PUB for T" in str(refused.value)
        monkeypatch.setenv("RAFTMQ_ACCESS_KEY", "consumer")
        monkeypatch.setenv("RAFTMQ_SECRET_KEY", SECRET)
        async with PullConsumer(namesrv, "G", consume_from="first") as consumer:
            await consumer.assign([MessageQueue("T", "broker-a", result.queue.queue_id)])
            (message,) = await consumer.poll(timeout=5.0)
            assert message.body == b"hello"
            await consumer.commit()


async def test_sdk_signs_its_answer_to_a_check_back(tmp_path: Path) -> None:
    """The answer is a request of its own, which is sent on the connection of the question."""
    keys = {key: RemotingSettings(credentials=Credentials(key, SECRET)) for key in ("producer", "consumer")}
    asked = trio.Event()

    def check(message: ReceivedMessage) -> bool:
        asked.set()
        return True

    async with (
        cluster(tmp_path, **FAST) as namesrv,
        TransactionProducer(namesrv, "P", check=check, remoting=keys["producer"]) as producer,
        PullConsumer(namesrv, "G", consume_from="first", remoting=keys["consumer"]) as consumer,
    ):
        async with producer.transaction(Message("T", b"open")) as transaction:
            transaction.leave_open()
        with trio.fail_after(60):
            await asked.wait()
            await consumer.assign([MessageQueue("T", "broker-a", 0)])
            while not (messages := await consumer.poll(timeout=1.0)):
                pass
        assert [message.body for message in messages] == [b"open"]


@pytest.mark.parametrize(
    ("key", "group", "reason"),
    [
        ("producer", "G", "producer has no permission SUB for T"),
        ("consumer", "H", "consumer has no permission SUB for consumer group H"),
    ],
)
async def test_refused_consumer_gets_the_missing_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, key: str, group: str, reason: str
) -> None:
    async with cluster(tmp_path) as namesrv:
        monkeypatch.setenv("RAFTMQ_ACCESS_KEY", key)
        monkeypatch.setenv("RAFTMQ_SECRET_KEY", SECRET)
        # It used to wait for ever.
        command = partial(consume, "T", group, count=1, consume_from="first", tags="*", namesrv=namesrv)
        with trio.fail_after(10), pytest.raises(CommandFailed, match=reason):
            await trio.to_thread.run_sync(command, abandon_on_cancel=True)
        async with PushConsumer(namesrv, group) as consumer:
            consumer.subscribe("T")
            await until(lambda: any("cannot_consume" in record.getMessage() for record in caplog.records))
    [warning] = [record.getMessage() for record in caplog.records if "cannot_consume" in record.getMessage()]
    assert f"{key} has no permission SUB for consumer group {group}" in warning


async def test_transaction_needs_permission_for_each_topic_and_group(tmp_path: Path) -> None:
    own = "- {accessKey: mover001, secretKey: 1234567890, topicPerms: [T=PUB|SUB], groupPerms: [G=SUB]}\n"
    message = SetMessage("T", 0, b"1", "UNIQ_KEY\x01U1\x02")
    consumed = ConsumedRange("G", "T", 0, QueueOffset(0), QueueOffset(0))
    async with guarded(tmp_path, FILE + own) as broker:
        client = await broker.connect()
        client.keys = ("administrator", SECRET)
        await client.create_topic("T", 1)
        await client.create_topic("U", 1)
        ext = {"producerGroup": "P", "transactionId": "0A0B", "bornTimestampMs": 1}

        async def risen() -> bool:
            answer = await client.request(RequestCode.STAGE_TRANSACTION, ext, TransactionSet([], []).encode())
            return answer.code != ResponseCode.VERSION_NOT_SUPPORTED

        await until(risen)
        client.keys = None
        for key, messages, offsets, may in (
            (None, [message], [], False),
            ("producer", [message], [], True),
            ("producer", [message, message._replace(topic="U")], [], False),
            ("producer", [message], [consumed], False),
            ("consumer", [], [consumed], True),
            ("consumer", [message], [consumed], False),
            ("mover001", [message], [consumed], True),
            ("mover001", [message], [msgspec.structs.replace(consumed, group="H")], False),
            ("mover001", [message], [consumed, msgspec.structs.replace(consumed, topic="U")], False),
        ):
            body = TransactionSet(messages, offsets).encode()
            answer = await ask(client, RequestCode.STAGE_TRANSACTION, ext, body, key=key)
            assert (answer.code == ResponseCode.SUCCESS) == may, (key, messages, offsets, answer.remark)
            assert may or answer.code == NO_PERMISSION, (key, messages, offsets, answer.code)
