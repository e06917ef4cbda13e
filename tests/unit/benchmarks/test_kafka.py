"""What the load generator says to Kafka and makes of its answers."""

from __future__ import annotations

import struct
import time

import pytest

from benchmarks.load.frames import TOPIC
from benchmarks.wires import kafka
from benchmarks.wires.consumer import DUE, DueSlots, Share, stamp
from benchmarks.wires.kafka import KafkaWire, encoded_text, record_batch, responses
from benchmarks.wires.kafka_consumer import COMMIT_SECONDS, KafkaConsumer
from benchmarks.wires.wire import LoadFailed, Slots

_TABLE = [0] * 256
for _byte in range(256):
    _crc = _byte
    for _ in range(8):
        _crc = _crc >> 1 ^ 0x82F63B78 * (_crc & 1)
    _TABLE[_byte] = _crc


def crc_of(data: bytes) -> int:
    """CRC-32C, byte by byte."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


@pytest.fixture(autouse=True)
def own_crc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "castagnoli", lambda: crc_of)


def answer(number: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), number) + body


def produced(number: int, errors: dict[int, int]) -> bytes:
    rows = b"".join(struct.pack(">ihqqq", partition, error, 7, -1, 0) for partition, error in errors.items())
    topic = encoded_text(TOPIC) + struct.pack(">i", len(errors))
    return answer(number, struct.pack(">i", 1) + topic + rows + struct.pack(">i", 0))


def test_checksum_of_these_tests_is_castagnolis() -> None:
    assert crc_of(b"123456789") == 0xE3069283


def test_batch_has_its_checksum_and_one_record_for_each_body() -> None:
    batch = record_batch([b"a" * 100, b"b" * 100], crc_of)
    base, size, _, magic, crc, _, last = struct.unpack_from(">qiibIhi", batch)
    assert (base, size, magic, last) == (0, len(batch) - 12, 2, 1)
    assert crc == crc_of(batch[21:])
    assert struct.unpack_from(">i", batch, 57) == (2,)
    assert batch[61:].count(b"a" * 100) == batch[61:].count(b"b" * 100) == 1


def test_kafka_batch_has_the_present_time() -> None:
    before_ms = time.time_ns() // 1_000_000
    first_ms, last_ms = struct.unpack_from(">qq", record_batch([b"a", b"b"], crc_of), 27)
    assert before_ms <= first_ms <= last_ms <= time.time_ns() // 1_000_000


def test_messages_wait_for_an_answer_and_share_the_next_request() -> None:
    wire = KafkaWire(Slots(first=0, count=4, body_bytes=10))
    keys, data = wire.initial()
    assert list(keys) == [0, 1, 2, 3]
    assert [number for number, *_ in responses(data)] != []
    assert data.count(b"bench" + struct.pack(">hhii", -1, -1, 30_000, 1)) == 2
    torn = produced(1, {2: 0, 3: 0})
    answered, end = wire.read_responses(produced(0, {0: 0, 1: 0}) + torn[:-1])
    assert (answered, end) == ([0, 1], len(produced(0, {0: 0, 1: 0})))
    following, again = wire.repeat(answered)
    assert list(following) == [0, 1]
    assert again
    assert wire.repeat(())[1] == b"", "two requests are in flight"
    with pytest.raises(LoadFailed, match="partition 3: error 19"):
        wire.read_responses(produced(1, {2: 0, 3: 19}))


def test_message_is_stamped_before_its_checksum_is_made() -> None:
    wire = KafkaWire(DueSlots(first=0, count=2, body_bytes=64))
    data = wire.repeat_due(1, lambda body: stamp(body, 12.5))
    assert DUE.findall(data) == [b"0000000012500000000"]
    at = data.index(b"\0\0\0\0\0\0\0\0", data.index(TOPIC.encode()))
    assert struct.unpack_from(">I", data, at + 17) == (crc_of(data[at + 21 :]),)


def fetched(records: bytes, error: int = 0) -> bytes:
    row = struct.pack(">ihqqqiii", 3, error, 9, 9, 0, -1, -1, len(records)) + records
    return answer(1, struct.pack(">ihii", 0, 0, 0, 1) + encoded_text(TOPIC) + struct.pack(">i", 1) + row)


def at_offset(batch: bytes, base: int) -> bytes:
    return struct.pack(">q", base) + batch[8:]


def test_consumer_continues_after_the_last_complete_batch() -> None:
    bodies = [b"@DUE%019d" % number + b"." * 40 for number in range(3)]
    complete, more = at_offset(record_batch(bodies[:2], crc_of), 40), at_offset(record_batch(bodies[2:], crc_of), 42)
    consumer = KafkaConsumer(Share("group", number=3, consumers=8))
    data = fetched(complete + more[:-5]) + b"\0\0"
    end, said = consumer.take(data)
    assert end == len(data) - 2
    assert consumer.due(data, end) == [b"%019d" % 0, b"%019d" % 1], "the third is cut off, and comes again"
    assert struct.pack(">iiq", 3, -1, 42) in said
    with pytest.raises(LoadFailed, match="partition 3: error 1"):
        consumer.take(fetched(b"", error=1))


def test_consumer_stores_its_positions_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("benchmarks.wires.kafka_consumer.monotonic_seconds", lambda: now[0])
    consumer = KafkaConsumer(Share("group", number=3, consumers=8))
    batch = at_offset(record_batch([b"@DUE%019d" % 0], crc_of), 5)
    assert b"group" not in consumer.take(fetched(batch))[1]
    now[0] = COMMIT_SECONDS
    said = consumer.take(fetched(batch))[1]
    assert struct.pack(">iqh", 3, 6, -1) in said
    assert b"group" in said
    end, nothing = consumer.take(answer(2, b""))
    assert (end, nothing) == (8, b""), "an answer to a commit asks for nothing"
