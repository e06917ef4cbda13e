"""Reads every replica from the first message to the last at the end of a run, and records them in the history."""

from __future__ import annotations

from collections import defaultdict

import trio

from checkers.recording import Worker
from jepsen.deployments.cluster import Cluster, ClusterFailed
from jepsen.recorder import Recorder
from jepsen.stored_records import values_in
from jepsen.wire import Wire, open_wire, pull_fields
from jepsen.workloads.workload import QUEUES
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.broker import KVTable

READ_SECONDS_MAX = 120.0
ROUNDS_MAX = 4
REST_SECONDS = 2.0
ARCHIVE_TRIES_MAX = 100
ARCHIVE_REST_SECONDS = 0.2
"""A message in the archive is read within a moment, unless the store has just failed."""
_IN_THE_ARCHIVE = frozenset({ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR})


async def read_replicas(cluster: Cluster, recorder: Recorder, topic: str) -> None:
    """Read all queues of all replicas concurrently, and the beginnings of their logs. An empty `final-read` ends a
    queue.

    A request that was still on its way may be stored between the reads of two replicas. So if queues end at different
    offsets, everything is read again, up to `ROUNDS_MAX` times; replicas that really differ still do.

    Raises ClusterFailed, OSError.
    """
    for round_number in range(1, ROUNDS_MAX + 1):
        ends: dict[str, set[int | None]] = defaultdict(set)
        async with trio.open_nursery() as nursery:
            for node in cluster.nodes:
                nursery.start_soon(_read_replica, cluster, recorder, topic, node, ends)
        recorder.note("final-round", v=round_number)
        if all(len(its) == 1 for its in ends.values()):
            return
        await trio.sleep(REST_SECONDS)


async def _read_replica(
    cluster: Cluster, recorder: Recorder, topic: str, node: str, ends: dict[str, set[int | None]]
) -> None:
    with trio.move_on_after(READ_SECONDS_MAX) as timeout:
        read = False
        async with open_wire(*cluster.network.clients_reach(node)) as wire:
            async with trio.open_nursery() as nursery:

                async def read_one(queue_id: int) -> None:
                    ends[f"{topic}/{queue_id}"].add(await read_queue(Worker(recorder), wire, node, topic, queue_id))

                for queue_id in range(QUEUES):
                    nursery.start_soon(read_one, queue_id)
            # Read afterwards: retention may remove messages in the meantime.
            _, body = await wire.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
            recorder.note("base", n=node, v=int(KVTable.decode(body).table["raftmq.basePosition"]))
            read = True
        if not read:
            raise ClusterFailed(f"{node} closed the connection while its queues were read")
    if timeout.cancelled_caught:
        raise ClusterFailed(f"{node} was not read within {READ_SECONDS_MAX:g} s")


async def read_queue(worker: Worker, wire: Wire, node: str, topic: str, queue_id: int) -> int | None:
    """Read one queue of one replica to its end. Returns the offset of the end; None if it was not reached.

    Raises trio.BrokenResourceError.
    """
    queue, offset, tries = f"{topic}/{queue_id}", 0, 0
    while True:
        worker.invoke("final-read", k=queue, n=node, o=offset)
        response, body = await wire.ask(RequestCode.PULL_MESSAGE, pull_fields(topic, queue_id, offset))
        if response.code == ResponseCode.SUCCESS:
            worker.ok("final-read", k=queue, n=node, v=values_in(body))
            offset, tries = int(response.ext["nextBeginOffset"]), 0
        elif int(response.ext.get("minOffset", 0)) > offset:
            # It sends the reader to this offset, or to a replica that has earlier messages, and is read itself.
            offset = int(response.ext["minOffset"])
            worker.fail("final-read", f"the queue begins at {offset}", k=queue, n=node)
            worker.ok("removed", k=queue, n=node, o=offset)
        elif int(response.ext.get("maxOffset", -1)) == offset:
            worker.ok("final-read", k=queue, n=node, v=[])
            return offset
        elif response.code in _IN_THE_ARCHIVE and tries < ARCHIVE_TRIES_MAX:
            tries += 1
            worker.fail("final-read", f"code {response.code}: {response.remark}", k=queue, n=node)
            await trio.sleep(ARCHIVE_REST_SECONDS)
        else:
            worker.fail("final-read", f"code {response.code}: {response.remark}, {response.ext}", k=queue, n=node)
            return None
