"""Requests that register brokers at name servers. The body of request code 103 has the topics, as JSON or compressed.

The compressed form is a zlib stream of length-prefixed parts: the data version, the number of topics, a line per topic,
the filter servers. 5.x brokers append a part that is not needed here.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Final, Self

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.errors import BodyError
from mq.protocol.requests.topics import DataVersion, TopicConfig, TopicConfigTable
from mq.protocol.wire.fields import I32, I64, wire
from mq.protocol.wire.json_body import Body, decode_as
from mq.protocol.wire.loose_header import java_integer
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request


class BrokerExt(Ext, rename=wire(address="brokerAddr", cluster="clusterName")):
    """The header of a request about one broker: its group, its id in the group (0: leader), its ``host:port``."""

    broker_name: str
    address: str
    cluster: str
    broker_id: I64


class RegisterBrokerExt(
    BrokerExt,
    rename=wire(ha_server_address="haServerAddr", heartbeat_timeout_ms="heartbeatTimeoutMillis", whole="raftmqWhole"),
):
    """The header of request code 103. ``body_crc32`` is masked with 0x7FFFFFFF; 0 means that it was not computed.

    ``whole`` is our own: the body contains all topics of the group, so missing ones were deleted.
    """

    ha_server_address: str
    compressed: bool = False
    body_crc32: I32 = 0
    heartbeat_timeout_ms: I64 | None = None
    enable_acting_master: bool | None = None
    whole: bool = False


class RegisterBroker(Request, tag=int(Code.REGISTER_BROKER)):
    """Request code 103: register a broker with the topics in the body."""

    ext: RegisterBrokerExt = msgspec.field(name="extFields")


class RegistrationReply(Reply, rename=wire(ha_server_address="haServerAddr", leader_address="masterAddr")):
    """The response to request code 103: the leader of the broker's group."""

    ha_server_address: str
    leader_address: str


class UnregisterBroker(Request, tag=int(Code.UNREGISTER_BROKER)):
    """Request code 104: unregister a broker."""

    ext: BrokerExt = msgspec.field(name="extFields")


class QueryDataVersion(Request, tag=int(Code.QUERY_DATA_VERSION)):
    """Request code 322: return whether the name server has the version of the broker's topics that is in the body."""

    ext: BrokerExt = msgspec.field(name="extFields")


class HeartbeatExt(BrokerExt, rename=wire(address="brokerAddr", cluster="clusterName")):
    """The header of request code 904: a broker, and after how long without a heartbeat it counts as dead."""

    broker_id: I64 = -1
    heartbeat_timeout_millis: I64 | None = None
    epoch: I32 | None = None


class BrokerHeartbeat(Request, tag=int(Code.BROKER_HEARTBEAT)):
    """Request code 904: report that a broker is alive and that its topics are unchanged."""

    ext: HeartbeatExt = msgspec.field(name="extFields")


INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024
TOPICS_MAX: Final = 100_000
"""Topics in one registration."""
_PART_BYTES_MAX: Final = 64 * 1024
"""The data version, or the addresses of all filter servers, in the compressed form."""
_I32: Final = struct.Struct(">i")
_NO_TOPICS: Final = b'"topicConfigTable":{}'
_TOPICS_PER_STEP: Final = 100
_ENCODE: Final = msgspec.json.Encoder(order="sorted").encode


class _UncompressedBody(Body, rename=wire(filter_servers="filterServerList", table="topicConfigSerializeWrapper")):
    filter_servers: Sequence[str] = ()
    table: TopicConfigTable = msgspec.field(default_factory=TopicConfigTable)


def _with_size(data: bytes) -> bytes:
    return _I32.pack(len(data)) + data


def _topic_line(topic: TopicConfig) -> str:
    fields = [
        topic.topic_name,
        str(topic.read_queue_nums),
        str(topic.write_queue_nums),
        str(topic.perm),
        topic.topic_filter_type,
    ]
    if topic.attributes:
        fields.append(msgspec.json.encode(topic.attributes).decode())
    return " ".join(fields)


def _read_topic_line(line: bytes) -> TopicConfig:
    text = line.decode("utf-8", "replace")
    fields = text.split(" ", 5)
    if len(fields) < 5:
        raise BodyError(f"a topic's line has {len(fields)} fields, at least 5 are needed: {text[:80]!r}")
    name, reads, writes, perm, filter_type = fields[:5]
    try:
        numbers = [java_integer(each, 32) for each in (reads, writes, perm)]
    except ValueError as error:
        raise BodyError(f"a topic's line has a bad number: {text[:80]!r}") from error
    topic = TopicConfig(name, numbers[0], numbers[1], numbers[2], filter_type)
    if len(fields) == 6 and fields[5].strip():
        topic.attributes = decode_as(dict[str, str], fields[5].encode())
    return topic


def _inflate(data: bytes | memoryview) -> bytes:
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(data, INFLATED_BYTES_MAX + 1)
    except zlib.error as error:
        raise BodyError(f"registration of {len(data)} bytes cannot be inflated: {error}") from error
    if len(content) > INFLATED_BYTES_MAX:
        raise BodyError(f"registration of {len(data)} bytes inflates to more than {INFLATED_BYTES_MAX}")
    return content


class _RegistrationReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _read_int(self) -> int:
        if self._at + _I32.size > len(self._data):
            raise BodyError(f"registration ends at byte {len(self._data)}, within a number")
        (number,) = _I32.unpack_from(self._data, self._at)
        self._at += _I32.size
        return int(number)

    def read_sized(self, bytes_max: int = INFLATED_BYTES_MAX) -> bytes:
        size = self._read_int()
        start = self._at
        if not 0 <= size <= min(bytes_max, len(self._data) - start):
            raise BodyError(f"registration has a part of {size} bytes at byte {start} of {len(self._data)}")
        self._at += size
        return self._data[start : self._at]

    def lines(self) -> Iterator[bytes]:
        count = self._read_int()
        if not 0 <= count <= TOPICS_MAX:
            raise BodyError(f"registration has {count} topics; maximum: {TOPICS_MAX}")
        for _ in range(count):
            yield self.read_sized()


class RegisterBrokerBody(msgspec.Struct):
    """All topics of a broker by name, the version of that table, and ``host:port`` of its filter servers."""

    topics: dict[str, TopicConfig] = msgspec.field(default_factory=dict)
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    filter_servers: Sequence[str] = ()

    def encode(self) -> bytes:
        """Encode the uncompressed form, JSON, in small parts: encoding a part blocks all other threads."""
        whole = _UncompressedBody(self.filter_servers, TopicConfigTable({}, self.data_version)).encode()
        head, mark, tail = whole.rpartition(_NO_TOPICS)
        names = sorted(self.topics)
        stretches = (names[at : at + _TOPICS_PER_STEP] for at in range(0, len(names), _TOPICS_PER_STEP))
        parts = [_ENCODE({name: self.topics[name] for name in stretch})[1:-1] for stretch in stretches]
        return b"".join((head, mark[:-1], b",".join(parts), mark[-1:], tail))

    def encode_compressed(self) -> bytes:
        """Encode the compressed form, which cannot contain a topic's ``order``."""
        lines = [_topic_line(topic).encode() for topic in self.topics.values()]
        parts = [_with_size(self.data_version.encode()), _I32.pack(len(lines))]
        parts += map(_with_size, lines)
        parts.append(_with_size(msgspec.json.encode(self.filter_servers)))
        return zlib.compress(b"".join(parts), level=9)

    @classmethod
    def decode(cls, data: bytes | memoryview, *, compressed: bool = False) -> Self:
        """Decode the compressed or the uncompressed form. Raises BodyError."""
        if not compressed:
            # Objects of a few bytes each grow many times in memory; each topic is one, and may have one of attributes.
            if len(data) > _PART_BYTES_MAX and bytes(data).count(b"{") > 3 * TOPICS_MAX:
                raise BodyError(f"registration of {len(data)} bytes has more than {TOPICS_MAX} topics")
            body = _UncompressedBody.decode(data)
            return cls(body.table.topics, body.table.data_version, body.filter_servers)
        reader = _RegistrationReader(_inflate(data))
        version = DataVersion.decode(reader.read_sized(_PART_BYTES_MAX))
        topics = {}
        for line in reader.lines():
            topic = _read_topic_line(line)
            topics[topic.topic_name] = topic
        return cls(topics, version, decode_as(list[str], reader.read_sized(_PART_BYTES_MAX)))
