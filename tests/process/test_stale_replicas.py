"""What replicas say that do not know the newest: a leader that was paused and replaced, and a follower."""

from __future__ import annotations

import os
import signal
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
import trio

from jepsen.wire import Wire, ask_figures, open_wire
from mq.client import Admin, Message, Producer
from mq.local_cluster import HOST, DevCluster, Ports
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response
from tests.support.waiting import until, until_found

MESSAGES = 30
OFFSET = {"consumerGroup": "readers", "topic": "Paused", "queueId": 0}
PULL = {
    **OFFSET,
    "maxMsgNums": 32,
    "sysFlag": 4,
    "commitOffset": 0,
    "suspendTimeoutMillis": 0,
    "subVersion": 0,
    "subscription": "*",
}


async def _store(wire: Wire, offset: int) -> None:
    answer, _ = await wire.ask(RequestCode.UPDATE_CONSUMER_OFFSET, OFFSET | {"commitOffset": offset})
    assert answer.code == ResponseCode.SUCCESS, answer


async def _leader(cluster: DevCluster, *, paused: str = "") -> str:
    async def look() -> str | None:
        for node in cluster.node_ids:
            table = None if node == paused else await ask_figures(HOST, cluster.port(node))
            if table and table["raftmq.role"] == "leader":
                return node
        return None

    return await until_found(look)


async def _run(directory: Path) -> None:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(DevCluster.open(directory, ports=Ports.free(3)))
        admin = await stack.enter_async_context(Admin(cluster.namesrv))
        await admin.create_topic("Paused", read_queues=1, write_queues=1)
        producer = await stack.enter_async_context(Producer(cluster.namesrv, group="writers"))
        for _ in range(MESSAGES):
            await producer.send(Message("Paused", b"body"))
        old_leader = await _leader(cluster)
        wires = {
            node: await stack.enter_async_context(open_wire(HOST, cluster.port(node))) for node in cluster.node_ids
        }
        await _store(wires[old_leader], 10)

        # Only the leader tells a consumer that its offset is wrong; the others send the consumer there.
        ahead = PULL | {"queueOffset": MESSAGES + 7}
        with trio.fail_after(60):
            for node, wire in wires.items():
                answer, _ = await wire.ask(RequestCode.PULL_MESSAGE, ahead)
                while answer.code == ResponseCode.TOPIC_NOT_EXIST:  # the follower has not applied the topic yet
                    answer, _ = await wire.ask(RequestCode.PULL_MESSAGE, ahead)
                found = (answer.code, int(answer.ext["nextBeginOffset"]))
                if node == old_leader:
                    assert found == (ResponseCode.PULL_OFFSET_MOVED, MESSAGES), node
                else:
                    assert found == (ResponseCode.PULL_RETRY_IMMEDIATELY, MESSAGES + 7), node

        os.kill(cluster.pid(old_leader), signal.SIGSTOP)
        new_leader = await _leader(cluster, paused=old_leader)
        with trio.fail_after(30):
            await _store(wires[new_leader], 20)
        # What was asked while it was paused is answered by what the new leader knows, or not at all.
        told: list[tuple[int, str | None]] = []

        def note(code: int, response: Response, _: bytes) -> None:
            told.append((code, response.ext.get("offset")))

        for code in (RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MAX_OFFSET):
            await wires[old_leader].post(code, OFFSET, partial(note, code))
        os.kill(cluster.pid(old_leader), signal.SIGCONT)
        right = {(int(RequestCode.QUERY_CONSUMER_OFFSET), "20"), (int(RequestCode.GET_MAX_OFFSET), str(MESSAGES))}
        unsure = (int(RequestCode.GET_MAX_OFFSET), None)
        with trio.fail_after(30):
            await until(lambda: any(code == RequestCode.GET_MAX_OFFSET for code, _ in told))
            assert set(told) <= right | {unsure}, told
            # Every replica can tell as soon as it hears the leader; until then it keeps silent.
            for node, wire in wires.items():
                known: str | None = None
                while known is None:
                    with trio.move_on_after(1):
                        answer, _ = await wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, OFFSET)
                        known = answer.ext["offset"]
                assert known == "20", node


@pytest.mark.process
@pytest.mark.slow
def test_stale_replicas_return_no_old_offsets(tmp_path: Path) -> None:
    trio.run(_run, tmp_path)
