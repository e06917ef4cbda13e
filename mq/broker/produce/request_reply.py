"""Replies to request messages: SEND_REPLY_MESSAGE (request codes 324 and 325).

A reply names the client that waits for it. The leader pushes it to that client (request code 326), over the client's
own connection or through the replica that the client is connected to (9003), and stores it if that is requested. It
answers when both have ended: SUCCESS says that the client has the reply, the message id says whether it is stored,
too. Nothing is retried here: the replier gets the result, and a client recognizes a duplicate reply by its correlation
id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from mq.broker.base.periodic_task import Periodic, now_if
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.client_requests import NoResponse
from mq.broker.net.connection import ClientConnection
from mq.broker.net.heartbeat_limits import HeartbeatLimits
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.produce.send import Sends
from mq.broker.replication.peer_calls import PeerCalls
from mq.broker.write_path.internal_messages import check_sent_bytes
from mq.broker.write_path.outcome import Outcome, Stored
from mq.broker.write_path.pending import InternalRecord
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.message_ids import offset_message_id
from mq.protocol.messages.records import BORN_HOST_IPV6, STORE_HOST_IPV6, TRANSACTION_MASK, tag_code_of
from mq.protocol.numbers import FIRST_OFFSET
from mq.protocol.requests.request_reply import (
    PushReplyExt,
    RelayReply,
    RelayReplyExt,
    ReplyStored,
    SendReplyMessage,
    SendReplyMessageV2,
)

RELAY_SECONDS = 4.0
"""Time for another replica to push a reply to its client; see `UpkeepLimits.push_seconds`."""

_CLIENT_FLAGS = ~(BORN_HOST_IPV6 | STORE_HOST_IPV6 | TRANSACTION_MASK)
_CLIENT_ID_LENGTH_MAX = HeartbeatLimits().client_id_length_max
_HOST_IP_BYTES = _PORT_BYTES = 4

SendReply = SendReplyMessage | SendReplyMessageV2


_EXPIRE_SECONDS = 0.1


class _OpenReply:
    """A reply that is answered when both its push and its storing have ended."""

    __slots__ = ("at", "body_bytes", "call", "client_id", "queue_id", "refusal", "waits")

    def __init__(self, call: Call[SendReply], body_bytes: int) -> None:
        self.call = call
        self.body_bytes = body_bytes
        self.client_id = ""
        self.queue_id = 0
        self.waits = 1
        self.refusal: str | None = None
        self.at: Stored | None = None


class Replies(Service):
    """Pushes replies to the clients that wait for them, and stores them if the broker is configured so.

    Args:
        admit: raises RequestRefused unless the connection is a replica of this group.
    """

    def __init__(
        self, context: BrokerContext, *, sends: Sends, calls: PeerCalls, admit: Callable[[ClientConnection, str], None]
    ) -> None:
        self._identity = context.settings.identity
        self._store = context.settings.store_reply_message
        self._body_bytes_max = context.settings.message_bytes_max
        self._under_way_bytes_max = context.settings.uncommitted_bytes_max
        self._push_seconds = context.limits.upkeep.push_seconds
        self._clients = context.clients
        self._sends = sends
        self._appender = context.appender
        self._calls = calls
        self._other_replicas = context.other_replicas
        self._admit = admit
        self._address = context.replica_address
        self._store_host = context.store_host
        self._wall_clock_ms = context.wall_clock_ms
        self._under_way_bytes = 0
        self._pushes = self._relays = self._not_pushed = 0

    def routes(self) -> Iterator[Route]:
        yield Route(SendReplyMessage, self.handle, leader_only=True)
        yield Route(SendReplyMessageV2, self.handle, leader_only=True)
        yield Route(RelayReply, self.handle_relayed)

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(_EXPIRE_SECONDS, self.expire, lambda: now_if(self._calls.are_open))

    def resign(self) -> None:
        """Close the connections to other replicas, since this replica stops leading. Pushes over them fail."""
        self._calls.close()

    def on_stop(self) -> None:
        """Close the connections to other replicas, over which this replica forwarded replies."""
        self._calls.close()

    def expire(self) -> None:
        """Time out pushes that other replicas have not answered; called by a timer."""
        self._calls.expire()

    def check_invariants(self) -> None:
        self._calls.check_invariants()
        assert self._under_way_bytes >= 0, f"replies of {self._under_way_bytes} bytes are under way"

    def counters(self) -> dict[str, int]:
        """Return the numbers of replies since the start, by outcome, and the bytes of those under way."""
        return {
            "replies_pushed": self._pushes,
            "replies_relayed": self._relays,
            "replies_not_pushed": self._not_pushed,
            "replies_under_way_bytes": self._under_way_bytes,
        }

    # -- requests of the replier ---------------------------------------------------------------------------------------

    def handle(self, call: Call[SendReply]) -> None:
        """Request codes 324 and 325: push or store a reply, then answer. Raises RequestRefused if it did neither."""
        ext = call.request.ext
        if self._under_way_bytes > self._under_way_bytes_max:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, too many replies are in flight")
        tail = self._sends.queue_of(call)
        if tail is None:
            return
        text = ext.properties
        stored_properties = (text if not text or text[-1] == props.VALUE_END else text + props.VALUE_END).encode()
        check_sent_bytes(len(stored_properties))
        if len(call.body) > self._body_bytes_max:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"the body has {len(call.body)} bytes; maximum: {self._body_bytes_max}"
            )
        reply = _OpenReply(call, len(call.body) + len(stored_properties))
        reply.queue_id = tail.queue_id
        self._under_way_bytes += reply.body_bytes
        if self._store:
            reply.waits += 1
            record = InternalRecord(
                tail=tail,
                body=call.body,
                properties=stored_properties,
                tag_code=tag_code_of(stored_properties),
                flag=ext.flag,
                sys_flag=ext.sys_flag & _CLIENT_FLAGS,
                born_timestamp_ms=ext.born_timestamp_ms,
                born_host=call.connection.host,
                reconsume_times=ext.reconsume_times,
                on_outcome=partial(self._on_stored, reply),
            )
            self._appender.add_record(record)
        self._push(reply, call.body)
        call.drop_body()

    def _push(self, reply: _OpenReply, body: bytes) -> None:
        ext = reply.call.request.ext
        properties = props.decode(ext.properties)
        client_id = properties.get(props.REPLY_TO_CLIENT)
        if client_id is None:
            self._answer(reply, f"reply message properties[{props.REPLY_TO_CLIENT}] is null")
            return
        reply.client_id = client_id[:_CLIENT_ID_LENGTH_MAX]
        if reply.client_id != client_id:
            self._not_found(reply)
            return
        now_ms = self._wall_clock_ms()
        properties[props.PUSH_REPLY_TIME] = str(now_ms)
        host = reply.call.connection.host
        push = PushReplyExt(
            producer_group=ext.producer_group,
            topic=ext.topic,
            default_topic=ext.default_topic,
            default_topic_queue_nums=ext.default_topic_queue_nums,
            queue_id=ext.queue_id,
            sys_flag=ext.sys_flag,
            born_timestamp_ms=ext.born_timestamp_ms,
            flag=ext.flag,
            born_host=f"{'.'.join(map(str, host[:_HOST_IP_BYTES]))}:{int.from_bytes(host[_HOST_IP_BYTES:], 'big')}",
            store_host=self._address,
            store_timestamp_ms=now_ms,
            properties=props.encode(properties),
            reconsume_times=ext.reconsume_times,
            unit_mode=ext.unit_mode,
        )
        at = self._clients.producer(client_id)
        if at is None:
            self._relay(reply, push, body)
            return

        def on_response(response: Response | NoResponse, _: bytes) -> None:
            if response is NoResponse.GONE:
                self._relay(reply, push, body)  # it may be connected to another replica by now
            elif isinstance(response, Response) and response.code == ResponseCode.SUCCESS:
                self._answer(reply, None)
            else:
                self._answer(reply, _failure_text(client_id))

        at.ask(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push.fields(), body, self._push_seconds, on_response)

    def _relay(self, reply: _OpenReply, push: PushReplyExt, body: bytes) -> None:
        """Send the reply to the other replicas, so that the one with the client pushes it."""
        addresses = self._other_replicas()
        if not addresses:
            self._not_found(reply)
            return
        open_questions = len(addresses)
        refusal: str | None = None
        has_answered = False

        def on_response(response: Response | NoResponse, _: bytes) -> None:
            nonlocal open_questions, refusal, has_answered
            open_questions -= 1
            assert open_questions >= 0, f"{-open_questions} replicas more than {len(addresses)} have answered"
            code = response.code if isinstance(response, Response) else None
            if code != ResponseCode.CONSUMER_NOT_ONLINE and response is not NoResponse.GONE:
                refusal = _failure_text(reply.client_id)
            if has_answered or (open_questions and code != ResponseCode.SUCCESS):
                return
            has_answered = True
            if code == ResponseCode.SUCCESS:
                self._relays += 1
                self._answer(reply, None)
            elif refusal is None:
                self._not_found(reply)
            else:
                self._answer(reply, refusal)

        fields = msgspec.structs.asdict(push)
        ext = RelayReplyExt(**fields, identity=self._identity, client_id=reply.client_id).fields()
        for address in addresses:
            self._calls.ask(address, RequestCode.RELAY_REPLY, ext, body, RELAY_SECONDS, on_response)

    def _not_found(self, reply: _OpenReply) -> None:
        self._answer(reply, f"push reply message fail, channel of <{reply.client_id}> not found.")

    def _on_stored(self, reply: _OpenReply, outcome: Outcome) -> None:
        if isinstance(outcome, Stored):
            reply.at = outcome
        self._advance(reply)

    def _answer(self, reply: _OpenReply, refusal: str | None) -> None:
        reply.refusal = refusal
        if refusal is None:
            self._pushes += 1
        else:
            self._not_pushed += 1
        self._advance(reply)

    def _advance(self, reply: _OpenReply) -> None:
        reply.waits -= 1
        assert reply.waits >= 0, f"a reply waits for {reply.waits} outcomes"
        if reply.waits:
            return
        self._under_way_bytes -= reply.body_bytes
        assert self._under_way_bytes >= 0, f"replies of {self._under_way_bytes} bytes are under way"
        reply_ext = ReplyStored(region="DefaultRegion", trace_on=True)
        if reply.at is not None:
            host = self._store_host
            port = int.from_bytes(host[-_PORT_BYTES:], "big")
            position = reply.at.physical_offset
            reply_ext.message_id = offset_message_id(host[:-_PORT_BYTES], port, position)
            reply_ext.queue_id, reply_ext.queue_offset = reply.queue_id, reply.at.queue_offset
        elif reply.refusal is None:
            reply_ext.message_id, reply_ext.queue_id, reply_ext.queue_offset = "0", reply.queue_id, FIRST_OFFSET
        code = ResponseCode.SUCCESS if reply.refusal is None else ResponseCode.SYSTEM_ERROR
        reply.call.answer(reply.call.response(code, remark=reply.refusal, ext=reply_ext.fields()))

    # -- requests to the replica of the waiting client -----------------------------------------------------------------

    def handle_relayed(self, call: Call[RelayReply]) -> None:
        """Request code 9003: push a reply for the leader to a client of this replica. Answers later.

        Raises RequestRefused if the client is not connected here, or the sender is not a replica.
        """
        ext = call.request.ext
        self._admit(call.connection, ext.identity)
        at = self._clients.producer(ext.client_id)
        if at is None:
            raise RequestRefused(
                ResponseCode.CONSUMER_NOT_ONLINE, f"client {ext.client_id} is not connected to this broker"
            )
        push = PushReplyExt(**{name: getattr(ext, name) for name in PushReplyExt.__struct_fields__})

        def on_response(response: Response | NoResponse, _: bytes) -> None:
            if isinstance(response, Response):
                code = ResponseCode.SUCCESS if response.code == ResponseCode.SUCCESS else ResponseCode.SYSTEM_ERROR
            else:
                gone = response is NoResponse.GONE
                code = ResponseCode.CONSUMER_NOT_ONLINE if gone else ResponseCode.SYSTEM_ERROR
            call.answer(call.response(code))

        at.ask(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push.fields(), call.body, self._push_seconds, on_response)
        call.drop_body()


def _failure_text(client_id: str) -> str:
    return f"push reply message to {client_id}fail."
