"""Builds the requests of load generators, as stock clients write them, and reads the responses."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Iterator, Sequence

import msgspec

from mq.filter.programs import CLASS_FILTER
from mq.protocol.access.signing import sign_fields
from mq.protocol.codes import RequestCode
from mq.protocol.frames import split_frames
from mq.protocol.incoming.headers import Response
from mq.protocol.messages.batch import BatchedMessage, encode_batch
from mq.protocol.names import AUTO_CREATE_TEMPLATE
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset
from mq.protocol.properties import LITE_TOPIC
from mq.protocol.requests.clients import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from mq.protocol.requests.pop import PopExt, PopReply
from mq.protocol.requests.pull import PullExt
from mq.protocol.requests.receipts import AckRow, BatchAck, encode_bits
from mq.protocol.requests.send import SendExt
from mq.protocol.requests.topics import UpdateAndCreateTopicExt
from mq.protocol.wire.encoding import RESPONSE_FLAG, encode_request
from mq.protocol.wire.fields import camel_case
from mq.protocol.wire.request import Ext

OPAQUE = re.compile(rb'"opaque":(\d+)')
CODE = re.compile(rb'"code":(-?\d+)')
REMARK = re.compile(rb'"remark":"([^"]*)"')

TOPIC = "Bench"
BROKER = "broker-a"
QUEUES = 8
PRODUCERS = "bench_producers"
CONSUMERS = "bench_consumers"
COMMITS, WAITS, HAS_SUBSCRIPTION = 1, 2, 4
"""Flags of a pull."""
_READS_AND_WRITES = 6
_VERSION = 409
"""That of the stock client whose requests these are."""
_FORWARD_ONLY = camel_case("forward_only")
"""Stock clients do not know this field of ours."""
_LENGTH = struct.Struct(">I")


_decode = msgspec.json.Decoder(Response).decode


def topic_name(number: int) -> str:
    """Return the name of topic ``number`` of a load with many topics. The first one is `TOPIC`."""
    return f"{TOPIC}{number}" if number else TOPIC


def lite_name(number: int) -> str:
    """Return the name of lite topic ``number``. All names have the same length."""
    return f"lite-{number:07d}"


def request_frame(
    code: int, opaque: int, ext: Ext | None = None, body: bytes = b"", keys: tuple[str, str] | None = None
) -> bytes:
    """Encode a request. ``keys``, an access key and a secret key, sign it."""
    fields = {} if ext is None else ext.fields()
    fields.pop(_FORWARD_ONLY, None)
    if keys is not None:
        fields = sign_fields(*keys, fields, body)
    return encode_request(code, opaque, ext=fields, body=body, language="JAVA", version=_VERSION)


def send_ext(topic: str, queue_id: int, properties: str, *, sys_flag: int = 0, batch: bool = False) -> SendExt:
    """Return the fields of a send, without the body."""
    return SendExt(
        producer_group=PRODUCERS,
        topic=topic,
        default_topic=AUTO_CREATE_TEMPLATE,
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=sys_flag,
        born_timestamp_ms=1_700_000_000_000,
        flag=0,
        properties=properties,
        batch=batch,
    )


def send_frame(
    opaque: int,
    body_bytes: int,
    queue_id: int,
    *,
    topic: str = TOPIC,
    batch: int = 1,
    keys: tuple[str, str] | None = None,
    lite_topic: str | None = None,
    body: bytes | None = None,
    more: str = "",
) -> bytes:
    """Return the whole frame of a send: length, header length, a JSON header of about 360 bytes, and the body.

    With ``batch`` above 1 the body is ``batch`` messages of ``body_bytes`` each, and the request a SEND_BATCH_MESSAGE.
    The same frame may be sent repeatedly: a broker does not look at the unique key. With ``keys``, access key and
    secret key, it is signed. With ``body``, each message has this one. ``more`` are further properties, encoded.
    """
    properties = f"UNIQ_KEY\x017F0000010000{opaque:020X}\x02WAIT\x01true\x02TAGS\x01TagA{more}"
    if lite_topic is not None:
        properties += f"\x02{LITE_TOPIC}\x01{lite_topic}"
    if body is None:
        body = bytes((opaque + i) % 251 for i in range(body_bytes))
    code = RequestCode.SEND_MESSAGE_V2
    if batch > 1:
        code, body = RequestCode.SEND_BATCH_MESSAGE, encode_batch([BatchedMessage(body, properties)] * batch)
    return request_frame(code, opaque, send_ext(topic, queue_id, properties, batch=batch > 1), body, keys)


def pull_ext(
    group: str,
    topic: str,
    queue_id: int,
    offset: int,
    count: int,
    sys_flag: int,
    *,
    commit_offset: int = FIRST_OFFSET,
    expression: str = "*",
    kind: str = "TAG",
) -> PullExt:
    """Return the fields of a pull that includes its subscription."""
    return PullExt(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        queue_offset=QueueOffset(offset),
        max_messages=count,
        sys_flag=sys_flag | HAS_SUBSCRIPTION,
        commit_offset=QueueOffset(commit_offset),
        suspend_timeout_ms=15_000,
        sub_version=0,
        subscription=expression,
        expression_type=kind,
    )


def pull_frame(
    opaque: int,
    queue_id: int,
    offset: int,
    count: int,
    expression: str = "*",
    kind: str = "TAG",
    *,
    topic: str = TOPIC,
    waits: bool = False,
    program: str | None = None,
) -> bytes:
    """Return the whole frame of a pull that includes its subscription.

    With ``waits`` it is a long poll of 15 s, with ``program`` one to a filter server.
    """
    sys_flag = (WAITS if waits else 0) | (0 if program is None else CLASS_FILTER)
    ext = pull_ext(CONSUMERS, topic, queue_id, offset, count, sys_flag, expression=program or expression, kind=kind)
    return request_frame(RequestCode.PULL_MESSAGE, opaque, ext)


def pop_ext(group: str, queue_id: int, count: int, *, from_last: bool = False) -> PopExt:
    """Return the fields of a pop of `TOPIC` that may wait."""
    return PopExt(
        consumer_group=group,
        topic=TOPIC,
        queue_id=queue_id,
        max_messages=count,
        invisible_ms=60_000,
        poll_ms=15_000,
        born_ms=time.time_ns() // 10**6,
        init_mode=int(from_last),
        expression_type="TAG",
        expression="*",
    )


def topic_ext(topic: str, queues: int = QUEUES) -> UpdateAndCreateTopicExt:
    """Return the fields of the request that creates a topic."""
    return UpdateAndCreateTopicExt(
        topic=topic,
        default_topic=AUTO_CREATE_TEMPLATE,
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=_READS_AND_WRITES,
    )


def heartbeat_frame(opaque: int, client_id: str, *, consumes: str | None = None) -> bytes:
    """Return the heartbeat of a producer, or of a member of `CONSUMERS` that consumes the topic ``consumes``."""
    if consumes is None:
        data = HeartbeatData(client_id=client_id, producers=[ProducerData(group=PRODUCERS)])
    else:
        first, topics = "CONSUME_FROM_FIRST_OFFSET", [SubscriptionData(topic=consumes)]
        consumer = ConsumerData(group=CONSUMERS, subscriptions=topics, consume_from_where=first)
        data = HeartbeatData(client_id=client_id, consumers=[consumer])
    return request_frame(RequestCode.HEART_BEAT, opaque, body=data.encode())


def responses(data: bytes) -> tuple[Sequence[tuple[Response, memoryview]], int]:
    """Decode the whole responses in JSON: header and body of each, and the end of the last one. Skips requests."""
    frames, end = split_frames(memoryview(data))
    pairs = ((_decode(header), body) for _, header, body in frames)
    return [(header, body) for header, body in pairs if header.flag & RESPONSE_FLAG], end


def popped_rows(reply: PopReply) -> Iterator[tuple[str, int, int, list[int]]]:
    """Yield the messages of a pop by queue: mark, queue id, first offset of the queue, and the messages' offsets."""
    starts = {(mark, queue): int(start) for mark, queue, start in _rows(reply.start_offset_info)}
    for mark, queue, offsets in _rows(reply.msg_offset_info):
        yield mark, int(queue), starts[mark, queue], [int(offset) for offset in offsets.split(",")]


def batch_ack(group: str, reply: PopReply) -> BatchAck:
    """Return the acknowledgement of all messages of a pop of `TOPIC`: a bit for each, from the first of its queue."""
    rows = [
        AckRow(
            group=group,
            topic=TOPIC,
            mark=mark,
            start=QueueOffset(start),
            queue_id=queue_id,
            revive_queue=reply.revive_queue,
            pop_time_ms=reply.pop_time_ms,
            invisible_ms=reply.invisible_ms,
            encoded_bits=encode_bits(sum(1 << offset - start for offset in offsets)),
        )
        for mark, queue_id, start, offsets in popped_rows(reply)
    ]
    return BatchAck(acks=rows, broker_name=BROKER)


def _rows(text: str | None) -> Iterator[list[str]]:
    return (row.split(" ") for row in (text or "").split(";") if row)


def complete_bytes(buffer: bytes | bytearray | memoryview) -> tuple[int, int]:
    """Return the number of whole frames at the beginning of ``buffer``, and their bytes in total."""
    unpack = _LENGTH.unpack_from
    position, frames, end = 0, 0, len(buffer) - 4
    while position <= end:
        next_position = position + 4 + unpack(buffer, position)[0]
        if next_position > end + 4:
            break
        position = next_position
        frames += 1
    return frames, position
