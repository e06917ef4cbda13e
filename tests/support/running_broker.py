"""A broker on loopback sockets in this process, and a client that speaks frames."""

from __future__ import annotations

import contextlib
import gc
import itertools
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import trio

from mq.broker import server
from mq.broker.broker import Broker
from mq.broker.limits import BrokerLimits, PopLimits, UpkeepLimits, WaitingLimits
from mq.broker.server import serve
from mq.broker.settings import BrokerSettings
from mq.protocol import properties as props
from mq.protocol.access.signing import sign_fields
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import JSON, split_frames
from mq.protocol.incoming.headers import Response
from mq.protocol.incoming.server_decoding import decode_header
from mq.protocol.messages.records import StoredMessage, decode_records
from mq.protocol.requests.broker import KVTable
from mq.protocol.requests.clients import ConsumerData, HeartbeatData, SubscriptionData
from mq.protocol.wire.encoding import encode_request, encode_response
from raftlog import Replica
from tests.free_ports import free_ports
from tests.support.waiting import until

ADDED = {"CLUSTER": "C1", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
"""The properties that brokers add to each message."""

SECONDS_MAX = 60.0
"""How long a test waits for an expected event; only a failing test waits that long."""

FAST = BrokerLimits(
    waiting=WaitingLimits(deliver_seconds=0.002, check_seconds=0.005),
    pop=PopLimits(revive_seconds=0.002),
    upkeep=UpkeepLimits(raise_level_seconds=0.01, forget_topics_seconds=0.05),
)
"""Production limits of a broker that looks for what is due all the time."""

SEGMENT_BYTES = 8 * 1024 * 1024
SUSPEND = 2
SUBSCRIPTION = 4


class Answer(NamedTuple):
    """A response; ``ext`` and ``body`` as on the wire."""

    code: int
    opaque: int
    ext: dict[str, str]
    remark: str | None
    body: bytes
    serialization: int

    @property
    def records(self) -> list[StoredMessage]:
        return decode_records(self.body)


class Client:
    """One connection. Requests of the broker are queued in ``notices`` (code 40) and ``questions`` (others).

    Responses are kept until a test reads them.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.notices: list[tuple[int, dict[str, str]]] = []
        self.questions: list[tuple[Any, bytes]] = []
        self.keys: tuple[str, str] | None = None
        """Access key and secret key that requests are signed with."""
        self._opaque = itertools.count(1)
        self._received = bytearray()
        self.answers: dict[int, Answer] = {}
        self.order: list[int] = []

    # -- frames ------------------------------------------------------------------------------------------------------

    def frame(
        self,
        code: int,
        ext: dict[str, Any] | None = None,
        body: bytes = b"",
        *,
        oneway: bool = False,
        serialization: int = JSON,
    ) -> tuple[int, bytes]:
        """An opaque and the request's bytes."""
        opaque = next(self._opaque)
        fields = None if ext is None else {name: _text(value) for name, value in ext.items() if value is not None}
        if self.keys is not None:
            fields = sign_fields(*self.keys, fields, body)
        return opaque, encode_request(
            code, opaque, ext=fields, body=body, oneway=oneway, serialization=serialization, language="JAVA"
        )

    async def post(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", **options: Any) -> int:
        """Send a request without waiting for its response."""
        opaque, data = self.frame(code, ext, body, **options)
        await self.stream.send_all(data)
        return opaque

    async def answer(self, opaque: int) -> Answer:
        """The response to a request that was posted."""
        with trio.fail_after(SECONDS_MAX):
            while opaque not in self.answers:
                await self._receive()
        return self.answers.pop(opaque)

    async def request(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", **options: Any) -> Answer:
        return await self.answer(await self.post(code, ext, body, **options))

    async def notice(self) -> tuple[int, dict[str, str]]:
        """The next request of the broker: its code and ext fields."""
        with trio.fail_after(SECONDS_MAX):
            while not self.notices:
                await self._receive()
        return self.notices.pop(0)

    async def question(self) -> tuple[Any, bytes]:
        """The next other request of the broker, decoded, and its body."""
        with trio.fail_after(SECONDS_MAX):
            while not self.questions:
                await self._receive()
        return self.questions.pop(0)

    async def reply(self, question: Any, code: int = 0, body: bytes = b"", **given: Any) -> None:
        """Answer a request of the broker."""
        await self.stream.send_all(encode_response(question.opaque, code, body=body, **given))

    async def closed(self) -> bool:
        """Wait until the broker closes this connection."""
        with trio.fail_after(SECONDS_MAX):
            with contextlib.suppress(trio.BrokenResourceError):
                while chunk := await self.stream.receive_some():
                    self._received += chunk
            return True

    async def alive(self) -> bool:
        """Whether a request on this connection is answered."""
        return (await self.request(RequestCode.GET_BROKER_RUNTIME_INFO)).code == ResponseCode.SUCCESS

    async def _receive(self) -> None:
        chunk = await self.stream.receive_some()
        assert chunk, "the broker closed the connection"
        self._received += chunk
        with memoryview(bytes(self._received)) as data:
            frames, consumed = split_frames(data)
            for serialization, header, body in frames:
                decoded = decode_header(serialization, header)
                if isinstance(decoded, Response):
                    self.answers[decoded.opaque] = Answer(
                        decoded.code, decoded.opaque, decoded.ext, decoded.remark, bytes(body), serialization
                    )
                    self.order.append(decoded.opaque)
                elif decoded.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                    self.notices.append((decoded.code, {"consumerGroup": decoded.ext.consumer_group}))  # type: ignore[union-attr]
                else:
                    self.questions.append((decoded, bytes(body)))
        del self._received[:consumed]

    # -- requests ----------------------------------------------------------------------------------------------------

    async def wait_for(self, done: Callable[[dict[str, str]], bool]) -> None:
        """Poll the broker's runtime info until ``done`` accepts it."""
        await until(lambda: self._figures_are(done))

    async def _figures_are(self, done: Callable[[dict[str, str]], bool]) -> bool:
        return done(await self.info())

    async def info(self) -> dict[str, str]:
        answer = await self.request(RequestCode.GET_BROKER_RUNTIME_INFO)
        return KVTable.decode(answer.body).table

    async def send(self, topic: str = "T", body: bytes = b"body", *, serialization: int = JSON, **given: Any) -> Answer:
        ext = send_ext(topic, **given)
        return await self.request(RequestCode.SEND_MESSAGE_V2, ext, body, serialization=serialization)

    async def fill(self, count: int, topic: str = "T", queue_id: int = 0) -> None:
        """Store so many messages in a queue."""
        for opaque in [await self.post(RequestCode.SEND_MESSAGE_V2, send_ext(topic, e=queue_id)) for _ in range(count)]:
            assert (await self.answer(opaque)).code == ResponseCode.SUCCESS

    async def pull(self, topic: str = "T", queue_id: int = 0, offset: int = 0, **given: Any) -> Answer:
        return await self.request(RequestCode.PULL_MESSAGE, pull_ext(topic, queue_id, offset, **given))

    async def create_topic(self, topic: str, queues: int = 1, **given: Any) -> Answer:
        ext = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
        }
        return await self.request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext | given)

    async def offset(self, code: int, topic: str = "T", queue_id: int = 0) -> int:
        """The end of a queue that the request ``code`` returns."""
        answer = await self.request(code, {"topic": topic, "queueId": queue_id})
        assert answer.code == ResponseCode.SUCCESS, answer
        return int(answer.ext["offset"])

    async def committed(self, group: str = "G", topic: str = "T", queue_id: int = 0, **given: Any) -> int | None:
        """The consumer offset of a group; None if there is none."""
        ext = {"consumerGroup": group, "topic": topic, "queueId": queue_id} | given
        answer = await self.request(RequestCode.QUERY_CONSUMER_OFFSET, ext)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        assert answer.code == ResponseCode.SUCCESS, answer
        return int(answer.ext["offset"])

    async def heartbeat(self, client_id: str, *groups: str, topics: tuple[str, ...] = ("T",)) -> Answer:
        subscriptions = [SubscriptionData(topic=topic) for topic in topics]
        data = HeartbeatData(
            client_id=client_id,
            consumers=[ConsumerData(group=group, subscriptions=subscriptions) for group in groups],
        )
        return await self.request(RequestCode.HEART_BEAT, body=data.encode())


def send_ext(topic: str = "T", **given: Any) -> dict[str, Any]:
    """The fields of SEND_MESSAGE_V2."""
    fields: dict[str, Any] = {"a": "P", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1_700_000_000_000}
    fields |= {"h": 0, "i": "", "j": 0, "k": False, "m": False}
    return fields | given


LONG_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
    "n": "bname",
}
"""The fields of SEND_MESSAGE by those of SEND_MESSAGE_V2."""


def pull_ext(topic: str = "T", queue_id: int = 0, offset: int = 0, **given: Any) -> dict[str, Any]:
    """The fields of PULL_MESSAGE; by default of a pull that is not held and wants every message."""
    fields: dict[str, Any] = {
        "consumerGroup": "G",
        "topic": topic,
        "queueId": queue_id,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": SUBSCRIPTION,
        "commitOffset": 0,
        "suspendTimeoutMillis": 15_000,
        "subVersion": 0,
        "subscription": "*",
    }
    return fields | given


def properties(**named: str) -> str:
    """Message properties as text."""
    return props.encode(named)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class RunningBroker:
    """A broker that accepts messages, and clients of it."""

    def __init__(
        self, settings: BrokerSettings, keys: tuple[str, str] | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.settings = settings
        self._tls = tls
        self._keys = keys
        self.streams: list[trio.SocketStream] = []

    async def connect(self) -> Client:
        host, port = self.settings.listen_address
        stream: Any = await trio.open_tcp_stream(host, port)
        self.streams.append(stream)
        if self._tls is not None:
            stream = trio.SSLStream(stream, self._tls, server_hostname=host, https_compatible=True)
        return Client(stream)

    async def wait_leading(self) -> None:
        """Until it leads and appends nothing more by itself.

        Its system topics are appended right behind the entry that opens its term, the format level of its group a
        moment later.
        """
        client = await self.connect()
        client.keys = self._keys
        await client.wait_for(
            lambda info: (
                info["raftmq.role"] == "leader"
                and int(info["raftmq.formatLevel"]) >= int(info["raftmq.formatLevelMax"])
                and 2 <= int(info["raftmq.appliedIndex"]) == int(info["raftmq.lastIndex"])
            )
        )
        await client.stream.aclose()

    async def close_clients(self) -> None:
        for stream in self.streams:
            await trio.aclose_forcefully(stream)


def broker_settings(directory: Path, **given: Any) -> BrokerSettings:
    """Settings of a group with a single replica on free ports."""
    client_port, peer_port = free_ports(2)
    chosen: dict[str, Any] = {
        "listen": f"127.0.0.1:{client_port}",
        "peers": f"n0@127.0.0.1:{peer_port}",
        "data_dir": directory,
        "segment_bytes": SEGMENT_BYTES,
        "metrics_listen": "off",
    }
    if "peers" in given:
        chosen["secret_file"] = directory.parent / "group.secret"
    return BrokerSettings(**chosen | given)


def limited(**groups: dict[str, Any]) -> BrokerLimits:
    """`FAST` with other limits: for each group of `BrokerLimits`, the fields that differ."""
    return replace(FAST, **{name: replace(getattr(FAST, name), **given) for name, given in groups.items()})


def change_limits(service: Any, **given: Any) -> None:
    """From now on, let a service of a running broker have other limits."""
    service._limits = replace(service._limits, **given)


@contextlib.asynccontextmanager
async def running(
    directory: Path, *, keys: Any = None, tls: Any = None, limits: Any = FAST, **given: Any
) -> AsyncIterator[RunningBroker]:
    """A leading broker, stopped cleanly at the end.

    ``keys`` are those of one of its accounts, ``tls`` is the context of its clients, ``limits`` are `BrokerLimits`.
    """
    broker = RunningBroker(broker_settings(directory, **given), keys, tls)
    with interpreter_as_before():
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, broker.settings, limits)
            await broker.wait_leading()
            try:
                yield broker
            finally:
                await broker.close_clients()
            nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def broker_client(directory: Path, *, queues: Any = 0, **given: Any) -> AsyncIterator[Client]:
    """A client of a broker of its own; with ``queues``, that has topic T with so many. The rest is as for `running`."""
    async with running(directory, **given) as broker:
        client = await broker.connect()
        if queues:
            answer = await client.create_topic("T", queues)
            assert answer.code == ResponseCode.SUCCESS, answer
        yield client


def note_brokers(monkeypatch: pytest.MonkeyPatch) -> list[Broker]:
    """The brokers that start from now on, in a list that grows."""
    brokers: list[Broker] = []
    attach = Broker.attach

    def note_and_attach(broker: Broker, replica: Replica) -> None:
        brokers.append(broker)
        attach(broker, replica)

    monkeypatch.setattr(Broker, "attach", note_and_attach)
    return brokers


@contextlib.contextmanager
def interpreter_as_before() -> Iterator[None]:
    """Undo what a broker process sets for the whole interpreter.

    The full garbage collection at its start is skipped: with the objects of a test process it takes longer than the
    rest of the start.
    """
    switch_seconds, thresholds = sys.getswitchinterval(), gc.get_threshold()
    try:
        with mock.patch.object(server, "freeze_startup_objects"):
            gc.set_threshold(50_000, 20, 50)
            yield
    finally:
        sys.setswitchinterval(switch_seconds)
        gc.set_threshold(*thresholds)
