"""`raftmq produce` and `raftmq consume`: send and print messages as lines of text."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import trio
import typer

from mq.cli.attributes import Properties, properties_of
from mq.cli.client_errors import client_errors
from mq.cli.errors import EXIT_FAILED, CommandFailed, run_trio
from mq.cli.output import Json, JsonLines, print_json
from mq.cli.topics import NAMESRV, Namesrv, Topic
from mq.client.admin import Admin
from mq.client.consume.push_consumer import PushConsumer
from mq.client.errors import BrokerError, ClientError, NameServersUnavailable, TopicNotFound
from mq.client.filters import BodyFilter, WasmFilter
from mq.client.message import Message, SendResult
from mq.client.produce.producer import Producer
from mq.filter.subscription import SubscriptionError
from mq.inspection.message_fields import message_fields
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.records import BODY_BYTES_MAX

Trace = Annotated[bool, typer.Option("--trace", help="Trace the messages, for `raftmq trace`.")]

_ROOM = 512
_EXAMPLES_MAX = 3


def produce(
    topic: Topic,
    tag: Annotated[str | None, typer.Option(help="Tag of every message.")] = None,
    key_prefix: Annotated[str | None, typer.Option(help="Key of a message: this text and the line number.")] = None,
    key: Annotated[list[str] | None, typer.Option(metavar="KEY", help="Key of every message; may be repeated.")] = None,
    property_: Properties = None,
    sharding_key: Annotated[
        str | None, typer.Option(help="Send all messages to the queue of this key, in their order.")
    ] = None,
    priority: Annotated[int | None, typer.Option(min=0, help="Priority of every message.")] = None,
    delay: Annotated[float | None, typer.Option(min=0, help="Delay of each message in seconds.")] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Send all of standard input as one message, which may be binary.")
    ] = False,
    trace: Trace = False,
    group: Annotated[str, typer.Option(help="Producer group.")] = "raftmq_cli",
    timeout: Annotated[float, typer.Option(min=0.1, help="Timeout of each message in seconds.")] = 15.0,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Send each line of standard input as a message.

    Empty lines are left out. Exit code 1 unless all messages were acknowledged.
    """
    message = Message(
        topic,
        b"",
        tags=tag,
        keys=key or (),
        properties=properties_of(property_ or []),
        sharding_key=sharding_key,
        priority=priority,
        delay=delay,
    )
    counts = {"sent": 0, "acknowledged": 0, "not stored": 0, "outcome unknown": 0}
    examples: list[str] = []
    in_flight = 0
    room = trio.Event()

    def on_outcome(outcome: SendResult | ClientError) -> None:
        nonlocal in_flight
        in_flight -= 1
        room.set()
        if isinstance(outcome, SendResult):
            counts["acknowledged"] += 1
            return
        counts["outcome unknown" if outcome.stored == "unknown" else "not stored"] += 1
        if len(examples) < _EXAMPLES_MAX:
            examples.append(str(outcome))

    async def main() -> None:
        nonlocal in_flight, room
        async with (
            Producer(namesrv, group, timeout=timeout, retries=20, in_flight_max=2 * _ROOM, trace=trace) as producer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_say_if_unavailable, topic, namesrv)
            lines = Whole() if whole else Lines()
            data = None
            while data != b"":
                data = await trio.to_thread.run_sync(os.read, sys.stdin.fileno(), 65536, abandon_on_cancel=True)
                for number, body in lines.feed(data):
                    while in_flight >= _ROOM:
                        room = trio.Event()
                        await room.wait()
                    keys = message.keys if key_prefix is None else [*message.keys, f"{key_prefix}{number}"]
                    counts["sent"] += 1
                    in_flight += 1
                    try:
                        producer.send_nowait(msgspec.structs.replace(message, body=body, keys=keys), on_outcome)
                    except ClientError as error:
                        on_outcome(error)
            await producer.flush()
            nursery.cancel_scope.cancel()

    try:
        with client_errors():
            run_trio(main)
    finally:
        counts["outcome unknown"] += in_flight  # ctrl-C
        if as_json:
            print_json({what.replace(" ", "_"): count for what, count in counts.items()} | {"errors": examples})
        else:
            summary = ", ".join(f"{count} {what}" for what, count in counts.items() if count or what == "sent")
            print(summary, file=sys.stderr)
    if counts["acknowledged"] != counts["sent"]:
        raise CommandFailed("; ".join(examples), EXIT_FAILED)


class Lines:
    """Splits input into numbered lines without line feeds. Empty lines are omitted, but count in the numbers."""

    def __init__(self) -> None:
        self._rest = b""
        self._number = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return the lines that ``data`` completes. Empty data is the end, and completes a line without line feed."""
        *complete, self._rest = (self._rest + data).split(b"\n")
        if not data:
            complete, self._rest = [*complete, self._rest], b""
        bodies = []
        for line in complete:
            self._number += 1
            if body := line.rstrip(b"\r"):
                bodies.append((self._number, body))
        return bodies


class Whole:
    """Makes one body of the whole input."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Works like `Lines.feed`. Raises CommandFailed if the input is too large for a message."""
        self._data += data
        if len(self._data) > BODY_BYTES_MAX:
            raise CommandFailed(f"--whole: the input is more than the {BODY_BYTES_MAX:,} bytes that a message may have")
        return [(1, bytes(self._data))] if not data else []


def consume(
    topic: Topic,
    group: Annotated[str, typer.Option(help="Consumer group; its members share the queues.")],
    count: Annotated[
        int | None, typer.Option(min=1, help="Stop after this number of messages; default: ctrl-C.")
    ] = None,
    consume_from: Annotated[str, typer.Option("--from", help="Where a new group starts: first or last.")] = "first",
    tags: Annotated[str, typer.Option(help='Tags: "A", "A || B", "*" for all.', metavar="EXPRESSION")] = "*",
    filter_: Annotated[
        str | None,
        typer.Option(
            "--filter",
            help="A WebAssembly module, FILE.wasm, or an expression such as \"BODY('$.amount') > 100\", for a filter "
            "server.",
            metavar="FILE|EXPRESSION",
        ),
    ] = None,
    trace: Trace = False,
    as_json: JsonLines = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Print the body of each message of a topic, one per line."""
    message_filter = _filter(filter_)
    begin: Literal["first", "last"]
    match consume_from:
        case "first":
            begin = "first"
        case "last":
            begin = "last"
        case _:
            raise CommandFailed(f"--from {consume_from!r} is neither first nor last")

    async def main() -> None:
        rest = count
        async with PushConsumer(namesrv, group, consume_from=begin, trace=trace) as consumer:
            try:
                consumer.subscribe(topic, tags, filter=message_filter)
            except SubscriptionError as error:
                raise CommandFailed(str(error)) from error
            await _check(topic, group, namesrv)
            async for delivery in consumer.deliveries():
                with delivery as message:
                    print_bytes((json.dumps(message_fields(message)).encode() if as_json else message.body) + b"\n")
                if rest is not None:
                    rest -= 1
                    if rest == 0:
                        break

    with client_errors():
        run_trio(main)


def _filter(text: str | None) -> WasmFilter | BodyFilter | None:
    """Raises CommandFailed if the file cannot be read."""
    if text is None:
        return None
    if not text.endswith(".wasm"):
        return BodyFilter(text)
    try:
        return WasmFilter(Path(text).read_bytes())
    except OSError as error:
        raise CommandFailed(f"{text}: {error.strerror or error}") from error


async def _say_if_unavailable(topic: str, namesrv: str) -> None:
    """Check once and print an error: sends would retry silently until their timeout."""
    async with Admin(namesrv) as admin:
        try:
            await admin.route(topic)
        except NameServersUnavailable as error:
            print(f"raftmq: {error}; retrying", file=sys.stderr)
        except ClientError:
            pass


async def _check(topic: str, group: str, namesrv: str) -> None:
    """Say so if the topic does not exist yet. Raises BrokerError if this account may not consume it with this group."""
    async with Admin(namesrv) as admin:
        try:
            route = await admin.route(topic)
            for queue in route.read_queues[:1]:
                await admin.group_offset(group, queue)
        except TopicNotFound:
            print(f"raftmq: topic {topic} does not exist yet; waiting for it", file=sys.stderr)
        except ClientError as error:  # the consumer keeps trying, and logs it
            if isinstance(error, BrokerError) and error.code == ResponseCode.NO_PERMISSION:
                raise


def print_bytes(data: bytes) -> None:
    """Print without a buffer: the message is acknowledged right after, and must not be lost if this process dies."""
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]
