"""Appends to a topic, and bulk-reads it at any replica as Spark's executors do, with raw requests only.

A bulk reader first asks a replica for the ends of the queues (current or local), then reads up to there, or a little
beyond.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import Any

from checkers.recording import Worker
from jepsen.stored_records import values_in
from jepsen.wire import Wire
from jepsen.workloads.log import LogWorkload, unknown_unless_answered
from jepsen.workloads.workload import QUEUES
from mq.protocol.bulk import BulkStatus, ReadRange, decode_answer, decode_plan, encode_ranges
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.numbers import QueueOffset

BACK_MAX = 200
BEYOND_MAX = 20
"""The number of messages beyond the reported end that a read may request."""
BYTES_MAX = 256 * 1024
WAITS_MS = (0, 0, 0, 200)


class BulkWorkload(LogWorkload):
    name = "bulk"
    summary = "raw appends, and bulk reads at any replica"

    async def operate(self, worker: Worker, wire: Wire, node: str, number: int, rng: random.Random) -> None:
        """Bulk-read all queues, or do an operation of the workload *log*."""
        if rng.random() < 0.3:
            is_current = rng.random() < 0.5
            await self._read_in_bulk(wire, node, rng, BACK_MAX, is_current=is_current, wait_ms=rng.choice(WAITS_MS))
        else:
            await super().operate(worker, wire, node, number, rng)

    async def _read_newest_apart(self, wire: Wire, node: str, queue_id: int) -> None:
        """Bulk-read messages that the replica serves beyond the known ends, like a reader that is up to date."""
        await self._read_in_bulk(wire, node, self.rng, 0, is_current=False, wait_ms=0)

    async def _read_in_bulk(
        self, wire: Wire, node: str, rng: random.Random, back_max: int, *, is_current: bool, wait_ms: int
    ) -> None:
        """Get the ends of all queues, then read from at most ``back_max`` messages before them."""
        workers = [Worker(self.recorder) for _ in range(QUEUES)]
        fields: dict[str, Any] = {"topic": self.topic, "current": "true" if is_current else "false"}
        name = "end" if is_current else "known-end"
        with ExitStack() as unknown:
            for queue_id, worker in enumerate(workers):
                unknown.enter_context(unknown_unless_answered(worker, name, k=self._name(queue_id), n=node))
            response, body = await wire.ask(RequestCode.PLAN_TOPIC, fields)
        if response.code != ResponseCode.SUCCESS:
            for queue_id, worker in enumerate(workers):
                worker.fail(name, f"code {response.code}: {response.remark}", k=self._name(queue_id), n=node)
            return
        ends = {queue.queue_id: queue.end for queue in decode_plan(body)[0]}
        identity = response.ext["topicIdentity"]
        for queue_id, worker in enumerate(workers):
            worker.ok(name, k=self._name(queue_id), n=node, o=ends[queue_id])
        workers[0].ok("identity", v=identity, n=node)
        starts = {queue_id: max(0, ends[queue_id] - rng.randint(0, back_max)) for queue_id in range(QUEUES)}
        ranges = [
            ReadRange(queue_id, QueueOffset(start), QueueOffset(ends[queue_id] + 1 + rng.randrange(BEYOND_MAX)))
            for queue_id, start in starts.items()
        ]
        fields = {
            "topic": self.topic,
            "topicIdentity": identity,
            "bytesMax": BYTES_MAX,
            "clientId": "jepsen",
            "allowLeader": "true",
            "waitMs": wait_ms,
        }
        with ExitStack() as unknown:
            for range_, worker in zip(ranges, workers, strict=True):
                unknown.enter_context(
                    unknown_unless_answered(worker, "bulk-read", k=self._name(range_.queue_id), n=node, v=range_.start)
                )
            response, body = await wire.ask(RequestCode.BULK_READ, fields, encode_ranges(ranges))
        bulk = decode_answer(body) if response.code == ResponseCode.SUCCESS else None
        if bulk is None or bulk.status is not BulkStatus.RECORDS:
            reason = f"code {response.code}: {response.remark}" if bulk is None else f"{bulk.status.name} {bulk.text}"
            for range_, worker in zip(ranges, workers, strict=True):
                worker.fail("bulk-read", reason, k=self._name(range_.queue_id), n=node)
            return
        by_queue: dict[int, list[tuple[int, str, int]]] = {queue_id: [] for queue_id in range(QUEUES)}
        for queue_id, value in zip(bulk.queue_ids, values_in(bytes(bulk.data)), strict=True):
            by_queue[queue_id].append(value)
        for range_, worker in zip(ranges, workers, strict=True):
            queue_id = range_.queue_id
            worker.ok(
                "bulk-read",
                k=self._name(queue_id),
                n=node,
                v=by_queue[queue_id],
                o=bulk.offsets.get(queue_id, range_.start),
            )

    def _name(self, queue_id: int) -> str:
        return f"{self.topic}/{queue_id}"
