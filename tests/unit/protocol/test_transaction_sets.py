"""The body of a transaction of several messages, as sent, and as hostile clients send it."""

from __future__ import annotations

import struct

import pytest

from mq.protocol.errors import BodyError
from mq.protocol.messages.batch import BatchedMessage, encode_batch
from mq.protocol.messages.transaction_sets import (
    SET_MESSAGES_MAX,
    SET_OFFSETS_MAX,
    ConsumedRange,
    SetMessage,
    TransactionSet,
)
from mq.protocol.numbers import QueueOffset

OFFSET = b'{"group":"G","topic":"T","queueId":3,"from":5,"to":9}'
PLACE = "REAL_TOPIC\x01T\x02REAL_QID\x010\x02"


def body(offsets: bytes, messages: bytes = b"", version: int = 1) -> bytes:
    return struct.pack(">BI", version, len(offsets)) + offsets + messages


def test_decoded_transaction_set_equals_the_encoded_one() -> None:
    consumed = ConsumedRange("G", "T", 3, QueueOffset(5), QueueOffset(9))
    messages = [
        SetMessage("A", 0, b"1", "UNIQ_KEY\x01U1\x02own\x01\u20ac\x02", -7),
        SetMessage("B", 15, b"", "UNIQ_KEY\x01U2\x02"),
    ]
    encoded = TransactionSet(messages, [consumed]).encode()
    assert encoded.startswith(body(b"[" + OFFSET + b"]"))
    assert TransactionSet.decode(encoded) == (messages, [consumed])
    assert TransactionSet.decode(memoryview(encoded)) == (messages, [consumed])
    assert TransactionSet.decode(TransactionSet([], []).encode()) == ([], [])


@pytest.mark.parametrize(
    ("hostile", "why"),
    [
        (b"", "0 bytes"),
        (body(b"[]", version=2), "format 2"),
        (struct.pack(">BI", 1, 2**32 - 1) + b"[]", "expected 4294967295 bytes of offsets"),
        (body(b"{}"), "not a list"),
        (body(b"[1]"), "not a list"),
        (body(b"[" + OFFSET.replace(b"5", b"-5") + b"]"), "not a list"),
        (body(b"[" + OFFSET.replace(b"3", b"4294967296") + b"]"), "not a list"),
        (body(b"[" + b",".join([OFFSET] * (SET_OFFSETS_MAX + 1)) + b"]"), "129 offsets"),
        (body(b"[]", b"\0"), "1 bytes"),
        (body(b"[]", encode_batch([BatchedMessage(b"1", "a\x01b\x02")])), "does not name its topic and queue"),
        (body(b"[]", encode_batch([BatchedMessage(b"1", PLACE.replace("0", "x"))])), "does not name its topic"),
        (body(b"[]", encode_batch([BatchedMessage(b"1", PLACE.replace("0", "9" * 30))])), "does not name its topic"),
        (body(b"[]", encode_batch([BatchedMessage(b"1", PLACE)]).replace(b"T\x02", b"\xff\x02")), "not UTF-8"),
        (body(b"[]", encode_batch([BatchedMessage(b"", PLACE)] * (SET_MESSAGES_MAX + 1))), "more than 1000 messages"),
    ],
)
def test_malformed_transaction_sets_are_refused(hostile: bytes, why: str) -> None:
    with pytest.raises(BodyError, match=why):
        TransactionSet.decode(hostile)
