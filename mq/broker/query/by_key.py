"""Finds messages by key, QUERY_MESSAGE (request code 12), and maintains the key index.

A worker thread runs searches one at a time, and at most `QUERIES_MAX` are queued; a separate process builds the index
files. Every replica has its own index and answers from the entries that are committed when the query arrives.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import msgspec
import trio

import mq
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service, Task
from mq.broker.query.archived_keys import ArchivedKeys
from mq.protocol.codes import ResponseCode
from mq.protocol.numbers import PhysicalOffset
from mq.protocol.requests.queries import FoundByKeyReply, QueryMessage
from mq.store.key_index.index import KeyIndex
from mq.store.key_index.job import IndexJob, IndexResult
from mq.store.key_index.search import KeyQuery, SearchResult
from raftlog import SegmentError, this_machine
from raftlog.shared_wakeups import sleep_to_step

QUERIES_MAX = 64
"""Queued and running queries; further ones are refused with "busy"."""
QUERIES_PER_CONNECTION_MAX = 8
"""The maximum of queued queries per client: each may take seconds, and they are answered one after the other."""
MESSAGES_MAX = 64
UNIQUE_MESSAGES_MAX = 32
"""Maximum messages in one answer, and always when searching for a unique key. Both as in stock brokers."""
SEARCH_SECONDS_MAX = 3.0
SCHEDULING = "idle"
"""Scheduling class of the process that builds index files: it gives way to the broker at once."""
IDLE_SECONDS = 60.0
"""The time that the process waits for the next part of the log before it exits: its start takes a third of a second."""
_RETRY_SECONDS = 3600.0
_PLACE, _PLACE_AT = Struct(">i4xq"), 12
"""Queue id and queue offset in a record."""
_NOT_FOUND = "can not find message, maybe time range not correct"


class _QueuedQuery(NamedTuple):
    call: Call[QueryMessage]
    query: KeyQuery


class KeyQueries(Service):
    """Answers queries by key. `serve` and `keep_index` must run as tasks."""

    def __init__(self, context: BrokerContext, *, index: KeyIndex) -> None:
        self._index = index
        self._archive = ArchivedKeys(context, index) if context.tiered_log is not None else None
        self._metadata, self._store = context.metadata, context.store
        self._read = context.reads.read
        self._beginning = context.beginning
        self._wake = context.reactor.wake
        self._index_seconds = context.settings.key_index_poll_seconds
        self._clock = context.environment.thread_clock
        self._wall_clock_ms = context.wall_clock_ms
        self._log = context.log
        self._open_count = 0
        self._of_connections: dict[ClientConnection, int] = {}
        self._send, self._receive = trio.open_memory_channel[_QueuedQuery](QUERIES_MAX)

    def routes(self) -> Iterator[Route]:
        yield Route(QueryMessage, self.handle)

    def check_invariants(self) -> None:
        counts = self._of_connections.values()
        in_all, most = sum(counts), max(counts, default=0)
        assert in_all == self._open_count, f"{in_all} queries wait by client, counted {self._open_count}"
        assert in_all <= QUERIES_MAX, f"{in_all} queries wait; maximum: {QUERIES_MAX}"
        most_max = QUERIES_PER_CONNECTION_MAX
        assert most <= most_max, f"{most} queries of one client wait; maximum: {most_max}"

    def free_disk(self, is_full: bool) -> None:
        """Delete the index files while the disk is full. Searches then read the log, for a limited time."""
        if is_full and not self._index.is_suspended:
            self._log.warning("key_index_removed", reason="the disk is too full", files=len(self._index.local_parts))
        self._index.suspend(is_full)

    def handle(self, call: Call[QueryMessage]) -> None:
        """Request code 12: find messages by key. Raises RequestRefused."""
        if self._of_connections.get(call.connection, 0) >= QUERIES_PER_CONNECTION_MAX:
            remark = f"{QUERIES_PER_CONNECTION_MAX} queries of this connection are waiting already, try again later"
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, remark)
        if self._open_count >= QUERIES_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY, f"the maximum of {QUERIES_MAX} queries are waiting, try again later"
            )
        ext = call.request.ext
        query = KeyQuery(
            topic=ext.topic.encode(),
            key=ext.key.encode(),
            count_max=UNIQUE_MESSAGES_MAX if ext.unique else min(ext.messages_max, MESSAGES_MAX),
            begin_ms=ext.begin_ms,
            end_ms=ext.end_ms,
            unique=ext.unique,
        )
        self._count(call.connection, 1)

        def on_confirm(is_known: bool) -> None:
            if is_known:
                self._send.send_nowait(_QueuedQuery(call, query))
                return
            self._count(call.connection, -1)
            refusal = RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "the group has no leader to confirm this read")
            call.refuse(refusal)

        self._read(on_confirm)

    def tasks(self) -> Iterator[Task]:
        yield self.serve
        yield self.keep_index

    async def serve(self) -> None:
        """Answer queries one after the other, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                entry = await self._receive.receive()
                goes_on = False
                try:
                    if not entry.call.connection.closed:
                        result = await self._search(entry)
                        goes_on = result is not None and self._is_in_archive(entry, result)
                        if result is not None and goes_on:
                            nursery.start_soon(self._search_archive, entry, result)
                        elif result is not None:
                            self._answer(entry, result)
                        self._wake()
                finally:
                    if not goes_on:
                        self._count(entry.call.connection, -1)

    def _is_in_archive(self, entry: _QueuedQuery, result: SearchResult) -> bool:
        """Whether the archive may have more messages for a query that the local log could not fully answer."""
        query = entry.query
        is_known = query.count_max > 0 and query.key and entry.call.request.ext.topic in self._metadata.topics
        return bool(
            is_known
            and self._archive is not None
            and self._archive.has_messages
            and result.is_complete
            and len(result.records) < query.count_max
        )

    async def _search_archive(self, entry: _QueuedQuery, result: SearchResult) -> None:
        call, query = entry
        await trio.lowlevel.checkpoint()  # a cancelled one ends with the broker, which needs no count
        try:
            assert self._archive is not None, "an archive is searched that is not there"
            rest = replace(query, count_max=query.count_max - len(result.records))
            matches = await self._archive.find(rest)
            # The local log may have had some of them a moment ago.
            older = [each for each in matches.records if each not in result.records]
            result.records = self._drop_obsolete(call.request.ext.topic, older) + result.records
            self._answer(entry, result, matches.gap_reason)
            self._wake()
        except Exception as error:
            call.refuse(error)
        finally:
            self._count(call.connection, -1)

    def _count(self, connection: ClientConnection, more: int) -> None:
        self._open_count += more
        self._of_connections[connection] = count = self._of_connections.get(connection, 0) + more
        assert min(count, self._open_count) >= 0, f"{count} of {self._open_count} queries wait"
        if not count:
            del self._of_connections[connection]

    async def _search(self, entry: _QueuedQuery) -> SearchResult | None:
        """Search the local log; None if the query was refused."""
        await trio.lowlevel.checkpoint()
        call, query = entry
        deadline = self._clock() + SEARCH_SECONDS_MAX
        try:
            if query.count_max <= 0 or not query.key or call.request.ext.topic not in self._metadata.topics:
                return SearchResult()
            search = self._index.search(query, lambda: self._clock() >= deadline)
            result = await this_machine().in_thread(search.run)
            result.records = self._drop_obsolete(call.request.ext.topic, result.records)
        except Exception as error:
            call.refuse(error)
            return None
        for path, fault in zip(result.damaged, result.faults, strict=True):
            self._log.warning("key_index_damaged", path=path, reason=fault)
            self._index.discard(path)
        return result

    def _answer(self, entry: _QueuedQuery, result: SearchResult, gap_reason: str = "") -> None:
        """Answer a query; ``gap_reason`` says why the archive may have more."""
        call = entry.call
        end_pos, now_ms = self._index.applied_end, self._wall_clock_ms()
        code, remark = ResponseCode.SUCCESS, None
        if not result.records:
            code, remark = ResponseCode.QUERY_NOT_FOUND, _NOT_FOUND
            if not self._beginning.is_first:
                refusal = self._beginning.refusal()
                code, remark = refusal.code, refusal.remark
            if gap_reason:
                code, remark = ResponseCode.SYSTEM_BUSY, f"not found in the local log, and {gap_reason}"
            if not result.is_complete:
                code, remark = (
                    ResponseCode.SYSTEM_BUSY,
                    "not found in the part of the log that was searched; try again later",
                )
        reply_ext = FoundByKeyReply(updated_ms=now_ms, end_position=PhysicalOffset(end_pos))
        reply = call.response(code, remark=remark, ext=reply_ext.fields(), body=b"".join(result.records))
        call.answer(reply)

    def _drop_obsolete(self, topic: str, records: list[bytes]) -> list[bytes]:
        """Drop the records of a deleted topic of this name, and expired ones, which only the log still has."""
        former = self._metadata.former_topics
        places = ((record, *_PLACE.unpack_from(record, _PLACE_AT)) for record in records)
        return [
            record
            for record, queue_id, offset in places
            if offset >= former.begin(topic, queue_id) and not self._is_expired(topic, queue_id, offset)
        ]

    def _is_expired(self, topic: str, queue_id: int, offset: int) -> bool:
        queue = self._store.get(topic, queue_id)
        return queue is not None and offset < queue.min_offset

    async def keep_index(self) -> None:
        """Build index files for all complete parts of the log, until cancelled."""
        retry_at = self._clock() + _RETRY_SECONDS
        while True:
            await sleep_to_step(self._index_seconds)
            try:
                if self._clock() >= retry_at:
                    retry_at = self._clock() + _RETRY_SECONDS
                    self._index.retry()
                if self._index.jobs() or self._lacks_archived():
                    await self._make_files()
            except* (SegmentError, OSError) as errors:
                # Until then, the log itself is searched.
                self._log.error("key_index_failed", error=str(errors.exceptions[0]))

    def _lacks_archived(self) -> bool:
        return self._archive is not None and self._archive.lacks_files()

    async def _make_files(self) -> None:
        """Build files in one process until it has been idle for a while. Raises SegmentError, OSError."""
        root = str(Path(mq.__file__).parent.parent)
        start = partial(
            trio.run_process,
            [sys.executable, "-m", "mq.store.key_index.builder", SCHEDULING],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            check=False,
            deliver_cancel=_kill,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))},
        )
        async with trio.open_nursery() as nursery:
            builder: trio.Process = await nursery.start(start)
            assert builder.stdin is not None
            assert builder.stdout is not None
            async with builder.stdin:
                idle_since = self._clock()
                while builder.returncode is None and self._clock() < idle_since + IDLE_SECONDS:
                    # One at a time: the share of the next one depends on how many wait then.
                    if jobs := self._index.jobs():
                        await self._make_file(jobs[0], builder.stdin, builder.stdout)
                        idle_since = self._clock()
                    elif self._archive is not None and self._lacks_archived():
                        if (job := await self._archive.copy_next()) is not None:
                            is_made = await self._make_file(job, builder.stdin, builder.stdout)
                            self._archive.finish_job(job, is_made=is_made)
                        idle_since = self._clock()
                    else:
                        await trio.sleep(self._index_seconds)

    async def _make_file(self, job: IndexJob, jobs: trio.abc.SendStream, results: trio.abc.ReceiveStream) -> bool:
        """Build an index file in the builder's process; returns whether it was built."""
        await trio.lowlevel.checkpoint()
        line = b""
        with suppress(trio.BrokenResourceError):
            await jobs.send_all(msgspec.json.encode(job) + b"\n")
            while not line.endswith(b"\n") and (more := await results.receive_some()):
                line += more
        if line.endswith(b"\n"):
            result = msgspec.json.decode(line, type=IndexResult)
        else:
            result = IndexResult(job.target, "the index builder process has ended")
        if result.failure is None:
            self._index.on_build(job.target)
            return True
        self._index.on_failure(job.target)
        self._log.warning("key_index_failed", path=job.target, reason=result.failure)
        if result.damaged_at is not None and not job.is_copy:
            await this_machine().in_thread(partial(self._index.report_damage, result.damaged_at))
        return False


async def _kill(builder: trio.Process) -> None:
    """End the builder at once: its files are complete or absent. If it were asked to end first, its idle thread might
    not run for long on a busy machine.
    """
    await trio.lowlevel.checkpoint()
    builder.kill()
