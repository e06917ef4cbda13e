"""Bytes as stock RocketMQ writes them, against ours: what these tests hold, other implementations rely on."""

from __future__ import annotations

import zlib

import pytest

from mq.protocol.codes import ResponseCode
from mq.protocol.frames import BINARY, JSON, encode_frame, split_frames
from mq.protocol.hashes import java_string_hash, tag_code
from mq.protocol.incoming.server_decoding import decode_header
from mq.protocol.message_ids import offset_message_id
from mq.protocol.messages.batch import BatchedMessage, decode_batch, encode_batch
from mq.protocol.messages.records import HEAD, MAGIC_V1, Host, decode_record, encode_host, encode_record, scan_fixed
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.properties import decode
from mq.protocol.requests.namesrv import GetRouteinfoByTopic
from mq.protocol.wire.encoding import encode_header, encode_request

ROUTE_REQUEST_JSON = bytes.fromhex(
    "000000800000007c7b22636f6465223a3130352c226578744669656c6473223a7b22746f706963223a225431227d2c22666c6167223a302c"
    "226c616e6775616765223a224a415641222c226f7061717565223a352c2273657269616c697a655479706543757272656e74525043223a22"
    "4a534f4e222c2276657273696f6e223a3430397d"
)
ROUTE_REQUEST_BINARY = bytes.fromhex(
    "000000260100002200690001990000000500000000000000000000000d0005746f706963000000025431"
)
RECORD = bytes.fromhex(
    "00000074daa320a73610a6860000000300000000000000000000000700000000000010000000000000000174876e80000a000009"
    "0000c35100000174876e807b0a00000100002a9f0000000000000000000000000000000568656c6c6f0254310012544147530154"
    "616741024b455953016b3102"
)
BATCH_ELEMENT = bytes.fromhex("0000001e0000000000000000000000000000000178000754414753014102")


@pytest.mark.parametrize(
    ("serialization", "frame"), [(JSON, ROUTE_REQUEST_JSON), (BINARY, ROUTE_REQUEST_BINARY)], ids=["json", "binary"]
)
def test_request_frame_equals_its_golden_bytes(serialization: int, frame: bytes) -> None:
    assert encode_request(105, 5, ext={"topic": "T1"}, language="JAVA", serialization=serialization) == frame

    ((found, header, body),), consumed = split_frames(memoryview(frame))
    request = decode_header(found, header)

    assert (found, bytes(body), consumed) == (serialization, b"", len(frame))
    assert isinstance(request, GetRouteinfoByTopic)
    assert (request.code, request.opaque, request.flag, request.version) == (105, 5, 0, 409)
    assert (request.language, request.ext.topic) == ("JAVA", "T1")


def test_response_frame_equals_its_golden_bytes() -> None:
    header = encode_header(ResponseCode.TOPIC_NOT_EXIST, 5, 1, remark="no route", language="JAVA")

    assert header == (
        b'{"code":17,"flag":1,"language":"JAVA","opaque":5,"remark":"no route",'
        b'"serializeTypeCurrentRPC":"JSON","version":409}'
    )
    assert encode_frame(JSON, header)[:8].hex() == "0000007800000074"


def test_stored_record_equals_its_golden_bytes() -> None:
    born_host, store_host = encode_host("10.0.0.9", 50001), encode_host("10.0.0.1", 10911)
    encoded = encode_record(
        topic="T1",
        queue_id=3,
        body=b"hello",
        properties="TAGS\x01TagA\x02KEYS\x01k1\x02",
        queue_offset=QueueOffset(7),
        physical_offset=PhysicalOffset(4096),
        born_timestamp_ms=1600000000000,
        born_host=born_host,
        store_timestamp_ms=1600000000123,
        store_host=store_host,
    )
    assert encoded == RECORD

    head = HEAD.pack(
        116, MAGIC_V1, 907060870, 3, 0, 7, 4096, 0, 1600000000000, born_host, 1600000000123, store_host, 0, 0, 5
    )
    assert head == RECORD[:88]

    record = decode_record(memoryview(RECORD))
    assert (record.topic, record.body, record.properties) == ("T1", b"hello", {"TAGS": "TagA", "KEYS": "k1"})
    assert (record.queue_id, record.queue_offset, record.physical_offset) == (3, 7, 4096)
    assert (record.born_timestamp_ms, record.born_host) == (1600000000000, Host("10.0.0.9", 50001))
    assert (record.store_timestamp_ms, record.store_host) == (1600000000123, Host("10.0.0.1", 10911))
    assert record.offset_message_id == "0A00000100002A9F0000000000001000"


def test_record_of_the_release_that_leaves_out_the_last_separator() -> None:
    shorter = bytearray(RECORD[:-1])
    shorter[3] -= 1  # size
    shorter[HEAD.size + 5 + 1 + 2 + 1] -= 1  # properties length
    record = decode_record(memoryview(shorter))
    assert record.properties == {"TAGS": "TagA", "KEYS": "k1"}


def test_consume_queue_fields_of_a_record() -> None:
    ((at, size, queue_id, queue_offset, physical_offset, sys_flag, topic, code),) = scan_fixed(RECORD)
    assert (at, size, queue_id, queue_offset, physical_offset, sys_flag, topic) == (0, 116, 3, 7, 4096, 0, b"T1")
    assert physical_offset.to_bytes(8, "big") + size.to_bytes(4, "big") + code.to_bytes(8, "big") == bytes.fromhex(
        "000000000000100000000074000000000027a807"
    )


def test_body_checksum_equals_the_java_value() -> None:
    assert zlib.crc32(b"hello") & 0x7FFFFFFF == 0x3610A686


def test_offset_message_id() -> None:
    assert offset_message_id(bytes((10, 0, 0, 1)), 10911, PhysicalOffset(4096)) == "0A00000100002A9F0000000000001000"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("*", 42),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("A||B", 2059489),
        ("T1#k1", 79072524),
        ("中文", 646394),
        ("😀", 1772899),
        ("polygenelubricants", -2147483648),
        ("order-created", -392709271),
    ],
)
def test_string_hash_equals_the_java_value(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected
    assert tag_code(text) == expected


def test_batch_element_equals_its_golden_bytes() -> None:
    message = BatchedMessage(b"x", "TAGS\x01A\x02")
    assert encode_batch([message]) == BATCH_ELEMENT
    assert decode_batch(BATCH_ELEMENT * 2) == [message, message]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\x01b\x02c\x01\x02k\x01v", {"a": "b", "k": "v"}),
        ("a\x01b\x01c\x02", {"a": "b\x01c"}),
    ],
)
def test_properties_decode_as_in_java(text: str, expected: dict[str, str]) -> None:
    assert decode(text) == expected
