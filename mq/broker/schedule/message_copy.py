"""What becomes of a message that waited elsewhere, when it goes to the queue it was sent to."""

from __future__ import annotations

from mq.broker.state.metadata import Metadata
from mq.broker.write_path.pending import InternalRecord
from mq.broker.write_path.queue_offsets import QueueOffsets
from mq.protocol.names import SEND_FORBIDDEN_TOPICS
from mq.protocol.records import BORN_HOST_IPV6, STORE_HOST_IPV6, RawRecord, tag_code_of

_IPV4_HOST_BYTES = 8


def copy_to(
    topic: str, queue_id: int, raw: RawRecord, properties: bytes, *, metadata: Metadata, tails: QueueOffsets
) -> InternalRecord | None:
    """The message as ``topic`` gets it, with these properties; None if there is no such topic (any more).

    It goes to another queue of the topic if that has become smaller meanwhile.
    """
    config = metadata.topics.get(topic)
    if config is None or config.write_queues == 0 or topic in SEND_FORBIDDEN_TOPICS:
        return None
    if not 0 <= queue_id < max(config.read_queues, config.write_queues):
        queue_id %= config.write_queues
    return InternalRecord(
        tail=tails.get(topic, queue_id),
        body=raw.body,
        properties=properties,
        tag_code=tag_code_of(properties),
        flag=raw.flag,
        sys_flag=raw.sys_flag & ~(BORN_HOST_IPV6 | STORE_HOST_IPV6),
        born_timestamp_ms=raw.born_timestamp_ms,
        born_host=raw.born_host if len(raw.born_host) == _IPV4_HOST_BYTES else bytes(_IPV4_HOST_BYTES),
        reconsume_times=raw.reconsume_times,
        prepared_offset=raw.prepared_offset,
    )
