"""PULL_MESSAGE (request codes 11 and 361): committed records straight from the log, held when there are none yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from mq.broker.clients import ClientRegistry
from mq.broker.connection import ClientConnection, Handler
from mq.broker.long_polling import LongPolling
from mq.broker.metadata import Metadata
from mq.broker.refusal import RequestRefused
from mq.broker.settings import BrokerSettings
from mq.filter.subscription import Subscription, SubscriptionError, parse_tags
from mq.protocol.codes import ResponseCode
from mq.protocol.headers import LitePullMessage, PullExt, PullMessage, pull_response_header
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.queue_store import QueueStore
from raftlog.segment import EntryGone

COMMIT_OFFSET, SUSPEND, SUBSCRIPTION = 1, 2, 4
_READABLE = 4
_SCAN_ENTRIES_MAX = 800
_SCAN_BYTES_MIN = 16_000
_GAP_BYTES_MAX = 4096
_SUSPEND_SECONDS_MAX = 60.0
_WAITING_BYTES_MAX = 4 * 1024 * 1024
"""A client with so many bytes of replies on their way gets no further messages before it has read some of them."""
_DRAIN_SECONDS = 0.05

PullRequest = PullMessage | LitePullMessage


class HeldPull(NamedTuple):
    """A pull that waits for a message; re-run from the start when one comes, or when its time is over."""

    connection: ClientConnection
    request: PullRequest
    serialization: int
    subscription: Subscription

    def matches(self, code: int) -> bool:
        """Whether a message with this tag code may be wanted."""
        return self.subscription.matches_code(code)


class Pulls:
    """The pull handler of a broker.

    Args:
        read: ``read(physical_offset, nbytes)`` of the log.
        note_group: told of a consumer group that may not exist yet.
        store_offset: takes the consumer offset that a pull carries.
        reset_to: where a consumer has to go on instead of at the offset that it asks for, if it was reset.
        confirm: calls back with True once all is applied that was committed anywhere before, or with False when nobody
            can tell.
    """

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        metadata: Metadata,
        store: QueueStore,
        clients: ClientRegistry[ClientConnection],
        polling: LongPolling[HeldPull],
        read: Callable[[int, int], bytes],
        note_group: Callable[[str], None],
        store_offset: Callable[[ClientConnection, str, str, int, int], None],
        reset_to: Callable[[str, str, int, int], int | None],
        confirm: Callable[[Callable[[bool], None]], None],
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._store = store
        self._clients = clients
        self._polling = polling
        self._read = read
        self._note_group = note_group
        self._store_offset = store_offset
        self._reset_to = reset_to
        self._confirm = confirm
        self._clock = clock

    def handlers(self) -> dict[type[Any], Handler]:
        """What every replica serves."""
        return {PullMessage: self.handle, LitePullMessage: self.handle}

    def handle(
        self, connection: ClientConnection, request: PullRequest, body: bytes, serialization: int
    ) -> bytes | None:
        """Answer a pull, or hold it. Raises RequestRefused."""
        ext = request.ext
        subscription = self._checked(ext)
        if ext.sys_flag & COMMIT_OFFSET and ext.commit_offset >= 0:
            self._store_offset(connection, ext.consumer_group, ext.topic, ext.queue_id, ext.commit_offset)
        pull = HeldPull(connection, request, serialization, subscription)
        if self._metadata.offset_resets:
            wanted = self._reset_to(ext.consumer_group, ext.topic, ext.queue_id, ext.queue_offset)
            if wanted is not None:
                return self._moved(pull, wanted)
        if not self._is_behind_the_end(ext):
            return self._serve(pull, may_hold=True)

        def confirmed(knows_the_end: bool) -> None:
            if not connection.closed:
                self._answer(pull, may_hold=True, knows_the_end=knows_the_end)

        # To this replica the message may still come; a consumer that is sent back would get all again.
        self._confirm(confirmed)
        return None

    def resume(self, pull: HeldPull) -> None:
        """Answer a pull that was held, with whatever there is now."""
        connection = pull.connection
        connection.held_pulls -= 1
        if not connection.closed:
            self._answer(pull, may_hold=False)

    def _moved(self, pull: HeldPull, wanted: int) -> bytes:
        queue = self._store.get(pull.request.ext.topic, pull.request.ext.queue_id)
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        return self._empty(pull, ResponseCode.PULL_OFFSET_MOVED, wanted, low, high, "OFFSET_RESET")

    def _answer(self, pull: HeldPull, *, may_hold: bool, knows_the_end: bool = False) -> None:
        try:
            reply = self._serve(pull, may_hold=may_hold, knows_the_end=knows_the_end)
        except RequestRefused as refusal:
            reply = self._empty(pull, refusal.code, 0, 0, 0, refusal.remark)
        if reply is not None:
            pull.connection.send(reply)

    def _is_behind_the_end(self, ext: PullExt) -> bool:
        queue = self._store.get(ext.topic, ext.queue_id)
        return ext.queue_offset > (0 if queue is None else queue.max_offset)

    def _checked(self, ext: PullExt) -> Subscription:
        config = self._metadata.topics.get(ext.topic)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"the topic {ext.topic} does not exist")
        if not config.perm & _READABLE:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {ext.topic} is not readable")
        if not 0 <= ext.queue_id < config.read_queues:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queue id {ext.queue_id} is illegal, {ext.topic} has {config.read_queues} read queues",
            )
        self._note_group(ext.consumer_group)
        if ext.sys_flag & SUBSCRIPTION:
            if ext.expression_type not in (None, "", "TAG"):
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"expression type {ext.expression_type} is not enabled")
            try:
                return parse_tags(ext.topic, ext.subscription or "*")
            except SubscriptionError as error:
                raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        known = self._clients.subscription(ext.consumer_group, ext.topic)
        if known is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"group {ext.consumer_group} does not subscribe topic {ext.topic}",
            )
        return known

    def _serve(self, pull: HeldPull, *, may_hold: bool, knows_the_end: bool = False) -> bytes | None:
        ext = pull.request.ext
        queue = self._store.get(ext.topic, ext.queue_id)
        offset = ext.queue_offset
        low = 0 if queue is None else queue.min_offset
        high = 0 if queue is None else queue.max_offset
        if offset > high and not knows_the_end:
            pass
        elif queue is None or high == 0:
            if offset != 0:
                return self._empty(pull, ResponseCode.PULL_OFFSET_MOVED, 0, low, high, "NO_MESSAGE_IN_QUEUE")
        elif offset < low:
            return self._empty(pull, ResponseCode.PULL_OFFSET_MOVED, low, low, high, "OFFSET_TOO_SMALL")
        elif offset > high:
            return self._empty(pull, ResponseCode.PULL_OFFSET_MOVED, high, low, high, "OFFSET_OVERFLOW_BADLY")
        elif offset < high:
            if pull.connection.waiting_bytes < _WAITING_BYTES_MAX:
                return self._found(pull, queue, offset, low, high)
            if self._hold(pull, _DRAIN_SECONDS):
                return None
            return self._empty(pull, ResponseCode.PULL_NOT_FOUND, offset, low, high, "CLIENT_READS_TOO_SLOWLY")
        seconds = min(max(ext.suspend_timeout_ms, 0) / 1000, _SUSPEND_SECONDS_MAX)
        if may_hold and ext.sys_flag & SUSPEND and self._hold(pull, seconds):
            return None
        return self._empty(pull, ResponseCode.PULL_NOT_FOUND, offset, low, high, "OFFSET_OVERFLOW_ONE")

    def _hold(self, pull: HeldPull, seconds: float) -> bool:
        if pull.connection.closed:
            return False
        ext = pull.request.ext
        held = self._polling.hold(
            (ext.topic, ext.queue_id), ext.queue_offset, self._clock() + seconds, pull, pull.connection
        )
        if held:
            pull.connection.held_pulls += 1
        return held

    def _found(self, pull: HeldPull, queue: ConsumeQueue, offset: int, low: int, high: int) -> bytes | None:
        ext = pull.request.ext
        wanted = max(1, min(ext.max_messages, self._settings.pull_messages_max))
        entries = queue.read(offset, min(_SCAN_ENTRIES_MAX, max(_SCAN_BYTES_MIN // QUEUE_ENTRY.size, wanted)))
        matches = None if pull.subscription.all_tags else pull.subscription.matches_code
        chosen: list[tuple[int, int]] = []
        budget = self._settings.pull_bytes_max
        scanned = 0
        for position, size, code in QUEUE_ENTRY.iter_unpack(entries):
            if matches is None or matches(code):
                if len(chosen) == wanted or (chosen and size > budget):
                    break
                budget -= size
                chosen.append((position, size))
            scanned += 1
        next_offset = offset + scanned
        if not chosen:
            return self._empty(pull, ResponseCode.PULL_RETRY_IMMEDIATELY, next_offset, low, high, "NO_MATCHED_MESSAGE")
        try:
            body = self._records(chosen)
        except EntryGone as gone:
            # The log was shortened, and this queue is not told yet.
            low = queue.expire(gone.first)
            return self._empty(pull, ResponseCode.PULL_OFFSET_MOVED, low, low, high, "OFFSET_TOO_SMALL")
        header = pull_response_header(
            pull.request.opaque,
            ResponseCode.SUCCESS,
            next_offset,
            low,
            high,
            0,
            "FOUND",
            len(body),
            pull.serialization,
        )
        pull.connection.send_all([header, body], len(header) + len(body))
        return None

    def _records(self, chosen: list[tuple[int, int]]) -> bytes:
        """The records at these places, in order; neighbours come with one read."""
        parts: list[bytes] = []
        segment_bytes = self._settings.segment_bytes
        first = 0
        while first < len(chosen):
            start, size = chosen[first]
            end = start + size
            last = first + 1
            while (
                last < len(chosen)
                and 0 <= chosen[last][0] - end <= _GAP_BYTES_MAX
                and chosen[last][0] // segment_bytes == start // segment_bytes
            ):
                end = chosen[last][0] + chosen[last][1]
                last += 1
            data = self._read(start, end - start)
            if sum(size for _, size in chosen[first:last]) == end - start:
                parts.append(data)
            else:
                parts += [data[at - start : at - start + size] for at, size in chosen[first:last]]
            first = last
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @staticmethod
    def _empty(pull: HeldPull, code: ResponseCode, offset: int, low: int, high: int, remark: str) -> bytes:
        return pull_response_header(pull.request.opaque, code, offset, low, high, 0, remark, 0, pull.serialization)
