"""Forwards writes of clients from a follower to the leader.

Stock clients look for the leader every 30 s only. Until then they use the former leader, or a restarted replica. It
sends their requests over one connection to the leader, in order, and returns the answers unchanged.

While there is no reachable leader, requests wait, limited in time, number and bytes. Order is kept: while the outcome
of an earlier request is open after a failure, later ones wait as well. A request that the leader certainly did not
serve goes to the next leader. If the outcome is unknown, a repeatable request is repeated; otherwise, or if no leader
serves it in time, the client's connection is closed, as the leader would do for its own client: a refusal would say
that nothing was done.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Service, Task
from mq.broker.replication.peer_authentication import PeerAuthentication
from mq.broker.replication.peer_connection import PeerConnection
from mq.protocol.codes import ResponseCode
from mq.protocol.incoming.chunks import decode_chunk
from mq.protocol.incoming.headers import Response
from mq.protocol.names import RETRY_PREFIX
from mq.protocol.requests.forwarding import ForwardEncoder, TooLarge, mark_forwarded
from mq.protocol.requests.offsets import UpdateConsumerOffset
from mq.protocol.requests.request_reply import SendReplyMessage, SendReplyMessageV2
from mq.protocol.requests.send import ConsumerSendMsgBack, SendBatchMessage, SendMessage, SendMessageV2
from mq.protocol.requests.transactions import EndTransaction
from mq.protocol.wire.encoding import ONEWAY_FLAG, encode_response
from raftlog import Deadline, RoleChange

CONNECT_SECONDS_MAX = 1.0
DRAIN_SECONDS_MAX = 1.0
"""The time to wait for answers of a former leader when there is a new one."""
ANSWER_SECONDS_MAX = 10.0
RETRY_SECONDS = 0.01
_WATCH_SECONDS = 0.25

_OPAQUE_MASK = 0x7FFFFFFF
_NOT_SERVED = frozenset({ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.NO_PERMISSION})

_SENDS = frozenset(
    {
        SendMessage,
        SendMessageV2,
        SendBatchMessage,
        SendReplyMessage,
        SendReplyMessageV2,
        ConsumerSendMsgBack,
        EndTransaction,
    }
)

_BUSY = "[REJECTREQUEST]system busy, too many requests wait for the leader of the group"


class _ForwardedCall:
    """A client's request that waits to be forwarded, or for the leader's response."""

    __slots__ = (
        "connection", "frame", "in_doubt", "inner_at", "oneway", "opaque", "repeatable", "sequence", "serialization",
        "since",
    )  # fmt: skip

    def __init__(
        self, sequence: int, call: Call[Any], frame: bytes, inner_at: int, since: float, repeatable: bool
    ) -> None:
        self.sequence = sequence
        self.connection = call.connection
        self.opaque = call.request.opaque
        self.oneway = bool(call.request.flag & ONEWAY_FLAG)
        self.repeatable = repeatable
        self.in_doubt = False  # whether a leader may have served it
        self.frame = frame
        self.inner_at = inner_at
        self.serialization = call.serialization
        self.since = since


_sequence_of = attrgetter("sequence")


class Forwarder(Service):
    """Forwards requests of clients to the leader over one connection, and returns the leader's responses.

    Args:
        repeatable: requests that may be forwarded again when the outcome at a leader is unknown.
        serve_locally: called once this replica leads and all requests that it forwarded have ended; from then on
            requests must not come here.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        authentication: PeerAuthentication,
        repeatable: set[type[Any]],
        serve_locally: Callable[[], None],
    ) -> None:
        self.repeatable = repeatable
        self._bytes_max = context.settings.forwarded_bytes_max
        self._requests_max = context.settings.forwarded_requests_max
        self._seconds_max = context.settings.forwarded_seconds_max
        self._encoder = ForwardEncoder(context.settings.identity)
        self._reactor = context.reactor
        self._authentication = authentication
        self._client_id = context.client_id
        self._leader_address = context.leader_address
        self._serve_locally = serve_locally
        self._clock = context.clock
        self._log = context.log
        self._sequence = itertools.count(1)
        self._held_calls: list[_ForwardedCall] = []
        self._in_flight: dict[int, _ForwardedCall] = {}
        self._bytes = 0
        self._upstream: PeerConnection | None = None
        self._not_trusted = False  # whether the leader refuses requests on this connection
        self._dialled_at = 0.0
        self._open = False  # whether requests may be sent to the leader at once
        self._leads = False
        self._not_before = 0.0
        self._closed_at = 0.0
        self._ticked_at = 0.0
        self._why = "the group has no leader"
        self._forwarded_here = 0
        self._timer = Deadline(self._next_deadline, self._fire)
        self._sends = self._offsets = self._others = 0
        self._refusals = self._retries = self._unknown = self._forwarded_bytes = 0

    # -- requests ----------------------------------------------------------------------------------------------------

    def handle(self, call: Call[Any]) -> None:
        """Forward a client's request to the leader, or hold it until the leader is known. Raises RequestRefused."""
        if self._bytes > self._bytes_max or len(self._held_calls) + len(self._in_flight) >= self._requests_max:
            self._refusals += 1
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, _BUSY)
        kind = type(call.request)
        client_id = ""
        if (group := _group_of(call.request)) is not None:
            # The leader ignores clients that have lost a queue, and cannot identify the client of this connection by
            # itself.
            client_id = self._client_id(call.connection, group) or ""
        sequence = next(self._sequence) & _OPAQUE_MASK
        try:
            frame, inner_at = self._encoder.encode(
                sequence, call.connection.host, call.request, call.body, call.serialization, client_id, call.user
            )
        except TooLarge as error:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        assert sequence not in self._in_flight, f"request {sequence} is in flight already"
        request = _ForwardedCall(sequence, call, frame, inner_at, self._clock(), kind in self.repeatable)
        self._bytes += len(frame)
        self._forwarded_bytes += len(frame)
        if kind in _SENDS:
            self._sends += 1
        elif kind is UpdateConsumerOffset:
            self._offsets += 1
        else:
            self._others += 1
        if self._open:
            assert self._upstream is not None, "open without a connection"
            if not self._in_flight:
                self._watch()
            self._in_flight[sequence] = request
            self._upstream.send(frame)
        else:
            if not self._held_calls:
                self._watch()
            self._held_calls.append(request)
            self._advance()

    def role_changed(self, change: RoleChange) -> None:
        """Connect to the new leader, if it changed."""
        self.replicas_changed()

    def replicas_changed(self) -> None:
        """Connect to the leader again if its address is another one now, and send the held requests."""
        address = self._leader_address()
        if self._upstream is not None and self._upstream.address != address:
            self._shut()
            self._closed_at = self._clock()
            self._log_outcome()
        self._not_before = 0.0
        self._advance()

    def lead(self) -> None:
        """Serve the held requests here, since this replica leads."""
        self._leads = True
        self._closed_at = self._clock()
        self._shut()
        self._log_outcome()
        self._advance()

    def resign(self) -> None:
        """Forward requests to the new leader from now on, since this replica stops leading."""
        self._leads = False

    def has_unsent_replies(self) -> bool:
        """Whether requests are held or in flight."""
        return bool(self._held_calls or self._in_flight)

    def tasks(self) -> Iterator[Task]:
        yield self.run

    def on_stop(self) -> None:
        """Close the connection to the leader, and drop all requests. Their clients get no response."""
        if self._upstream is not None:
            self._upstream.close()
            self._upstream = None
        self._open = False
        self._held_calls.clear()
        self._in_flight.clear()
        self._bytes = 0

    def counters(self) -> dict[str, int]:
        """Return the numbers of forwarded requests since the start, by kind and outcome, and how many wait now."""
        return {
            "forwarded_sends": self._sends,
            "forwarded_offsets": self._offsets,
            "forwarded_others": self._others,
            "forwarded_bytes": self._forwarded_bytes,
            "forwarded_waiting": len(self._held_calls) + len(self._in_flight),
            "forwarded_refused": self._refusals,
            "forwarded_retried": self._retries,
            "forwarded_unknown": self._unknown,
        }

    def check_invariants(self) -> None:
        """Assert that the bytes of all requests are counted, and that held requests keep their order; for tests."""
        calls = (*self._held_calls, *self._in_flight.values())
        nbytes = sum(len(each.frame) for each in calls)
        assert nbytes == self._bytes, f"requests of {nbytes} bytes are forwarded, {self._bytes} are counted"
        sequences = [each.sequence for each in self._held_calls]
        assert sequences == sorted(sequences), f"requests are held in the order {sequences}"
        wrong_numbers = [number for number, each in self._in_flight.items() if each.sequence != number]
        assert not wrong_numbers, f"requests {wrong_numbers} are in flight under numbers of others"
        assert self._upstream is not None or not self._open, f"{len(self._in_flight)} requests are in flight to nobody"

    # -- the connection ----------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Connect, send or serve held requests, whatever is possible now."""
        if self._in_flight or self._open:
            return
        if self._leads:
            self._serve_held()
            return
        now = self._clock()
        if not self._held_calls or now < self._not_before or (address := self._leader_address()) is None:
            return
        upstream = self._upstream
        if upstream is not None and (upstream.address != address or self._not_trusted):
            upstream.close()
            upstream = None
        if upstream is None:
            self._dialled_at = now
            self._not_trusted = False
            self._upstream = PeerConnection(
                self._reactor,
                address,
                self._authentication,
                on_connected=self._advance,
                on_response=self._on_response,
                on_closed=self._upstream_closed,
            )
            self._upstream.dial()
        elif upstream.connected:
            self._send_held(upstream)

    def _send_held(self, upstream: PeerConnection) -> None:
        assert not self._open, f"{len(self._held_calls)} requests are held although the leader may be asked"
        requests, self._held_calls = self._held_calls, []
        for request in requests:
            if request.connection.closed and not request.oneway:
                self._release(request)
                continue
            self._in_flight[request.sequence] = request
            upstream.send(request.frame)
        self._open = True
        if not self._forwarded_here:
            self._log.info("forwarding_begins", leader=upstream.address, waited=len(requests))
            self._forwarded_here = self._sends + self._offsets + self._others

    def _serve_held(self) -> None:
        requests, self._held_calls = self._held_calls, []
        self._serve_locally()
        for held_call in requests:
            self._release(held_call)
            [(request, body, _)], _ = decode_chunk(held_call.frame[held_call.inner_at :])
            held_call.connection.dispatch(request, body, held_call.serialization)

    def _on_response(self, response: Response, body: bytes) -> None:
        request = self._in_flight.pop(response.opaque, None)
        if request is None:
            return
        if response.code == ResponseCode.SUCCESS:
            self._release(request)
            if body and not request.oneway:
                assert self._upstream is not None, "an answer without a connection"
                request.connection.send(mark_forwarded(body, self._upstream.address))
        elif response.code in _NOT_SERVED:
            if response.code == ResponseCode.NO_PERMISSION:
                self._not_trusted = True
                if response.remark != self._why:
                    self._log.warning("forwarding_not_allowed", reason=response.remark)
            self._why = response.remark or self._why
            self._shut()
            self._not_before = self._clock() + RETRY_SECONDS
            self._hold_again(request)
        else:
            self._outcome_unknown(request, response.remark or f"code {response.code}")
        if not self._open and not self._in_flight:
            self._advance()

    def _upstream_closed(self, reason: str) -> None:
        upstream, self._upstream = self._upstream, None
        assert upstream is not None, f"a connection that was given up closed: {reason}"
        self._shut()
        self._why = f"the leader at {upstream.address} is unreachable: {reason}"
        self._not_before = self._clock() + RETRY_SECONDS
        requests, self._in_flight = self._in_flight, {}
        if requests:
            self._log.warning("forwarding_broken", leader=upstream.address, open_requests=len(requests), reason=reason)
        for request in requests.values():
            self._outcome_unknown(request, reason)

    def _outcome_unknown(self, request: _ForwardedCall, reason: str) -> None:
        if request.repeatable:
            request.in_doubt = True
            self._hold_again(request)
        else:
            self._fail_in_doubt(request, reason)

    def _release(self, request: _ForwardedCall) -> None:
        """Subtract a request that is no longer in memory from the forwarded bytes."""
        self._bytes -= len(request.frame)
        assert self._bytes >= 0, f"requests of {self._bytes} bytes are being forwarded"

    def _fail_in_doubt(self, request: _ForwardedCall, reason: str) -> None:
        self._unknown += 1
        self._release(request)
        if not request.oneway:
            request.connection.close(f"the connection to the leader broke with a request in flight: {reason}")

    def _hold_again(self, request: _ForwardedCall) -> None:
        assert request.sequence not in self._in_flight, f"request {request.sequence} is held while it is in flight"
        self._retries += 1
        bisect.insort(self._held_calls, request, key=_sequence_of)

    def _shut(self) -> None:
        self._open = False
        self._watch()

    def _log_outcome(self) -> None:
        if self._forwarded_here:
            self._forwarded_here = 0
            self._log.info("forwarding_ends", **self.counters())

    # -- time --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Time out held requests, and repeat failed ones, until cancelled."""
        await self._timer.run()

    def tick(self) -> None:
        """Do one step of `run`."""
        now = self._ticked_at = self._clock()
        self._expire(now - self._seconds_max)
        upstream = self._upstream
        if upstream is not None and not upstream.connected and now > self._dialled_at + CONNECT_SECONDS_MAX:
            upstream.close()
            self._upstream_closed("no answer to a connection attempt")
        elif upstream is not None and self._in_flight:
            oldest = next(iter(self._in_flight.values()))
            too_long = now > oldest.since + ANSWER_SECONDS_MAX
            elsewhere = self._leads or self._leader_address() not in (None, upstream.address)
            if too_long or (elsewhere and now > self._closed_at + DRAIN_SECONDS_MAX):
                upstream.close()
                self._upstream_closed(f"no answer for {now - oldest.since:.1f} s")
        self._advance()

    def _expire(self, before: float) -> None:
        count = 0
        while count < len(self._held_calls) and self._held_calls[count].since < before:
            count += 1
        if not count:
            return
        given_up, self._held_calls = self._held_calls[:count], self._held_calls[count:]
        for request in given_up:
            if request.in_doubt:
                self._fail_in_doubt(request, self._why)
                continue
            self._refusals += 1
            self._release(request)
            if not request.oneway:
                code, encoding = ResponseCode.SERVICE_NOT_AVAILABLE, request.serialization
                request.connection.send(encode_response(request.opaque, code, remark=self._why, serialization=encoding))

    def _next_deadline(self) -> float:
        if self._held_calls:
            return self._ticked_at + RETRY_SECONDS
        return self._ticked_at + _WATCH_SECONDS if self._in_flight else float("inf")

    def _watch(self) -> None:
        """Start the timer when the first request begins to wait."""
        self._ticked_at = self._clock()
        self._timer.refresh()

    def _fire(self) -> None:
        self.tick()
        self._reactor.wake()


def _group_of(request: Any) -> str | None:
    """Return the consumer group of a request that queue locks affect; None for other requests."""
    if isinstance(request, UpdateConsumerOffset):
        return request.ext.consumer_group
    if isinstance(request, ConsumerSendMsgBack):
        return request.ext.group
    if isinstance(request, SendMessage | SendMessageV2) and request.ext.topic.startswith(RETRY_PREFIX):
        return request.ext.topic.removeprefix(RETRY_PREFIX)
    return None
