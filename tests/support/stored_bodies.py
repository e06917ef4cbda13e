"""The bodies of all messages of a topic, as stored by the leader."""

from __future__ import annotations

from collections import Counter

import trio

from mq.local_cluster import DevCluster
from mq.protocol.codes import RequestCode, ResponseCode
from tests.support.running_broker import Client, pull_ext
from tests.support.waiting import until_found


async def stored_bodies(cluster: DevCluster, topic: str, queues: int) -> Counter[bytes]:
    """How often each body is stored, in queues 0 to ``queues``. Every response must be a success."""
    found: Counter[bytes] = Counter()
    async with await trio.open_tcp_stream("127.0.0.1", cluster.port(await cluster.leader())) as stream:
        client = Client(stream)
        for queue in range(queues):
            end, offset = await client.offset(RequestCode.GET_MAX_OFFSET, topic, queue), 0
            while offset < end:
                answer = await client.request(RequestCode.PULL_MESSAGE, pull_ext(topic, queue, offset))
                assert answer.code == ResponseCode.SUCCESS, answer
                found.update(record.body for record in answer.records)
                offset = int(answer.ext["nextBeginOffset"])
    return found


async def all_stored_bodies(cluster: DevCluster, topic: str, queues: int, wanted: set[bytes]) -> Counter[bytes]:
    """As `stored_bodies`, once all the ``wanted`` are there."""

    missing = wanted

    async def look() -> Counter[bytes] | None:
        nonlocal missing
        found = await stored_bodies(cluster, topic, queues)
        missing = wanted - found.keys()
        return None if missing else found

    try:
        return await until_found(look, seconds=60)
    except TimeoutError:
        raise AssertionError(f"not stored: {missing}") from None
