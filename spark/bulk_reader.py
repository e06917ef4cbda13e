"""A task that reads its partition by bulk reads: several queues at once, in log order, preferably from followers.

Each response has the next offset of every queue. The position is the next offset of each queue, so another replica
continues exactly where one failed; a response is accepted only if the offsets of its records continue there without a
gap.

Messages that one replica has deleted may still be on another: they are lost once all replicas have been tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from mq.protocol.bulk import (
    BULK_BYTES_MAX,
    BulkError,
    BulkResponse,
    BulkStatus,
    ReadRange,
    decode_answer,
    encode_ranges,
)
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.numbers import QueueOffset
from spark.client import BrokerResponse, Connection, ServerError, Unreachable
from spark.columns import OFFSET_COLUMNS, offset_batches
from spark.errors import AnswerDamaged, DataLoss, ReadFailed
from spark.leases import RENEWAL_SECONDS, lease_fields
from spark.plan import QueueRange
from spark.task_reader import Chunk, ReplicaBehind, TaskReader

WAIT_MS_MAX: Final = 1000
"""The time that a replica may wait for messages it does not have yet, before another one is tried."""
_FIRST_BYTES: Final = 256 * 1024
_GROWTH: Final = 4
_OFFSET_AT: Final = 20


class Busy(Exception):
    """The replica is busy; the request can be repeated."""


class BulkTaskReader(TaskReader):
    """Reads one partition from raftmq replicas by bulk reads. Has the arguments and errors of `TaskReader`."""

    _bytes_max = _FIRST_BYTES
    _hold_at = 0.0
    _holds: Connection | None = None
    _asked_replicas: frozenset[str] = frozenset()
    """The replicas that returned nothing since the last progress."""
    _first_offsets: dict[int, int] | None = None
    """First offsets of the queues from which all those replicas have deleted wanted messages; None while none has
    reported it.
    """

    def read(self) -> Iterator[Any]:
        """Read all messages of the partition as record batches, in log order. Raises as `TaskReader.read`."""
        yield from self._read_left({each.queue_id: each for each in self._part.ranges})

    def _read_left(self, ranges: dict[int, QueueRange]) -> Iterator[Any]:
        self._progress_at = self._clock()
        request: int | None = None
        try:
            while ranges:
                try:
                    connection = self._open_connection()
                    self._hold(connection)
                    if request is None:
                        request = self._ask_bulk(connection, ranges)
                    answer = self._check_response(connection.receive(request), connection)
                    request = None
                    before = ranges
                    ranges, chunk = self._advance(answer, ranges)
                except Busy:
                    request = None
                    continue
                except (Unreachable, ServerError, ReplicaBehind, AnswerDamaged) as error:
                    request = None
                    self._next_replica(error)
                    continue
                self._on_progress(connection, chunk)
                if ranges and self._connection is connection:
                    # The broker works on the next response while this one is decoded.
                    try:
                        request = self._ask_bulk(connection, ranges)
                    except Unreachable as error:
                        self._next_replica(error)
                if answer.without_records:
                    yield from self._offset_rows(before, ranges)
                elif chunk.sizes:
                    yield from self._batches(chunk, without_bodies=answer.without_bodies)
        finally:
            self._disconnect()

    def _offset_rows(self, before: dict[int, QueueRange], ranges: dict[int, QueueRange]) -> Iterator[Any]:
        """Yield batches of the columns that are known without reading the messages."""
        offset_ranges = [
            QueueRange(queue_id, each.start, ranges[queue_id].start if queue_id in ranges else each.end)
            for queue_id, each in before.items()
        ]
        for batch in offset_batches(offset_ranges, self._options.columns, self._source):
            self.statistics.rows += batch.num_rows
            yield batch

    # -- requests --------------------------------------------------------------------------------------------------

    def _hold(self, connection: Connection) -> None:
        """Renew the hold on the replica's log during the whole scan, so that retention does not overtake it."""
        if not self._part.lease_id or (self._holds is connection and self._clock() < self._hold_at):
            return
        self._holds, self._hold_at = connection, self._clock() + RENEWAL_SECONDS
        # Whatever the response: the scan also works without a lease.
        connection.receive(connection.send(RequestCode.HOLD_LOG, lease_fields(self._part)))

    def _ask_bulk(self, connection: Connection, ranges: dict[int, QueueRange]) -> int:
        options = self._options
        wait_ms = min(WAIT_MS_MAX, int(options.fetch_seconds * 500))
        fields = {
            "topic": self._part.topic,
            "topicIdentity": self._part.topic_id,
            "bytesMax": str(self._bytes_max),
            "bodies": "true" if "body" in options.columns else "false",
            "tags": "*" if options.tags is None else " || ".join(options.tags),
            "clientId": options.client_id,
            "allowLeader": "true" if self._may_ask_leader() else "false",
            "waitMs": str(wait_ms),
        }
        if self._offsets_suffice():
            fields["offsetsOnly"] = "true"
        self._bytes_max = min(self._bytes_max * _GROWTH, options.fetch_bytes, BULK_BYTES_MAX)
        return connection.send(
            RequestCode.BULK_READ,
            fields,
            encode_ranges(
                ReadRange(each.queue_id, QueueOffset(each.start), QueueOffset(each.end)) for each in ranges.values()
            ),
        )

    def _offsets_suffice(self) -> bool:
        """Whether offsets alone provide all wanted columns."""
        return self._options.tags is None and OFFSET_COLUMNS.issuperset(self._options.columns)

    def _may_ask_leader(self) -> bool:
        """Whether a replica may answer even if it leads: the earlier ones have failed, or load on the leader does not
        matter.

        The leader comes last, as far as it is known.
        """
        match self._options.read_from:
            case "follower-only":
                return False
            case "follower":
                return self._turn == len(self._replicas) - 1
            case _:
                return True

    def _check_response(self, response: BrokerResponse, connection: Connection) -> BulkResponse:
        """Check a response: it must have records or advance the position.

        Raises Busy, ReplicaBehind, ServerError, AnswerDamaged, DataLoss, ReadFailed.
        """
        address = connection.address
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise ReadFailed(
                f"{address} knows no bulk reads: the brokers of Apache RocketMQ are read with readMode=pull"
            )
        if response.code != ResponseCode.SUCCESS:
            raise ServerError(address, response.code, response.remark)
        try:
            bulk = decode_answer(response.body)
        except BulkError as error:
            raise AnswerDamaged(f"{address}: {error}") from error
        match bulk.status:
            case BulkStatus.RECORDS | BulkStatus.GONE:
                return bulk
            case BulkStatus.NOT_FOLLOWER:
                raise ReplicaBehind(f"{address} leads now")
            case BulkStatus.BEHIND:
                ends = ", ".join(f"queue {queue} up to {end}" for queue, end in list(bulk.offsets.items())[:10])
                raise ReplicaBehind(f"{address} is behind: it has {ends}")
            case BulkStatus.DAMAGED:
                raise AnswerDamaged(f"{address} repairs its log: {bulk.text}")
            case BulkStatus.BUSY:
                self._wait(bulk.pause_ms / 1000, address)
                raise Busy
            case BulkStatus.RECREATED:
                raise DataLoss(
                    f"topic {self._part.topic!r} in {self._part.broker_name}: it was deleted and created again after "
                    f"this query was planned (it was {self._part.topic_id}, it is {bulk.text}). Start the query again"
                )

    def _wait(self, seconds: float, address: str) -> None:
        """Wait for the time that a busy replica names. Raises ReplicaBehind if it has been busy for too long."""
        if self._clock() - self._progress_at >= self._options.fetch_seconds:
            raise ReplicaBehind(f"{address} has been busy for {self._options.fetch_seconds:g} s")
        self._sleep(min(max(seconds, 0.001), self._options.fetch_seconds))

    # -- responses -----------------------------------------------------------------------------------------------------

    def _advance(self, response: BulkResponse, ranges: dict[int, QueueRange]) -> tuple[dict[int, QueueRange], Chunk]:
        """Return the ranges left after a response, and its records. Raises AnswerDamaged, ReplicaBehind, DataLoss."""
        if not response.offsets or not response.offsets.keys() <= ranges.keys():
            raise AnswerDamaged(f"the answer is about queues {list(response.offsets)[:10]}, which were not requested")
        skip_count = 0
        if response.status is BulkStatus.GONE:
            next_offsets = {}
            for queue_id, first in self._gone_everywhere(response, ranges).items():
                each = ranges[queue_id]
                chunk = self._skip_lost(each, each.start, first)
                skip_count += chunk.skip_count
                next_offsets[queue_id] = chunk.next_offset
        else:
            next_offsets = {
                queue_id: min(offset, ranges[queue_id].end) for queue_id, offset in response.offsets.items()
            }
            if not response.without_records:
                self._check_offsets(response, ranges)
            elif not self._offsets_suffice():
                raise AnswerDamaged("the answer lacks the records that the query needs")
        still = {
            queue_id: QueueRange(queue_id, next_offsets.get(queue_id, each.start), each.end)
            for queue_id, each in ranges.items()
            if next_offsets.get(queue_id, each.start) < each.end
        }
        if any(offset < ranges[queue_id].start for queue_id, offset in next_offsets.items()) or still == ranges:
            raise AnswerDamaged(
                f"the answer ends at {list(next_offsets.items())[:10]} for {list(ranges.values())[:10]}"
            )
        data = response.data if response.status is BulkStatus.RECORDS else memoryview(b"")
        return still, Chunk(data, response.sizes, 0, skip_count)

    def _gone_everywhere(self, response: BulkResponse, ranges: dict[int, QueueRange]) -> dict[int, int]:
        """First offsets of the queues whose next wanted message no replica has.

        Raises ReplicaBehind while a replica was not tried for it, AnswerDamaged.
        """
        address = self._replicas[self._turn]
        firsts = ", ".join(f"queue {queue_id} at {first}" for queue_id, first in list(response.offsets.items())[:10])
        if any(first <= ranges[queue_id].start for queue_id, first in response.offsets.items()):
            raise AnswerDamaged(
                f"{address} reports deleted messages, but has the requested ones; its queues begin: {firsts}"
            )
        first_offsets = response.offsets if self._first_offsets is None else self._first_offsets
        self._first_offsets = {
            queue_id: min(first_offsets[queue_id], response.offsets[queue_id])
            for queue_id in first_offsets.keys() & response.offsets
        }
        if not set(self._replicas) <= self._asked_replicas | {address}:
            raise ReplicaBehind(f"{address} has deleted messages; its queues begin: {firsts}")
        # The replica with the most messages may be an earlier one, and the last one may lead.
        self._disconnect()
        self._turn = 0
        return self._first_offsets

    def _next_replica(self, error: Exception) -> None:
        self._asked_replicas |= set(self._replicas[self._turn : self._turn + 1])
        super()._next_replica(error)

    def _on_progress(self, connection: Connection, chunk: Chunk) -> None:
        self._asked_replicas, self._first_offsets = frozenset(), None
        super()._on_progress(connection, chunk)

    def _check_offsets(self, response: BulkResponse, ranges: dict[int, QueueRange]) -> None:
        """Raise AnswerDamaged unless the records of each queue continue from the position up to the next one."""
        queue_ids = np.asarray(response.queue_ids)
        sizes = np.asarray(response.sizes, dtype=np.int64)
        counts = dict.fromkeys(response.offsets, 0)
        if len(sizes):
            if int(sizes.min()) < _OFFSET_AT + 8:
                raise AnswerDamaged(f"a record has {int(sizes.min())} bytes; minimum: {_OFFSET_AT + 8}")
            octets = np.frombuffer(response.data, dtype=np.uint8)
            starts = np.cumsum(sizes) - sizes
            offsets = sliding_window_view(octets, 8)[starts + _OFFSET_AT].view(">i8").reshape(-1)
            # Numbers of 16 bits are sorted in linear time.
            narrow = queue_ids.astype(np.int16) if int(queue_ids.max()) < 1 << 15 else queue_ids
            order = np.argsort(narrow, kind="stable")
            sorted_ids, sorted_offsets = queue_ids[order], offsets[order].astype(np.int64)
            bounds = [0, *(np.flatnonzero(np.diff(sorted_ids)) + 1).tolist(), len(order)]
            for begin, end in pairwise(bounds):
                queue_id, mine = int(sorted_ids[begin]), sorted_offsets[begin:end]
                low = ranges[queue_id].start if queue_id in ranges else 0
                if (
                    queue_id not in counts
                    or int(mine[0]) < low
                    or int(mine[-1]) >= response.offsets[queue_id]
                    or (np.diff(mine) <= 0).any()
                ):
                    raise AnswerDamaged(f"queue {queue_id} continues at {int(mine[0])} instead of {low}")
                counts[queue_id] = end - begin
        if self._options.tags is None:
            for queue_id, count in counts.items():
                if response.offsets[queue_id] != ranges[queue_id].start + count:
                    raise AnswerDamaged(
                        f"{count} records of queue {queue_id} from {ranges[queue_id].start} on do not end at "
                        f"{response.offsets[queue_id]}"
                    )
