"""Clients that ask for much at once and read nothing: others are answered meanwhile, and the leader stays."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from mq.client import Admin, Message, Producer
from mq.local_cluster import HOST, DevCluster, Ports
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.wire.encoding import encode_request
from tests.support.real_groups import connected
from tests.support.running_broker import SECONDS_MAX, pull_ext

pytestmark = [pytest.mark.process, pytest.mark.slow]

MIB = 1024 * 1024
GREEDY = 200
PULLS = 300
MESSAGES = 100
SENDS = 60
ELECTIONS = {"election_timeout_seconds_min": "6", "election_timeout_seconds_max": "9"}
"""A machine that is busy with other things keeps a leader from its heartbeats for the usual 1.5 s, too."""


async def ask_and_never_read(port: int, requests: bytes) -> None:
    """Send the same again and again, on a new connection when the broker has closed the last one."""
    while True:
        try:
            async with await trio.open_tcp_stream(HOST, port) as stream:
                while True:
                    await stream.send_all(requests)
        except (OSError, trio.BrokenResourceError):
            await trio.sleep(0.1)


def pulls() -> bytes:
    ext = {name: str(value) for name, value in pull_ext(maxMsgNums=32).items()}
    return b"".join(encode_request(RequestCode.PULL_MESSAGE, number, ext=ext) for number in range(1, PULLS + 1))


def heartbeats() -> bytes:
    return encode_request(RequestCode.HEART_BEAT, 1, body=b'{"clientID":"' + b"x" * (14 * MIB) + b'"}')


@pytest.mark.parametrize("neighbour", ["pulls", "heartbeats"])
async def test_hostile_client_neither_blocks_others_nor_moves_leadership(tmp_path: Path, neighbour: str) -> None:
    async with DevCluster.open(tmp_path, ports=Ports.free(3), settings=ELECTIONS) as cluster:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic("T", queues=1)
        async with Producer(cluster.namesrv) as producer:
            for _ in range(MESSAGES):
                await producer.send(Message("T", bytes(2000)))
        leader = await cluster.leader()
        async with connected(cluster, leader) as client:
            before = await client.info()
            async with trio.open_nursery() as nursery:
                requests, count = (pulls(), GREEDY) if neighbour == "pulls" else (heartbeats(), 3)
                for _ in range(count):
                    nursery.start_soon(ask_and_never_read, cluster.port(leader), requests)
                with trio.fail_after(SECONDS_MAX):
                    for _ in range(SENDS):
                        await trio.sleep(0.05)
                        assert (await client.send()).code == ResponseCode.SUCCESS
                nursery.cancel_scope.cancel()
            after = await client.info()
        assert (after["raftmq.role"], after["raftmq.term"]) == ("leader", before["raftmq.term"])
