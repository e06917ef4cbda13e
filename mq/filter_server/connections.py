"""Serves the connections of consumers: reads requests, serves them concurrently, and writes the responses."""

from __future__ import annotations

import zlib
from typing import Final

import structlog
import trio

from mq.certificate import Certificate
from mq.client.errors import ClientError
from mq.filter.programs import (
    CLASS_FILTER,
    PROGRAM_BYTES_MAX,
    ProgramInvalid,
    ProgramName,
    is_program_name,
    name_of,
    parse_filtered_expression,
    parse_program_name,
)
from mq.filter.subscription import ALL_TAGS
from mq.filter_server.broker_link import BrokerLink
from mq.filter_server.figures import FilterCounters
from mq.filter_server.filtered_pulls import SUSPEND, FilteredPulls, refusal
from mq.filter_server.java_filters import java_program
from mq.filter_server.loaded_programs import Programs
from mq.protocol.access.acting import ActsFor, acts_for
from mq.protocol.access.signing import ACCESS_KEY, header_fields
from mq.protocol.codes import ResponseCode
from mq.protocol.errors import FrameError, HeaderError
from mq.protocol.frames import encode_frame
from mq.protocol.incoming.chunks import Incoming, decode_chunk, headers_of
from mq.protocol.incoming.headers import Response, UnknownRequest
from mq.protocol.requests.clients import HeartBeat, UnregisterClient
from mq.protocol.requests.filters import RegisterMessageFilterClass
from mq.protocol.requests.pull import LitePullMessage, PullExt, PullMessage
from mq.protocol.wire.encoding import ONEWAY_FLAG, encode_response, pull_response_header
from mq.protocol.wire.request import Request
from mq.tls_or_plain import Stream, TlsFailed, secure

REQUEST_BYTES_MAX: Final = PROGRAM_BYTES_MAX + 64 * 1024
_RECEIVE_BYTES: Final = 64 * 1024
_IN_FLIGHT_MAX: Final = 1024
"""Requests of one connection at a time; above, no more are read from it."""
_SEND_SECONDS: Final = 30.0
_IDLE_SECONDS: Final = 120.0
_JUDGED_SECONDS: Final = 10.0
"""The time for which the broker is not asked again about a consumer that may pull."""
_QUOTA_SECONDS: Final = 1.0
"""The wait for a quota of a consumer that does not say how long it waits."""
_QUOTA_SECONDS_MAX: Final = 20.0
_CRC_MASK: Final = 0x7FFFFFFF

Log = structlog.stdlib.BoundLogger
Pull = PullMessage | LitePullMessage


class Connections:
    """Serves the connections of consumers."""

    def __init__(
        self,
        link: BrokerLink,
        programs: Programs,
        pulls: FilteredPulls,
        figures: FilterCounters,
        *,
        certificate: Certificate | None,
        must_use_tls: bool,
        connections_max: int,
        pulls_max: int,
        log: Log,
    ) -> None:
        self.link = link
        self.programs = programs
        self.pulls = pulls
        self.figures = figures
        self._certificate = certificate
        self._must_use_tls = must_use_tls
        self._connections_max = connections_max
        self.pulls_max = pulls_max
        self.log = log

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection until it ends. An error ends only this connection."""
        try:
            address = str(stream.socket.getpeername()[0])
        except OSError:
            await trio.aclose_forcefully(stream)  # closed already
            return
        if self.figures.connections >= self._connections_max:
            self.log.warning("connection_refused", peer=address, connections=self.figures.connections)
            await trio.aclose_forcefully(stream)
            return
        self.figures.connections += 1
        try:
            await _ConsumerConnection(self, await self._secure(stream), address).run()
        except FrameError as error:
            self.log.warning("bad_frame", peer=address, error=error.reason)
        except TlsFailed as error:
            self.log.warning("tls_failed", peer=address, reason=str(error))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.log.debug("connection_broken", peer=address, error=str(error))
        except Exception:
            # No input of a consumer may end the process, not even through a bug of ours.
            self.log.exception("connection_failed", peer=address)
        finally:
            self.figures.connections -= 1
            await trio.aclose_forcefully(stream)

    async def _secure(self, stream: trio.SocketStream) -> Stream:
        await trio.lowlevel.checkpoint()
        if self._certificate is None:
            return stream
        with trio.move_on_after(_IDLE_SECONDS):
            return await secure(stream, self._certificate.context, must=self._must_use_tls)
        raise TlsFailed("the client sent no TLS handshake in time")


class _Judgement:
    """The broker's verdict on a consumer, in trio's time. ``until``: the broker is not asked again before that;
    ``paid_at``: when the quota of a limited user is paid.
    """

    __slots__ = ("is_limited", "paid_at", "until")

    def __init__(self, until: float, is_limited: bool, paid_at: float) -> None:
        self.until = until
        self.is_limited = is_limited
        self.paid_at = paid_at


class _ConsumerConnection:
    def __init__(self, server: Connections, stream: Stream, address: str) -> None:
        self._server = server
        self._stream = stream
        self._address = address
        self._send_lock = trio.Lock()
        self._room = trio.Semaphore(_IN_FLIGHT_MAX)
        self._judgements: dict[tuple[type[Request], str, str, str, ActsFor | None], _Judgement] = {}
        """Verdicts by kind of request, group, topic, access key, and the user for whom it acts."""
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Serve until the connection ends. Raises FrameError, trio.BrokenResourceError."""
        failure: FrameError | trio.BrokenResourceError | None = None
        async with trio.open_nursery() as nursery:
            self._scope = nursery.cancel_scope
            try:
                await self._read(nursery)
            except (FrameError, trio.BrokenResourceError) as error:
                failure = error  # not out of the nursery, which would wrap it in a group
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _read(self, nursery: trio.Nursery) -> None:
        buffer = bytearray()
        while True:
            with trio.move_on_after(_IDLE_SECONDS) as scope:
                chunk = await self._stream.receive_some(_RECEIVE_BYTES)
            if scope.cancelled_caught or not chunk:
                return
            buffer += chunk
            if len(buffer) < 8:
                continue
            length = int.from_bytes(buffer[:4], "big")
            if length > REQUEST_BYTES_MAX:
                raise FrameError(f"a request of {length} bytes; maximum: {REQUEST_BYTES_MAX}")
            if len(buffer) < 4 + length:
                continue
            data = bytes(buffer)
            frames, size = decode_chunk(data)
            del buffer[:size]
            for each, header in zip(frames, list(headers_of(data[:size])), strict=True):
                await self._room.acquire()
                nursery.start_soon(self._serve, each, header)

    async def _serve(self, incoming: Incoming, header: bytes) -> None:
        request, body, serialization = incoming
        try:
            response = await self._reply(request, body, serialization, header)
            if response and not (isinstance(request, Request) and request.flag & ONEWAY_FLAG):
                await self._send(response)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._scope.cancel()
            await trio.lowlevel.checkpoint()
        except Exception:
            self._server.log.exception("request_failed", peer=self._address)
            self._scope.cancel()
            await trio.lowlevel.checkpoint()
        finally:
            self._room.release()

    async def _send(self, parts: list[bytes]) -> None:
        async with self._send_lock:
            with trio.move_on_after(_SEND_SECONDS) as scope:
                await self._stream.send_all(b"".join(parts))
            if scope.cancelled_caught:
                self._server.log.warning("peer_does_not_read", peer=self._address)
                self._scope.cancel()

    async def _reply(
        self,
        request: Request | UnknownRequest | Response | HeaderError,
        body: bytes,
        serialization: int,
        header: bytes,
    ) -> list[bytes]:
        """The frame of the answer, in parts; none for a request without an answer."""

        def refuse(opaque: int, code: int, remark: str) -> list[bytes]:
            return [encode_response(opaque, code, remark=remark, serialization=serialization)]

        await trio.lowlevel.checkpoint()
        match request:
            case Response():
                return []
            case HeaderError():
                return refuse(request.opaque, ResponseCode.SYSTEM_ERROR, request.remark)
            case HeartBeat() | UnregisterClient():  # for brokers, and sent over every connection
                return [encode_response(request.opaque, ResponseCode.SUCCESS, serialization=serialization)]
            case RegisterMessageFilterClass() | PullMessage() | LitePullMessage():
                pass
            case _:
                remark = f"request code {request.code} is not one of a filter server"
                return refuse(request.opaque, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        try:
            judgement = await self._judge(request, serialization, header, body)
            if isinstance(request, RegisterMessageFilterClass):
                await self._upload(request, body)
                return [encode_response(request.opaque, ResponseCode.SUCCESS, serialization=serialization)]
            if not await _waits_for_quota(request, judgement):
                return _busy_response(request, serialization)
            response = await self._pull(request, serialization)
            if judgement.is_limited and len(response) > 1 and response[1]:
                frame = encode_frame(serialization, header, body)
                check = await self._server.link.judge(
                    request.ext.topic, self._address, frame, _message_volume(response[1])
                )
                judgement.paid_at = trio.current_time() + check.wait_ms / 1000
            return response
        except (ClientError, ProgramInvalid) as error:
            return refuse(request.opaque, *refusal(error))

    async def _judge(
        self, request: RegisterMessageFilterClass | Pull, serialization: int, header: bytes, body: bytes
    ) -> _Judgement:
        """Have the broker check signature and permissions. Raises BrokerError, ClientError."""
        ext = request.ext
        fields = header_fields(serialization, header)
        key = type(request), ext.consumer_group, ext.topic, fields.get(ACCESS_KEY, ""), acts_for(fields)
        now = trio.current_time()
        is_upload = isinstance(request, RegisterMessageFilterClass)
        previous = self._judgements.get(key)
        if not is_upload and previous is not None and now < previous.until:
            await trio.lowlevel.checkpoint()
            return previous
        check = await self._server.link.judge(ext.topic, self._address, encode_frame(serialization, header, body))
        if len(self._judgements) >= _IN_FLIGHT_MAX:
            self._judgements.clear()
        paid_at = trio.current_time() + check.wait_ms / 1000
        judgement = self._judgements[key] = _Judgement(now + _JUDGED_SECONDS, check.is_limited, paid_at)
        return judgement

    async def _upload(self, request: RegisterMessageFilterClass, body: bytes) -> None:
        """Load a program that a client uploads, and store it at the broker. Raises ProgramInvalid, ClientError."""
        ext = request.ext
        if zlib.crc32(body) & _CRC_MASK != ext.class_crc & _CRC_MASK:
            raise ProgramInvalid(f"the program of {len(body)} bytes does not have the CRC-32 of the request")
        if is_program_name(ext.class_name):
            name = parse_program_name(ext.class_name)
        else:
            body = java_program(ext.class_name, body)
            name = name_of("java", body)
        programs = self._server.programs
        is_new = not programs.has(ext.consumer_group, ext.topic, name)
        await programs.add(ext.consumer_group, ext.topic, name, body)
        await self._server.link.put(ext.consumer_group, ext.topic, name, body)
        self._server.figures.programs = len(programs)
        if is_new:  # clients of RocketMQ upload it with each heartbeat
            self._server.log.info(
                "filter_uploaded", group=ext.consumer_group, topic=ext.topic, program=name.text, bytes=len(body)
            )

    async def _pull(self, request: Pull, serialization: int) -> list[bytes]:
        server, ext = self._server, request.ext
        if not ext.sys_flag & CLASS_FILTER:
            raise ProgramInvalid("this is a filter server: pulls without a filter go to the broker")
        if server.figures.pulls >= server.pulls_max:
            remark = f"{server.figures.pulls} pulls are being served"
            await trio.lowlevel.checkpoint()
            return [encode_response(request.opaque, ResponseCode.SYSTEM_BUSY, remark=remark)]
        server.figures.pulls += 1
        try:
            name, tags = await self._program_of(ext)
            answer = await server.pulls.pull(ext, name, tags)
        finally:
            server.figures.pulls -= 1
            server.figures.programs = len(server.programs)
        return [
            pull_response_header(
                request.opaque,
                answer.code,
                answer.next_offset,
                answer.low,
                answer.high,
                0,
                answer.remark,
                len(answer.body),
                serialization,
            ),
            answer.body,
        ]

    async def _program_of(self, ext: PullExt) -> tuple[ProgramName, str]:
        """The program that a pull names, or that its group has, and the tags. Raises ProgramInvalid, ClientError."""
        if ext.subscription:
            await trio.lowlevel.checkpoint()
            return parse_filtered_expression(ext.subscription)
        return await self._server.programs.current(ext.consumer_group, ext.topic), ALL_TAGS


async def _waits_for_quota(request: Pull, judgement: _Judgement) -> bool:
    """Wait until the quota of the consumer is paid, no longer than the consumer waits for messages. Returns whether it
    is paid.
    """
    ext = request.ext
    patience = max(ext.suspend_timeout_ms, 0) / 1000 if ext.sys_flag & SUSPEND else 0.0
    until = trio.current_time() + min(patience or _QUOTA_SECONDS, _QUOTA_SECONDS_MAX)
    await trio.sleep_until(min(until, judgement.paid_at))
    return judgement.paid_at <= trio.current_time()


def _busy_response(request: Pull, serialization: int) -> list[bytes]:
    offset = request.ext.queue_offset
    code = ResponseCode.PULL_RETRY_IMMEDIATELY
    return [pull_response_header(request.opaque, code, offset, 0, offset, 0, "QUOTA_EXCEEDED", 0, serialization)]


def _message_volume(body: bytes) -> tuple[int, int]:
    """The number of messages in an answer, and their bytes."""
    count = at = 0
    while at < len(body):
        at += int.from_bytes(body[at : at + 4], "big")
        count += 1
    return count, len(body)
