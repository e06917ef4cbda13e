"""Offsets beyond the end of a queue: refused where they are asked for, and corrected where they were stored before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mq.broker.broker import Broker
from mq.cli.consumer_groups import behind
from mq.monitoring.families import Family
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.group_progress import read_progress
from tests.support.popping import popped
from tests.support.running_broker import SUBSCRIPTION, SUSPEND, Client, broker_client, broker_settings, pull_ext
from tests.support.steps import result_of
from tests.support.waiting import until

COMMIT_OFFSET, LITE_PULL = 1, 16
COMMITS = SUBSCRIPTION | COMMIT_OFFSET


async def filled(client: Client, count: int, queues: int = 1) -> None:
    await client.create_topic("T", queues)
    for number in range(count):
        assert (await client.send(body=b"%d" % number)).code == 0


def commit_ext(offset: int, **given: Any) -> dict[str, Any]:
    return {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": offset} | given


async def commit(client: Client, offset: int, *, oneway: bool = False, **given: Any) -> Any:
    ext = commit_ext(offset, **given)
    if oneway:
        await client.post(RequestCode.UPDATE_CONSUMER_OFFSET, ext, oneway=True)
        return None
    return await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext)


async def store_as_before(broker: Broker, client: Client, offset: int, **given: Any) -> None:
    """Store an offset as a release did that stored any."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(broker.services.offsets, "_end", lambda topic, queue_id: 2**62)
        assert (await commit(client, offset, **given)).code == 0
        assert await client.committed(group=given.get("consumerGroup", "G")) == offset


async def test_commit_beyond_end_is_refused_with_the_end(client: Client) -> None:
    await filled(client, 5)
    refused = await commit(client, 1000)
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert "offset 1000 is beyond the end of queue 0 of T" in refused.remark
    assert "its next message gets offset 5" in refused.remark
    assert (await commit(client, 6)).code == ResponseCode.INVALID_PARAMETER
    assert (await commit(client, 5)).code == 0
    assert await client.committed() == 5


async def test_commit_beyond_end_of_empty_queue_is_refused(client: Client) -> None:
    await client.create_topic("T", 1)
    assert (await commit(client, 1)).code == ResponseCode.INVALID_PARAMETER
    assert (await commit(client, 0)).code == 0


async def test_commits_without_answer_beyond_end_change_nothing(client: Client) -> None:
    await filled(client, 5)
    await commit(client, 3)
    await commit(client, 1000, oneway=True)
    await client.pull(offset=3, sysFlag=COMMITS, commitOffset=1000)
    assert await client.committed() == 3
    await commit(client, 4, oneway=True)
    assert await client.committed() == 4


async def test_reset_beyond_end_is_refused(client: Client) -> None:
    await filled(client, 5)
    await commit(client, 2)
    ext = {"topic": "T", "group": "G", "timestamp": 0, "isForce": True, "queueId": 0, "offset": 1000}
    refused = await client.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert refused.remark is not None
    assert "beyond the end" in refused.remark
    assert await client.committed() == 2


async def test_pull_beyond_the_end_continues_at_the_group_offset(client: Client) -> None:
    """As after the restore of an older backup: what was written since is not skipped."""
    await filled(client, 5)
    for flags, next_offset in ((COMMITS, 0), (SUBSCRIPTION, 5), (SUBSCRIPTION | LITE_PULL, 5)):
        moved = await client.pull(offset=1000, sysFlag=flags, commitOffset=1000)
        assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, str(next_offset))
    await commit(client, 3)
    for flags, next_offset in ((COMMITS, 3), (SUBSCRIPTION, 5), (SUBSCRIPTION | LITE_PULL, 3)):
        moved = await client.pull(offset=1000, sysFlag=flags | SUSPEND, commitOffset=1000)
        assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, str(next_offset))
    sdk = await client.pull(offset=1000, forwardOnly=True)
    assert (sdk.code, sdk.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "3")
    lite = await client.request(RequestCode.LITE_PULL_MESSAGE, pull_ext(offset=1000))
    assert (lite.code, lite.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "3")
    assert await client.committed() == 3


async def test_new_leader_corrects_offsets_stored_before(tmp_path: Path, brokers: list[Broker]) -> None:
    settings = broker_settings(tmp_path)
    same = {"listen": settings.listen, "peers": settings.peers}
    async with broker_client(tmp_path, **same) as client:
        await filled(client, 5)
        await store_as_before(brokers[0], client, 1000)
        assert (await commit(client, 4, consumerGroup="H")).code == 0
    async with broker_client(tmp_path, **same) as client:

        async def is_corrected() -> bool:
            return await client.committed() == 5

        await until(is_corrected)
        assert await client.committed("H") == 4
        await client.send(body=b"new")
        assert [each.body for each in await popped(client)] == [b"new"]


async def test_offset_beyond_end_is_shown_and_not_cloned(client: Client, brokers: list[Broker]) -> None:
    await filled(client, 5, queues=2)
    await commit(client, 0, queueId=1)
    await store_as_before(brokers[0], client, 1000)
    (beyond,) = [
        family
        for family in result_of(brokers[0].services.metrics.collect())
        if family.name == "rocketmq_consumer_beyond_end_messages"
    ]
    assert isinstance(beyond, Family)
    assert [value for _, value in beyond.samples] == [995]
    stats = await client.request(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G"})
    shown = {ref.queue_id: behind(progress) for ref, progress in read_progress(stats.body).items()}
    assert shown == {0: "beyond the end by 995", 1: "0"}
    ext = {"srcGroup": "G", "destGroup": "H", "topic": "T", "offline": True}
    assert (await client.request(RequestCode.CLONE_GROUP_OFFSET, ext)).code == 0
    assert await client.committed("H") == 5
    assert await client.committed("G") == 1000
