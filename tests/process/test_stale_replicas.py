"""What replicas say that do not know the newest: a leader that was paused and replaced, and a follower."""

from __future__ import annotations

import os
import random
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from mq.cli.dev_cluster import DevCluster, Ports
from mq.client import Admin
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.headers import Response
from tests.process.torture import Torture, Wire, figures, wired

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


async def _another_leader(cluster: DevCluster, paused: str) -> str:
    with trio.fail_after(30):
        while True:
            for node in cluster.node_ids:
                table = None if node == paused else await figures(cluster, node)
                if table and table["raftmq.role"] == "leader":
                    return node
            await trio.sleep(0.05)


async def _run(directory: Path) -> None:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(DevCluster.open(directory, ports=Ports.free(3)))
        admin = await stack.enter_async_context(Admin(cluster.namesrv))
        await admin.create_topic("Paused", read_queues=1, write_queues=1)
        old_leader = await Torture(cluster, random.Random(1), print).wait_leader()
        wires = {node: await stack.enter_async_context(wired(cluster.port(node))) for node in cluster.node_ids}
        await _store(wires[old_leader], 10)

        # A follower cannot know where a queue ends; only the leader may tell a consumer that its offset is wrong.
        ahead = PULL | {"queueOffset": 7}
        with trio.fail_after(10):
            for node, wire in wires.items():
                answer, _ = await wire.ask(RequestCode.PULL_MESSAGE, ahead)
                while answer.code == ResponseCode.TOPIC_NOT_EXIST:  # the follower has not applied the topic yet
                    answer, _ = await wire.ask(RequestCode.PULL_MESSAGE, ahead)
                told = (answer.code, int(answer.ext["nextBeginOffset"]))
                leads = node == old_leader
                assert told == ((ResponseCode.PULL_OFFSET_MOVED, 0) if leads else (ResponseCode.PULL_NOT_FOUND, 7)), (
                    node
                )

        os.kill(cluster.pid(old_leader), signal.SIGSTOP)
        new_leader = await _another_leader(cluster, old_leader)
        with trio.fail_after(30):
            await _store(wires[new_leader], 20)
        answers: list[Response] = []
        for code in (RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MAX_OFFSET):
            await wires[old_leader].post(code, OFFSET, lambda response, _: answers.append(response))
        last = trio.Event()
        await wires[old_leader].post(RequestCode.GET_BROKER_RUNTIME_INFO, None, lambda *_: last.set())
        os.kill(cluster.pid(old_leader), signal.SIGCONT)
        with trio.fail_after(30):
            await last.wait()
        # Silence to the first question, as of every replica that cannot know.
        assert [answer.code for answer in answers] == [ResponseCode.SERVICE_NOT_AVAILABLE], answers


@pytest.mark.process
@pytest.mark.slow
def test_only_a_leader_that_is_sure_says_where_a_consumer_is(tmp_path: Path) -> None:
    trio.run(_run, tmp_path)
