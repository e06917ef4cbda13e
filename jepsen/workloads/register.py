"""Uses a topic's configuration and a group's offset as registers: raw requests to any replica write and read them.

A register gets few operations by few processes, since the checker searches for a linearization; then the next one
begins.
"""

from __future__ import annotations

import itertools
import json
import random
from typing import Any, ClassVar

import trio

from checkers.recording import Worker
from jepsen.deployments.cluster import Cluster
from jepsen.recorder import Recorder
from jepsen.wire import Wire
from jepsen.workloads.log import REST_SECONDS, LogWorkload, unknown_unless_answered
from mq.client import Admin, ClientError, Message, Producer
from mq.client.send_outcome import judge_send
from mq.protocol.codes import RequestCode, ResponseCode

OPERATIONS_MAX = (180, 200)
"""Per key, drawn."""
PROCESSES = 5
OFFSETS_TOPIC = "RegisterOffsets"
FILLED_AT_ONCE = 128
FILL_SECONDS_MAX = 20.0
VALUES = 1024
"""Numbers of queues that a topic may have. Offsets use the same range, each at most once per key."""


class RegisterWorkload(LogWorkload):
    """Writes and reads registers. The first workers share a topic's configuration, the others a group's offset."""

    workers: ClassVar[int] = 2 * PROCESSES
    has_pipelines: ClassVar[bool] = False
    name = "register"
    summary = "a topic's configuration and a group's offset, written and read at any replica"

    def __init__(self, cluster: Cluster, recorder: Recorder, rng: random.Random) -> None:
        super().__init__(cluster, recorder, rng)
        self._keys = [_Key("topic", 0, rng), _Key("offset", 0, rng)]

    async def produce(self) -> None:
        """Fill the queue whose offsets are committed, since they may not be beyond its end. Then send as *log*."""
        with trio.move_on_after(FILL_SECONDS_MAX):
            await self._fill()
        await super().produce()

    async def _fill(self) -> None:
        async with (
            Admin(self.cluster.namesrv) as admin,
            Producer(self.cluster.namesrv, "jepsen_register", retry_unknown=True) as producer,
        ):
            end = 0
            while end < VALUES and not self.stopping.is_set():
                try:
                    if not end:
                        await admin.create_topic(OFFSETS_TOPIC, read_queues=1, write_queues=1)
                    receipts = await producer.send_batch([Message(OFFSETS_TOPIC, b"") for _ in range(FILLED_AT_ONCE)])
                    end = receipts[-1].queue_offset + 1
                except ClientError:
                    await trio.sleep(REST_SECONDS)

    async def operate(self, worker: Worker, wire: Wire, node: str, number: int, rng: random.Random) -> None:
        """Write or read the register that this worker uses."""
        at = number // PROCESSES
        key = self._keys[at]
        if not key.operations_left:
            key = self._keys[at] = _Key(key.kind, key.number + 1, rng)
        key.operations_left -= 1
        if rng.random() < 0.4:
            await self._write(worker, wire, node, key)
        else:
            await self._get(worker, wire, node, key)

    async def _write(self, worker: Worker, wire: Wire, node: str, key: _Key) -> None:
        value = next(key.values)
        if key.kind == "topic":
            code, fields = RequestCode.UPDATE_AND_CREATE_TOPIC, _topic_fields(key.name, value)
        else:
            code, fields = RequestCode.UPDATE_CONSUMER_OFFSET, self._offset_fields(key, commitOffset=value)
        with unknown_unless_answered(worker, "write", k=key.name, v=value, n=node):
            response, _ = await wire.ask(code, fields)
        reason = f"code {response.code}: {response.remark}"
        if response.code == ResponseCode.SUCCESS:
            worker.ok("write", k=key.name, v=value, n=node)
            self.acknowledge(key.name, value, f"{key.name}={value}")
        elif judge_send(response.code, response.remark).stored == "no":
            worker.fail("write", reason, k=key.name, n=node)
        else:
            worker.info("write", reason, k=key.name, n=node)

    async def _get(self, worker: Worker, wire: Wire, node: str, key: _Key) -> None:
        if key.kind == "topic":
            code, fields = RequestCode.GET_TOPIC_CONFIG, {"topic": key.name, "lo": "true"}
        else:
            code, fields = RequestCode.QUERY_CONSUMER_OFFSET, self._offset_fields(key, setZeroIfNotFound="false")
        with unknown_unless_answered(worker, "get", k=key.name, n=node):
            response, body = await wire.ask(code, fields)
        if response.code == ResponseCode.SUCCESS:
            value = json.loads(body)["readQueueNums"] if key.kind == "topic" else int(response.ext["offset"])
            worker.ok("get", k=key.name, v=value, n=node)
        elif response.code in (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.QUERY_NOT_FOUND):
            worker.ok("get", k=key.name, n=node)
        else:
            worker.fail("get", f"code {response.code}: {response.remark}", k=key.name, n=node)

    def _offset_fields(self, key: _Key, **more: Any) -> dict[str, Any]:
        return {"consumerGroup": key.name, "topic": OFFSETS_TOPIC, "queueId": 0, **more}


class _Key:
    """A register, its number of operations, and the values not yet written, in random order."""

    def __init__(self, kind: str, number: int, rng: random.Random) -> None:
        self.kind = kind
        self.number = number
        self.name = f"jepsen_{kind}_{number}"
        self.operations_left = rng.randint(*OPERATIONS_MAX)
        self.values = itertools.cycle(rng.sample(range(1, VALUES + 1), VALUES))


def _topic_fields(topic: str, value: int) -> dict[str, Any]:
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": value,
        "writeQueueNums": 1,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }
