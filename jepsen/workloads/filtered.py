"""Runs the workload *queue* with a filter: two filter servers run a WebAssembly module for the group.

They are clients in processes of their own for the faults, and are started again. A message passes if the number in its
body leaves 1 when divided by 3.
"""

from __future__ import annotations

import random
from typing import ClassVar, Final

import trio
import wasmtime

from checkers.filtered import passes_filter
from jepsen.deployments.cluster import Cluster
from jepsen.recorder import Recorder
from jepsen.workloads.own_servers import OwnServers
from jepsen.workloads.queue import QueueWorkload
from mq.client import PushConsumer, WasmFilter

FILTER_SERVERS: Final = ("f0", "f1")
MODULE: Final = """
(module
  (memory (export "memory") 3)
  (func (export "raftmq_allocate") (param $size i32) (result i32)
    (select (i32.const 65536) (i32.const 0) (i32.le_u (local.get $size) (i32.const 131072))))
  (func (export "raftmq_filter")
    (param $p i32) (param $ps i32) (param $at i32) (param $size i32) (result i32)
    (local $number i32)
    ;; behind the first point of PROCESS.NUMBER.SIZE/
    (loop $process
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br_if $process (i32.ne (i32.load8_u (i32.sub (local.get $at) (i32.const 1))) (i32.const 46))))
    (loop $digit
      (local.set $number (i32.add
        (i32.mul (local.get $number) (i32.const 10))
        (i32.sub (i32.load8_u (local.get $at)) (i32.const 48))))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br_if $digit (i32.ne (i32.load8_u (local.get $at)) (i32.const 46))))
    (i32.eq (i32.rem_u (local.get $number) (i32.const 3)) (i32.const 1))))
"""


class FilteredWorkload(QueueWorkload):
    name = "filtered"
    summary = "a consumer group with a filter, behind two filter servers that are killed and restarted"
    drain_seconds_max: ClassVar[float] = 30.0

    def __init__(self, cluster: Cluster, recorder: Recorder, rng: random.Random) -> None:
        super().__init__(cluster, recorder, rng)
        self._servers = OwnServers(cluster, FILTER_SERVERS)
        self._filter = WasmFilter(bytes(wasmtime.wat2wasm(MODULE)))
        self._subscriptions: set[tuple[str, int]] = set()

    def acknowledge(self, queue: str, offset: int, value: str) -> None:
        super().acknowledge(queue, offset, value)
        if passes_filter(value):
            self._subscriptions.add((queue, offset))

    async def consume(self) -> None:
        """Run the filter servers, and the members of the workload *queue* that are in this process."""
        self.programs = {}  # they have no filter
        async with trio.open_nursery() as nursery:
            for name, node in zip(FILTER_SERVERS, self.cluster.nodes, strict=False):
                nursery.start_soon(self._run_filter_server, name, node)
            await super().consume()

    async def wait_drained(self) -> None:
        """Wait until the group has received all messages that pass its filter."""
        await self._wait_none_left(lambda: len(self._subscriptions - self.consumed))

    def _subscribe(self, consumer: PushConsumer) -> None:
        consumer.subscribe(self.topic, filter=self._filter)

    async def _run_filter_server(self, name: str, node: str) -> None:
        """Run a filter server beside a broker, again and again, until cancelled."""
        host, port = self.cluster.network.clients_reach(node)
        await self._servers.run(name, "filter-server", "--namesrv", self.cluster.namesrv, "--broker", f"{host}:{port}")
