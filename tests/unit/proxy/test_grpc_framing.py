"""Messages of gRPC in bytes, headers of calls, statuses."""

from __future__ import annotations

import gzip
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.proxy.grpc.framing import COMPRESS_FROM_BYTES, MessageReader, frame_message
from mq.proxy.grpc.request_headers import NoGrpc, parse_head, parse_timeout
from mq.proxy.grpc.status import REASON_BYTES_MAX, CallRefused, Status, percent_encoded
from mq.proxy.mapping.authorization import AllowedTimes, user_of

LIMIT = 1_000
HEAD = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a.B/C"),
    (b":authority", b"h:1"),
    (b"content-type", b"application/grpc"),
]


def refusal(reader: MessageReader, data: bytes) -> Status:
    with pytest.raises(CallRefused) as refused:
        reader.feed(data)
    return refused.value.status


@given(messages=st.lists(st.binary(max_size=60), max_size=8), seed=st.integers(0, 1_000))
def test_messages_arrive_whole_wherever_frames_end(messages: list[bytes], seed: int) -> None:
    data = b"".join(frame_message(message, compress=False) for message in messages)
    chance, reader, read = random.Random(seed), MessageReader("identity", LIMIT), []
    while data:
        nbytes = chance.choice((1, 4, 5, 6, 40, len(data)))
        read += reader.feed(data[:nbytes])
        data = data[nbytes:]
    reader.end()
    assert read == messages
    assert reader.unfinished_bytes == reader.announced_bytes == 0


@pytest.mark.parametrize("nbytes", [1, 4, 5, 8])
def test_stream_that_ends_within_a_message_is_refused(nbytes: int) -> None:
    reader = MessageReader("identity", LIMIT)
    assert reader.feed(frame_message(b"four", compress=False)[:nbytes]) == []
    with pytest.raises(CallRefused, match="incomplete"):
        reader.end()


def test_too_large_message_is_refused_by_its_length() -> None:
    reader = MessageReader("identity", LIMIT)
    assert refusal(reader, b"\0" + (LIMIT + 1).to_bytes(4, "big")) is Status.RESOURCE_EXHAUSTED
    assert MessageReader("identity", LIMIT).feed(frame_message(bytes(LIMIT), compress=False)) == [bytes(LIMIT)]


def test_unannounced_message_flags_are_refused() -> None:
    assert refusal(MessageReader("identity", LIMIT), b"\1\0\0\0\0") is Status.INTERNAL
    assert refusal(MessageReader("gzip", LIMIT), b"\2\0\0\0\0") is Status.INTERNAL


def test_compressed_and_uncompressed_messages_mix() -> None:
    packed = frame_message(bytes(COMPRESS_FROM_BYTES), compress=True)
    assert packed[0] == 1
    assert len(packed) < COMPRESS_FROM_BYTES
    reader = MessageReader("gzip", 2_000)
    assert reader.feed(packed + frame_message(b"plain", compress=False)) == [bytes(COMPRESS_FROM_BYTES), b"plain"]


def test_response_that_compression_does_not_shorten_is_sent_uncompressed() -> None:
    noise = random.Random(1).randbytes(COMPRESS_FROM_BYTES)
    assert frame_message(noise, compress=True) == frame_message(noise, compress=False)
    assert frame_message(b"short", compress=True) == frame_message(b"short", compress=False)


def test_decompression_bomb_is_refused_and_not_unpacked() -> None:
    bomb = gzip.compress(bytes(10 * 1024 * 1024))
    reader = MessageReader("gzip", 1024 * 1024)
    assert refusal(reader, b"\1" + len(bomb).to_bytes(4, "big") + bomb) is Status.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("body", [b"", b"no gzip", gzip.compress(b"x")[:-3], gzip.compress(b"x") + b"y"])
def test_damaged_gzip_is_refused(body: bytes) -> None:
    reader = MessageReader("gzip", LIMIT)
    assert refusal(reader, b"\1" + len(body).to_bytes(4, "big") + body) is Status.INTERNAL


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2H", 7200), ("3M", 180), ("99999999S", 99_999_999), ("5m", 0.005), ("7u", 7e-6), ("9n", 9e-9), ("0S", 0)],
)
def test_grpc_timeouts_are_parsed(text: str, seconds: float) -> None:
    assert parse_timeout(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "S", "123456789S", "-1S", "1.5S", "1 S", "1s", "\u0661S"])
def test_malformed_timeouts_are_refused(text: str) -> None:
    with pytest.raises(CallRefused, match="malformed"):
        parse_timeout(text)


def test_binary_metadata_is_kept_separately() -> None:
    more = [(b"x-a", b"1"), (b"x-a", b"2"), (b"x-bin", b"AAE"), (b"y-bin", b"AAE="), (b"grpc-timeout", b"1S")]
    head = parse_head([*HEAD, *more])
    assert (head.path, head.authority, head.timeout, head.encoding) == ("/a.B/C", "h:1", 1, "identity")
    assert head.metadata["x-a"] == "2"
    assert head.binary_metadata == {"x-bin": b"\0\1", "y-bin": b"\0\1"}
    assert "x-bin" not in head.metadata
    with pytest.raises(CallRefused, match="base64"):
        parse_head([*HEAD, (b"x-bin", b"*")])


def test_call_that_is_signed_twice_has_its_last_signature() -> None:
    """The client for Go signs each further attempt to send, and keeps the fields of the attempts before."""
    fields: list[tuple[bytes, bytes]] = []
    for time, digit in ((b"20260102T030405Z", b"a"), (b"20260102T030406Z", b"b")):
        signature = b"Credential=alice//Rocketmq, SignedHeaders=x-mq-date-time, Signature=" + digit * 40
        fields += [
            (b"x-mq-client-id", b"c1"),
            (b"x-mq-date-time", time),
            (b"authorization", b"MQv2-HMAC-SHA1 " + signature),
        ]
    metadata = parse_head([*HEAD, *fields]).metadata
    user = user_of(metadata, "127.0.0.1", 1767323046000, AllowedTimes(1000))
    assert (metadata["x-mq-client-id"], user.user) == ("c1", "alice")
    assert (user.time, user.signature) == ("20260102T030406Z", "b" * 40)


def test_answers_are_compressed_if_the_client_compresses_and_accepts_gzip() -> None:
    gzip_both = [(b"grpc-encoding", b"gzip"), (b"grpc-accept-encoding", b"identity, gzip")]
    assert parse_head([*HEAD, *gzip_both]).gzip_answers
    assert not parse_head([*HEAD, gzip_both[0]]).gzip_answers
    assert not parse_head([*HEAD, gzip_both[1]]).gzip_answers


def test_refusal_of_an_unknown_encoding_lists_the_known_encodings() -> None:
    with pytest.raises(CallRefused) as refused:
        parse_head([*HEAD, (b"grpc-encoding", b"br")])
    assert refused.value.status is Status.UNIMPLEMENTED
    assert refused.value.accepts_encodings


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ((b":method", b"GET"), 405),
        ((b"content-type", b"text/html"), 415),
        ((b"content-type", b"application/grpc-web+proto"), 415),
    ],
)
def test_invalid_call_gets_an_http_status(header: tuple[bytes, bytes], status: int) -> None:
    with pytest.raises(NoGrpc) as refused:
        parse_head([header if name == header[0] else (name, value) for name, value in HEAD])
    assert refused.value.http_status == status


def test_reasons_are_percent_encoded_and_cut() -> None:
    assert percent_encoded("a b%\n\u00f6\u4e2d") == b"a b%25%0A%C3%B6%E4%B8%AD"
    assert percent_encoded("\ud800") == b"?"
    assert len(percent_encoded("x" * 10_000)) == REASON_BYTES_MAX
