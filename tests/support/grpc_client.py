"""A gRPC client on h2 without any input or output, and the server's connection looped to it in memory."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    Event,
    PingAckReceived,
    PingReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from hyperframe.frame import Frame, GoAwayFrame

from mq.protocol.incoming.partial_requests import PartialRequests
from mq.proxy.grpc.call_stream import CallStream
from mq.proxy.grpc.connection import ConnectionFailed, GrpcConnection
from mq.proxy.grpc.framing import MessageReader, frame_message
from mq.proxy.grpc.limits import GrpcLimits
from mq.proxy.grpc.status import Status

Header = tuple[str, str]
_HEADER_BYTES = 9


def frames_of(data: bytes) -> list[Frame]:
    """Whole frames, as they are on the wire."""
    found = []
    while data:
        frame, nbytes = Frame.parse_frame_header(memoryview(data[:9]))
        frame.parse_body(memoryview(data[9 : 9 + nbytes]))
        found.append(frame)
        data = data[9 + nbytes :]
    return found


class Answer:
    """What a client has received on one stream."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.messages: list[bytes] = []
        self.body = b""
        self.ended = False
        self.reset: int | None = None
        self._reader: MessageReader | None = None

    @property
    def status(self) -> Status | None:
        """The status of the call, if it has ended with one."""
        return Status(int(self.headers["grpc-status"])) if "grpc-status" in self.headers else None

    def add(self, data: bytes) -> None:
        self.body += data
        if self._reader is None:
            self._reader = MessageReader(self.headers.get("grpc-encoding", "identity"), 1 << 30)
        if self.headers.get("content-type") == "application/grpc":
            self.messages += self._reader.feed(data)


class GrpcClient:
    """Calls and what they brought; bytes go in and out by `receive` and `bytes_to_send`.

    Attributes:
        reads: give back flow control for what arrives.
        goaways: error code and last stream of each GOAWAY.
        pings: data of pings that the server has answered.
    """

    def __init__(self) -> None:
        self.http2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.http2.initiate_connection()
        self._received = b""
        self.answers: dict[int, Answer] = {}
        self.reads = True
        self.goaways: list[tuple[int, int]] = []
        self.pings: list[bytes] = []
        self.server_pings = 0

    def call(
        self,
        path: str = "/raftmq.Test/Echo",
        messages: Iterable[bytes] = (),
        *,
        headers: Iterable[Header] = (),
        end: bool = True,
        **replaced: str,
    ) -> int:
        """Begin a call, with messages as far as windows allow; returns its stream."""
        stream_id = self.http2.get_next_available_stream_id()
        pseudo = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "broker.example"}
        plain = {"content-type": "application/grpc", "te": "trailers"}
        plain.update({name.replace("_", "-"): value for name, value in replaced.items() if name != "method"})
        if "method" in replaced:
            pseudo[":method"] = replaced["method"]
        fields = [*pseudo.items(), *plain.items(), *headers]
        sent = [frame_message(message, compress=False) for message in messages]
        self.answers[stream_id] = Answer()
        self.http2.send_headers(stream_id, fields, end_stream=end and not sent)
        if sent:
            self.send(stream_id, b"".join(sent), end=end)
        return stream_id

    def send(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        """Send bytes of a stream, in frames; the windows must be large enough."""
        size = self.http2.max_outbound_frame_size
        pieces = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
        for number, piece in enumerate(pieces, 1):
            self.http2.send_data(stream_id, piece, end_stream=end and number == len(pieces))

    def receive(self, data: bytes) -> None:
        """Bytes of the server. h2 would take nothing after a GOAWAY, so it sees none."""
        self._received += data
        while len(self._received) >= _HEADER_BYTES:
            nbytes = _HEADER_BYTES + int.from_bytes(self._received[:3], "big")
            if len(self._received) < nbytes:
                return
            frame, self._received = self._received[:nbytes], self._received[nbytes:]
            if frame[3] == GoAwayFrame.type:
                last_stream_id, code = struct.unpack_from("!II", frame, _HEADER_BYTES)
                self.goaways.append((code, last_stream_id))
                continue
            for event in self.http2.receive_data(frame):
                self._handle(event)

    def bytes_to_send(self) -> bytes:
        """Bytes for the server."""
        return self.http2.data_to_send()

    @property
    def unsent_bytes(self) -> int:
        """What `bytes_to_send` would return."""
        return len(self.http2._data_to_send)

    def _handle(self, event: Event) -> None:
        match event:
            case ResponseReceived() | TrailersReceived():
                assert event.headers is not None
                self.answers[event.stream_id].headers.update(dict(event.headers))  # type: ignore[arg-type]
            case DataReceived():
                assert event.data is not None
                self.answers[event.stream_id].add(event.data)
                if self.reads and event.flow_controlled_length:
                    self.http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case StreamEnded():
                self.answers[event.stream_id].ended = True
            case StreamReset():
                self.answers[event.stream_id].reset = int(event.error_code)
            case PingAckReceived():
                self.pings.append(event.ping_data or b"")
            case PingReceived():
                self.server_pings += 1
            case _:
                pass


class Loop:
    """A client and the server's side of its connection, without a method: tests act as methods.

    Attributes:
        begun: calls that have begun, in order.
        failed: why the server closes the connection.
        now: monotonic seconds.
    """

    def __init__(self, limits: GrpcLimits | None = None, on_call: Callable[[CallStream], None] | None = None) -> None:
        self.limits = limits or GrpcLimits()
        self.now = 1_000.0
        self.begun: list[CallStream] = []
        self.closed_as_stalled: list[str] = []
        self.partial_requests: PartialRequests[CallStream] = PartialRequests(
            bytes_max=self.limits.unfinished_bytes_max,
            seconds_max=self.limits.unfinished_seconds_max,
            on_closed=lambda _, reason: self.closed_as_stalled.append(reason),
        )
        self.failed: ConnectionFailed | None = None
        self.server = GrpcConnection(self.limits, self.partial_requests, self.now, on_call or self.begun.append)
        self.client = GrpcClient()
        self.turn()

    def turn(self) -> None:
        """Bring all bytes to the other side until nobody sends any more."""
        while self.failed is None:
            to_server, to_client = self.client.bytes_to_send(), self.taken()
            if not to_server and not to_client:
                return
            if to_client:
                self.client.receive(to_client)
            if to_server:
                self.feed(to_server)

    def feed(self, data: bytes) -> None:
        """Bytes for the server, whoever made them; after a failure nothing is served any more."""
        try:
            self.server.receive(data, self.now)
        except ConnectionFailed as error:
            self._fail(error)

    def _fail(self, error: ConnectionFailed) -> None:
        self.failed = error
        goaways = [frame for frame in frames_of(self.server.bytes_to_send()) if isinstance(frame, GoAwayFrame)]
        self.client.goaways += [(frame.error_code, frame.last_stream_id) for frame in goaways]

    def taken(self) -> bytes:
        """Bytes of the server, as its shell takes them."""
        self.server.pump()
        return self.server.bytes_to_send()

    def tick(self, seconds: float) -> None:
        """Time goes on by so much, in one step."""
        self.now += seconds
        self.partial_requests.close_stalled(self.now)
        try:
            self.server.tick(self.now)
        except ConnectionFailed as error:
            self._fail(error)
        self.turn()

    def answer(self, stream: CallStream, *messages: bytes, status: Status = Status.OK, reason: str = "") -> None:
        """Act as a method that sends these messages and ends the call."""
        for message in messages:
            self.server.send(stream, frame_message(message, compress=False))
            self.turn()
        self.server.finish(stream, status, reason)
        self.turn()
