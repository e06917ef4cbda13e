"""Decodes one stored record to a row. Needs only the standard library.

The plain form of `spark.columns`, which decodes a whole batch: batches that its fast path does not support are decoded
here record by record, and the tests compare both. The layout of a record is in `mq.protocol.record_layout`.
"""

from __future__ import annotations

import ipaddress
import struct
from functools import lru_cache
from typing import Final, NamedTuple

from mq.protocol import properties as props
from mq.protocol.record_layout import FIXED, MAGIC_V1, MAGIC_V2, SYS_FLAG_AT, head_of
from spark.errors import AnswerDamaged

_INT: Final = struct.Struct(">i")


class Row(NamedTuple):
    """A decoded record. Times are epoch milliseconds; ``body`` is as stored, compressed or not."""

    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_ms: int
    born_host: str
    store_ms: int
    store_host: str
    store_host_bytes: bytes
    reconsume_times: int
    body: bytes
    properties: dict[str, str]

    @property
    def message_id(self) -> str:
        """Return the UNIQ_KEY that the producer set, or without one the id of the stored record."""
        return self.properties.get(props.UNIQUE_KEY) or record_id(self.store_host_bytes, self.physical_offset)


def decode_row(data: bytes | bytearray | memoryview, start: int, size: int, *, without_body: bool = False) -> Row:
    """Decode the record of ``size`` bytes at ``start``. Invalid UTF-8 is replaced.

    ``without_body``: the body was cut out, while the head still has its length.

    Raises:
        AnswerDamaged: the bytes are not one record of exactly this size.
    """
    end = start + size
    if size < FIXED or end > len(data):
        raise AnswerDamaged(f"record of {size} bytes at byte {start} of an answer with {len(data)}")
    head = head_of(_INT.unpack_from(data, start + SYS_FLAG_AT)[0])
    body_start = start + head.size
    if body_start + 3 > end:
        raise AnswerDamaged(f"record of {size} bytes at byte {start} is shorter than its head")
    fields = head.unpack_from(data, start)
    own_size, magic, _, queue_id, flag, queue_offset, physical_offset, sys_flag = fields[:8]
    born_ms, born_host, store_ms, store_host, reconsume_times, _, body_bytes = fields[8:]
    if without_body:
        own_size, body_bytes = own_size - body_bytes, min(body_bytes, 0)
    topic_at = body_start + body_bytes
    if own_size != size or magic not in (MAGIC_V1, MAGIC_V2) or body_bytes < 0 or topic_at + 3 > end:
        raise AnswerDamaged(f"no record of {size} bytes at byte {start}")
    if magic == MAGIC_V1:
        text_at = topic_at + 1 + data[topic_at] + 2
    else:
        text_at = topic_at + 2 + (data[topic_at] << 8 | data[topic_at + 1]) + 2
    if text_at > end or text_at + (data[text_at - 2] << 8 | data[text_at - 1]) != end:
        raise AnswerDamaged(f"the parts of the record at byte {start} do not add up to its {size} bytes")
    return Row(
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=sys_flag,
        born_ms=born_ms,
        born_host=host_text(born_host),
        store_ms=store_ms,
        store_host=host_text(store_host),
        store_host_bytes=store_host,
        reconsume_times=reconsume_times,
        body=bytes(data[body_start:topic_at]),
        properties=props.decode(str(data[text_at:end], "utf-8", "replace")),
    )


@lru_cache(maxsize=4096)
def host_text(host: bytes) -> str:
    """Format a stored host as ``IP:PORT``, with brackets around an IPv6 address."""
    ip = str(ipaddress.ip_address(host[:-4]))
    port = _INT.unpack(host[-4:])[0]
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def record_id(store_host: bytes, physical_offset: int) -> str:
    """Return the id by which a broker finds a stored record: address, port and physical offset in upper-case hex."""
    return f"{store_host.hex().upper()}{physical_offset & 0xFFFFFFFFFFFFFFFF:016X}"
