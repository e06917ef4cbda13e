"""Copies a stored message into another queue of this broker."""

from __future__ import annotations

from mq.broker.write_path.outcome import OnOutcome
from mq.broker.write_path.pending import InternalRecord
from mq.broker.write_path.queue_tails import QueueTail
from mq.protocol.messages.records import (
    BORN_HOST_IPV6,
    IPV4_HOST_BYTES,
    NO_HOST,
    STORE_HOST_IPV6,
    TRANSACTION_MASK,
    RawRecord,
    StoredMessage,
    encode_host,
    tag_code_of,
)
from mq.protocol.numbers import LOG_BEGIN, PhysicalOffset
from mq.protocol.wire.fields import INT32_MAX


def copy_record(
    record: RawRecord | StoredMessage,
    tail: QueueTail,
    properties: bytes,
    *,
    transaction: int | None = None,
    prepared_offset: PhysicalOffset = LOG_BEGIN,
    attempts: int = 0,
    on_outcome: OnOutcome | None = None,
) -> InternalRecord:
    """Return a copy of a message for the queue of ``tail``, with these properties and the same body.

    Senders are stored with IPv4 addresses. If the sender had an IPv6 address, its host is empty.

    Args:
        transaction: role in a transaction, a value of `TRANSACTION_MASK`; None to keep it.
        prepared_offset: where its half message is, 0 for none.
        attempts: number of failed deliveries so far.
    """
    assert attempts >= 0, f"{attempts} deliveries have failed"
    host, sys_flag = record.born_host, record.sys_flag & ~(BORN_HOST_IPV6 | STORE_HOST_IPV6)
    if not isinstance(host, bytes):
        host = encode_host(*host)
    if transaction is not None:
        sys_flag = sys_flag & ~TRANSACTION_MASK | transaction
    return InternalRecord(
        tail=tail,
        body=record.body,
        properties=properties,
        tag_code=tag_code_of(properties) if tail.turn_ms is None else 0,
        flag=record.flag,
        sys_flag=sys_flag,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=host if len(host) == IPV4_HOST_BYTES else NO_HOST,
        reconsume_times=min(record.reconsume_times + attempts, INT32_MAX),
        prepared_offset=prepared_offset,
        on_outcome=on_outcome,
    )
