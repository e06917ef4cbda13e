"""The numbers that the Cython sources share with the code in Python: `constants.pxi` is made from them.

``python -m mq.compiled.constants`` writes the file; `tests/unit/compiled/test_constants.py` compares it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from select import EPOLLIN
from typing import Final

import msgspec

from mq.broker.produce.send_receiver import BLOCK_BYTES_MAX, BLOCK_MESSAGES_MAX, SENDERS_MAX
from mq.broker.write_path.entry_builder import CLIENT_FLAGS
from mq.protocol import properties as props
from mq.protocol.access.signing import BLOCK_BYTES, LENGTHS_MARK
from mq.protocol.codes import RequestCode
from mq.protocol.frames import FRAME_BYTES_MAX, HEADER_BYTES_MAX, PREFIX_BYTES
from mq.protocol.messages import records
from mq.protocol.messages.batch import BATCHED_BYTES_MIN, BATCHED_HEAD
from mq.protocol.messages.sequencing import PRODUCER_ID_LENGTH_MAX, SEQUENCE_MAX
from mq.protocol.requests.send import SendExt
from mq.protocol.wire.encoding import ONEWAY_FLAG, RESPONSE_FLAG
from mq.store.annotation import HAS_LAST, SEQUENCED_ROW
from mq.store.dispatch import QUEUE_ENTRY
from raftlog.net.reactor import RECEIVE_BYTES

PATH: Final = Path(__file__).with_name("constants.pxi")
_HEAD: Final = (
    '"""Numbers that are defined in Python; written by ``python -m mq.compiled.constants``. Do not edit."""\n'
)

_RECORD_FIELDS: Final = [
    "SIZE_AT",
    "MAGIC_AT",
    "CHECKSUM_AT",
    "QUEUE_ID_AT",
    "FLAG_AT",
    "QUEUE_OFFSET_AT",
    "PHYSICAL_OFFSET_AT",
    "SYS_FLAG_AT",
    "BORN_MS_AT",
    "BORN_HOST_AT",
    "STORE_MS_AT",
    "STORE_HOST_AT",
    "RECONSUME_TIMES_AT",
    "PREPARED_OFFSET_AT",
    "BODY_LENGTH_AT",
]
"""The fields of a record's head, in order."""
_QUEUE_ENTRY_FIELDS: Final = ["QUEUE_ENTRY_POSITION_AT", "QUEUE_ENTRY_SIZE_AT", "QUEUE_ENTRY_TAG_CODE_AT"]
_BATCHED_FIELDS: Final = [
    "BATCHED_SIZE_AT",
    "BATCHED_MAGIC_AT",
    "BATCHED_CHECKSUM_AT",
    "BATCHED_FLAG_AT",
    "BATCHED_BODY_LENGTH_AT",
]
_INT32: Final = 1 << 31


def text() -> str:
    """The required content of the file."""
    parts = [
        _enum("where the fields of a record are, for IPv4 addresses and the first magic number", _places_in_record()),
        _enum("an entry of a consume queue", _places(QUEUE_ENTRY, _QUEUE_ENTRY_FIELDS, "QUEUE_ENTRY_BYTES")),
        _enum("a message within a batch", _places_in_batch()),
        _enum("frames and headers", _of_frames()),
        _enum("the one-letter fields of a send", _letters()),
        _enum("limits", _limits()),
    ]
    return _HEAD + "".join(parts)


def main() -> None:
    """Write the file."""
    PATH.write_text(text())


def _enum(what: str, values: Iterator[tuple[str, int]]) -> str:
    lines = "".join(f"    {name} = {value}\n" for name, value in values)
    return f"\ncdef enum:  # {what}\n{lines}"


def _places(layout: struct.Struct, names: list[str], whole: str) -> Iterator[tuple[str, int]]:
    """Yield the name and offset of each field of a structure, then ``whole`` and the size."""
    formats = _formats(layout)
    assert len(formats) == len(names), f"{len(formats)} fields, {len(names)} names"
    at = 0
    for name, each in zip(names, formats, strict=True):
        yield name, at
        at += struct.calcsize(">" + each)
    yield whole, at


def _formats(layout: struct.Struct) -> list[str]:
    """The format of each field: a letter; the letter of bytes has a count before it."""
    fields, count = list[str](), ""
    for letter in layout.format.removeprefix(">"):
        if letter.isdigit():
            count += letter
        else:
            fields.append(count + letter)
            count = ""
    return fields


def _places_in_record() -> Iterator[tuple[str, int]]:
    yield from _places(records.HEAD, _RECORD_FIELDS, "HEAD_BYTES")
    yield "FIXED_BYTES", records.FIXED
    yield "HOST_BYTES", records.IPV4_HOST_BYTES
    yield "MAGIC_V1", records.MAGIC_V1 % (1 << 32)
    yield "CRC_MASK", records.CRC_MASK
    yield "IPV6_FLAGS", records.BORN_HOST_IPV6 | records.STORE_HOST_IPV6
    yield "CLIENT_FLAGS", CLIENT_FLAGS


def _places_in_batch() -> Iterator[tuple[str, int]]:
    yield from _places(BATCHED_HEAD, _BATCHED_FIELDS, "BATCHED_HEAD_BYTES")
    yield "BATCHED_FIXED_BYTES", BATCHED_BYTES_MIN


def _of_frames() -> Iterator[tuple[str, int]]:
    yield "PREFIX_BYTES", PREFIX_BYTES
    yield "FRAME_BYTES_MAX", FRAME_BYTES_MAX
    yield "HEADER_BYTES_MAX", HEADER_BYTES_MAX
    yield "SEND_MESSAGE_V2", RequestCode.SEND_MESSAGE_V2
    yield "SEND_BATCH_MESSAGE", RequestCode.SEND_BATCH_MESSAGE
    yield "RESPONSE_FLAG", RESPONSE_FLAG
    yield "ONEWAY_FLAG", ONEWAY_FLAG
    yield "INT32_MIN", -_INT32
    yield "INT32_MAX", _INT32 - 1


def _letters() -> Iterator[tuple[str, int]]:
    """Numbers from 0 for a, and the fields that a request must have as bits."""
    fields = msgspec.structs.fields(SendExt)
    numbers = {field.name: ord(field.encode_name) - ord("a") for field in fields if len(field.encode_name) == 1}
    yield "LETTERS", len(numbers)
    yield "PROPERTIES_LETTER", numbers["properties"]
    yield "BROKER_NAME_LETTER", numbers["broker_name"]
    yield "REQUIRED_LETTERS", sum(1 << numbers[field.name] for field in fields if field.required)


def _limits() -> Iterator[tuple[str, int]]:
    yield "PROPERTIES_BYTES_MAX", props.PROPERTIES_BYTES_MAX
    yield "SENT_PROPERTIES_BYTES_MAX", props.SENT_PROPERTIES_BYTES_MAX
    yield "VALUE_END", ord(props.VALUE_END)
    yield "TOPIC_FIELD_BYTES_MAX", 0xFF  # a byte has the length
    yield "BLOCK_BYTES_MAX", BLOCK_BYTES_MAX
    yield "BLOCK_MESSAGES_MAX", BLOCK_MESSAGES_MAX
    yield "EPOLLIN", EPOLLIN
    yield "RECEIVE_BYTES", RECEIVE_BYTES
    yield "SENDERS_MAX", SENDERS_MAX
    yield "KEY_BYTES", BLOCK_BYTES
    yield "LENGTHS_MARK_BYTES", len(LENGTHS_MARK)
    yield "PRODUCER_ID_LENGTH_MAX", PRODUCER_ID_LENGTH_MAX
    yield "SEQUENCE_MAX", SEQUENCE_MAX
    yield "SEQUENCED_ROW_BYTES", SEQUENCED_ROW.size
    yield "SEQUENCED_HAS_LAST", HAS_LAST


if __name__ == "__main__":
    main()
