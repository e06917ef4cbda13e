"""Builds the responses to pops, peeks and notifications."""

from __future__ import annotations

from typing import NamedTuple

from mq.broker.net.call import Call
from mq.broker.pop.queue_cursor import PopBatch, PopRequest
from mq.broker.state.pop_checkpoints import INVISIBLE_MS_MAX, PopCheckpoints
from mq.filter.subscription import Subscription
from mq.protocol.codes import ResponseCode
from mq.protocol.frames import encode_prefix
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.pop import Notification, NotificationReply, PeekMessage, PopMessage, PopReply
from mq.protocol.requests.receipts import ORDERED_REVIVE_QUEUE, REVIVE_QUEUE, count_info, mark_of, queue_info
from mq.protocol.wire.encoding import RESPONSE_FLAG, encode_header


class HeldPop(NamedTuple):
    """A pop or notification request that waits until ``deadline``, in monotonic seconds.

    ``loads`` counts how often records were loaded from disk for it. ``load_start`` is the topic, queue and queue offset
    of the first record that was loaded last.
    """

    call: Call[PopMessage | Notification]
    subscription: Subscription
    deadline: float
    loads: int = 0
    load_start: tuple[str, int, QueueOffset] | None = None

    def matches(self, code: int) -> bool:
        """Whether a message with this tag code may match the subscription."""
        return self.subscription.matches_code(code)

    @property
    def text_bytes(self) -> int:
        """Approximate bytes of the long texts of the request, and of what was parsed from them."""
        request = self.call.request
        ext = request.ext
        nbytes = len(ext.attempt_id or "") + self.subscription.parsed_bytes
        if isinstance(request, PopMessage):
            nbytes += len(request.ext.expression or "")
        return nbytes


def nothing_found(pop: HeldPop, code: ResponseCode, now_ms: int) -> bytes:
    """Return the response to a pop or notification that finds no messages."""
    if isinstance(pop.call.request, Notification):
        return notification(pop, has_message=False, full=code == ResponseCode.POLLING_FULL)
    ext = pop.call.request.ext
    reply = PopReply(
        pop_time_ms=now_ms,
        invisible_ms=min(ext.invisible_ms, INVISIBLE_MS_MAX),
        revive_queue=ORDERED_REVIVE_QUEUE if ext.order else REVIVE_QUEUE,
    )
    return pop.call.response(code, ext=reply.fields())


def notification(pop: HeldPop, *, has_message: bool, full: bool = False) -> bytes:
    """Return the response to a notification request."""
    return pop.call.response(ext=NotificationReply(has_message=has_message, polling_full=full).fields())


def send_messages(
    call: Call[PopMessage | Notification | PeekMessage],
    code: ResponseCode,
    pop_request: PopRequest,
    batches: list[PopBatch],
    pops: PopCheckpoints,
) -> None:
    """Send the messages to the client. The header contains what the client needs for receipts."""
    full = [each for each in batches if each.messages]
    assert bool(full) is (code == ResponseCode.SUCCESS), f"{len(full)} queues give messages, and the code is {code}"
    starts, offsets = queue_info((mark_of(each.key[1]), each.key[2], each.command.start, each.offsets) for each in full)
    counts = [_counts(each, pops) for each in full] if pop_request.attempt is not None else []
    reply = PopReply(
        pop_time_ms=pop_request.pop_time_ms,
        invisible_ms=pop_request.invisible_ms,
        revive_queue=pop_request.revive_queue,
        rest_num=sum(each.rest for each in batches),
        start_offset_info=starts,
        msg_offset_info=offsets,
        order_counts=";".join(filter(None, counts)),
    )
    fields = reply.fields()
    records = [record for each in full for record in each.records]
    nbytes = sum(map(len, records))
    expected = sum(each.nbytes for each in full)
    assert nbytes == expected, f"popped records have {nbytes} bytes, and {expected} by their queues"
    header = encode_header(code, call.request.opaque, RESPONSE_FLAG, ext=fields, serialization=call.serialization)
    head = encode_prefix(call.serialization, len(header), nbytes) + header
    call.connection.send_all([head, *records], len(head) + nbytes)


def _counts(batch: PopBatch, pops: PopCheckpoints) -> str:
    """Return the text that says how often ordered messages were popped before; empty without such messages."""
    open_pop = pops.get(batch.key).ordered
    if open_pop is None or open_pop.pop_time_ms != batch.command.pop_time_ms:
        return ""
    return count_info(mark_of(batch.key[1]), batch.key[2], open_pop.counts)
