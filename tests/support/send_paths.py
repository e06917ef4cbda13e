"""The send path of a broker in all of its forms, and requests to compare them with.

The forms are the compiled receiver, the receiver in Python, and one that takes nothing, so that `Sends` handles all.
"""

from __future__ import annotations

import json
import random
import struct
from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

from mq.broker.access.control import AccessControl
from mq.broker.limits import StateLimits
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.produce.dedup import Dedup
from mq.broker.produce.send import Sends
from mq.broker.produce.send_receiver import PythonReceiver, send_receiver
from mq.broker.state.producer_sequences import ProducerSequences
from mq.broker.write_path.appender import Appender
from mq.broker.write_path.queue_tails import QueueTail, TopicName
from mq.protocol.errors import FrameError
from mq.protocol.incoming.chunks import decode_chunk
from mq.protocol.message_ids import UniqKeyGenerator
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.send import SendBatchMessage, SendMessageV2
from mq.protocol.wire.encoding import SendReplyTemplate
from tests.support.broker_contexts import context_of
from tests.support.model_log import HOST, Log

TOPICS = {"T": 4, "Orders": 300}
BODY_BYTES_MAX = 2000
BLOCK_BYTES_MAX = 128 * 1024
NOW_MS = 1_700_000_000_123


class Connection:
    """A client that keeps what it is sent."""

    def __init__(self, host: bytes) -> None:
        self.host = host
        self.received = b""
        self.closed: str | None = None
        self.descriptor = -1
        self.heard = False
        self.keys: Any = None
        self.served_again: list[tuple[str, bytes]] = []

    def send(self, data: bytes) -> None:
        self.received += data

    def close(self, reason: str) -> None:
        self.closed = reason

    def send_keys(self) -> Any:
        return self.keys

    def answer(self, request: Any, reply: bytes) -> None:
        if not request.flag & 2:
            self.send(reply)

    def dispatch(self, request: Any, body: bytes, serialization: int) -> None:
        self.served_again.append((repr(request), body))


class HandlesAll:
    """A receiver that takes nothing."""

    fast_senders: frozenset[int] = frozenset()
    compiled_messages = 0

    def __init__(self, *given: object) -> None:
        pass

    def receive(self, ready: Any, room: int) -> Any:
        return [], [], ready

    def take(self, sender: Any, chunk: bytes, room: int) -> Any:
        return [], 0

    def forget(self, descriptor: int) -> None:
        pass


FORMS: Final[dict[str, Any]] = {"compiled": send_receiver, "python": PythonReceiver, "handler": HandlesAll}


class Elsewhere:
    """Takes what is not stored by a plain send, and remembers it."""

    def __init__(self) -> None:
        self.taken: list[object] = []

    def add(self, call: Call[Any], *rest: object) -> None:
        self.taken.append((repr(call.request), call.body, *map(repr, rest)))

    def store_elsewhere(self, call: Call[Any]) -> bool:
        self.taken.append((repr(call.request), call.body))
        return True


class Broker:
    """The send path of a broker, with the receiver of one of `FORMS`."""

    def __init__(
        self,
        *,
        form: str,
        entry_bytes_max: int = 1 << 20,
        uncommitted_bytes_max: int = 1 << 20,
        body_bytes_max: int = BODY_BYTES_MAX,
        is_signed: bool = False,
        receive_into: Any = None,
    ) -> None:
        self.form = form
        self.log = Log()
        self.appender = Appender(
            log=self.log,
            store_host=HOST,
            reply_template=SendReplyTemplate(HOST),
            entry_bytes_max=entry_bytes_max,
            rounds_in_flight=100,
            wall_clock_ms=lambda: NOW_MS,
            disk_used=lambda: 0.5,
            uncommitted_bytes_max=uncommitted_bytes_max,
        )
        self.appender.open()
        self.elsewhere = Elsewhere()
        placement: Any = self.elsewhere
        self.sequences = ProducerSequences()
        self.tails = {
            name: [QueueTail(TopicName(name), n, QueueOffset(7 * n)) for n in range(TOPICS[name])] for name in TOPICS
        }
        context = context_of(
            settings__message_bytes_max=body_bytes_max,
            settings__uncommitted_bytes_max=uncommitted_bytes_max,
            settings__cluster="C",
            settings__group="broker-a",
            settings__auto_create_topics=False,
            settings__segment_bytes=1 << 20,
            metadata__topics={
                name: SimpleNamespace(write_queues=count, attributes={}) for name, count in TOPICS.items()
            },
            metadata__deleted_topics__rows={},
            metadata__sequences=self.sequences,
            metadata__limits=StateLimits(),
            appender=self.appender,
            replica__log=self.log,
            queue_tails=None,
            store_host=HOST,
            environment__access=True if is_signed else None,
            environment__receive_into=receive_into,
            unique_keys=UniqKeyGenerator(ip="10.0.0.1", pid=1, salt=1, wall_clock_ms=lambda: NOW_MS),
            rng=random.Random(1),
            wall_clock_ms=lambda: NOW_MS,
        )
        self.dedup = Dedup(context)
        self.sends = Sends(
            context,
            placement=placement,
            dedup=self.dedup,
            retries=placement,
            make_receiver=self._make_receiver(FORMS[form]),
        )
        self.sends.serve_here(True)
        self.writable.update(self.tails)
        self.refused: list[tuple[int, int, str]] = []
        self.others: list[str] = []
        self.taken_plain = 0

    def _make_receiver(self, make: Any) -> Any:
        def made(messages: Any, *given: Any) -> Any:
            self.writable = messages.writable
            return make(messages, *given)

        return made

    def receive(
        self, connection: Connection, chunk: bytes, access: AccessControl | None = None, address: str = ""
    ) -> int | str:
        """As a connection does: bytes consumed, or why the connection is closed."""
        sender: Any = connection
        connection.keys = None if access is None else access.keys_of_sends(address)
        taken = self.sends.take(sender, chunk)
        self.taken_plain += taken
        try:
            incoming, consumed = decode_chunk(chunk[taken:])
        except FrameError as error:
            return str(error)
        if access is not None:
            incoming = access.authorize(address, incoming, chunk[taken:])
        for request, body, serialization in incoming:
            if not isinstance(request, SendMessageV2 | SendBatchMessage):
                self.others.append(repr(request))
                continue
            try:
                if isinstance(request, SendBatchMessage):
                    self.sends.handle_batch(Call(sender, request, body, serialization))
                else:
                    self.sends.handle(Call(sender, request, body, serialization))
            except RequestRefused as refused:
                self.refused.append((request.opaque, refused.code, refused.remark))
        return taken + consumed

    def commit(self) -> list[object]:
        """Frame and commit all that is pending; everything that can be seen of it."""
        while self.appender.start_round():
            pass
        number = len(self.log.framed)
        framed = [(position, body, annotation) for position, body, annotation in self.log.framed]
        built = [self.appender.own_entry(n + 1, framed[n][2]) for n in range(number)]
        self.dedup.check_invariants()
        named = [[(tail.topic, tail.queue_id, *rest) for tail, *rest in each.runs] for each in built if each]
        numbered = [run for each in built if each for run in each.sequences]
        for run in numbered:
            self.sequences.add_run(run)
        self.appender.on_commit(number)
        self.dedup.check_invariants()
        return [
            *(framed, named, numbered, self.ends(), self.appender.pending_bytes, self.appender.messages),
            self.sequences.capture()(),
        ]

    def ends(self) -> dict[tuple[str, int], int]:
        return {(each.topic, each.queue_id): each.next_offset for tails in self.tails.values() for each in tails}


def properties(**more: str) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in more.items())


def frame(
    body: bytes = b"body", *, header: dict[str, Any] | None = None, raw: bytes | None = None, **ext: str
) -> bytes:
    fields = {"a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
    fields |= {"i": properties(UNIQ_KEY="0A0B0C", WAIT="true", TAGS="TagA"), "j": "0", "k": "false", "m": "false"}
    fields |= ext
    values: dict[str, Any] = {"code": 310, "extFields": {name: text for name, text in fields.items() if text != "-"}}
    values |= {"flag": 0, "language": "JAVA", "opaque": 5, "serializeTypeCurrentRPC": "JSON", "version": 409}
    values |= header or {}
    encoded = raw if raw is not None else json.dumps(values, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(encoded) + len(body), len(encoded)) + encoded + body


def compare(chunks: Sequence[bytes]) -> Broker:
    """Give all forms the same chunks, from two clients in turns; returns the compiled one."""
    brokers = [Broker(form=form) for form in FORMS]
    seen: list[list[object]] = []
    served_again: list[list[object]] = []
    for broker in brokers:
        clients = [Connection(HOST), Connection(b"\x0a\x00\x00\x02\x00\x00\x12\x34")]
        closed: dict[int, object] = defaultdict(lambda: None)
        results: list[object] = []
        for number, chunk in enumerate(chunks):
            if closed[number % 2] is None:
                result = broker.receive(clients[number % 2], chunk)
                results.append(result)
                if isinstance(result, str):
                    closed[number % 2] = result
        stored = broker.commit()
        seen.append([results, stored, broker.refused, broker.others, broker.elsewhere.taken])
        # What waits for a send of a block is served after the whole entry, for a send by itself after its answer.
        again = [client.served_again if broker.form != "handler" else None for client in clients]
        served_again.append([again, [sorted(client.served_again) for client in clients]])
        seen[-1].append([client.received for client in clients])
    for form, other in zip(FORMS, seen, strict=True):
        assert other == seen[0], f"{form} and compiled"
    assert served_again[0] == served_again[1]
    assert served_again[0][1] == served_again[2][1]
    return brokers[0]


def batched(body: bytes, text: str, flag: int = 0) -> bytes:
    encoded = text.encode()
    size = 22 + len(body) + len(encoded)
    return struct.pack(">iiiii", size, 0, 0, flag, len(body)) + body + struct.pack(">h", len(encoded)) + encoded
