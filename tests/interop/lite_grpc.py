"""Lite topics over gRPC: the same calls to the proxy and broker of RocketMQ 5.5.0, and to ours.

``python -m tests.interop.lite_grpc`` prints a table of the answers. Takes about a minute; needs Java.
"""

from __future__ import annotations

import itertools
import queue
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import grpc
import trio
from google.protobuf.message import Message

from mq.cli.errors import run_trio
from mq.client import Admin, ClientError, SubscriptionGroupConfig
from mq.local_cluster import DevCluster, Ports
from mq.proxy.service_table import SERVICE
from mq.proxy.wire import messaging_pb2 as pb
from tests.interop.clients import build_servers, servers_built, tools_missing
from tests.interop.grpc_proxies import RaftmqProxy, rocketmq_proxy
from tests.interop.rocketmq_servers import RocketMQCluster
from tests.interop.security import NONE, Security
from tests.support.waiting import until_accepted

VERSION = "5.5.0"
PARENT, PLAIN = "Sessions", "Orders"
GROUPS = {
    "agents": {"+lite.bind.topic": PARENT},
    "few": {"+lite.bind.topic": PARENT, "+lite.sub.client.quota": "2"},
    "single": {"+lite.bind.topic": PARENT, "+lite.sub.model": "Exclusive"},
    "unbound": {},
}
INVISIBLE_SECONDS = 10
AnswerT = TypeVar("AnswerT", bound=Message)


class Client:
    """A client with its telemetry stream."""

    def __init__(self, address: str, name: str) -> None:
        self._channel, self._name = grpc.insecure_channel(address), name
        self._say: queue.SimpleQueue[pb.TelemetryCommand | None] = queue.SimpleQueue()
        self._heard: Iterator[pb.TelemetryCommand] | None = None
        host, _, port = address.rpartition(":")
        self.endpoints = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host=host, port=int(port))])

    def ask(self, method: str, request: Message, kind: type[AnswerT]) -> list[AnswerT]:
        """All answers. Raises grpc.RpcError."""
        call: grpc.UnaryStreamMultiCallable[Message, AnswerT] = self._channel.unary_stream(
            SERVICE + method,
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=kind.FromString,
        )
        return list(call(request, metadata=self._metadata(), timeout=30))

    def telemetry(self, kind: pb.ClientType, group: str) -> pb.TelemetryCommand:
        """The answer to settings."""
        settings = pb.Settings(client_type=kind, access_point=self.endpoints)
        settings.user_agent.CopyFrom(pb.UA(language=pb.JAVA, version="5.1.0", platform="linux", hostname="localhost"))
        settings.subscription.CopyFrom(pb.Subscription(group=pb.Resource(name=group)))
        settings.subscription.subscriptions.add(
            topic=pb.Resource(name=PARENT), expression=pb.FilterExpression(type=pb.TAG, expression="*")
        )
        call: grpc.StreamStreamMultiCallable[Message, pb.TelemetryCommand] = self._channel.stream_stream(
            f"{SERVICE}Telemetry",
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=pb.TelemetryCommand.FromString,
        )
        self._say.put(pb.TelemetryCommand(settings=settings))
        self._heard = call(iter(self._say.get, None), metadata=self._metadata())
        answer = self.hear()
        self.ask(
            "Heartbeat", pb.HeartbeatRequest(group=pb.Resource(name=group), client_type=kind), pb.HeartbeatResponse
        )
        return answer

    def hear(self) -> pb.TelemetryCommand:
        """The next command of the proxy."""
        assert self._heard is not None, "it has no stream"
        return next(self._heard)

    def close(self) -> None:
        self._say.put(None)
        self._channel.close()

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (
            ("x-mq-client-id", self._name),
            ("x-mq-language", "JAVA"),
            ("x-mq-protocol", "GRPC_V2"),
            ("x-mq-client-version", "5.1.0"),
            ("x-mq-date-time", time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())),
        )


class Calls:
    """The calls by name, on one system."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._numbers = itertools.count(1)
        self.client = Client(address, "one")
        self.answers: dict[str, str] = {}

    def note(self, name: str, call: Callable[[], str]) -> None:
        """Make a call, and keep what it answered."""
        try:
            self.answers[name] = call()
        except grpc.RpcError as error:
            self.answers[name] = f"status {error.code().name}"

    def sync(self, action: pb.LiteSubscriptionAction, *lites: str, group: str = "agents", topic: str = PARENT) -> str:
        request = pb.SyncLiteSubscriptionRequest(
            action=action, topic=pb.Resource(name=topic), group=pb.Resource(name=group), lite_topic_set=lites
        )
        [answer] = self.client.ask("SyncLiteSubscription", request, pb.SyncLiteSubscriptionResponse)
        return _code(answer.status)

    def send(self, topic: str = PARENT, kind: pb.MessageType = pb.LITE, **told: object) -> str:
        number = next(self._numbers)
        system = pb.SystemProperties(message_id=f"01{number:030X}", message_type=kind, **told)  # type: ignore[arg-type]
        system.born_timestamp.GetCurrentTime()
        system.born_host = "localhost"
        system.body_encoding = pb.IDENTITY
        message = pb.Message(topic=pb.Resource(name=topic), body=b"%d" % number, system_properties=system)
        [answer] = self.client.ask("SendMessage", pb.SendMessageRequest(messages=[message]), pb.SendMessageResponse)
        return _code(answer.entries[0].status if answer.entries else answer.status)

    def receive(self, group: str = "agents", tag: str = "*") -> tuple[str, list[pb.Message]]:
        topic, of_group = pb.Resource(name=PARENT), pb.Resource(name=group)
        wanted = pb.QueryAssignmentRequest(topic=topic, group=of_group, endpoints=self.client.endpoints)
        [assigned] = self.client.ask("QueryAssignment", wanted, pb.QueryAssignmentResponse)
        if not assigned.assignments:
            return f"assignment: {_code(assigned.status)}", []
        request = pb.ReceiveMessageRequest(
            group=of_group,
            message_queue=assigned.assignments[0].message_queue,
            filter_expression=pb.FilterExpression(type=pb.TAG, expression=tag),
            batch_size=16,
        )
        request.invisible_duration.seconds = INVISIBLE_SECONDS
        request.long_polling_timeout.seconds = 5
        answers = self.client.ask("ReceiveMessage", request, pb.ReceiveMessageResponse)
        codes = [_code(answer.status) for answer in answers if answer.HasField("status")]
        return codes[0] if codes else "none", [answer.message for answer in answers if answer.HasField("message")]

    def received(self, tries: int = 2, **given: str) -> str:
        """What comes in some receives: code, lite topics, attempts."""
        code, found = "", []
        self.messages: list[pb.Message] = []
        for _ in range(tries):
            code, messages = self.receive(**given)
            self.messages += messages
            found += [(each.system_properties.lite_topic, each.system_properties.delivery_attempt) for each in messages]
        return ", ".join(f"{lite} ({attempt})" for lite, attempt in sorted(found)) or code

    def settle(self, number: int, group: str = "agents") -> str:
        if number >= len(self.messages):
            return "there is none"
        message = self.messages[number]
        told = message.system_properties
        entry = pb.AckMessageEntry(
            message_id=told.message_id, receipt_handle=told.receipt_handle, lite_topic=told.lite_topic
        )
        request = pb.AckMessageRequest(group=pb.Resource(name=group), topic=message.topic, entries=[entry])
        [answer] = self.client.ask("AckMessage", request, pb.AckMessageResponse)
        return _code(answer.entries[0].status if answer.entries else answer.status)

    def play(self) -> dict[str, str]:
        """All calls, in their order."""
        note, add, sync = self.note, pb.PARTIAL_ADD, self.sync
        simple = Client(self._address, "simple")
        note("settings of LITE_SIMPLE_CONSUMER", lambda: _settings(simple.telemetry(pb.LITE_SIMPLE_CONSUMER, "agents")))
        note(
            "settings of LITE_PUSH_CONSUMER", lambda: _settings(self.client.telemetry(pb.LITE_PUSH_CONSUMER, "agents"))
        )
        note("subscribe to two", lambda: sync(add, "a", "b"))
        for name in ("a", "a", "b", "c"):
            note("send", partial(self.send, lite_topic=name))
        note("receive: those that it subscribes to", self.received)
        note("acknowledge the first one", lambda: self.settle(0))
        time.sleep(INVISIBLE_SECONDS)
        note("receive after the invisible time", self.received)
        note("acknowledge again", lambda: self.settle(0))
        note("unsubscribe from one", lambda: sync(pb.PARTIAL_REMOVE, "b"))
        note("send to it", lambda: self.send(lite_topic="b"))
        note("subscribe to nothing", lambda: sync(add))
        note("subscribe to a name with a dollar", lambda: sync(add, "x$y"))
        note("subscribe to 65 letters", lambda: sync(add, "x" * 65))
        note("receive: nothing new", lambda: self.received(1))
        note("subscribe with an absent topic", lambda: sync(add, "a", topic="Absent"))
        note("subscribe with a plain topic", lambda: sync(add, "a", topic=PLAIN))
        note("subscribe with an absent group", lambda: sync(add, "a", group="absent"))
        note("subscribe with a group that is bound to none", lambda: sync(add, "a", group="unbound"))
        note("subscribe to more than the quota", lambda: sync(add, "a", "b", "c", group="few"))
        note("say all of them", lambda: sync(pb.COMPLETE_ADD, "a", "c"))
        note("end all of them", lambda: sync(pb.COMPLETE_REMOVE))
        note("send: no lite topic", self.send)
        note("send: a name with a dollar", lambda: self.send(lite_topic="x$y"))
        note("send: 65 letters", lambda: self.send(lite_topic="x" * 65))
        note("send: with a message group", lambda: self.send(lite_topic="a", message_group="g"))
        note("send: with a priority", lambda: self.send(lite_topic="a", priority=1))
        note("send: type NORMAL to the parent", lambda: self.send(kind=pb.NORMAL))
        note("send: to a plain topic", lambda: self.send(PLAIN, lite_topic="a"))
        note("receive with a tag", lambda: self.received(1, tag="red"))
        note("receive of a group that is bound to none", lambda: self.received(1, group="unbound"))
        self._taken_over()
        return self.answers

    def _taken_over(self) -> None:
        first, second = self.client, Client(self._address, "two")
        first.close()
        self.client = first = Client(self._address, "three")
        first.telemetry(pb.LITE_PUSH_CONSUMER, "single")
        self.note("exclusive: subscribe", lambda: self.sync(pb.PARTIAL_ADD, "e", group="single"))
        self.client = second
        second.telemetry(pb.LITE_PUSH_CONSUMER, "single")
        self.note("exclusive: another client subscribes", lambda: self.sync(pb.PARTIAL_ADD, "e", group="single"))
        self.note("exclusive: what the former one hears", lambda: first.hear().WhichOneof("command") or "nothing")
        first.close()
        second.close()


def _code(status: pb.Status) -> str:
    return pb.Code.Name(status.code)


def _settings(command: pb.TelemetryCommand) -> str:
    settings = command.settings.subscription
    return f"{_code(command.status)}, fifo {settings.fifo}, batch {settings.receive_batch_size}"


async def played(namesrv: str, address: str) -> dict[str, str]:
    """The answers of one system."""
    async with Admin(namesrv) as admin:
        create = partial(admin.create_topic, PARENT, 2, attributes={"message.type": "LITE"})
        await until_accepted(create, ClientError)  # the brokers are just starting
        await admin.create_topic(PLAIN, 2)
        for name, attributes in GROUPS.items():
            await admin.put_consumer_group(SubscriptionGroupConfig(group_name=name, attributes=attributes))
    await trio.sleep(3)  # the proxies have seen that
    return await trio.to_thread.run_sync(Calls(address).play)


async def compare(directory: Path) -> str:
    """Both systems, one after the other; returns the table."""
    settings = {"storeType": "defaultRocksDB", "enableLmq": "true", "enableMultiDispatch": "true"}
    async with (
        RocketMQCluster.open(directory / "rocketmq", settings=settings, version=VERSION) as theirs,
        rocketmq_proxy(theirs.namesrv, directory / "their-proxy", Security(NONE), VERSION) as address,
    ):
        answers = [await played(theirs.namesrv, address)]
    async with (
        DevCluster.open(directory / "raftmq", nodes=1, ports=Ports.free(1)) as ours,
        RaftmqProxy.open(ours.namesrv, directory / "our-proxy", Security(NONE)) as proxy,
    ):
        answers.append(await played(ours.namesrv, proxy.address))
    rows = [f"| call | RocketMQ {VERSION} | raftmq | |", "|---|---|---|---|"]
    for name in answers[1]:
        told = [each.get(name, "") for each in answers]
        rows.append(f"| {name} | {told[0]} | {told[1]} | {'' if told[0] == told[1] else 'differs'} |")
    return "\n".join(rows)


def main() -> None:
    if (reason := tools_missing("java")) is not None:
        sys.exit(f"raftmq: {reason}: apt-get install openjdk-17-jre-headless")
    if not servers_built(VERSION):
        build_servers(VERSION)
    with tempfile.TemporaryDirectory(prefix="raftmq-lite-", ignore_cleanup_errors=True) as directory:
        print(run_trio(partial(compare, Path(directory))))


if __name__ == "__main__":
    main()
