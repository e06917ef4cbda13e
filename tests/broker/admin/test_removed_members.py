"""Who is kept out of a group is replicated: restarts, and replicas that were not told."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from mq.protocol.codes import RequestCode
from mq.protocol.requests.clients import ConsumerData, ConsumerList, HeartbeatData, SubscriptionData
from mq.protocol.requests.removed_members import NOBODY, KeptOutList
from tests.support.replies import three_replicas
from tests.support.running_broker import Client, broker_client
from tests.support.waiting import until


async def remove(client: Client, keep_out_ms: int = 600_000) -> None:
    answer = await client.request(
        RequestCode.REMOVE_MEMBER,
        {"group": "billing", "clientId": "c1", "keepOutMs": keep_out_ms, "reason": "it hangs", "operator": "ops"},
    )
    assert answer.code == 0, answer


async def kept_out(client: Client) -> list[tuple[str, str, str]]:
    answer = await client.request(RequestCode.LIST_KEPT_OUT, {"consumerGroup": "billing"})
    return [(each.client_id, each.reason, each.operator) for each in KeptOutList.decode(answer.body).members]


async def is_kept_out(client: Client) -> bool:
    return await kept_out(client) == [("c1", "it hangs", "ops")]


async def is_readmitted(client: Client) -> bool:
    return await kept_out(client) == []


async def members(client: Client) -> list[str]:
    """Of the group, after its only client has said so that it is one."""
    data = ConsumerData("billing", subscriptions=[SubscriptionData("T")])
    heartbeat = HeartbeatData(client_id="c1", consumers=[data])
    assert (await client.request(RequestCode.HEART_BEAT, body=heartbeat.encode())).code == 0
    answer = await client.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "billing"})
    return list(ConsumerList.decode(answer.body).consumer_ids)


async def test_removed_member_stays_out_after_a_restart(tmp_path: Path) -> None:
    async with broker_client(tmp_path, group="b-a") as client:
        assert await members(client) == ["c1"]
        await remove(client)
    async with broker_client(tmp_path, group="b-a") as client:
        assert await is_kept_out(client), "it is, as soon as this replica leads"
        assert await members(client) == [NOBODY]
        await remove(client, keep_out_ms=0)
        assert await members(client) == ["c1"]
    async with broker_client(tmp_path, group="b-a") as client:
        assert await members(client) == ["c1"]
        assert await kept_out(client) == []


async def test_other_replicas_keep_the_same_clients_out(tmp_path: Path) -> None:
    async with three_replicas(tmp_path) as brokers:
        await brokers[0].wait_leading()  # below format level 8, which the leader raises soon, nothing is replicated
        leader, *others = [await broker.connect() for broker in brokers]
        assert await members(others[0]) == ["c1"]
        await remove(leader)
        for client in others:
            await until(partial(is_kept_out, client))
        assert await members(others[0]) == [NOBODY]
        await remove(leader, keep_out_ms=0)
        for client in others:
            await until(partial(is_readmitted, client))
        assert await members(others[0]) == ["c1"]


async def test_single_replica_group_keeps_a_client_out(tmp_path: Path) -> None:
    """The operator's tool did not reach the leader: what this replica was told holds for it."""
    async with three_replicas(tmp_path) as brokers:
        leader, follower, _ = [await broker.connect() for broker in brokers]
        await remove(follower)
        assert await is_kept_out(follower)
        assert await members(follower) == [NOBODY]
        assert await is_readmitted(leader)
