"""A gRPC client of RocketMQ 5 for `benchmarks.proxy`, in a separate process. It sends, or receives and acknowledges.

    python -m benchmarks.proxy.load ADDRESS TOPIC WORK IN_FLIGHT COUNT

WORK is ``prime`` (let the group begin here), ``send`` or ``receive``; ``send-lite`` or ``receive-lite`` if it has lite
topics. Prints seconds, and p50 and p99 in ms, as JSON.
It uses grpcio, the client library of Python, whatever the server.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator

import grpc
from google.protobuf.message import Message

from mq.proxy.wire import messaging_pb2 as pb

SERVICE = "/apache.rocketmq.v2.MessagingService/"
GROUP, LITE_GROUP = "BenchmarkGroup", "BenchmarkLiteGroup"
LITES = [f"session-{number:03}" for number in range(256)]
"""The lite topics to which messages are sent by turns: of each one, a consumer has one message at a time."""
BODY = b"x" * 1024
BATCH = 16
POLL_SECONDS = 5
CALL_SECONDS = 30


class Client:
    """A client with its telemetry stream."""

    def __init__(self, address: str, topic: str, *, lite: bool) -> None:
        self._lite = lite
        self._channel = grpc.insecure_channel(address)
        self._metadata = [
            ("x-mq-client-id", f"benchmark@{uuid.uuid4().hex[:12]}"),
            ("x-mq-language", "PYTHON"),
            ("x-mq-protocol", "GRPC_V2"),
            ("x-mq-client-version", "5.1.2"),
        ]
        host, _, port = address.rpartition(":")
        self._endpoints = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host=host, port=int(port))])
        self._topic, self._group = pb.Resource(name=topic), pb.Resource(name=LITE_GROUP if lite else GROUP)
        self._commands: queue.SimpleQueue[pb.TelemetryCommand | None] = queue.SimpleQueue()
        self._calls: dict[str, grpc.UnaryUnaryMultiCallable[Message, Message]] = {}
        self._latencies: list[float] = []

    def unary(self, method: str, kind: type[Message]) -> Callable[..., grpc.Future[Message]]:
        """Return a function that starts a call of the method."""
        call: grpc.UnaryUnaryMultiCallable[Message, Message] = self._channel.unary_unary(
            SERVICE + method,
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=kind.FromString,
        )
        return lambda request: call.future(request, metadata=self._headers(), timeout=CALL_SECONDS)

    def _headers(self) -> tuple[tuple[str, str], ...]:
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        return (*self._metadata, ("x-mq-date-time", now), ("x-mq-request-id", uuid.uuid4().hex))

    def settings(self, *, consumer: bool) -> None:
        """Open the telemetry stream, send the settings, and wait for the response."""
        settings = pb.Settings(access_point=self._endpoints)
        # RocketMQ's proxy refuses the settings of LITE_SIMPLE_CONSUMER.
        kind = pb.LITE_PUSH_CONSUMER if self._lite else pb.SIMPLE_CONSUMER
        settings.client_type = kind if consumer else pb.PRODUCER
        settings.user_agent.CopyFrom(pb.UA(language=pb.PYTHON, version="5.1.2", platform="linux", hostname="localhost"))
        if consumer:
            entry = pb.SubscriptionEntry(topic=self._topic, expression=pb.FilterExpression(type=pb.TAG, expression="*"))
            settings.subscription.CopyFrom(pb.Subscription(group=self._group, subscriptions=[entry]))
        else:
            settings.publishing.CopyFrom(pb.Publishing(topics=[self._topic]))
        self._commands.put(pb.TelemetryCommand(settings=settings))
        telemetry: grpc.StreamStreamMultiCallable[Message, pb.TelemetryCommand] = self._channel.stream_stream(
            f"{SERVICE}Telemetry",
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=pb.TelemetryCommand.FromString,
        )
        commands = telemetry(iter(self._commands.get, None), metadata=self._headers())
        for command in commands:
            if command.HasField("settings"):
                break
        threading.Thread(target=lambda: list(commands), daemon=True).start()
        if self._lite and consumer:
            self._subscribe(kind)

    def _subscribe(self, kind: pb.ClientType) -> None:
        """Subscribe to all lite topics, from their first messages that this group has not consumed."""
        beat = self.unary("Heartbeat", pb.HeartbeatResponse)
        sync = self.unary("SyncLiteSubscription", pb.SyncLiteSubscriptionResponse)
        request = pb.SyncLiteSubscriptionRequest(topic=self._topic, group=self._group, lite_topic_set=LITES)
        request.action = pb.COMPLETE_ADD
        request.offset_option.policy = pb.OffsetOption.MIN
        for future in (beat(pb.HeartbeatRequest(group=self._group, client_type=kind)), sync(request)):
            response = future.result()
            assert isinstance(response, pb.HeartbeatResponse | pb.SyncLiteSubscriptionResponse)
            if response.status.code != pb.OK:
                raise RuntimeError(f"{response.status.code}: {response.status.message}")

    def send(self, in_flight: int, count: int) -> None:
        """Send ``count`` messages."""
        begin = self.unary("SendMessage", pb.SendMessageResponse)
        room = threading.Semaphore(in_flight)
        refusals: list[str] = []
        for number in range(count):
            room.acquire()
            kind = pb.LITE if self._lite else pb.NORMAL
            system_properties = pb.SystemProperties(message_id=f"01{uuid.uuid4().hex[:30].upper()}", message_type=kind)
            if self._lite:
                system_properties.lite_topic = LITES[number % len(LITES)]
            system_properties.born_timestamp.GetCurrentTime()
            system_properties.born_host = "localhost"
            system_properties.body_encoding = pb.IDENTITY
            message = pb.Message(topic=self._topic, body=BODY, system_properties=system_properties)
            message.user_properties["number"] = str(number)
            began = time.perf_counter()
            future = begin(pb.SendMessageRequest(messages=[message]))

            def on_done(future: grpc.Future[Message], began: float = began) -> None:
                self._latencies.append(time.perf_counter() - began)
                response = future.result()
                assert isinstance(response, pb.SendMessageResponse)
                if response.status.code != pb.OK:
                    refusals.append(f"{response.status.code}: {response.status.message}")
                room.release()

            future.add_done_callback(on_done)
        for _ in range(in_flight):
            room.acquire()
        if refusals:
            raise RuntimeError(f"{len(refusals)} sends were refused: {refusals[0]}")

    def receive(self, in_flight: int, count: int) -> None:
        """Receive and acknowledge ``count`` messages. All acknowledgements of one receive are in flight at once."""
        query = self.unary("QueryAssignment", pb.QueryAssignmentResponse)
        request = pb.QueryAssignmentRequest(topic=self._topic, group=self._group, endpoints=self._endpoints)
        response = query(request).result()
        assert isinstance(response, pb.QueryAssignmentResponse)
        if response.status.code != pb.OK:
            raise RuntimeError(response.status.message)
        batch = min(BATCH, in_flight)
        room, lock, errors = [count], threading.Lock(), []

        def work() -> None:
            try:
                while room[0] > 0:
                    number = self._receive_batch(response.assignments[0].message_queue, batch, POLL_SECONDS)
                    with lock:
                        room[0] -= number
            except Exception as error:
                errors.append(error)
                room[0] = 0

        workers = [threading.Thread(target=work) for _ in range(max(1, in_flight // BATCH))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if errors:
            raise errors[0]

    def prime(self) -> None:
        """Receive once, because a new group begins at the end of the topic."""
        query = self.unary("QueryAssignment", pb.QueryAssignmentResponse)
        request = pb.QueryAssignmentRequest(topic=self._topic, group=self._group, endpoints=self._endpoints)
        response = query(request).result()
        assert isinstance(response, pb.QueryAssignmentResponse)
        for assignment in response.assignments:
            self._receive_batch(assignment.message_queue, BATCH, POLL_SECONDS)

    def _receive_batch(self, message_queue: pb.MessageQueue, batch: int, poll_seconds: int) -> int:
        request = pb.ReceiveMessageRequest(
            group=self._group,
            message_queue=message_queue,
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
            batch_size=batch,
        )
        request.invisible_duration.FromSeconds(60)
        request.long_polling_timeout.FromSeconds(poll_seconds)
        call: grpc.UnaryStreamMultiCallable[Message, pb.ReceiveMessageResponse] = self._channel.unary_stream(
            f"{SERVICE}ReceiveMessage",
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=pb.ReceiveMessageResponse.FromString,
        )
        began = time.perf_counter()
        responses: Iterator[pb.ReceiveMessageResponse] = call(request, metadata=self._headers(), timeout=CALL_SECONDS)
        messages = []
        for part in responses:
            if part.HasField("message"):
                messages.append(part.message)
            elif part.HasField("status") and part.status.code not in (pb.OK, pb.MESSAGE_NOT_FOUND):
                raise RuntimeError(f"{part.status.code}: {part.status.message}")
        if messages:
            self._latencies.append(time.perf_counter() - began)
        acknowledge = self.unary("AckMessage", pb.AckMessageResponse)
        futures = []
        for message in messages:
            system_properties = message.system_properties
            entry = pb.AckMessageEntry(
                message_id=system_properties.message_id, receipt_handle=system_properties.receipt_handle
            )
            if self._lite:
                entry.lite_topic = system_properties.lite_topic
            futures.append(acknowledge(pb.AckMessageRequest(group=self._group, topic=self._topic, entries=[entry])))
        for future in futures:
            response = future.result()
            assert isinstance(response, pb.AckMessageResponse)
            if response.status.code != pb.OK:
                raise RuntimeError(f"an acknowledgement: {response.status.code}: {response.status.message}")
        return len(messages)

    def report(self, seconds: float) -> dict[str, float]:
        """Return the latencies. Only receives that brought messages are included."""
        latencies = sorted(self._latencies) or [0.0]
        at = {name: latencies[min(len(latencies) - 1, int(len(latencies) * share))] for name, share in SHARES.items()}
        return {"seconds": seconds, **{name: 1_000 * value for name, value in at.items()}}


SHARES = {"p50_ms": 0.5, "p99_ms": 0.99}


def main() -> None:
    address, topic, work = sys.argv[1:4]
    in_flight, count = map(int, sys.argv[4:6])
    work, _, lite = work.partition("-")
    client = Client(address, topic, lite=bool(lite))
    client.settings(consumer=work != "send")
    began = time.perf_counter()
    match work:
        case "prime":
            client.prime()
        case "send":
            client.send(in_flight, count)
        case _:
            client.receive(in_flight, count)
    sys.stdout.write(json.dumps(client.report(time.perf_counter() - began)))
    sys.stdout.flush()
    client._commands.put(None)


if __name__ == "__main__":
    main()
