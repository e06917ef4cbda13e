"""Uses a queue as a log, and queries its messages by key and by store time at any replica."""

from __future__ import annotations

import random
import time

from checkers.recording import Worker
from jepsen.deployments.cluster import Cluster
from jepsen.derived_messages import value_of
from jepsen.recorder import Recorder
from jepsen.wire import Wire
from jepsen.workloads.log import LogWorkload, unknown_unless_answered
from jepsen.workloads.workload import QUEUES
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.records import RecordError, decode_records
from mq.protocol.properties import TAGS

QUERY_CHANCE = 0.3
KEY_CHANCE = 0.6
RECENT_CHANCE = 0.5
"""Chance that a query is for one of the newest messages, which no index file has yet."""
RECENT = 50
FOUND_MAX = 32
PAST_SECONDS_MAX = 10.0
DAY_MS = 86_400_000


class QueriesWorkload(LogWorkload):
    name = "queries"
    summary = "raw appends, and queries for messages by key and by store time, at any replica"

    def __init__(self, cluster: Cluster, recorder: Recorder, rng: random.Random) -> None:
        super().__init__(cluster, recorder, rng)
        self._sent_keys: list[str] = []

    def acknowledge(self, queue: str, offset: int, value: str) -> None:
        """Record an acknowledged message, whose value queries may search for."""
        super().acknowledge(queue, offset, value)
        self._sent_keys.append(value)

    async def operate(self, worker: Worker, wire: Wire, node: str, number: int, rng: random.Random) -> None:
        """Query messages, or do an operation of the workload *log*."""
        if not self._sent_keys or rng.random() > QUERY_CHANCE:
            await super().operate(worker, wire, node, number, rng)
        elif rng.random() < KEY_CHANCE:
            newest = self._sent_keys[-RECENT:] if rng.random() < RECENT_CHANCE else self._sent_keys
            await self._find_key(worker, wire, node, rng.choice(newest))
        else:
            await self._find_time(worker, wire, node, rng.randrange(QUEUES), rng.uniform(0.0, PAST_SECONDS_MAX))

    async def _find_key(self, worker: Worker, wire: Wire, node: str, key: str) -> None:
        now_ms = time.time_ns() // 1_000_000
        fields = {
            "topic": self.topic,
            "key": key,
            "maxNum": FOUND_MAX,
            "beginTimestamp": now_ms - DAY_MS,
            "endTimestamp": now_ms + DAY_MS,
        }
        with unknown_unless_answered(worker, "find-key", k=None, v=key, n=node):
            response, body = await wire.ask(RequestCode.QUERY_MESSAGE, fields)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            worker.ok("find-key", v=[], n=node)
        elif response.code != ResponseCode.SUCCESS:
            worker.fail("find-key", f"code {response.code}: {response.remark}", n=node)
        else:
            worker.ok("find-key", v=found_in(body), n=node)

    async def _find_time(self, worker: Worker, wire: Wire, node: str, queue_id: int, seconds_ago: float) -> None:
        queue, at_ms = f"{self.topic}/{queue_id}", time.time_ns() // 1_000_000 - int(seconds_ago * 1000)
        fields = {"topic": self.topic, "queueId": queue_id, "timestamp": at_ms}
        with unknown_unless_answered(worker, "find-time", k=queue, v=at_ms, n=node):
            response, _ = await wire.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
        if response.code == ResponseCode.SUCCESS:
            worker.ok("find-time", k=queue, v=at_ms, n=node, o=int(response.ext["offset"]))
        else:
            worker.fail("find-time", f"code {response.code}: {response.remark}", k=queue, n=node)


def found_in(body: bytes) -> list[tuple[str, int, str]]:
    """Return queue, offset and value of each record in a response. The value of an unreadable one was never sent."""
    try:
        return [
            (
                f"{each.topic}/{each.queue_id}",
                each.queue_offset,
                value_of(each.body, each.properties, each.properties.get(TAGS)),
            )
            for each in decode_records(body)
        ]
    except RecordError as error:
        return [("", 0, f"damaged answer: {error}")]
