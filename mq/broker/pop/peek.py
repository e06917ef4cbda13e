"""PEEK_MESSAGE (request code 200052): the messages that a pop would return, without popping them.

As for pops, worker threads load old messages before the event loop reads them.
"""

from __future__ import annotations

from collections.abc import Iterator

from mq.broker.consume.cold_reads import ColdReads
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.service import Route
from mq.broker.pop.queue_cursor import EVERYTHING, PopRequest, RecordsOnDisk
from mq.broker.pop.reply import send_messages
from mq.broker.pop.selection import LOADS_MAX, PopSelection
from mq.protocol.codes import ResponseCode
from mq.protocol.names import pop_retry_topic
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.pop import PeekMessage
from mq.protocol.requests.receipts import REVIVE_QUEUE


class Peeks:
    """Answers peeks with the messages that a pop would return. Part of `mq.broker.pop.pop.Pops`.

    Args:
        cold_reads: loads old messages before they are read.
    """

    def __init__(self, context: BrokerContext, *, selection: PopSelection, cold_reads: ColdReads) -> None:
        self._metadata = context.metadata
        self._appender = context.appender
        self._wall_clock_ms = context.wall_clock_ms
        self._quotas = context.quotas
        self._selection = selection
        self._cold_reads = cold_reads

    def routes(self) -> Iterator[Route]:
        """Yield the route of PeekMessage."""
        yield Route(PeekMessage, self.handle, leader_only=True, repeatable=True)

    def handle(self, call: Call[PeekMessage]) -> None:
        """Request code 200052: return messages, which stay visible. Raises RequestRefused, SegmentError, StoreError."""
        self._check(call)
        call.drop_body()
        self._serve(call, loads=0, load_start=None)

    def _check(self, call: Call[PeekMessage]) -> None:
        ext = call.request.ext
        self._selection.check(ext.consumer_group, ext.topic, ext.queue_id)
        self._selection.check_count(ext.max_messages)

    def _serve(self, call: Call[PeekMessage], *, loads: int, load_start: tuple[str, int, QueueOffset] | None) -> None:
        """Answer, or load old messages first. Raises RequestRefused, SegmentError, StoreError."""
        ext = call.request.ext
        pop_request = PopRequest(
            group=ext.consumer_group,
            topic=ext.topic,
            retry_topic=pop_retry_topic(ext.consumer_group, ext.topic),
            subscription=EVERYTHING,
            pop_time_ms=self._wall_clock_ms(),
            invisible_ms=0,
            revive_queue=REVIVE_QUEUE,
            at_end=False,
            attempt=None,
            load_start=load_start,
        )
        try:
            batches = self._selection.take(
                pop_request, ext.queue_id, ext.max_messages, may_wait_for_disk=loads >= LOADS_MAX, is_peek=True
            )
        except RecordsOnDisk as error:
            self._load(call, error, loads + 1)
            return
        code = ResponseCode.SUCCESS if any(each.messages for each in batches) else ResponseCode.PULL_NOT_FOUND
        if self._quotas.on_consume is not None:
            self._quotas.on_consume(call, sum(each.messages for each in batches), sum(each.nbytes for each in batches))
        send_messages(call, code, pop_request, batches, self._metadata.pops)

    def _load(self, call: Call[PeekMessage], old: RecordsOnDisk, loads: int) -> None:
        """Serve a peek after its old records were loaded into memory."""
        connection = call.connection
        _, topic, queue_id = old.key
        load_start = topic, queue_id, old.begin

        def on_end() -> None:
            connection.held_pulls -= 1
            assert connection.held_pulls >= 0, f"{connection.held_pulls} requests of a client are held"
            if connection.closed:
                return
            if not self._appender.is_open:
                call.dispatch()  # this replica stopped leading
                return
            try:
                self._check(call)
                self._serve(call, loads=loads, load_start=load_start)
            except Exception as error:
                call.refuse(error)

        if self._cold_reads.load(old.places, on_end):
            connection.held_pulls += 1
        else:
            self._serve(call, loads=loads, load_start=load_start)
