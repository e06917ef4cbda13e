"""What a producer promises when brokers refuse, vanish or say nothing."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from mq.client import (
    ClientError,
    Message,
    MessageQueue,
    NoRoute,
    RemotingSettings,
    SendOutcomeUnknown,
    SendRejected,
    SendResult,
)
from tests.support.producing import ROUTE, SEND
from tests.support.waiting import until
from tests.unit.client.fake_cluster import Misdeed
from tests.unit.client.sending import sending

pytestmark = pytest.mark.anyio


# Refusals.


async def test_refusal_for_good_is_raised_at_once_as_not_stored() -> None:
    async with sending(4) as (cluster, producer):
        cluster.leader.misdeeds = [Misdeed("refuse", code=13, remark="body too long")]
        with pytest.raises(SendRejected) as rejected:
            await producer.send(Message("T", b"x"))
        assert (rejected.value.code, rejected.value.remark, rejected.value.stored) == (13, "body too long", "no")
        assert rejected.value.queue is not None
        assert cluster.leader.count(SEND) == 1


@pytest.mark.parametrize("sharding_key", [None, "c"])
async def test_sends_continue_after_a_topic_shrinks(sharding_key: str | None) -> None:
    """It was deleted and created again with one queue; the route in the producer is older."""
    async with sending(4) as (cluster, producer):
        message = Message("T", b"x", sharding_key=sharding_key)
        before = [(await producer.send(message)).queue.queue_id for _ in range(4)]
        assert max(before) == 3
        cluster.group.topics["T"] = 1
        after = [(await producer.send(message)).queue.queue_id for _ in range(8)]
        assert after == [0] * 8
        cluster.leader.misdeeds = [Misdeed("refuse", code=29, remark="something else")] * 10
        with pytest.raises(SendRejected, match="something else"):
            await producer.send(message)


async def test_send_to_a_removed_queue_is_refused() -> None:
    async with sending() as (_, producer):
        with pytest.raises(SendRejected, match="queue id 3 is illegal") as rejected:
            await producer.send(Message("T", b"x"), queue=MessageQueue("T", "b-0", 3))
        assert (rejected.value.attempts, rejected.value.stored) == (1, "no")


async def test_producer_tries_another_group_after_a_refusal_by_one_group() -> None:
    async with sending(groups=2) as (cluster, producer):
        await producer.send_many(Message("T", b"warm up") for _ in range(2))
        for group in cluster.groups.values():
            assert group.leader is not None
            group.leader.misdeeds = [Misdeed("refuse", code=16, remark="no permission")]
        cluster.groups["b-1"].leader.misdeeds = []  # type: ignore[union-attr]
        results = [await producer.send(Message("T", b"x")) for _ in range(2)]
        assert sorted(result.attempts for result in results) == [1, 2]
        assert {result.queue.broker_name for result in results if result.attempts == 2} == {"b-1"}
        assert not any(result.maybe_duplicated for result in results)


async def test_refusals_of_single_groups_are_raised_after_the_retries() -> None:
    async with sending(retries=2) as (cluster, producer):
        cluster.leader.misdeeds = [Misdeed("refuse", code=17, remark="no such topic")] * 10
        with pytest.raises(SendRejected) as rejected:
            await producer.send(Message("T", b"x"))
        assert (rejected.value.code, rejected.value.attempts) == (17, 3)


@pytest.mark.parametrize(("groups", "options"), [(1, {}), (3, {}), (2, {"queue": MessageQueue("T", "b-0", 0)})])
async def test_permanent_refusals_are_not_repeated_per_group(groups: int, options: dict[str, Any]) -> None:
    async with sending(2, groups=groups, retries=20, timeout=60) as (cluster, producer):
        leaders = [group.replicas[0] for group in cluster.groups.values()]
        for leader in leaders:
            leader.misdeeds = [Misdeed("refuse", code=16, remark="not writable")] * 30
        with pytest.raises(SendRejected, match=r"certainly not stored.*not writable") as rejected:
            await producer.send(Message("T", b"x"), **options)
        assert (rejected.value.code, rejected.value.stored) == (16, "no")
        asked = [leader.count(SEND) for leader in leaders]
        assert asked == ([1, 0] if options else [1] * groups)
        assert rejected.value.attempts == sum(asked)


async def test_sends_are_retried_until_a_leader_is_elected() -> None:
    async with sending(replicas=2, timeout=10.0) as (cluster, producer):
        await producer.send(Message("T", b"first"))
        old, new = cluster.group.replicas
        cluster.group.leader = None
        pending = [await producer.submit(Message("T", b"%d" % number)) for number in range(20)]
        await until(lambda: old.count(SEND) == 21)
        assert not any(each.done for each in pending)
        cluster.group.leader = new
        results = [await each for each in pending]
        assert all(result.attempts > 1 and not result.maybe_duplicated for result in results)
        assert sorted(cluster.group.bodies("T")) == sorted([b"first", *(b"%d" % n for n in range(20))])
        assert new.count(SEND) >= 20


async def test_killed_leader_is_bridged_by_a_long_timeout() -> None:
    async with sending(replicas=2, timeout=10.0) as (cluster, producer):
        await producer.send(Message("T", b"first"))
        await cluster.kill(cluster.leader)
        async with anyio.create_task_group() as tasks:
            results: list[SendResult] = []

            async def send() -> None:
                results.append(await producer.send(Message("T", b"second")))

            [name_server] = cluster.name_servers
            asked = name_server.count(ROUTE)
            tasks.start_soon(send)
            await until(lambda: name_server.count(ROUTE) >= asked + 2)  # in vain
            assert not results
            cluster.group.leader = cluster.group.replicas[1]
        assert cluster.group.bodies("T") == [b"first", b"second"]
        assert results[0].queue_offset == 1


async def test_send_without_any_leader_times_out_unstored() -> None:
    async with sending(timeout=1) as (cluster, producer):
        cluster.group.leader = None
        await producer.queues("T")  # so that the error cannot be that there was no time to ask for the route
        with pytest.raises(NoRoute, match="no leader") as failed:
            await producer.send(Message("T", b"x"))
        assert failed.value.stored == "no"


async def test_leader_that_refuses_until_the_timeout_leaves_its_refusal() -> None:
    async with sending() as (cluster, producer):
        cluster.leader.misdeeds = [Misdeed("refuse", code=14)] * 1000
        refusal: ClientError | None = None
        while not isinstance(refusal, SendRejected):
            # If the time runs out while an attempt is under way, nobody knows what becomes of that.
            with pytest.raises((SendRejected, SendOutcomeUnknown)) as ended:
                await producer.send(Message("T", b"x"), timeout=1)
            refusal = ended.value
        assert refusal.code == 14
        assert refusal.attempts >= 2


async def test_producer_leaves_an_old_leader_forwarding_its_sends() -> None:
    async with sending(replicas=2) as (cluster, producer):
        old, new = cluster.group.replicas
        await producer.send(Message("T", b"0"))
        old.forwards = True
        cluster.group.leader = new
        assert (await producer.send(Message("T", b"1"))).attempts == 1
        assert old.count(SEND) == 2
        with anyio.fail_after(10):  # long before the 30 s after which routes are asked for anyway
            while not new.count(SEND):
                await producer.send(Message("T", b"more"))
        assert cluster.name_servers[0].count(ROUTE) <= 4


# Unknown outcomes.


async def test_connection_closed_after_the_write_is_retried_as_maybe_duplicated() -> None:
    async with sending() as (cluster, producer):
        cluster.leader.misdeeds = [Misdeed("hang_up", store=True)]
        result = await producer.send(Message("T", b"x"))
        assert (result.attempts, result.maybe_duplicated, result.queue_offset) == (2, True, 1)
        first, second = cluster.group.queues["T", 0]
        assert first.value_of("UNIQ_KEY") == second.value_of("UNIQ_KEY") == result.message_id


@pytest.mark.parametrize("store", [True, False])
async def test_closed_connection_raises_at_once_without_retry_unknown(store: bool) -> None:
    async with sending(retry_unknown=False) as (cluster, producer):
        cluster.leader.misdeeds = [Misdeed("hang_up", store=store)]
        with pytest.raises(SendOutcomeUnknown) as unknown:
            await producer.send(Message("T", b"x"))
        assert (unknown.value.stored, unknown.value.attempts) == ("unknown", 1)
        assert len(unknown.value.message_id) == 32
        assert cluster.leader.count(SEND) == 1


async def test_silence_beyond_the_timeout_is_an_unknown_outcome() -> None:
    async with sending() as (cluster, producer):
        cluster.leader.misdeeds = [Misdeed("silence", store=True)]
        with pytest.raises(SendOutcomeUnknown, match="no answer"):
            await producer.send(Message("T", b"x"), timeout=1)
        assert producer.in_flight == 0


async def test_silence_beyond_the_attempt_timeout_is_retried() -> None:
    async with sending(attempt_timeout=1) as (cluster, producer):
        cluster.leader.misdeeds = [Misdeed("silence")]
        result = await producer.send(Message("T", b"x"))
        assert (result.attempts, result.maybe_duplicated) == (2, True)


async def test_silent_connection_is_closed() -> None:
    async with sending(attempt_timeout=0.5, remoting=RemotingSettings(silence_seconds=0.05)) as (cluster, producer):
        await producer.send(Message("T", b"x"))
        [before] = cluster.leader.connections
        cluster.leader.misdeeds = [Misdeed("silence")]
        await producer.send(Message("T", b"y"))
        assert before.closed


async def test_refusal_after_an_unknown_attempt_stays_unknown() -> None:
    async with sending() as (cluster, producer):
        cluster.leader.misdeeds = [Misdeed("hang_up", store=True), Misdeed("refuse", code=13)]
        with pytest.raises(SendOutcomeUnknown) as unknown:
            await producer.send(Message("T", b"x"))
        assert unknown.value.attempts == 2
        assert isinstance(unknown.value.__cause__, SendRejected)


async def test_vague_answer_is_an_unknown_outcome() -> None:
    async with sending(retries=0) as (cluster, producer):
        cluster.leader.misdeeds = [Misdeed("refuse", store=True, code=1, remark="NullPointerException")]
        with pytest.raises(SendOutcomeUnknown, match="NullPointerException"):
            await producer.send(Message("T", b"x"))


async def test_unknown_outcomes_end_after_the_retries() -> None:
    async with sending(retries=1) as (cluster, producer):
        cluster.leader.misdeeds = [Misdeed("hang_up", store=True)] * 5
        with pytest.raises(SendOutcomeUnknown) as unknown:
            await producer.send(Message("T", b"x"))
        assert unknown.value.attempts == 2
        assert len(cluster.group.queues["T", 0]) == 2
