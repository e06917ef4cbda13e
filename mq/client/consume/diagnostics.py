"""Answers requests that brokers send to a consumer: diagnostics for operators, and resets of offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from mq.client.consume.process_queue import ProcessQueue
from mq.client.logs import log
from mq.client.message import MessageQueue
from mq.protocol.errors import BodyError
from mq.protocol.requests.clients import SubscriptionData
from mq.protocol.requests.relayed import ProcessQueueInfo
from mq.protocol.wire.queue_tables import QueueRef, queue_table, read_offset_table


def read_reset(body: memoryview) -> Mapping[MessageQueue, int]:
    """Parse the offsets of a reset (request code 220). Logs and returns none if they cannot be parsed."""
    try:
        table = read_offset_table(body)
    except BodyError as error:
        log.warning("offset_reset_unreadable", reason=str(error))
        return {}
    return {MessageQueue(ref.topic, ref.broker_name, ref.queue_id): offset for ref, offset in table.items()}


def status(positions: Mapping[MessageQueue, int], topic: str) -> bytes:
    """Encode the consumer's offsets in memory, the answer to request code 221."""
    rows = ((_ref(queue), b"%d" % offset) for queue, offset in sorted(positions.items()) if queue.topic == topic)
    return b'{"consumerTable":{},"messageQueueTable":%s}' % queue_table(rows)


def running_info(
    queues: Iterable[ProcessQueue],
    subscriptions: Sequence[SubscriptionData],
    *,
    ordered: bool,
    started_ms: int,
    version: str = "V4_9_8",
    consume_type: str = "CONSUME_PASSIVELY",
    stacks: str = "",
) -> bytes:
    """Encode the consumer's state, the answer to request code 307. Operators' tools use its start time."""
    properties = {
        "PROP_CLIENT_VERSION": version,
        "PROP_CONSUME_ORDERLY": str(ordered).lower(),
        "PROP_CONSUME_TYPE": consume_type,
        "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
    }
    table = queue_table((_ref(each.queue), _queue_info(each).encode()) for each in queues)
    return b'{"jstack":%s,"mqTable":%s,"properties":%s,"statusTable":{},"subscriptionSet":[%s]}' % (
        msgspec.json.encode(stacks),
        table,
        msgspec.json.encode(properties),
        b",".join(each.encode() for each in subscriptions),
    )


def _queue_info(queue: ProcessQueue) -> ProcessQueueInfo:
    return ProcessQueueInfo(
        commit_offset=queue.commit_offset,
        cached_msg_min_offset=queue.commit_offset if queue.cached_count else 0,
        cached_msg_max_offset=queue.next_offset - 1 if queue.cached_count else 0,
        cached_msg_count=queue.cached_count,
        cached_mib=queue.cached_bytes // (1024 * 1024),
        locked=queue.held_until != float("inf"),
        dropped=queue.dropped,
    )


def _ref(queue: MessageQueue) -> QueueRef:
    return QueueRef(queue.topic, queue.broker_name, queue.queue_id)
