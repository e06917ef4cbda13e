"""What the load generator says to servers of other kinds, and what it makes of their answers."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

import pytest

from benchmarks.wires.amqp import AmqpWire
from benchmarks.wires.etcd import EtcdWire
from benchmarks.wires.nats import NatsWire
from benchmarks.wires.rocketmq import RocketMQWire
from benchmarks.wires.wire import LoadFailed, Slots, Wire

SLOTS = Slots(first=5, count=3, body_bytes=10)
INBOX = b"_INBOX.bench-%d-5" % os.getpid()


def rocketmq_reply(opaque: int, code: int = 0) -> bytes:
    header = b'{"code":%d,"flag":1,"opaque":%d,"remark":"full"}' % (code, opaque)
    return struct.pack(">II", 4 + len(header), len(header)) + header


def test_rocketmq_wire_resends_the_same_frame() -> None:
    wire = RocketMQWire(SLOTS)
    keys, data = wire.initial()
    assert list(keys) == [b"5", b"6", b"7"]
    torn = rocketmq_reply(5)[:-1]
    answered, end = wire.read_responses(rocketmq_reply(7) + torn)
    assert (answered, end) == ([b"7"], len(rocketmq_reply(7)))
    following, again = wire.repeat(answered)
    assert list(following) == [b"7"]
    assert again in data
    with pytest.raises(LoadFailed, match="full"):
        wire.read_responses(rocketmq_reply(6, code=2))


def nats_ack(slot: int, sequence: int = 1) -> bytes:
    body = b'{"stream":"LOG", "seq":%d}' % sequence
    no_reply_subject = b"" if slot % 2 else b" "  # servers of a cluster write two spaces
    return b"MSG %b.%d 1 %b%d\r\n%b\r\n" % (INBOX, slot, no_reply_subject, len(body), body)


def test_nats_settles_acknowledgements_and_answers_pings() -> None:
    wire = NatsWire(SLOTS)
    keys, data = wire.initial()
    assert list(keys) == [b"5", b"6", b"7"]
    assert data.startswith(b"PUB bench.log %b.5 10\r\n" % INBOX)
    whole = nats_ack(6) + b"PING\r\n" + nats_ack(5, 123)
    answered, end = wire.read_responses(whole + nats_ack(7)[:-1])
    assert (answered, end) == ([b"6", b"5"], len(whole))
    following, again = wire.repeat(answered)
    assert list(following) == [b"6", b"5"]
    assert again.startswith(b"PONG\r\nPUB bench.log %b.6 10\r\n" % INBOX)
    assert wire.repeat([])[1] == b""


@pytest.mark.parametrize(
    "said",
    [
        b"-ERR 'Maximum Payload Violation'\r\n",
        b'MSG _INBOX.bench5.5 1 27\r\n{"error":{"code":503}, "x":1}\r\n',
        b"HMSG _INBOX.bench5.5 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
    ],
)
def test_nats_refusals_end_the_load(said: bytes) -> None:
    with pytest.raises(LoadFailed, match="nats-server says"):
        NatsWire(SLOTS).read_responses(nats_ack(5) + said)


def confirm(tag: int, *, with_earlier: bool = False, method: int = 80) -> bytes:
    return struct.pack(">BHIHHQBB", 1, 1, 13, 60, method, tag, with_earlier, 0xCE)


def test_amqp_numbers_its_messages_and_knows_confirms_of_several() -> None:
    wire = AmqpWire(SLOTS)
    keys, data = wire.initial()
    assert list(keys) == [1, 2, 3]
    assert data.count(b"bench") == 3
    answered, end = wire.read_responses(confirm(2) + confirm(3)[:-1])
    assert (answered, end) == ([2], len(confirm(2)))
    following, again = wire.repeat(answered)
    assert list(following) == [4]
    assert len(again) == len(data) // 3
    assert wire.read_responses(confirm(4, with_earlier=True))[0] == [1, 3, 4]
    with pytest.raises(LoadFailed):
        wire.read_responses(confirm(5, method=120))  # basic.nack


@pytest.mark.parametrize("wire_type", [RocketMQWire, NatsWire, AmqpWire, EtcdWire])
def test_paced_load_uses_only_idle_keys(wire_type: type[Wire]) -> None:
    """RabbitMQ counts its tags from 1 with the first message that is sent, not from the first key that was idle."""
    wire = wire_type(SLOTS)
    assert len(wire.idle()) == SLOTS.count
    following, data = wire.repeat(wire.idle()[:1])
    (key,) = following
    assert data
    if wire_type is AmqpWire:
        assert key == 1
        assert wire.read_responses(confirm(1))[0] == [1]


def http2_frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def frames_of(data: bytes) -> Iterable[tuple[int, int, int, bytes]]:
    while data:
        size = int.from_bytes(data[:3], "big")
        yield data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]
        data = data[9 + size :]


def answer(stream: int) -> bytes:
    headers, message, trailers = (1, 4, b"\x88"), (0, 0, b"\x00" * 9), (1, 5, b"\x88")
    return b"".join(http2_frame(kind, flags, stream, body) for kind, flags, body in (headers, message, trailers))


def test_etcd_puts_on_streams_that_count_up() -> None:
    wire = EtcdWire(SLOTS)
    keys, data = wire.initial()
    assert list(keys) == [1, 3, 5]
    sent = list(frames_of(data))
    assert [(kind, stream) for kind, _, stream, _ in sent] == [(1, 1), (0, 1), (1, 3), (0, 3), (1, 5), (0, 5)]
    message = sent[1][3]
    assert int.from_bytes(message[1:5], "big") == len(message) - 5
    assert message[5:].startswith(b"\x0a\x07bench/5\x12\x0a")
    torn = answer(5)[:-1]
    answered, end = wire.read_responses(answer(3) + torn)
    assert answered == [3]
    assert end == len(answer(3)) + torn.rindex(b"\x00\x00\x01\x01\x05")  # the trailers are not whole
    following, again = wire.repeat(answered)
    assert list(following) == [7]
    assert [stream for _, _, stream, _ in frames_of(again)] == [7, 7]


def test_etcd_waits_until_the_server_has_room() -> None:
    wire = EtcdWire(Slots(first=0, count=4, body_bytes=1024, batch=32))
    keys, data = wire.initial()
    assert list(keys) == [1, 3, 5, 7]
    sent = list(frames_of(data))
    assert {stream for _, _, stream, _ in sent} == {1}, "two transactions of 33 kB are more than a window"
    assert max(len(payload) for *_, payload in sent) <= 16384
    windows = http2_frame(8, 0, 0, struct.pack(">I", 100_000)) + http2_frame(8, 0, 1, b"\x00\x00\x00\x01")
    assert wire.read_responses(windows)[0] == []
    following, again = wire.repeat([])
    assert not list(following)
    assert {stream for _, _, stream, _ in frames_of(again)} == {3, 5, 7}


def test_etcd_answers_settings_and_pings() -> None:
    wire = EtcdWire(SLOTS)
    wire.read_responses(http2_frame(4, 0, 0, b"\x00" * 6) + http2_frame(6, 0, 0, b"12345678") + http2_frame(4, 1, 0))
    _, said = wire.repeat([])
    assert list(frames_of(said)) == [(4, 1, 0, b""), (6, 1, 0, b"12345678")]


@pytest.mark.parametrize("refusal", [http2_frame(1, 5, 1, b"\x88"), http2_frame(3, 0, 1, b"\x00" * 4)])
def test_etcd_refusals_end_the_load(refusal: bytes) -> None:
    wire = EtcdWire(SLOTS)
    wire.initial()
    with pytest.raises(LoadFailed):
        wire.read_responses(refusal)
