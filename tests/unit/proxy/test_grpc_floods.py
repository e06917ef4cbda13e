"""Clients that cost a server more than themselves: their connection ends with ENHANCE_YOUR_CALM."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from h2.errors import ErrorCodes
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from mq.proxy.grpc.frames import PREFACE, FrameSplitter, Http2Error
from mq.proxy.grpc.limits import GrpcLimits
from tests.support.grpc_client import Loop

LIMITS = GrpcLimits(
    control_frames_burst=100,
    control_frames_per_second=10,
    resets_burst=100,
    resets_per_second=10,
    header_list_bytes_max=4_096,
)
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/a.B/C"),
    (":authority", "h"),
    ("content-type", "application/grpc"),
]


def flood(loop: Loop, frames: Iterator[Frame], most: int = 5_000) -> int:
    """Send frames until the server has enough; returns how many it took."""
    for number, frame in enumerate(frames, 1):
        loop.feed(frame.serialize())
        loop.taken() if loop.failed is None else None
        if loop.failed is not None:
            return number
        assert number < most, f"the server took {most} frames"
    raise AssertionError("the frames are used up")


def assert_calm(loop: Loop) -> None:
    assert loop.failed is not None
    assert loop.failed.flood
    assert loop.failed.of_client
    assert loop.client.goaways[-1][0] == ErrorCodes.ENHANCE_YOUR_CALM
    assert not loop.server.streams


def pings() -> Iterator[Frame]:
    while True:
        yield PingFrame(0, b"flooding")


def ping_answers() -> Iterator[Frame]:
    while True:
        yield PingFrame(0, b"flooding", flags=["ACK"])


def settings() -> Iterator[Frame]:
    while True:
        yield SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 65_535})


def priorities() -> Iterator[Frame]:
    while True:
        yield PriorityFrame(7, depends_on=3)


def window_updates() -> Iterator[Frame]:
    while True:
        yield WindowUpdateFrame(0, window_increment=1)


def unknown_frames() -> Iterator[Frame]:
    class Unknown(Frame):
        type = 0xF0
        stream_association = "either"

        def serialize_body(self) -> bytes:
            return b""

    while True:
        yield Unknown(0)


def empty_data() -> Iterator[Frame]:
    encoder = Encoder()
    yield HeadersFrame(1, encoder.encode(HEADERS), flags=["END_HEADERS"])
    while True:
        yield DataFrame(1, b"")


FLOODS: list[Callable[[], Iterator[Frame]]] = [
    pings,
    ping_answers,
    settings,
    priorities,
    window_updates,
    unknown_frames,
    empty_data,
]


@pytest.mark.parametrize("frames", FLOODS, ids=lambda each: each.__name__)
def test_frames_without_a_call_are_bounded(frames: Callable[[], Iterator[Frame]]) -> None:
    loop = Loop(LIMITS)
    assert flood(loop, frames()) <= LIMITS.control_frames_burst + 5
    assert_calm(loop)


def test_settings_frame_counts_by_its_settings() -> None:
    loop = Loop(LIMITS)
    many = SettingsFrame(0, dict.fromkeys(range(100, 600), 1))
    assert flood(loop, iter([many, many])) == 1
    assert_calm(loop)


def test_rapid_resets_are_bounded() -> None:
    # CVE-2023-44487: calls that are begun and cancelled at once.
    def frames() -> Iterator[Frame]:
        encoder = Encoder()
        for stream_id in range(1, 100_000, 2):
            yield HeadersFrame(stream_id, encoder.encode(HEADERS), flags=["END_HEADERS"])
            yield RstStreamFrame(stream_id, error_code=ErrorCodes.CANCEL)

    loop = Loop(LIMITS)
    flood(loop, frames())
    assert_calm(loop)
    assert len(loop.begun) <= LIMITS.resets_burst + 1


def test_resets_that_the_server_is_made_to_send_are_bounded() -> None:
    # CVE-2025-8671: calls beyond the limit, which the server resets itself.
    def frames() -> Iterator[Frame]:
        encoder = Encoder()
        for stream_id in range(1, 100_000, 2):
            yield HeadersFrame(stream_id, encoder.encode(HEADERS), flags=["END_HEADERS"])

    loop = Loop(GrpcLimits(streams_max=5, resets_burst=100, resets_per_second=10))
    assert flood(loop, frames()) <= 107
    assert_calm(loop)
    assert len(loop.begun) == 5


@pytest.mark.parametrize("nbytes", [0, 1, 1_000])
def test_endless_headers_are_bounded(nbytes: int) -> None:
    # CVE-2024-27316: CONTINUATION frames without end.
    def frames() -> Iterator[Frame]:
        yield HeadersFrame(1, Encoder().encode(HEADERS))
        while True:
            yield ContinuationFrame(1, bytes(nbytes))

    loop = Loop(LIMITS)
    assert flood(loop, frames()) <= 20
    assert_calm(loop)


def test_decompressed_headers_are_bounded() -> None:
    # One field of 3,000 bytes, and then a byte for each repetition of it.
    encoder = Encoder()
    bomb = encoder.encode([*HEADERS, ("x-bomb", "a" * 3_000)]) + b"\xbe" * 10_000
    loop = Loop(LIMITS)
    loop.feed(HeadersFrame(1, bomb[:4_000], flags=["END_HEADERS"]).serialize())
    assert_calm(loop)


def test_headers_within_the_limit_may_come_in_several_frames() -> None:
    block = Encoder().encode([*HEADERS, *((f"x-field-{number}", "a" * 200) for number in range(8))])
    loop = Loop(LIMITS)
    loop.feed(HeadersFrame(1, block[:100]).serialize())
    loop.feed(ContinuationFrame(1, block[100:400]).serialize())
    loop.feed(ContinuationFrame(1, block[400:], flags=["END_HEADERS"]).serialize())
    assert loop.failed is None
    [call] = loop.begun
    assert call.head is not None
    assert call.head.metadata["x-field-7"] == "a" * 200


def test_too_long_frame_is_refused_by_its_header() -> None:
    loop = Loop()
    loop.feed((1 << 20).to_bytes(3, "big") + bytes(6))
    assert loop.failed is not None
    assert not loop.failed.flood
    assert loop.client.goaways[-1][0] == ErrorCodes.FRAME_SIZE_ERROR
    with pytest.raises(Http2Error, match="16384"):
        list(FrameSplitter().split(PREFACE + b"\xff\xff\xff" + bytes(6)))


def test_working_clients_may_ping_and_cancel_without_limit() -> None:
    # Clients measure the line with a ping for each answer, open windows, and cancel long polls when they stop.
    loop = Loop(LIMITS)
    for _ in range(150):
        stream_id = loop.client.call(messages=[b"x"])
        loop.client.http2.ping(b"measured")
        loop.turn()
        loop.answer(loop.begun.pop(), b"y")
        loop.client.http2.increment_flow_control_window(10)
        loop.client.http2.increment_flow_control_window(10)
        cancelled = loop.client.call(end=False)
        loop.client.http2.reset_stream(cancelled, ErrorCodes.CANCEL)
        loop.turn()
        loop.begun.clear()
        assert loop.failed is None, f"on stream {stream_id}: {loop.failed}"


def test_client_may_ping_every_ten_seconds_for_days() -> None:
    loop = Loop(LIMITS)
    loop.client.call(end=False)
    for _ in range(2_000):
        loop.client.http2.ping(b"are you?")
        loop.now += 10
        loop.turn()
    assert loop.failed is None
    assert len(loop.client.pings) == 2_000


def test_all_long_polls_of_a_client_may_end_at_once() -> None:
    loop = Loop(GrpcLimits(streams_max=300, resets_burst=600))
    streams = [loop.client.call(messages=[b"x"]) for _ in range(300)]
    loop.turn()
    for stream_id in streams:
        loop.client.http2.reset_stream(stream_id, ErrorCodes.CANCEL)
    loop.turn()
    assert loop.failed is None
    assert not loop.server.streams


def test_splitter_returns_frames_of_any_chunks() -> None:
    frames = [PingFrame(0, b"12345678"), DataFrame(1, bytes(300)), DataFrame(3, b"", flags=["END_STREAM"])]
    data = PREFACE + b"".join(each.serialize() for each in frames)
    for step in (1, 2, 8, 9, 10, 24, 25, 400):
        splitter = FrameSplitter()
        found = [each for at in range(0, len(data), step) for each in splitter.split(data[at : at + step])]
        assert found == [(6, 0, 0, b"12345678"), (0, 0, 1, bytes(300)), (0, 1, 3, b"")], f"in chunks of {step}"
