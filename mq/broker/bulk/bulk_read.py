"""Request code 9007: messages of several queues of a topic in log order, for readers of whole topics.

Followers serve it, so that scans do not load the leader; a leader serves it only if the request allows that. Consume
queues contain only committed messages, and so do answers. Worker threads read and verify the log (`selection`);
the event loop only reads consume queues. Limits apply to concurrent reads, waiting reads, bytes per second, and unread
answers per client; above them a request is refused with BUSY and a time to retry.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from mq.broker.base.periodic_task import Periodic, now_if
from mq.broker.bulk.selection import QueueSpan, Selection, read_answer, select
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection
from mq.broker.net.refusals import RequestRefused, decode_body
from mq.broker.net.service import Route, Service
from mq.broker.settings import BrokerSettings
from mq.broker.state.commands import TopicConfig
from mq.filter.subscription import SubscriptionError, parse_tags
from mq.protocol.bulk import (
    BULK_BYTES_MAX,
    BulkStatus,
    ReadRange,
    decode_ranges,
    encode_no_records,
    encode_offsets,
)
from mq.protocol.codes import PERM_READ, ResponseCode
from mq.protocol.frames import encode_prefix
from mq.protocol.numbers import FIRST_OFFSET, PhysicalOffset, QueueOffset
from mq.protocol.requests.bulk import BulkRead, BulkReadExt
from mq.protocol.wire.encoding import RESPONSE_FLAG, encode_header
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY, QUEUE_ENTRY_BYTES, entry_sizes
from mq.store.errors import QueueFileDamaged
from raftlog.segment import EntryGone, SegmentError, StorageCorrupt

WAIT_MS_MAX: Final = 30_000
CLIENTS_COUNTED_MAX: Final = 64
CLIENT_ID_LENGTH_MAX: Final = 255

_PAUSE_MS: Final = 20
_PEEK_ENTRIES: Final = 16
_PEEK_QUEUES: Final = 8
_ENTRIES_MAX: Final = 64 * 1024
"""Maximum number of consume queue entries read for one answer."""
_NAME: Final = re.compile(r"[^A-Za-z0-9_.@%-]")
_NAME_LENGTH_MAX: Final = 64
_OTHERS: Final = "others"
_EXPIRE_SECONDS: Final = 0.02


class _OpenRead(NamedTuple):
    """A request in progress. ``codes`` are the requested tag codes; empty for all tags."""

    call: Call[BulkRead]
    ranges: list[ReadRange]
    codes: frozenset[int]
    deadline: float


class _QueueRead(NamedTuple):
    """The result of reading consume queues: entries, or the reason why there is nothing to read."""

    spans: list[QueueSpan]
    nothing: bytes = b""
    is_behind: bool = False


_QueueRange = tuple[ConsumeQueue, QueueOffset, QueueOffset]
"""A queue, and the existing part of the requested range of offsets."""


class BulkReads(Service):
    """Answers bulk reads with messages of several queues in log order."""

    def __init__(self, context: BrokerContext) -> None:
        self._settings = context.settings
        self._limits = context.limits.bulk
        self._replica = context.replica
        self._beginning = context.beginning
        self._metadata = context.metadata
        self._store = context.store
        self._other_replicas = context.other_replicas
        self._in_background = context.environment.in_bulk_background
        self._records = context.records
        archive = context.environment.archive
        self._in_archive_background = self._in_background if archive is None else archive.in_background
        self._clock = context.clock
        self._quotas = context.quotas
        self._running_count = 0
        self._queue: deque[_OpenRead] = deque()
        self._waiting_reads: deque[_OpenRead] = deque()
        self._free_at = 0.0
        """The time at which the bytes served so far fit the rate limit again."""
        self._counts: dict[str, int] = dict.fromkeys(
            ("bulk_reads", "bulk_reads_busy", "bulk_reads_behind", "bulk_reads_damaged"), 0
        )
        for role in ("leader", "follower"):
            self._counts |= {f"bulk_{what}_as_{role}": 0 for what in ("rows", "bytes")}
        self._by_client: dict[str, int] = {}

    def settings_changed(self, settings: BrokerSettings) -> None:
        """Use changed settings, among them the throughput."""
        self._settings = settings

    def routes(self) -> Iterator[Route]:
        yield Route(BulkRead, self.handle)

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(_EXPIRE_SECONDS, self.expire, lambda: now_if(self._waiting_reads or self._queue))

    def counters(self) -> dict[str, int]:
        """Return the numbers of requests, and of rows and bytes by role and by client."""
        return {**self._counts, "bulk_reads_waiting": len(self._queue) + len(self._waiting_reads), **self._by_client}

    def check_invariants(self) -> None:
        """Assert that reads are queued only while all workers are busy, for tests."""
        count, running_max = self._running_count, self._settings.bulk_reads_max
        assert 0 <= count <= running_max, f"{count} bulk reads are running; maximum: {running_max}"
        assert not self._queue or count == running_max, f"{len(self._queue)} bulk reads wait, and {count} run"
        waiting_count, waiting_max = len(self._waiting_reads), self._waiting_max
        assert waiting_count <= waiting_max, f"{waiting_count} bulk reads wait for messages; maximum: {waiting_max}"
        name_count, names_max = len(self._by_client), 2 * CLIENTS_COUNTED_MAX + 4
        assert name_count <= names_max, f"{name_count} figures by client; maximum: {names_max}"

    def handle(self, call: Call[BulkRead]) -> bytes | None:
        """Request code 9007: read messages of several queues. Raises RequestRefused."""
        ext = call.request.ext
        self._checked_topic(ext)
        ranges = decode_body(decode_ranges, call.body)
        if not 1 <= ext.bytes_max <= BULK_BYTES_MAX or not 0 <= ext.wait_ms <= WAIT_MS_MAX:
            remark = (
                f"bytesMax is {ext.bytes_max} and waitMs {ext.wait_ms}; allowed: 1 to {BULK_BYTES_MAX} and 0 to "
                f"{WAIT_MS_MAX}"
            )
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, remark)
        if len(ext.client_id) > CLIENT_ID_LENGTH_MAX:
            remark = f"the client id has {len(ext.client_id)} characters; maximum: {CLIENT_ID_LENGTH_MAX}"
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, remark)
        try:
            codes = parse_tags(ext.topic, ext.tags).codes
        except SubscriptionError as error:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        self._counts["bulk_reads"] += 1
        deadline = self._clock() + ext.wait_ms / 1000
        call.drop_body()
        read = _OpenRead(call, ranges, codes, deadline)
        if (pause_ms := self._pause_ms(call.connection)) > 0:
            self._counts["bulk_reads_busy"] += 1
            return self._frame(read, encode_no_records(BulkStatus.BUSY, pause_ms=pause_ms))
        call.connection.held_pulls += 1
        self._queue.append(read)
        self._start_reads()
        return None

    def expire(self) -> None:
        """Try again the requests that wait for messages. A timer calls this."""
        reads, self._waiting_reads = self._waiting_reads, deque()
        self._queue.extend(reads)
        self._start_reads()

    @property
    def _waiting_max(self) -> int:
        return self._limits.waiting_factor * self._settings.bulk_reads_max

    def _pause_ms(self, connection: ClientConnection) -> int:
        if connection.waiting_bytes > self._limits.unread_bytes_max:
            return _PAUSE_MS
        if len(self._queue) >= self._waiting_max:
            return _PAUSE_MS
        return max(0, round((self._free_at - self._clock()) * 1000))

    def _checked_topic(self, ext: BulkReadExt) -> TopicConfig:
        config = self._metadata.topics.get(ext.topic)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"the topic {ext.topic[:127]} does not exist")
        if not config.perm & PERM_READ:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {ext.topic} is not readable")
        return config

    # -- steps of a request --------------------------------------------------------------------------------------------

    def _start_reads(self) -> None:
        while self._queue and self._running_count < self._settings.bulk_reads_max:
            read = self._queue.popleft()
            if read.call.connection.closed:
                continue
            try:
                response = self._begin(read)
            except Exception as error:
                self._refuse(read, error)
            else:
                if response:
                    self._send(read, response, [])

    def _begin(self, read: _OpenRead) -> bytes:
        """Start to read, hold the request, or return its response. Raises RequestRefused, SegmentError, OSError."""
        ext = read.call.request.ext
        config = self._checked_topic(ext)
        for each in read.ranges:
            if each.queue_id >= config.read_queues:
                remark = f"queue id {each.queue_id} is illegal, {ext.topic} has {config.read_queues} read queues"
                raise RequestRefused(ResponseCode.INVALID_PARAMETER, remark)
        identity = self._metadata.topic_identity(ext.topic)
        if ext.topic_identity and identity and ext.topic_identity != identity:
            return encode_no_records(BulkStatus.RECREATED, text=identity)
        if self._replica.is_leader and not ext.allow_leader:
            return self._not_follower()
        bytes_max = min(ext.bytes_max, self._settings.bulk_bytes_max)
        limit_pos = PhysicalOffset(self._replica.log.durable_pos)
        try:
            offsets_only = ext.offsets_only and not read.codes
            queue_read = self._find_entries(ext.topic, read.ranges, bytes_max, limit_pos, offsets_only=offsets_only)
        except QueueFileDamaged as damage:
            return self._damage_response(damage)
        if queue_read.is_behind and self._clock() < read.deadline:
            if len(self._waiting_reads) >= self._waiting_max:
                # Only waiting reads are limited; messages that are available are always served.
                self._counts["bulk_reads_busy"] += 1
                return encode_no_records(BulkStatus.BUSY, pause_ms=_PAUSE_MS)
            self._waiting_reads.append(read)
            return b""
        if queue_read.nothing:
            self._counts["bulk_reads_behind"] += queue_read.is_behind
            return queue_read.nothing
        self._start(read, queue_read.spans, bytes_max, limit_pos)
        return b""

    def _start(self, read: _OpenRead, spans: list[QueueSpan], bytes_max: int, limit_pos: PhysicalOffset) -> None:
        assert spans, f"a read of up to {bytes_max} bytes reads no queue"
        bodies, codes, read_runs = read.call.request.ext.bodies, read.codes, self._records.read_runs

        def job() -> Callable[[], None]:
            try:
                selection = select(spans, codes, bytes_max, limit_pos)
                head, records = read_answer(selection, read_runs, bodies=bodies)
            except SegmentError as error:
                failure = error
                return lambda: self._on_failure(read, failure)
            return lambda: self._on_read(read, selection, head, records)

        self._running_count += 1
        first = min(QUEUE_ENTRY.unpack_from(span.entries)[0] for span in spans)
        is_archived = first < self._records.base_pos
        (self._in_archive_background if is_archived else self._in_background)(job)

    def _on_read(self, read: _OpenRead, selection: Selection, head: bytes, records: list[bytes | memoryview]) -> None:
        self._running_count -= 1
        assert self._running_count >= 0, f"{self._running_count} bulk reads are running"
        if self._replica.is_leader and not read.call.request.ext.allow_leader:
            head, records = self._not_follower(), []  # it became the leader in the meantime
        else:
            nbytes = sum(map(len, records))
            self._count(read, len(selection.sizes), nbytes)
            if self._quotas.on_consume is not None:
                self._quotas.on_consume(read.call, len(selection.sizes), nbytes)
        rate = self._settings.bulk_bytes_per_second
        self._free_at = max(self._free_at, self._clock() - 1.0) + sum(selection.sizes) / rate
        self._send(read, head, records)
        self._start_reads()

    def _on_failure(self, read: _OpenRead, error: SegmentError) -> None:
        self._running_count -= 1
        assert self._running_count >= 0, f"{self._running_count} bulk reads are running"
        ext = read.call.request.ext
        if isinstance(error, EntryGone):
            # The log was truncated, but the queues are not updated yet.
            try:
                for each in read.ranges:
                    if (queue := self._store.get(ext.topic, each.queue_id)) is not None:
                        queue.expire(PhysicalOffset(error.first))
                self._queue.append(read)
            except QueueFileDamaged as damage:
                self._send(read, self._damage_response(damage), [])
            except OSError as failure:
                self._refuse(read, failure)
        elif isinstance(error, StorageCorrupt):
            self._send(read, self._damage_response(error), [])
        else:
            self._refuse(read, error)
        self._start_reads()

    # -- consume queues ------------------------------------------------------------------------------------------------

    def _find_entries(
        self, topic: str, ranges: list[ReadRange], bytes_max: int, limit_pos: PhysicalOffset, *, offsets_only: bool
    ) -> _QueueRead:
        """Consume queue entries for an answer of ``bytes_max``, or all entries if records are not requested.

        Raises QueueFileDamaged, OSError.
        """
        get = self._store.get
        min_offsets: dict[int, QueueOffset] = {}
        ends: dict[int, QueueOffset] = {}
        there: list[_QueueRange] = []
        for queue_id, start, end in ranges:
            queue = get(topic, queue_id)
            if queue is None or start >= queue.max_offset:
                ends[queue_id] = FIRST_OFFSET if queue is None else queue.max_offset
            elif start < queue.min_offset:
                min_offsets[queue_id] = queue.min_offset
            else:
                there.append((queue, start, min(end, queue.max_offset)))
        if min_offsets and not self._beginning.is_first:
            return _QueueRead([], self._damage_response(self._beginning.refusal()))
        if min_offsets:
            return _QueueRead([], encode_no_records(BulkStatus.GONE, offsets=min_offsets))
        if offsets_only and there:
            return _QueueRead([], encode_offsets({queue.queue_id: end for queue, _, end in there}))
        spans = list(self._spans(there, bytes_max, limit_pos))
        if spans:
            return _QueueRead(spans)
        ends |= {queue.queue_id: start for queue, start, _ in there}  # committed, but not on this disk yet
        return _QueueRead([], encode_no_records(BulkStatus.BEHIND, offsets=ends), is_behind=True)

    def _spans(self, there: list[_QueueRange], bytes_max: int, limit_pos: PhysicalOffset) -> Iterator[QueueSpan]:
        if not there:
            return
        samples = [queue.read(start, min(_PEEK_ENTRIES, end - start)) for queue, start, end in there[:_PEEK_QUEUES]]
        sizes = entry_sizes(b"".join(samples))
        average = max(1, sum(sizes) // max(1, len(sizes)))
        total = sum(end - start for _, start, end in there)
        # A quarter more than fits, so that queues that get less than their share do not end the answer early.
        entries_max = min(_ENTRIES_MAX, bytes_max * 5 // (4 * average) + _PEEK_ENTRIES)
        for queue, start, end in there:
            count = min(end - start, entries_max * (end - start) // total + _PEEK_ENTRIES)
            assert count > 0, f"{queue.key}: {count} messages are read from {start} to {end}"
            entries = queue.read(start, count)
            if QUEUE_ENTRY.unpack_from(entries)[0] < limit_pos:
                yield QueueSpan(queue.queue_id, start, entries, len(entries) // QUEUE_ENTRY_BYTES == end - start)

    # -- answers -----------------------------------------------------------------------------------------------------

    def _not_follower(self) -> bytes:
        return encode_no_records(BulkStatus.NOT_FOLLOWER, text=",".join(self._other_replicas()))

    def _damage_response(self, damage: Exception) -> bytes:
        self._counts["bulk_reads_damaged"] += 1
        return encode_no_records(BulkStatus.DAMAGED, text=str(damage))

    def _count(self, read: _OpenRead, rows: int, nbytes: int) -> None:
        role = "leader" if self._replica.is_leader else "follower"
        name = _NAME.sub("_", read.call.request.ext.client_id)[:_NAME_LENGTH_MAX] or _OTHERS
        self._counts[f"bulk_rows_as_{role}"] += rows
        self._counts[f"bulk_bytes_as_{role}"] += nbytes
        keys = f"bulk_rows_as_{role}.{name}", f"bulk_bytes_as_{role}.{name}"
        if keys[0] not in self._by_client and len(self._by_client) >= 2 * CLIENTS_COUNTED_MAX:
            keys = f"bulk_rows_as_{role}.{_OTHERS}", f"bulk_bytes_as_{role}.{_OTHERS}"
        for key, value in zip(keys, (rows, nbytes), strict=True):
            self._by_client[key] = self._by_client.get(key, 0) + value

    def _refuse(self, read: _OpenRead, error: Exception) -> None:
        read.call.connection.held_pulls -= 1
        pulls = read.call.connection.held_pulls
        assert pulls >= 0, f"{pulls} requests of a client are held"
        read.call.refuse(error)

    def _send(self, read: _OpenRead, head: bytes, records: list[bytes | memoryview]) -> None:
        connection = read.call.connection
        connection.held_pulls -= 1
        assert connection.held_pulls >= 0, f"{connection.held_pulls} requests of a client are held"
        if not connection.closed:
            frame = self._frame(read, head, sum(map(len, records)))
            connection.send_all([frame, *records], len(frame) + sum(map(len, records)))

    def _frame(self, read: _OpenRead, body: bytes, more_bytes: int = 0) -> bytes:
        """Encode a response with ``body``, to whose end the caller appends ``more_bytes``."""
        header = encode_header(
            ResponseCode.SUCCESS, read.call.request.opaque, RESPONSE_FLAG, serialization=read.call.serialization
        )
        prefix = encode_prefix(read.call.serialization, len(header), len(body) + more_bytes)
        return b"".join((prefix, header, body))
