"""Runs one scenario with RocketMQ's gRPC client for Python: main.py SCENARIO ADDRESS NAME. See ../README.md.

ADDRESS is that of a proxy. The client's own interpreter runs this file, which therefore imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import platform
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from importlib.metadata import version
from typing import Any

from rocketmq.grpc_protocol import FilterType, TransactionResolution
from rocketmq.v5.client import ClientConfiguration, Credentials
from rocketmq.v5.consumer import ConsumeResult, MessageListener, PushConsumer, SimpleConsumer
from rocketmq.v5.exception import ClientException
from rocketmq.v5.model import FilterExpression, Message
from rocketmq.v5.producer import Producer, TransactionChecker

PATIENCE_SECONDS = 100.0
INVISIBLE_SECONDS = 10
"""The shortest time that the proxy allows with a receive."""

_writing = threading.Lock()


def event(name: str, **fields: object) -> None:
    """Report one line."""
    line = json.dumps({"event": name, **fields}, separators=(",", ":")) + "\n"
    with _writing:
        os.write(1, line.encode())


def until(what: str, done: Callable[[], bool]) -> None:
    """Wait for a condition. Raises TimeoutError."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {PATIENCE_SECONDS:g} s for {what}")
        time.sleep(0.02)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Received:
    """What arrived so far, with how often each body came."""

    def __init__(self) -> None:
        self.bodies: list[str] = []

    def note(self, by: str, message: Any) -> str:
        """Report a message; returns its body."""
        body: str = message.body.decode()
        event(
            "received",
            by=by,
            body=body,
            id=message.message_id,
            tags=message.tag,
            keys=sorted(message.keys),
            properties=dict(message.properties),
            topic=message.topic,
            group=message.message_group,
            times=message.delivery_attempt - 1,
            at=now_ms(),
        )
        self.bodies.append(body)
        return body


class Listener(MessageListener):  # type: ignore[misc, unused-ignore]
    """Reports each message and fails those for which ``fails(body)`` is true."""

    def __init__(self, received: Received, by: str, fails: Callable[[str], bool]) -> None:
        self._received = received
        self._by = by
        self._fails = fails

    def consume(self, message: Any) -> Any:
        body = self._received.note(self._by, message)
        return ConsumeResult.FAILURE if self._fails(body) else ConsumeResult.SUCCESS


class Checker(TransactionChecker):  # type: ignore[misc, unused-ignore]
    """Decides by the end of the body: commit or rollback."""

    def check(self, message: Any) -> Any:
        body = message.body.decode()
        event("checked", body=body, id=message.message_id, topic=message.topic)
        return TransactionResolution.COMMIT if body.endswith("commit") else TransactionResolution.ROLLBACK


class Scene:
    """The topic and the group of one scenario, and clients for them."""

    def __init__(self, address: str, topic: str) -> None:
        self.topic = topic
        self.group = f"{topic}-group"
        keys = os.environ.get("INTEROP_ACCESS_KEY", ""), os.environ.get("INTEROP_SECRET_KEY", "")
        credentials = Credentials(*keys) if all(keys) else Credentials()
        self._configuration = ClientConfiguration(address, credentials, request_timeout=10)
        self._tls = os.environ.get("INTEROP_GRPC_TLS") == "on"

    def producer(self, checker: Checker | None = None) -> Any:
        producer = Producer(self._configuration, (self.topic,), checker, tls_enable=self._tls)
        producer.startup()
        return producer

    def simple(self, expression: str = "*") -> Any:
        subscription = {self.topic: FilterExpression(expression)}
        consumer = SimpleConsumer(self._configuration, self.group, subscription, await_duration=2, tls_enable=self._tls)
        consumer.startup()
        return consumer

    def push(self, listener: Listener, expression: Any = None, group: str | None = None) -> Any:
        subscription = {self.topic: expression or FilterExpression("*")}
        consumer = PushConsumer(self._configuration, group or self.group, listener, subscription, tls_enable=self._tls)
        consumer.startup()
        return consumer

    def message(self, body: str, *, tag: str | None = None, **given: Any) -> Any:
        message = Message()
        message.topic = self.topic
        message.body = body.encode()
        if tag:
            message.tag = tag
        for name, value in given.items():
            setattr(message, name, value)
        return message


def sent(body: str, receipt: Any, **fields: object) -> None:
    event("sent", body=body, id=receipt.message_id, offset=receipt.offset, **fields)


def receive(consumer: Any, invisible_seconds: int = INVISIBLE_SECONDS) -> list[Any]:
    """One receive; a consumer that has just started is refused until the proxy has its settings."""
    try:
        return list(consumer.receive(16, invisible_seconds) or [])
    except ClientException as error:
        event("retried", why=str(error)[:200])
        time.sleep(0.5)  # its settings come within this time
        return []


def send(scene: Scene) -> None:
    """Sends in all forms, and reads it all with a simple consumer."""
    producer = scene.producer()
    count = 0
    for form in ("sync", "async"):
        pending: list[tuple[str, Future[Any]]] = []
        for number in range(10):
            count += 1
            body = f"{form}-{number}"
            message = scene.message(body, tag="tag", keys=f"key-{number}")
            message.add_property("colour", "grün")
            if form == "sync":
                sent(body, producer.send(message), form=form)
            else:
                pending.append((body, producer.send_async(message)))
        for body, receipt in pending:
            sent(body, receipt.result(30), form=form)
    consumer, received = scene.simple(), Received()

    def done() -> bool:
        for message in receive(consumer):
            received.note("simple", message)
            consumer.ack(message)
        return len(received.bodies) >= count

    until(f"{count} messages", done)
    consumer.shutdown()
    producer.shutdown()


def simple(scene: Scene) -> None:
    """Of 20 messages one is left alone, one is given back, one is kept for longer than it was asked for."""
    producer = scene.producer()
    kinds = ["left", "back", "kept", *["good"] * 17]
    for number, kind in enumerate(kinds):
        body = f"{kind}-{number}"
        sent(body, producer.send(scene.message(body)))
    consumer, received = scene.simple(), Received()
    kept: list[tuple[float, Any]] = []

    def done() -> bool:
        for message in receive(consumer):
            body = received.note("simple", message)
            first = received.bodies.count(body) == 1
            if first and body.startswith("back"):
                consumer.change_invisible_duration(message, INVISIBLE_SECONDS // 2)
            elif first and body.startswith("kept"):
                consumer.change_invisible_duration(message, 3 * INVISIBLE_SECONDS)
                kept.append((time.monotonic() + 2 * INVISIBLE_SECONDS, message))
            elif not first or body.startswith("good"):
                consumer.ack(message)
        for each in [each for each in kept if each[0] <= time.monotonic()]:
            consumer.ack(each[1])
            event("acknowledged", body=each[1].body.decode())
            kept.remove(each)
        return len(received.bodies) >= len(kinds) + 2 and not kept

    until("each message", done)
    # What was acknowledged late must not come again after its longer time, either.
    end = time.monotonic() + 1.5 * INVISIBLE_SECONDS
    until("the end", lambda: not any(received.note("simple", each) for each in receive(consumer)) and _over(end))
    consumer.shutdown()
    producer.shutdown()


def _over(end: float) -> bool:
    return time.monotonic() >= end


def push(scene: Scene) -> None:
    """Two share 60 messages, of which some fail always; they are dead after two attempts."""
    received = Received()
    bodies = [f"{'bad' if number % 20 == 0 else 'good'}-{number}" for number in range(60)]
    consumers = [scene.push(Listener(received, by, lambda body: body.startswith("bad"))) for by in ("a", "b")]
    producer = scene.producer()
    for body in bodies:
        sent(body, producer.send(scene.message(body)))
    wanted = len(bodies) + sum(body.startswith("bad") for body in bodies)
    until(f"{wanted} deliveries", lambda: len(received.bodies) >= wanted)
    event("delivered")
    sys.stdin.readline()  # told when the dead letters are there
    for consumer in consumers:
        consumer.shutdown()
    producer.shutdown()


def fifo(scene: Scene) -> None:
    """Eight message groups of ten messages each, of which one fails the first time."""
    received = Received()
    failed: set[str] = set()

    def fails(body: str) -> bool:
        if body == "3-4" and not failed:
            failed.add(body)
            return True
        return False

    producer = scene.producer()
    for number in range(80):
        body = f"{number % 8}-{number // 8}"
        sent(body, producer.send(scene.message(body, message_group=f"group-{number % 8}")))
    consumer = scene.push(Listener(received, "fifo", fails))
    until("81 deliveries", lambda: len(received.bodies) >= 81)
    time.sleep(2)  # a message that is delivered once too often comes by then
    consumer.shutdown()
    producer.shutdown()


def filtered(scene: Scene) -> None:
    """Thirty messages, and consumers that want some of them, by tags and by SQL92."""
    received = Received()
    wanted = {
        "tags": (FilterExpression("AaTag || TagC"), scene.group),
        "sql": (FilterExpression("number > 10 AND colour = 'rot'", FilterType.SQL), f"{scene.topic}-sql"),
    }
    consumers = [
        scene.push(Listener(received, by, lambda body: False), expression, group)
        for by, (expression, group) in wanted.items()
    ]
    producer = scene.producer()
    for number in range(30):
        tag = ("AaTag", "BBTag", "TagC")[number % 3]  # the first two have the same hash code
        body = f"m-{number}-{tag}"
        message = scene.message(body, tag=tag)
        message.add_property("number", str(number))
        message.add_property("colour", "blau" if number % 2 else "rot")
        sent(body, producer.send(message))
    until("29 deliveries", lambda: len(received.bodies) >= 29)
    time.sleep(2)  # what passes a filter wrongly comes by then
    for consumer in consumers:
        consumer.shutdown()
    producer.shutdown()


def delay(scene: Scene) -> None:
    """Six messages, due in up to four seconds."""
    received = Received()
    consumer = scene.push(Listener(received, "delay", lambda body: False))
    producer = scene.producer()
    for number in range(6):
        body = f"d-{number}"
        due = now_ms() + 1000 + 600 * number
        due = due // 1000 * 1000
        sent(body, producer.send(scene.message(body, delivery_timestamp=due // 1000)), due=due, latest=due + 1000)
    until("6 deliveries", lambda: len(received.bodies) >= 6)
    time.sleep(1)  # a message that is delivered twice comes by then
    consumer.shutdown()
    producer.shutdown()


def recall(scene: Scene) -> None:
    """Six messages due in eight seconds, of which the even ones are called back."""
    received = Received()
    consumer = scene.push(Listener(received, "recall", lambda body: False))
    producer = scene.producer()
    handles: dict[str, str] = {}
    for number in range(6):
        body = f"r-{number}"
        receipt = producer.send(scene.message(body, delivery_timestamp=now_ms() // 1000 + 8))
        sent(body, receipt)
        handles[body] = receipt.recall_handle
    for body in ("r-0", "r-2", "r-4"):
        event("recalled", body=body, id=producer.recall_message(scene.topic, handles[body]))
    until("3 deliveries", lambda: len(received.bodies) >= 3)
    time.sleep(5)  # a recalled message that is delivered all the same comes by then
    try:
        event("late", value=producer.recall_message(scene.topic, handles["r-1"]))
    except ClientException as error:
        event("late", why=str(error)[:200])
    consumer.shutdown()
    producer.shutdown()


def transactions(scene: Scene) -> None:
    """Two each are committed, rolled back, and left to be asked for."""
    received = Received()
    consumer = scene.push(Listener(received, "transactions", lambda body: False))
    producer = scene.producer(Checker())
    for number, verdict in enumerate(("commit", "rollback", "late-commit", "late-rollback") * 2):
        body = f"t-{number}-{verdict}"
        transaction = producer.begin_transaction()
        sent(body, producer.send(scene.message(body), transaction))
        if verdict == "commit":
            transaction.commit()
        elif verdict == "rollback":
            transaction.rollback()
    until("4 deliveries", lambda: len(received.bodies) >= 4)
    time.sleep(8)  # a message that was rolled back would come by then
    consumer.shutdown()
    producer.shutdown()


def load(scene: Scene) -> None:
    """A producer and a push consumer at work while servers are disturbed, until a line comes."""
    received, acknowledged, errors, stopped = Received(), set[str](), Counter[str](), threading.Event()
    newest, longest = time.monotonic(), 0.0
    consumer = scene.push(Listener(received, "load", lambda body: False))
    producer = scene.producer()

    def work() -> None:
        nonlocal newest, longest
        for number in itertools.count():
            if stopped.is_set():
                return
            try:
                producer.send(scene.message(str(number)))
            except Exception as error:
                errors[f"{type(error).__name__}: {error}"[:100]] += 1
                time.sleep(0.1)
            else:
                acknowledged.add(str(number))
                longest, newest = max(longest, time.monotonic() - newest), time.monotonic()
                time.sleep(0.01)

    sender = threading.Thread(target=work)
    sender.start()
    until("messages to flow", lambda: len(acknowledged) >= 100 and len(received.bodies) >= 100)
    longest = 0.0
    event("running")
    sys.stdin.readline()
    stopped.set()
    sender.join()
    with contextlib.suppress(TimeoutError):
        until("what was acknowledged", lambda: acknowledged <= set(received.bodies))
    different = set(received.bodies)
    event(
        "load",
        acknowledged=len(acknowledged),
        errors=errors,
        received=len(different),
        missing=sorted(acknowledged - different),
        twice=len(received.bodies) - len(different),
        longest_gap_ms=int(1000 * longest),
    )
    consumer.shutdown()
    producer.shutdown()


SCENARIOS = {
    **{each.__name__: each for each in (send, simple, push, fifo, delay, recall, transactions, load)},
    "filter": filtered,
}


def main(arguments: list[str]) -> int:
    name, address, topic = arguments
    event(
        "client",
        version=f"rocketmq-python-client {version('rocketmq-python-client')}",
        runtime=f"CPython {platform.python_version()}",
    )
    try:
        SCENARIOS[name.removeprefix("grpc-")](Scene(address, topic))
    except Exception as error:
        event("failed", why=f"{type(error).__name__}: {error}")
        raise
    event("done")
    return 0


if __name__ == "__main__":
    code = 1
    try:
        code = main(sys.argv[1:])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the client leaves threads behind
