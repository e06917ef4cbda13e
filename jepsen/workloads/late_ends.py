"""Lets the end of a transaction arrive late: after its resend, or after an end with the other outcome.

A client that got no answer sends END_TRANSACTION again, perhaps to another replica, while the network still has the
first one. Each attempt is an operation of its own in the history; the first one that is stored decides.
"""

from __future__ import annotations

import random
from typing import Any, ClassVar

import trio

from checkers.recording import Worker
from jepsen.deployments.cluster import Cluster
from jepsen.derived_messages import body_of, new_value, properties_of, tag_of
from jepsen.recorder import Recorder
from jepsen.wire import Wire, ask_once, send_fields
from jepsen.workloads.log import LogWorkload, unknown_unless_answered
from jepsen.workloads.transactions import COMMIT, ROLLBACK, TransactionsWorkload
from jepsen.workloads.workload import QUEUES, SIZES
from mq.protocol import properties
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.message_ids import parse_offset_message_id

GROUP = "jepsen_late_ends"
TRANSACTION_CHANCE = 0.6
OTHER_OUTCOME_CHANCE = 0.25
LATE_SECONDS = (0.0, 0.0, 0.01, 0.3, 1.5)
"""Seconds for which the network keeps an end; 0: both arrive at once."""
_HALF_FLAG = 4
_OUTCOMES = {COMMIT: 8, ROLLBACK: 12}


class LateEndsWorkload(LogWorkload):
    name = "late-ends"
    summary = "transactions that are ended twice, by an end that comes late and its resend, at any replica"
    settings: ClassVar[dict[str, str]] = TransactionsWorkload.settings

    def __init__(self, cluster: Cluster, recorder: Recorder, rng: random.Random) -> None:
        super().__init__(cluster, recorder, rng)
        self._network: trio.Nursery | None = None

    async def produce(self) -> None:
        """Send as the workload *log* does. Returns when the last late end has its response."""
        async with trio.open_nursery() as self._network:
            await super().produce()

    async def operate(self, worker: Worker, wire: Wire, node: str, number: int, rng: random.Random) -> None:
        """Do a transaction, or a read of the workload *log*."""
        if rng.random() < TRANSACTION_CHANCE:
            await self._transact(worker, wire, node, rng)
        elif rng.random() < 0.5:
            await self._read(worker, wire, node, rng.randrange(QUEUES), rng.randrange(100))
        else:
            await self._ask_end(worker, wire, node, rng.randrange(QUEUES))

    async def _transact(self, worker: Worker, wire: Wire, node: str, rng: random.Random) -> None:
        queue_id = rng.randrange(QUEUES)
        value = new_value(worker.process, worker.next_number(), rng.choice(SIZES))
        own = {
            properties.TAGS: tag_of(value),
            properties.TRANSACTION_PREPARED: "true",
            properties.PRODUCER_GROUP: GROUP,
            properties.UNIQUE_KEY: value,
            **properties_of(value),
        }
        fields = send_fields(self.topic, queue_id, properties.encode(own), GROUP, sys_flag=_HALF_FLAG)
        with unknown_unless_answered(worker, "half", k=None, v=value):
            response, _ = await wire.ask(RequestCode.SEND_MESSAGE_V2, fields, body_of(value))
        if response.code != ResponseCode.SUCCESS:
            worker.info("half", f"code {response.code}: {response.remark}", v=value)
            return
        worker.ok("half", v=value)
        half = {
            "producerGroup": GROUP,
            "tranStateTableOffset": response.ext["queueOffset"],
            "commitLogOffset": parse_offset_message_id(response.ext["msgId"]).physical_offset,
            "msgId": value,
            "transactionId": value,
            "topic": self.topic,
        }
        outcome = COMMIT if rng.random() < 0.6 else ROLLBACK
        other = ROLLBACK if outcome == COMMIT else COMMIT
        resent = other if rng.random() < OTHER_OUTCOME_CHANCE else outcome
        assert self._network is not None, "ends are late only while the workload produces"
        self._network.start_soon(
            self._end, half, value, outcome, rng.choice(LATE_SECONDS), rng.choice(self.cluster.nodes)
        )
        await self._end(half, value, resent, 0.0, rng.choice(self.cluster.nodes))

    async def _end(self, half: dict[str, Any], value: str, outcome: str, seconds: float, node: str) -> None:
        """Make one attempt, over a connection of its own, after ``seconds`` in the network."""
        await trio.sleep(seconds)
        worker = Worker(self.recorder)
        worker.invoke("end-transaction", v=[value, outcome])
        fields = half | {"commitOrRollback": _OUTCOMES[outcome]}
        header_and_body = await ask_once(self.cluster.network.clients_reach(node), RequestCode.END_TRANSACTION, fields)
        if header_and_body is None:
            worker.info("end-transaction", "no answer", v=[value, outcome])
            return
        answer, _ = header_and_body
        if answer.code == ResponseCode.SUCCESS:
            worker.ok("end-transaction", v=[value, outcome])
        else:
            worker.info("end-transaction", f"code {answer.code}: {answer.remark}", v=[value, outcome])
