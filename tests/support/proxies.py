"""A gRPC proxy in front of the brokers of a test kit, whose calls need no network."""

from __future__ import annotations

import datetime as dt
import hmac
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import structlog
import trio
from google.protobuf.message import Message

from mq.client.net.client_core import RemotingSettings
from mq.client.net.credentials import Credentials
from mq.proxy.grpc import BrokenCall
from mq.proxy.mapping.authorization import AllowedTimes
from mq.proxy.server import open_table
from mq.proxy.service_table import SERVICE, ServiceTable
from mq.proxy.wire import messaging_pb2 as pb
from mq.testing import Kit

AnswerT = TypeVar("AnswerT", bound=Message)

ENDPOINTS = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="10.0.0.1", port=8081)])

GATEWAY = Credentials("gateway", "gateway-secret")
"""Of a proxy, in the files of accounts of tests."""


def signed(user: str, secret: str, at: dt.datetime, form: str = "%Y%m%dT%H%M%SZ") -> dict[str, str]:
    """The metadata with which a client signs a call."""
    time = format(at, form)
    signature = hmac.new(secret.encode(), time.encode(), "sha1").hexdigest().upper()
    header = f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return {"authorization": header, "x-mq-date-time": time}


class Call:
    """One call, as the transport would hand it to a method."""

    def __init__(
        self, client_id: str, deadline: float | None = None, metadata: Mapping[str, str] | None = None
    ) -> None:
        self.metadata: Mapping[str, str] = {"x-mq-client-id": client_id} if metadata is None else metadata
        self.peer = "192.0.2.7:50123"
        self.deadline = deadline
        self.is_connection_lost = False
        self.silent_since: float | None = None
        self.to_server, self._requests = trio.open_memory_channel[bytes](100)
        self._answers, self.answers = trio.open_memory_channel[bytes](1000)

    @property
    def heard_at(self) -> float:
        return trio.current_time() if self.silent_since is None else self.silent_since

    async def receive(self) -> bytes | None:
        try:
            return await self._requests.receive()
        except trio.EndOfChannel:
            return None

    async def send(self, message: bytes) -> None:
        try:
            await self._answers.send(message)
        except trio.ClosedResourceError:
            raise BrokenCall("the call is over") from None

    def ended(self) -> None:
        self._answers.close()


class Stream:
    """A telemetry stream, seen from its client."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def say(self, command: pb.TelemetryCommand) -> None:
        await self._call.to_server.send(command.SerializeToString())

    async def hear(self) -> pb.TelemetryCommand:
        """The next command of the proxy."""
        return pb.TelemetryCommand.FromString(await self._call.answers.receive())


class InMemoryProxy:
    """A proxy; `drain_event` and `table` are the ones that a server has."""

    def __init__(self, table: ServiceTable, drain_event: trio.Event) -> None:
        self.table = table
        self.drain_event = drain_event
        self.metadata: dict[str, str] = {}
        """Of every call, in addition to the client's id."""
        self._methods = table.methods()
        self.wait_given_back = table.wait_given_back

    async def serve(self, method: str, call: Call) -> None:
        try:
            await self._methods[SERVICE + method](call)
        finally:
            call.ended()

    async def stream(
        self, method: str, request: Message, kind: type[AnswerT], *, client: str = "c1", deadline: float | None = None
    ) -> list[AnswerT]:
        """All answers to one request."""
        call = Call(client, deadline, {"x-mq-client-id": client, **self.metadata})
        await call.to_server.send(request.SerializeToString())
        call.to_server.close()
        await self.serve(method, call)
        return [kind.FromString(data) async for data in call.answers]

    async def ask(
        self, method: str, request: Message, kind: type[AnswerT], *, client: str = "c1", deadline: float | None = None
    ) -> AnswerT:
        """The answer to one request."""
        [answer] = await self.stream(method, request, kind, client=client, deadline=deadline)
        return answer

    @asynccontextmanager
    async def telemetry(self, client: str, settings: pb.Settings) -> AsyncIterator[tuple[Stream, pb.TelemetryCommand]]:
        """A stream whose first message were these settings, and the proxy's answer to them."""
        call = Call(client, None, {"x-mq-client-id": client, **self.metadata})
        stream = Stream(call)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.serve, "Telemetry", call)
            await stream.say(pb.TelemetryCommand(settings=settings))
            yield stream, await stream.hear()
            call.to_server.close()

    # What clients usually want.

    async def send(self, topic: str, *bodies: str, **told: object) -> pb.SendMessageResponse:
        messages = [message(topic, body, **told) for body in bodies]
        return await self.ask("SendMessage", pb.SendMessageRequest(messages=messages), pb.SendMessageResponse)

    async def receive(
        self, group: str, topic: str, *, client: str = "c1", **told: Any
    ) -> tuple[pb.Status, list[pb.Message]]:
        """Status and messages of one receive; the answer must be in the right order."""
        request = receive_request(group, topic, **told)
        deadline = trio.current_time() + 30
        answers = await self.stream(
            "ReceiveMessage", request, pb.ReceiveMessageResponse, client=client, deadline=deadline
        )
        kinds = [answer.WhichOneof("content") for answer in answers]
        messages = [answer.message for answer in answers if answer.HasField("message")]
        assert kinds == ["status", *["message"] * len(messages), *(["delivery_timestamp"] if messages else [])]
        return answers[0].status, messages

    async def acknowledge(self, group: str, *messages: pb.Message, client: str = "c1") -> pb.AckMessageResponse:
        request = pb.AckMessageRequest(
            group=pb.Resource(name=group),
            topic=messages[0].topic,
            entries=[
                pb.AckMessageEntry(
                    message_id=each.system_properties.message_id, receipt_handle=each.system_properties.receipt_handle
                )
                for each in messages
            ],
        )
        return await self.ask("AckMessage", request, pb.AckMessageResponse, client=client)


def message(topic: str, body: str, **told: object) -> pb.Message:
    """A message of a client; `told` are fields of its system properties."""
    given: dict[str, object] = {"message_id": f"id-{body}", "message_type": pb.NORMAL, **told}
    return pb.Message(
        topic=pb.Resource(name=topic),
        body=body.encode(),
        system_properties=pb.SystemProperties(**given),  # type: ignore[arg-type]
    )


def receive_request(
    group: str, topic: str, *, broker: str = "broker-a", queue_id: int = -1, **told: Any
) -> pb.ReceiveMessageRequest:
    """A receive of a simple consumer."""
    request = pb.ReceiveMessageRequest(
        group=pb.Resource(name=group),
        message_queue=pb.MessageQueue(
            topic=pb.Resource(name=topic), id=queue_id, broker=pb.Broker(name=broker, endpoints=ENDPOINTS)
        ),
        **{"batch_size": 16, "filter_expression": pb.FilterExpression(type=pb.TAG, expression="*"), **told},
    )
    if not request.HasField("invisible_duration") and not request.auto_renew:
        request.invisible_duration.seconds = 30
    if not request.HasField("long_polling_timeout"):
        request.long_polling_timeout.seconds = 5
    return request


@asynccontextmanager
async def open_proxy(
    kit: Kit, credentials: Credentials | None = None, utc_offsets_ms: tuple[int, ...] = ()
) -> AsyncIterator[InMemoryProxy]:
    """A proxy in front of a kit, on the kit's wall clock; with credentials, clients must sign their calls."""

    def wall_clock_ms() -> int:
        return int(kit.now().timestamp() * 1000)

    drain_event = trio.Event()
    async with open_table(
        kit.namesrv,
        RemotingSettings(credentials=credentials, tls=None),
        drain_event,
        structlog.get_logger("proxy"),
        allowed_times=None if credentials is None else AllowedTimes(300_000, utc_offsets_ms),
        rng=random.Random(1),
        client_id="proxy-1",
        clock_ms=wall_clock_ms,
    ) as (table, _):
        yield InMemoryProxy(table, drain_event)
