"""Pulls and offsets through a proxy, which no released proxy of RocketMQ has."""

from __future__ import annotations

import trio
import trio.testing
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from mq.client import Admin
from mq.proxy.wire import messaging_pb2 as pb
from mq.testing import open_kit
from tests.support.proxies import InMemoryProxy, open_proxy
from tests.support.virtual_time import VIRTUAL_TIME

pytestmark = VIRTUAL_TIME

QUEUE = pb.MessageQueue(topic=pb.Resource(name="Orders"), id=0, broker=pb.Broker(name="broker-a"))
GROUP = pb.Resource(name="readers")


async def pull(proxy: InMemoryProxy, offset: int, **told: object) -> tuple[int, list[bytes], int | None]:
    request = pb.PullMessageRequest(group=GROUP, message_queue=QUEUE, offset=offset, batch_size=2, **told)  # type: ignore[arg-type]
    answers = await proxy.stream("PullMessage", request, pb.PullMessageResponse)
    bodies = [answer.message.body for answer in answers if answer.HasField("message")]
    last = answers[-1].next_offset if answers[-1].HasField("next_offset") else None
    return answers[0].status.code, bodies, last


async def test_queue_is_pulled_and_offsets_are_stored() -> None:
    async with open_kit() as kit, Admin(kit.namesrv) as admin, open_proxy(kit) as proxy:
        await admin.create_topic("Orders", 1)
        await proxy.send("Orders", "one", "two", "three")
        assert await pull(proxy, 0) == (pb.OK, [b"one", b"two"], 2)
        assert await pull(proxy, 2) == (pb.OK, [b"three"], 3)
        began = trio.current_time()
        assert await pull(proxy, 3, long_polling_timeout=Duration(seconds=3)) == (pb.MESSAGE_NOT_FOUND, [], 3)
        assert 2 < trio.current_time() - began < 8
        assert (await pull(proxy, -1))[0] == pb.ILLEGAL_OFFSET
        assert (await pull(proxy, 100))[0] == pb.ILLEGAL_OFFSET

        get = pb.GetOffsetRequest(group=GROUP, message_queue=QUEUE)
        assert (await proxy.ask("GetOffset", get, pb.GetOffsetResponse)).status.code == pb.OFFSET_NOT_FOUND
        update = pb.UpdateOffsetRequest(group=GROUP, message_queue=QUEUE, offset=2)
        assert (await proxy.ask("UpdateOffset", update, pb.UpdateOffsetResponse)).status.code == pb.OK
        got = await proxy.ask("GetOffset", get, pb.GetOffsetResponse)
        assert (got.status.code, got.offset) == (pb.OK, 2)

        later = Timestamp(seconds=int(kit.now().timestamp()) + 60)
        for policy, at, wanted in ((pb.BEGINNING, None, 0), (pb.END, None, 3), (pb.TIMESTAMP, later, 3)):
            query = pb.QueryOffsetRequest(message_queue=QUEUE, query_offset_policy=policy, timestamp=at)
            answer = await proxy.ask("QueryOffset", query, pb.QueryOffsetResponse)
            assert (answer.status.code, answer.offset) == (pb.OK, wanted)
