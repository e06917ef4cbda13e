"""Calls over one HTTP/2 connection, by a client in memory: order, flow control, refusals, time. No clock, no task."""

from __future__ import annotations

import gzip
import sys
from typing import Any

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hyperframe.frame import GoAwayFrame, PingFrame, RstStreamFrame, WindowUpdateFrame

from mq.proxy.grpc import http2
from mq.proxy.grpc.call_stream import CallStream
from mq.proxy.grpc.connection import ConnectionFailed
from mq.proxy.grpc.framing import frame_message
from mq.proxy.grpc.limits import GrpcLimits
from mq.proxy.grpc.status import BrokenCall, CallRefused, Status
from tests.support.grpc_client import Loop, frames_of

WINDOW = 65_535


def begin(loop: Loop, *path_and_messages: Any, **options: Any) -> int:
    """The number of a call that the server has seen."""
    stream_id = loop.client.call(*path_and_messages, **options)
    loop.turn()
    return stream_id


def messages_of(loop: Loop, stream: CallStream) -> list[bytes]:
    """All that a method can take now."""
    found = []
    while (message := loop.server.take(stream)) is not None:
        found.append(message)
    loop.turn()
    return found


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_server_answers_a_unary_call(loop: Loop) -> None:
    stream_id = begin(loop, "/a.B/C", [b"request"], headers=[("x-mq-client-id", "me")])
    [call] = loop.begun
    assert call.head is not None
    assert (call.head.path, call.head.authority) == ("/a.B/C", "broker.example")
    assert call.head.metadata["x-mq-client-id"] == "me"
    assert messages_of(loop, call) == [b"request"]
    assert call.half_closed
    loop.answer(call, b"answer")
    answer = loop.client.answers[stream_id]
    assert (answer.messages, answer.status, answer.ended) == ([b"answer"], Status.OK, True)
    assert not loop.server.streams


def test_several_messages_in_a_frame_and_one_in_several(loop: Loop) -> None:
    stream_id = loop.client.call(end=False)
    data = b"".join(frame_message(bytes([number]) * 1000, compress=False) for number in range(10))
    for at in range(0, len(data), 777):
        loop.client.send(stream_id, data[at : at + 777])
        loop.turn()
    [call] = loop.begun
    assert messages_of(loop, call) == [bytes([number]) * 1000 for number in range(10)]
    assert not call.half_closed


def test_both_sides_of_a_stream_take_turns(loop: Loop) -> None:
    stream_id = begin(loop, end=False)
    [call] = loop.begun
    for number in range(5):
        loop.client.send(stream_id, frame_message(b"%d" % number, compress=False))
        loop.turn()
        assert messages_of(loop, call) == [b"%d" % number]
        assert loop.server.send(call, frame_message(b"re %d" % number, compress=False))
        loop.turn()
    assert loop.client.answers[stream_id].messages == [b"re %d" % number for number in range(5)]
    loop.client.send(stream_id, b"", end=True)
    loop.turn()
    assert call.half_closed


def test_error_without_a_message_is_one_frame_of_headers(loop: Loop) -> None:
    stream_id = begin(loop, messages=[b"x"])
    loop.answer(loop.begun[0], status=Status.NOT_FOUND, reason="no topic \u00e4 100%")
    answer = loop.client.answers[stream_id]
    assert answer.headers[":status"] == "200"
    assert answer.headers["content-type"] == "application/grpc"
    assert (answer.status, answer.ended, answer.body) == (Status.NOT_FOUND, True, b"")
    assert answer.headers["grpc-message"] == "no topic %C3%A4 100%25"


def test_early_error_ends_the_stream_on_both_sides(loop: Loop) -> None:
    stream_id = begin(loop, end=False)
    loop.answer(loop.begun[0], status=Status.INTERNAL)
    answer = loop.client.answers[stream_id]
    # Some clients lose the status if the reset comes with it.
    assert (answer.status, answer.reset) == (Status.INTERNAL, None)
    assert not loop.server.streams
    loop.tick(1.0)
    loop.turn()
    assert answer.reset == ErrorCodes.NO_ERROR


def test_unfinished_calls_of_clients_are_bounded(loop: Loop) -> None:
    for _ in range(150):
        begin(loop, end=False)
        loop.answer(loop.begun.pop(), status=Status.INTERNAL)
    resets = [answer.reset for answer in loop.client.answers.values()]
    assert resets == [ErrorCodes.NO_ERROR] * 50 + [None] * 100


def test_call_ended_after_its_answer_is_not_reset(loop: Loop) -> None:
    stream_id = begin(loop, end=False)
    loop.answer(loop.begun[0], status=Status.INTERNAL)
    loop.client.http2.end_stream(stream_id)
    loop.turn()
    loop.tick(1.0)
    loop.turn()
    assert loop.client.answers[stream_id].reset is None


def test_data_for_an_ended_call_returns_its_connection_window() -> None:
    # What a client sent before it knew of the end counts for the window of the connection: it must come back.
    loop = Loop(GrpcLimits(connection_window_bytes=WINDOW, stream_window_bytes=WINDOW))
    for _ in range(20):
        stream_id = begin(loop, end=False)
        call = loop.begun.pop()
        loop.server.finish(call, Status.UNAVAILABLE)
        loop.client.send(stream_id, bytes(30_000))
        loop.turn()
        assert loop.failed is None
    assert loop.client.http2.outbound_flow_control_window > WINDOW // 2


def test_cancelled_unread_calls_give_their_window_back() -> None:
    loop = Loop(GrpcLimits(connection_window_bytes=WINDOW, stream_window_bytes=WINDOW))
    for _ in range(20):
        stream_id = begin(loop, messages=[bytes(10_000), bytes(10_000)], end=False)
        loop.client.http2.reset_stream(stream_id, ErrorCodes.CANCEL)
        loop.turn()
    assert not loop.server.streams
    assert loop.client.http2.outbound_flow_control_window > WINDOW // 2


def test_method_without_reads_stops_only_its_client() -> None:
    loop = Loop(GrpcLimits(stream_window_bytes=WINDOW))
    stream_id = begin(loop, end=False)
    message = frame_message(bytes(10_000), compress=False)
    sent = 0
    while loop.client.http2.local_flow_control_window(stream_id) >= len(message):
        loop.client.send(stream_id, message)
        loop.turn()
        sent += 1
    assert sent == WINDOW // len(message)
    other = begin(loop, messages=[bytes(20_000)])
    loop.answer(loop.begun[1], b"done")
    assert loop.client.answers[other].status is Status.OK
    assert len(messages_of(loop, loop.begun[0])) == sent
    assert loop.client.http2.local_flow_control_window(stream_id) == WINDOW


def test_message_may_be_larger_than_the_window() -> None:
    loop = Loop(GrpcLimits(stream_window_bytes=WINDOW, connection_window_bytes=WINDOW))
    stream_id = loop.client.call(end=False)
    data = frame_message(bytes(1_000_000), compress=False)
    while data:
        room = min(loop.client.http2.local_flow_control_window(stream_id), 16_384, len(data))
        assert room > 0, f"the window stays closed, with {len(data)} bytes to go"
        loop.client.send(stream_id, data[:room], end=room == len(data))
        data = data[room:]
        loop.turn()
    assert messages_of(loop, loop.begun[0]) == [bytes(1_000_000)]


def test_large_answer_waits_for_a_client_that_does_not_read(loop: Loop) -> None:
    loop.client.reads = False
    stream_id = begin(loop, messages=[b"x"])
    [call] = loop.begun
    sent: list[bool] = []
    call.on_sent = lambda: sent.append(True)
    assert not loop.server.send(call, frame_message(bytes(300_000), compress=False))
    loop.turn()
    answer = loop.client.answers[stream_id]
    assert len(answer.body) == WINDOW
    assert not sent
    other = loop.client.call(messages=[b"y"])
    loop.client.http2.increment_flow_control_window(1_000_000)
    loop.turn()
    loop.answer(loop.begun[1], b"a small one passes")
    assert loop.client.answers[other].status is Status.OK
    loop.client.http2.increment_flow_control_window(1_000_000, stream_id)
    loop.turn()
    assert sent == [True]
    assert answer.messages == [bytes(300_000)]


def test_smaller_initial_window_is_respected_while_an_answer_waits(loop: Loop) -> None:
    loop.client.reads = False
    stream_id = begin(loop, messages=[b"x"])
    assert not loop.server.send(loop.begun[0], frame_message(bytes(100_000), compress=False))
    loop.turn()
    loop.client.http2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10})
    loop.turn()
    loop.client.http2.increment_flow_control_window(200_000)
    loop.client.http2.increment_flow_control_window(1_000, stream_id)
    loop.turn()
    # The window is far below zero now: the server may send nothing.
    assert len(loop.client.answers[stream_id].body) == WINDOW
    loop.client.http2.increment_flow_control_window(200_000, stream_id)
    loop.turn()
    assert loop.client.answers[stream_id].messages == [bytes(100_000)]


def test_cancelled_answers_leave_the_window_to_others() -> None:
    # Of fifty answers only the beginning is read before the client cancels them.
    loop = Loop()
    for _ in range(50):
        stream_id = begin(loop, messages=[b"x"])
        loop.server.send(loop.begun.pop(), frame_message(bytes(300_000), compress=False))
        loop.client.receive(loop.taken())
        loop.client.http2.reset_stream(stream_id, ErrorCodes.CANCEL)
        loop.turn()
        answer = loop.client.answers[stream_id]
        assert answer.body, f"the server sent nothing on stream {stream_id}"
    assert not loop.server.streams


def test_unsent_output_is_bounded() -> None:
    limits = GrpcLimits(output_bytes_max=50_000)
    loop = Loop(limits)
    loop.client.http2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10_000_000})
    loop.client.http2.increment_flow_control_window(50_000_000)
    begin(loop, messages=[b"x"])
    assert not loop.server.send(loop.begun[0], frame_message(bytes(5_000_000), compress=False))
    assert loop.server.unsent_bytes < limits.output_bytes_max + 2 * 16_384
    loop.turn()
    assert loop.client.answers[1].messages == [bytes(5_000_000)]


def test_answers_take_turns_by_frame(loop: Loop) -> None:
    loop.client.reads = False
    for _ in range(3):
        loop.client.call(messages=[b"x"])
    loop.turn()
    for call in loop.begun:
        loop.server.send(call, frame_message(bytes(200_000), compress=False))
    loop.turn()
    loop.client.http2.increment_flow_control_window(6 * 16_384)
    for stream_id in (1, 3, 5):
        loop.client.http2.increment_flow_control_window(1_000_000, stream_id)
    loop.turn()
    sizes = [len(loop.client.answers[stream_id].body) for stream_id in (1, 3, 5)]
    assert min(sizes[1:]) >= 16_384, f"some got nothing: {sizes}"


def test_window_update_costs_the_same_for_any_number_of_answers() -> None:
    def cost(calls: int) -> int:
        loop = Loop()
        loop.client.reads = False
        for _ in range(calls):
            loop.client.call(messages=[b"x"])
        loop.turn()
        loop.client.http2.increment_flow_control_window(100_000_000)
        loop.turn()
        for call in loop.begun:
            loop.server.send(call, frame_message(bytes(100_000), compress=False))
        loop.turn()
        updates = b"".join(WindowUpdateFrame(number, window_increment=1).serialize() for number in [0, 1] * 100)
        called = 0

        def count(*_: object) -> None:
            nonlocal called
            called += 1

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            loop.server.receive(updates, 0.0)
        finally:
            sys.setprofile(before)
        assert loop.server.unsent_bytes >= 100, "the window of the first answer did not open"
        return called

    assert cost(200) < 1.2 * cost(2)


def test_answer_continues_when_settings_open_its_window(loop: Loop) -> None:
    loop.client.reads = False
    stream_id = begin(loop, messages=[b"x"])
    assert not loop.server.send(loop.begun[0], frame_message(bytes(100_000), compress=False))
    loop.turn()
    loop.client.http2.increment_flow_control_window(200_000)
    loop.turn()
    assert len(loop.client.answers[stream_id].body) == WINDOW
    loop.client.http2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 200_000})
    loop.turn()
    assert loop.client.answers[stream_id].messages == [bytes(100_000)]


def test_client_cancelling_ends_call(loop: Loop) -> None:
    stream_id = begin(loop, end=False)
    [call] = loop.begun
    ended: list[bool] = []
    call.on_end = lambda: ended.append(call.closed)
    loop.client.http2.reset_stream(stream_id, ErrorCodes.CANCEL)
    loop.turn()
    assert ended == [True]
    with pytest.raises(BrokenCall):
        loop.server.send(call, frame_message(b"too late", compress=False))
    loop.server.finish(call, Status.OK)
    assert loop.failed is None
    assert not loop.server.streams


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\0" + (5_000_000).to_bytes(4, "big"), Status.RESOURCE_EXHAUSTED),
        (b"\1\0\0\0\1x", Status.INTERNAL),
        (b"\7\0\0\0\1x", Status.INTERNAL),
        (b"\0\0\0\0\5half", Status.INTERNAL),
    ],
)
def test_bad_message_ends_its_call_only(sent: bytes, status: Status) -> None:
    loop = Loop(GrpcLimits(message_bytes_max=4_000_000))
    bad, good = loop.client.call(end=False), loop.client.call(messages=[b"fine"])
    loop.client.send(bad, sent, end=True)
    loop.turn()
    call, other = loop.begun
    assert call.refusal is not None
    loop.server.finish(call, call.refusal.status, call.refusal.reason)
    loop.answer(other, b"answer")
    assert loop.client.answers[bad].status is status
    assert loop.client.answers[good].messages == [b"answer"]


def test_messages_are_compressed_both_ways(loop: Loop) -> None:
    body = b"again and again " * 1_000
    packed = gzip.compress(body)
    loop.client.call(end=False, grpc_encoding="gzip", grpc_accept_encoding="gzip,identity")
    loop.client.send(1, b"\1" + len(packed).to_bytes(4, "big") + packed, end=True)
    loop.turn()
    [call] = loop.begun
    assert messages_of(loop, call) == [body]
    assert call.head is not None
    loop.server.send(call, frame_message(body, compress=call.head.gzip_answers))
    loop.answer(call)
    answer = loop.client.answers[1]
    assert answer.headers["grpc-encoding"] == "gzip"
    assert answer.messages == [body]
    assert len(answer.body) < 1_000


def test_unservable_calls_are_refused_with_a_status(loop: Loop) -> None:
    encoding = loop.client.call(messages=[b"x"], grpc_encoding="snappy")
    timeout = begin(loop, messages=[b"x"], grpc_timeout="soon")
    answers = loop.client.answers
    assert answers[encoding].status is Status.UNIMPLEMENTED
    assert answers[encoding].headers["grpc-accept-encoding"] == "identity,gzip"
    assert answers[timeout].status is Status.INTERNAL
    assert not loop.begun
    assert not loop.server.streams


def test_browsers_get_405_with_an_explanation(loop: Loop) -> None:
    get = begin(loop, "/", method="GET")
    assert loop.client.answers[get].headers[":status"] == "405"
    assert b"gRPC" in loop.client.answers[get].body
    post = begin(loop, "/", [b"<xml/>"], content_type="text/xml")
    assert loop.client.answers[post].headers[":status"] == "415"
    assert not loop.server.streams


def test_calls_beyond_the_limit_are_refused_as_retryable() -> None:
    loop = Loop(GrpcLimits(streams_max=3))
    assert loop.client.http2.remote_settings.max_concurrent_streams == 3
    # A client that has not read the settings yet.
    loop.client.http2.remote_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 100
    loop.client.http2.remote_settings.acknowledge()
    streams = [loop.client.call(messages=[b"x"]) for _ in range(5)]
    loop.turn()
    assert len(loop.begun) == 3
    assert [loop.client.answers[each].reset for each in streams] == [None] * 3 + [ErrorCodes.REFUSED_STREAM] * 2
    for call in loop.begun[:3]:
        loop.answer(call, b"done")
    again = begin(loop, messages=[b"x"])
    loop.answer(loop.begun[3], b"done")
    assert loop.client.answers[again].status is Status.OK


def test_large_messages_wait_for_memory_and_still_arrive() -> None:
    limits = GrpcLimits(unfinished_bytes_max=150_000, unfinished_seconds_max=10, stream_window_bytes=WINDOW)
    loop = Loop(limits)
    data = frame_message(bytes(100_000), compress=False)
    first, second = loop.client.call(end=False), loop.client.call(end=False)
    for stream_id in (first, second):
        loop.client.send(stream_id, data[:WINDOW])
        loop.turn()
    assert loop.client.http2.local_flow_control_window(first) > 0
    assert loop.client.http2.local_flow_control_window(second) == 0, "no memory for the second one yet"
    loop.client.send(first, data[WINDOW:], end=True)
    loop.turn()
    assert loop.client.http2.local_flow_control_window(second) > 0
    loop.client.send(second, data[WINDOW:], end=True)
    loop.turn()
    assert [messages_of(loop, call) for call in loop.begun] == [[bytes(100_000)]] * 2
    assert loop.partial_requests.nbytes == loop.partial_requests.waiting_count == 0


def test_message_that_never_arrives_whole_ends_its_call() -> None:
    loop = Loop(GrpcLimits(unfinished_seconds_max=10, ping_after_seconds=1_000))
    loop.client.call(end=False)
    loop.client.send(1, frame_message(bytes(100_000), compress=False)[:5_000])
    loop.turn()
    for _ in range(12):
        loop.tick(1)
    [call] = loop.begun
    assert call.refusal is not None
    assert call.refusal.status is Status.RESOURCE_EXHAUSTED
    assert len(loop.closed_as_stalled) == 1
    assert loop.partial_requests.nbytes == 0
    assert loop.failed is None


def test_pings_are_answered(loop: Loop) -> None:
    loop.client.http2.ping(b"12345678")
    loop.turn()
    assert loop.client.pings == [b"12345678"]


def test_silent_client_is_pinged_and_stays() -> None:
    loop = Loop(GrpcLimits(ping_after_seconds=60, ping_seconds_max=20))
    begin(loop, end=False)
    for _ in range(300):
        loop.tick(1)
    assert loop.failed is None
    assert 3 <= loop.client.server_pings <= 6


def test_unreachable_client_is_disconnected() -> None:
    loop = Loop(GrpcLimits(ping_after_seconds=60, ping_seconds_max=20))
    begin(loop, end=False)
    [call] = loop.begun
    ended: list[bool] = []
    call.on_end = lambda: ended.append(True)
    loop.client.bytes_to_send()
    loop.turn = lambda: None  # type: ignore[method-assign]
    for _ in range(82):
        if loop.failed is None:
            loop.tick(1)
    assert loop.failed is not None
    assert "ping" in loop.failed.reason
    assert not loop.failed.of_client
    assert ended == [True]


def test_connection_without_calls_is_closed_in_the_end() -> None:
    loop = Loop(GrpcLimits(idle_seconds_max=100, ping_after_seconds=10))
    stream_id = begin(loop, messages=[b"x"])
    loop.tick(300)
    assert loop.failed is None, "a call is open"
    loop.answer(loop.begun[0])
    loop.tick(99)
    assert not loop.client.goaways
    loop.tick(2)
    assert loop.client.goaways[-1] == (ErrorCodes.NO_ERROR, stream_id)


def test_draining_connection_completes_calls_in_flight(loop: Loop) -> None:
    first = begin(loop, messages=[b"x"])
    loop.server.drain(loop.now)
    told = loop.taken()
    # The client has not read it yet.
    crossing = loop.client.call(messages=[b"y"])
    loop.feed(loop.client.bytes_to_send())
    assert len(loop.begun) == 2
    loop.feed(PingFrame(0, b"draining", flags=["ACK"]).serialize())
    told += loop.taken()
    goaways = [frame for frame in frames_of(told) if isinstance(frame, GoAwayFrame)]
    assert [frame.last_stream_id for frame in goaways] == [2**31 - 1, crossing]
    assert {frame.error_code for frame in goaways} == {ErrorCodes.NO_ERROR}
    for call in loop.begun:
        loop.server.send(call, frame_message(b"done", compress=False))
        loop.server.finish(call, Status.OK)
    answered = [frame.stream_id for frame in frames_of(loop.taken()) if "END_STREAM" in frame.flags]
    assert answered == [first, crossing]
    with pytest.raises(ConnectionFailed, match="the server stops"):
        loop.server.tick(loop.now)


def test_drain_without_a_ping_answer_continues_after_a_second(loop: Loop) -> None:
    begin(loop, end=False)
    loop.server.drain(loop.now)
    loop.server.tick(loop.now + 0.9)
    assert [frame.last_stream_id for frame in frames_of(loop.taken()) if isinstance(frame, GoAwayFrame)] == [2**31 - 1]
    loop.server.tick(loop.now + 1)
    crossing = loop.client.call(end=False)
    loop.feed(loop.client.bytes_to_send())
    goaway, reset = frames_of(loop.taken())
    assert isinstance(goaway, GoAwayFrame)
    assert goaway.last_stream_id == 1
    assert isinstance(reset, RstStreamFrame)
    assert (reset.stream_id, reset.error_code) == (crossing, ErrorCodes.REFUSED_STREAM)
    assert len(loop.begun) == 1


def test_refused_call_ends_once(loop: Loop) -> None:
    begin(loop, end=False)
    [call] = loop.begun
    for reason in ("first", "second"):
        loop.server.refuse(call, CallRefused(Status.UNAVAILABLE, reason))
    assert call.refusal is not None
    assert call.refusal.reason == "first"
    for status in (Status.UNAVAILABLE, Status.OK):
        loop.server.finish(call, status)
    loop.turn()
    assert loop.client.answers[1].status is Status.UNAVAILABLE


def test_state_of_ended_calls_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "_RESETS_KEPT", 50)
    loop = Loop()
    for _ in range(200):
        begin(loop, messages=[b"x"])
        loop.answer(loop.begun.pop(), b"y")
        begin(loop, end=False)
        loop.answer(loop.begun.pop(), b"y")
    assert not loop.server.streams
    loop.tick(1.0)
    assert not loop.server._http2._streams
    assert len(loop.server._http2._reset_by_us) == 50
