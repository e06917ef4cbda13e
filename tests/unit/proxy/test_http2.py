"""Rules of HTTP/2 that a client breaks: which end a stream, and which the connection. h2spec has more of them."""

from __future__ import annotations

import pytest
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from mq.proxy.grpc.frames import ErrorCode
from mq.proxy.grpc.limits import GrpcLimits
from mq.proxy.grpc.status import Status
from tests.support.grpc_client import Loop, frames_of

HEADERS = {
    ":method": "POST",
    ":scheme": "http",
    ":path": "/a.B/C",
    ":authority": "h",
    "content-type": "application/grpc",
}


def headers(stream_id: int, *flags: str, **fields: str) -> HeadersFrame:
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    block = Encoder().encode([*{**HEADERS, **named}.items()])
    return HeadersFrame(stream_id, block, flags=["END_HEADERS", *flags])


def resets(loop: Loop, *frames: Frame) -> list[tuple[int, int]]:
    """Streams that the server resets for these frames, with the codes."""
    for each in frames:
        loop.feed(each.serialize())
    assert loop.failed is None, str(loop.failed)
    sent = frames_of(loop.taken())
    return [(each.stream_id, each.error_code) for each in sent if isinstance(each, RstStreamFrame)]


def ends_with(loop: Loop, *frames: Frame) -> int:
    """The code with which the connection ends for these frames."""
    for each in frames:
        assert loop.failed is None, f"ended before {each}"
        loop.feed(each.serialize())
    assert loop.failed is not None
    return loop.client.goaways[-1][0]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"X-A": "1"}, "an upper-case name"),
        ({"connection": "close"}, "a field of one connection"),
        ({"te": "gzip"}, "te other than trailers"),
        ({"x_a": "a\r\nb"}, "a value of two lines"),
        ({"x_a": " a"}, "a value that begins with a space"),
        ({":path": ""}, "no path"),
        ({":status": "200"}, "a pseudo-header of answers"),
        ({"content_length": "-1"}, "a length that is none"),
        ({"content_length": "5"}, "a length without data"),
    ],
)
def test_malformed_request_ends_its_stream_only(fields: dict[str, str], why: str) -> None:
    loop = Loop()
    assert resets(loop, headers(1, "END_STREAM", **fields)) == [(1, ErrorCode.PROTOCOL_ERROR)], why
    assert not loop.server.streams
    loop.begun.clear()
    assert resets(loop, headers(3, "END_STREAM")) == []
    assert len(loop.begun) == 1


def test_pseudo_headers_come_first_and_once() -> None:
    fields = [*HEADERS.items()]
    for wrong in ([fields[-1], *fields[:-1]], [fields[0], *fields]):
        loop = Loop()
        block = HeadersFrame(1, Encoder().encode(wrong), flags=["END_HEADERS"])
        assert resets(loop, block) == [(1, ErrorCode.PROTOCOL_ERROR)]


@pytest.mark.parametrize(
    ("nbytes", "end", "code"),
    [(3, True, None), (2, True, ErrorCode.PROTOCOL_ERROR), (4, False, ErrorCode.PROTOCOL_ERROR), (2, False, None)],
)
def test_data_has_the_announced_length(nbytes: int, end: bool, code: ErrorCode | None) -> None:
    loop = Loop()
    data = DataFrame(1, bytes(nbytes), flags=["END_STREAM"] if end else [])
    expected = [] if code is None else [(1, code)]
    assert resets(loop, headers(1, content_length="3"), data) == expected


def test_data_after_the_clients_end_of_stream_resets_the_stream() -> None:
    loop = Loop()
    ended: list[bool] = []
    resets(loop, headers(1, "END_STREAM"))
    loop.begun[0].on_end = lambda: ended.append(True)
    assert resets(loop, DataFrame(1, b"more")) == [(1, ErrorCode.STREAM_CLOSED)]
    assert ended == [True]
    assert not loop.server.streams


def test_data_beyond_a_window_is_refused() -> None:
    limits = GrpcLimits(stream_window_bytes=1_000, connection_window_bytes=70_000)
    loop = Loop(limits)
    loop.feed(headers(1).serialize())
    assert resets(loop, DataFrame(1, bytes(1_001))) == [(1, ErrorCode.FLOW_CONTROL_ERROR)]
    loop = Loop(GrpcLimits(stream_window_bytes=1_000_000, connection_window_bytes=70_000))
    # Messages of 16,000 bytes that nobody takes.
    frames: list[Frame] = [headers(1), *[DataFrame(1, b"\0" + (16_000).to_bytes(4, "big") + bytes(16_000))] * 5]
    assert ends_with(loop, *frames) == ErrorCode.FLOW_CONTROL_ERROR


def test_client_may_use_the_default_window_before_the_settings() -> None:
    loop = Loop(GrpcLimits(stream_window_bytes=1_000))
    early = Loop(GrpcLimits(stream_window_bytes=1_000))
    early.server.__init__(early.limits, early.partial_requests, early.now, early.begun.append)  # type: ignore[misc]
    early.taken()
    early.client.__init__()  # type: ignore[misc]
    early.feed(early.client.bytes_to_send())
    assert resets(early, headers(1), DataFrame(1, bytes(16_000))) == []
    assert resets(loop, headers(1), DataFrame(1, bytes(16_000))) == [(1, ErrorCode.FLOW_CONTROL_ERROR)]


def test_windows_have_a_maximum() -> None:
    most = 2**31 - 1
    loop = Loop()
    assert resets(loop, headers(1), WindowUpdateFrame(1, most)) == [(1, ErrorCode.FLOW_CONTROL_ERROR)]
    assert ends_with(loop, WindowUpdateFrame(0, most)) == ErrorCode.FLOW_CONTROL_ERROR


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([headers(2)], ErrorCode.PROTOCOL_ERROR),
        ([DataFrame(1, b"x")], ErrorCode.PROTOCOL_ERROR),
        ([RstStreamFrame(5)], ErrorCode.PROTOCOL_ERROR),
        ([WindowUpdateFrame(5, 1)], ErrorCode.PROTOCOL_ERROR),
        ([headers(1), PushPromiseFrame(1, 2)], ErrorCode.PROTOCOL_ERROR),
        ([ContinuationFrame(1, b"")], ErrorCode.PROTOCOL_ERROR),
        ([HeadersFrame(1, b""), PingFrame(0, b"12345678")], ErrorCode.PROTOCOL_ERROR),
        ([HeadersFrame(1, b"\x80", flags=["END_HEADERS"])], ErrorCode.COMPRESSION_ERROR),
        ([PriorityFrame(3, depends_on=3)], ErrorCode.PROTOCOL_ERROR),
        ([SettingsFrame(0, {SettingsFrame.ENABLE_PUSH: 2})], ErrorCode.PROTOCOL_ERROR),
        ([SettingsFrame(0, {SettingsFrame.MAX_FRAME_SIZE: 1})], ErrorCode.PROTOCOL_ERROR),
        ([SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 2**31})], ErrorCode.FLOW_CONTROL_ERROR),
    ],
)
def test_protocol_errors_end_the_connection(frames: list[Frame], code: ErrorCode) -> None:
    assert ends_with(Loop(), *frames) == code


def test_padding_is_not_data_but_uses_window() -> None:
    loop = Loop()
    data = DataFrame(1, b"\0\0\0\0\1x", pad_length=200, flags=["PADDED", "END_STREAM"])
    assert resets(loop, headers(1), data) == []
    assert loop.server.take(loop.begun[0]) == b"x"
    assert loop.server._http2._window_update_bytes == 207
    bad = DataFrame(3, b"", flags=["PADDED"]).serialize()[:-1] + b"\x05"
    assert resets(loop, headers(3)) == []
    loop.feed(bad)
    assert loop.failed is not None


def test_priorities_and_unknown_settings_are_ignored() -> None:
    loop = Loop()
    first = headers(1)
    first.flags.add("PRIORITY")
    first.depends_on, first.stream_weight, first.exclusive = 0, 15, True
    assert resets(loop, PriorityFrame(9, depends_on=1), first, SettingsFrame(0, {0x99: 1})) == []
    assert len(loop.begun) == 1


def test_late_frames_of_an_ended_call_are_ignored() -> None:
    loop = Loop()
    resets(loop, headers(1))
    loop.server.abandon(loop.begun[0])
    loop.taken()
    late = [DataFrame(1, b"x"), WindowUpdateFrame(1, 5), headers(1, "END_STREAM"), RstStreamFrame(1)]
    assert resets(loop, *late) == []
    assert len(loop.begun) == 1


def test_method_of_a_call_that_is_given_up_stops() -> None:
    loop = Loop()
    ended: list[bool] = []
    resets(loop, headers(1))
    loop.begun[0].on_end = lambda: ended.append(True)
    loop.server.abandon(loop.begun[0])
    loop.server.abandon(loop.begun[0])
    assert ended == [True]


def test_client_that_leaves_gets_the_answers_to_its_calls() -> None:
    loop = Loop()
    ended: list[bool] = []
    assert resets(loop, headers(1)) == []
    loop.begun[0].on_end = lambda: ended.append(True)
    assert resets(loop, GoAwayFrame(0), DataFrame(1, b"\0\0\0\0\1x", flags=["END_STREAM"])) == []
    assert ended == []
    assert loop.server.take(loop.begun[0]) == b"x"
    loop.server.send(loop.begun[0], b"\0\0\0\0\1y")
    loop.server.finish(loop.begun[0], Status.OK)
    answer = [frame for frame in frames_of(loop.taken()) if frame.stream_id == 1]
    assert [frame.type for frame in answer] == [HeadersFrame.type, DataFrame.type, HeadersFrame.type]
