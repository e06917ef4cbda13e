"""Reads the archived messages of some queues of a topic in log order, for readers that are not brokers.

A broker tells a reader the place of the archive, and the entry up to which the group's log is archived. The rest is
verified as for brokers (`mq.store.archive.cold_blocks`): nothing of another log, and nothing damaged, is returned. An
index says which blocks of a file have wanted messages; only those are read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

from mq.protocol.messages.records import RecordError, scan_fixed
from mq.store.archive.cold_blocks import REQUEST_BYTES_MAX, ColdBlocks, KnownLog, RangeStore
from mq.store.archive.file_index import Block, FileIndex
from mq.store.dispatch import enters_queue
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment.backup_store import StoreFailed
from raftlog.segment.codec import HEADER, HEADER_BYTES, NORMAL
from raftlog.segment.errors import SegmentError
from raftlog.segment.meta import Base
from raftlog.segment.s3_storage import open_s3

INDEX_BYTES_MAX: Final = 32 * 1024 * 1024
"""Maximum bytes of indexes and blocks in memory."""
BLOCKS_MAX: Final = 16_384
REQUESTS_AHEAD: Final = 3
"""The number of requests under way while the answer to an earlier one is used."""
_REFUSALS: Final = (
    "AccessDenied",
    "403",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "NoSuchBucket",
    "Unable to locate credentials",
)

LogPlace = tuple[int, int, int, int]
"""A place of the log in plain numbers: index and term of the last entry, the physical offset behind it, the chain."""


@dataclass(frozen=True, slots=True)
class ArchivePlace:
    """The place of an archive, and the identity of its log as a broker named it. Plain values, without credentials.

    ``end`` is a place of the log in the archive that is known to be right; nothing is read behind it.
    """

    url: str
    endpoint_url: str | None
    log_identity: str
    segment_bytes: int
    end: LogPlace


class ArchiveUnreadable(Exception):
    """Archived messages could not be read: the text names the object, and why.

    ``may_pass``: the store did not answer, so that it is worth trying again. ``is_deleted``: the archive begins later
    by now.
    """

    def __init__(self, reason: str, *, may_pass: bool = False, is_deleted: bool = False) -> None:
        super().__init__(reason)
        self.may_pass = may_pass
        self.is_deleted = is_deleted


class ArchivedRecords(NamedTuple):
    """Contiguous records in log order; ``next_offsets`` has the next offset of each queue."""

    data: bytes
    sizes: list[int]
    next_offsets: dict[int, int]


class TopicBlocks:
    """Reads topics from an archive. Sends no request before the first read. Call `close` at the end.

    Args:
        answer_seconds: a request to the store fails when no data comes for this time, and is repeated once.
        open_store: for tests; otherwise credentials come from where the AWS command line finds them.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        place: ArchivePlace,
        *,
        answer_seconds: float,
        clock: Callable[[], float],
        open_store: Callable[[], RangeStore] | None = None,
    ) -> None:
        self._place = place
        self._end = _base(place.end)
        self._proven: dict[int, LogPlace] = {}
        self._stores: list[RangeStore] = []

        def open_counted() -> RangeStore:
            store = (
                open_s3(place.url, place.endpoint_url, answer_seconds=answer_seconds)
                if open_store is None
                else open_store()
            )
            self._stores.append(store)
            return store

        known_log = KnownLog(place.log_identity, place.segment_bytes, lambda: self._end, lambda: self._end)
        self._blocks = ColdBlocks(open_counted, known_log, _Latest(INDEX_BYTES_MAX), blocks_max=BLOCKS_MAX, clock=clock)

    def close(self) -> None:
        """Close the connections to the store."""
        for store in self._stores:
            store.close()
        self._stores.clear()

    def places_from(self, begin_pos: int, end: LogPlace) -> dict[int, LogPlace]:
        """Read the places at which the files from this physical offset on begin, and the end: proven by the chain.

        ``end`` is how far a broker says the log is archived. Reads the index of each file that was not read before.
        Raises ArchiveUnreadable.
        """
        if end[2] > self._end.pos:
            self._end = _base(end)
        size = self._place.segment_bytes
        self._proven[end[2]] = end
        for start in range(end[2] - size, begin_pos - begin_pos % size - 1, -size):
            if start not in self._proven:
                base = self._of_file(start).begin
                self._proven[start] = base.index, base.term, base.pos, base.chain
        return self._proven

    def read(
        self,
        topic: str,
        ranges: Mapping[int, tuple[int, int]],
        begin_pos: int,
        end_pos: int,
        tag_codes: frozenset[int] | None = None,
    ) -> Iterator[ArchivedRecords]:
        """The messages of queues between two physical offsets, at which files begin.

        Args:
            ranges: by queue id the first wanted queue offset, and the one behind the last.
            tag_codes: of the wanted tags; None for all messages.

        What was returned before an error is intact, and complete up to its ``next_offsets``. Raises ArchiveUnreadable.
        """
        following = {queue_id: begin for queue_id, (begin, _) in ranges.items()}
        begun_queues: set[int] = set()
        pending: deque[tuple[_BlockSpan, Future[Sequence[tuple[int, bytes]]]]] = deque()
        pool = ThreadPoolExecutor(REQUESTS_AHEAD)
        try:
            for start in range(begin_pos, end_pos, self._place.segment_bytes):
                index = self._of_file(start)
                for span in self._spans(topic, index, start, ranges, following, begun_queues, tag_codes):
                    pending.append((span, pool.submit(self._blocks.fetch, span.begin, span.stop)))
                    if len(pending) > REQUESTS_AHEAD:
                        yield self._records(topic, *pending.popleft(), tag_codes)
                if all(following[queue_id] >= end for queue_id, (_, end) in ranges.items()):
                    break
            while pending:
                yield self._records(topic, *pending.popleft(), tag_codes)
            yield ArchivedRecords(b"", [], dict(following))  # behind them nothing has a wanted tag
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _of_file(self, start: int) -> FileIndex:
        try:
            return self._blocks.index_of(start)
        except SegmentError as error:
            raise self._meaning(error, start) from error

    def _spans(
        self,
        topic: str,
        index: FileIndex,
        start: int,
        ranges: Mapping[int, tuple[int, int]],
        following: dict[int, int],
        begun_queues: set[int],
        tag_codes: frozenset[int] | None,
    ) -> Iterator[_BlockSpan]:
        """The parts of a file with wanted messages, as one request each; moves ``following`` on."""
        open_span: _BlockSpan | None = None
        for block in index.blocks:
            before = dict(following)
            is_wanted = self._advance(topic, block, start, ranges, following, begun_queues, tag_codes)
            if not is_wanted:
                continue
            end = block.before.pos + block.nbytes
            if open_span is not None and (
                open_span.stop != block.before.pos or end - open_span.begin > REQUEST_BYTES_MAX
            ):
                yield open_span
                open_span = None
            if open_span is None:
                open_span = _BlockSpan(block.before.pos, end, {}, {})
            open_span.stop = end
            open_span.wanted[block.before.pos] = {
                queue_id: (before[queue_id], offset) for queue_id, offset in following.items()
            }
            open_span.next_offsets = dict(following)
        if open_span is not None:
            yield open_span

    def _advance(
        self,
        topic: str,
        block: Block,
        start: int,
        ranges: Mapping[int, tuple[int, int]],
        following: dict[int, int],
        begun_queues: set[int],
        tag_codes: frozenset[int] | None,
    ) -> bool:
        """Move the queues behind a block; whether it has wanted messages."""
        is_wanted = False
        for each in block.queues:
            at = following.get(each.queue_id)
            if each.topic != topic or at is None or each.end_offset <= at or at >= ranges[each.queue_id][1]:
                continue
            if each.first_offset > at or (each.first_offset < at and each.queue_id in begun_queues):
                raise ArchiveUnreadable(
                    f"{self._place.url}: in the file at {start}, queue {each.queue_id} of topic {topic!r} continues "
                    f"with offset {each.first_offset}, not with {at}"
                )
            following[each.queue_id] = min(each.end_offset, ranges[each.queue_id][1])
            begun_queues.add(each.queue_id)
            is_wanted |= tag_codes is None or each.tags is None or not tag_codes.isdisjoint(each.tags)
        return is_wanted

    def _records(
        self,
        topic: str,
        span: _BlockSpan,
        read: Future[Sequence[tuple[int, bytes]]],
        tag_codes: frozenset[int] | None,
    ) -> ArchivedRecords:
        try:
            blocks = read.result()
        except SegmentError as error:
            raise self._meaning(error, span.begin) from error
        name = topic.encode()
        pieces: list[memoryview] = []
        count = 0
        for begin, data in blocks:
            counts = span.wanted.get(begin)
            if counts is None:
                continue
            for at, size in _places(data, name, counts, tag_codes):
                pieces.append(memoryview(data)[at : at + size])
            if tag_codes is None:
                expected = sum(behind - first for first, behind in counts.values())
                if len(pieces) - count != expected:
                    raise ArchiveUnreadable(
                        f"{self._place.url}: the block at {begin} has {len(pieces) - count} of the {expected} messages "
                        "that its index names"
                    )
                count = len(pieces)
        return ArchivedRecords(b"".join(pieces), [len(piece) for piece in pieces], span.next_offsets)

    def _meaning(self, error: SegmentError, pos: int) -> ArchiveUnreadable:
        if isinstance(error, StoreFailed):
            return ArchiveUnreadable(str(error), may_pass=not error.reason.startswith(_REFUSALS))
        begin = self._blocks.manifest_begin
        is_deleted = begin is not None and pos < begin
        reason = f"{self._place.url} begins at {begin} by now, behind {pos}" if is_deleted else str(error)
        return ArchiveUnreadable(reason, is_deleted=is_deleted)


def _base(place: LogPlace) -> Base:
    return Base(LogIndex(place[0]), Term(place[1]), place[2], place[3])


@dataclass(slots=True)
class _BlockSpan:
    """Blocks that follow each other.

    ``wanted``: for each, by queue id the first queue offset, and the one behind the last.
    """

    begin: int
    stop: int
    wanted: dict[int, dict[int, tuple[int, int]]]
    next_offsets: dict[int, int]


def _places(
    data: bytes, topic: bytes, ranges: Mapping[int, tuple[int, int]], tag_codes: frozenset[int] | None
) -> Iterator[tuple[int, int]]:
    """Yield the places of the wanted records in a verified block, and their sizes."""
    view, at = memoryview(data), 0
    while at < len(data):
        kind, size, *_ = HEADER.unpack_from(data, at)
        if kind == NORMAL:
            body = at + HEADER_BYTES
            try:
                for place, nbytes, queue_id, offset, _, sys_flag, its_topic, tag_code in scan_fixed(
                    view[body : at + size]
                ):
                    if (
                        its_topic == topic
                        and queue_id in ranges
                        and ranges[queue_id][0] <= offset < ranges[queue_id][1]
                        and enters_queue(sys_flag)
                        and (tag_codes is None or tag_code in tag_codes)
                    ):
                        yield body + place, nbytes
            except RecordError as error:
                raise ArchiveUnreadable(f"an entry of the archive has other content than messages: {error}") from error
        at += size


class _Latest:
    """The blocks that were read last, in memory; a `mq.store.archive.disk_cache.BlockCache`."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._nbytes = 0
        self._content: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str, /) -> bytes | None:
        """Return a cached object; None without one."""
        return self._content.get(name)

    def put(self, name: str, data: bytes, /) -> None:
        """Cache an object, and drop the oldest ones above the limit."""
        self.drop(name)
        with self._lock:
            self._content[name] = data
            self._nbytes += len(data)
            while self._nbytes > self._bytes_max:
                self._nbytes -= len(self._content.popitem(last=False)[1])

    def drop(self, name: str, /) -> None:
        """Remove an object from the cache."""
        with self._lock:
            self._nbytes -= len(self._content.pop(name, b""))
