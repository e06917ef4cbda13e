"""The messages of a fake broker group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mq.protocol.messages.batch import decode_batch
from mq.protocol.messages.records import encode_host, encode_record
from mq.protocol.numbers import PhysicalOffset, QueueOffset

SEND_BATCH = 320


@dataclass(slots=True)
class StoredMessage:
    """One message of the fake store."""

    body: bytes
    properties: str
    sys_flag: int
    flag: int
    born_timestamp_ms: int
    reconsume_times: int = 0
    physical_offset: int = 0

    def value_of(self, name: str) -> str | None:
        """The value of a property."""
        for piece in self.properties.split("\x02"):
            key, _, value = piece.partition("\x01")
            if key == name:
                return value
        return None

    @property
    def tags(self) -> str | None:
        return self.value_of("TAGS")

    def record(self, topic: str, queue_id: int, offset: int) -> bytes:
        """As consumers get it."""
        return encode_record(
            topic=topic,
            queue_id=queue_id,
            queue_offset=QueueOffset(offset),
            physical_offset=PhysicalOffset(self.physical_offset),
            reconsume_times=self.reconsume_times,
            born_host=encode_host("127.0.0.1", 50_000),
            store_host=encode_host("127.0.0.1", 10_911),
            body=self.body,
            properties=self.properties,
            sys_flag=self.sys_flag,
            flag=self.flag,
            born_timestamp_ms=self.born_timestamp_ms,
            store_timestamp_ms=self.born_timestamp_ms + 1,
        )


def sent_messages(code: int, ext: Mapping[str, str], body: bytes) -> list[StoredMessage]:
    """Those of a single send, or of a batch; the properties of the batch are on each of its messages."""
    assert int(ext["h"]) >= 0
    assert ext["m"] == ("true" if code == SEND_BATCH else "false")
    sys_flag, born, times = int(ext["f"]), int(ext["g"]), int(ext["j"])
    if code != SEND_BATCH:
        return [StoredMessage(body, ext["i"], sys_flag, int(ext["h"]), born, reconsume_times=times)]
    return [
        StoredMessage(each.body, each.properties + ext["i"], sys_flag, each.flag, born, reconsume_times=times)
        for each in decode_batch(body)
    ]
