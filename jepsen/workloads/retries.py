"""Members of a consumer group fail on some messages, which are redelivered, or become dead letters.

The value of a message says whether and how often it fails. A message is sent once.
"""

from __future__ import annotations

import logging
import random
from typing import ClassVar

import trio

from checkers.recording import Worker
from checkers.retries import RECONSUMED_MAX
from jepsen.deployments.cluster import Cluster, ClusterFailed
from jepsen.derived_messages import value_of
from jepsen.recorder import Recorder
from jepsen.stored_records import values_in
from jepsen.wire import ask_once, pull_fields
from jepsen.workloads.sdk_producers import NEVER_TWICE, produce_with_sdk
from jepsen.workloads.workload import SETTINGS, Workload
from mq.client import ClientError, PushConsumer, ReceivedMessage
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.names import dead_letter_topic

GROUP = "jepsen_retries"
MEMBERS = 2
ALWAYS = 1 << 30
FAILURES = (ALWAYS, 2, 1, 0, 0, 0, 0, 0)
"""The number of times that a message fails, by its number."""
STAY_SECONDS = (8.0, 20.0)


class GivenBack(Exception):
    """A handler raises this on purpose, so that the broker redelivers the message."""


class RetriesWorkload(Workload):
    name = "retries"
    summary = "SDK producers, and a consumer group that gives messages back until they are handled or dead"
    # The first redelivery waits for level 3.
    settings: ClassVar[dict[str, str]] = {**SETTINGS, "delay_levels": "1s 1s 1s 1s 2s 2s 2s"}

    def __init__(self, cluster: Cluster, recorder: Recorder, rng: random.Random) -> None:
        super().__init__(cluster, recorder, rng)
        self._settled_values: set[str] = set()
        """Values that were handled, or sent back for the last time."""

    async def produce(self) -> None:
        """Send with the SDK until stopped."""
        await produce_with_sdk(self, NEVER_TWICE)

    async def consume(self) -> None:
        """Run the members of the group. Some of them leave and rejoin."""
        # The SDK logs each handler failure with its traceback; here they are intended.
        logging.getLogger("mq.client").setLevel(logging.CRITICAL)
        async with trio.open_nursery() as nursery:
            for number in range(MEMBERS):
                nursery.start_soon(self._be_member, number > 0)

    async def wait_drained(self) -> None:
        """Wait until each message is handled or dead; then read each replica's dead letters. Raises ClusterFailed."""
        await self._wait_none_left(lambda: len(self.acknowledged_values - self._settled_values))
        await self.cluster.wait_level()
        for node in self.cluster.nodes:
            await self._read_dead_letters(node)

    async def _be_member(self, leaves: bool) -> None:
        rng = random.Random(self.rng.random())
        worker = Worker(self.recorder)

        async def handle(message: ReceivedMessage) -> None:
            value = value_of(message.body, message.properties, message.tags)
            times = message.reconsume_times
            number = int(value.split(".")[1]) if value.count(".") == 2 else 0
            if times < FAILURES[number % len(FAILURES)]:
                worker.ok("try", v=value, o=times, err="given back")
                if times >= RECONSUMED_MAX:
                    self._settled_values.add(value)
                raise GivenBack
            worker.ok("try", v=value, o=times)
            self._settled_values.add(value)
            await trio.lowlevel.checkpoint()

        while True:
            try:
                async with PushConsumer(
                    self.cluster.namesrv,
                    GROUP,
                    consume_from="first",
                    ordered=False,
                    max_reconsume_times=RECONSUMED_MAX,
                    commit_seconds=0.2,
                    rebalance_seconds=2.0,
                ) as consumer:
                    consumer.on(self.topic)(handle)
                    with trio.move_on_after(rng.uniform(*STAY_SECONDS) if leaves else float("inf")):
                        await consumer.run()
            except ClientError:
                pass  # it is redelivered
            await trio.sleep(rng.uniform(0.1, 2.0))

    async def _read_dead_letters(self, node: str) -> None:
        topic, offset, worker = dead_letter_topic(GROUP), 0, Worker(self.recorder)
        while True:
            worker.invoke("dead-read", n=node, o=offset)
            header_and_body = await ask_once(
                self.cluster.network.clients_reach(node), RequestCode.PULL_MESSAGE, pull_fields(topic, 0, offset)
            )
            if header_and_body is None:
                raise ClusterFailed(f"{node} did not answer when its dead letters were read")
            answer, body = header_and_body
            if answer.code == ResponseCode.SUCCESS:
                worker.ok("dead-read", n=node, v=values_in(body))
                offset = int(answer.ext["nextBeginOffset"])
            elif int(answer.ext.get("maxOffset", -1)) == offset:
                worker.ok("dead-read", n=node, v=[])
                return
            else:
                worker.fail("dead-read", f"code {answer.code}: {answer.remark}", n=node)
                return
