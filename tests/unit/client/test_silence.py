"""A leader that was cut off says nothing: who notices, when, and what becomes of its requests."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import anyio
import pytest

from mq.client import Message, NameServersUnavailable, Producer, RemotingSettings, SendOutcomeUnknown, SendResult
from mq.client.consume.pull_loop import PullSettings
from mq.client.net.connection import Connection
from mq.client.net.liveness import SilenceWatch
from tests.support.waiting import until
from tests.unit.client.consuming import consuming, fill, stored, take
from tests.unit.client.fake_cluster import FakeBroker, FakeCluster

pytestmark = pytest.mark.anyio

ROUTE, SEND, PULL, HEARTBEAT = 105, 310, 11, 34
SOON = RemotingSettings(
    silence_seconds=0.05,
    silence_check_seconds=0.02,
    probe_seconds=0.05,
    request_seconds=60.0,
    route_refresh_seconds=3600.0,
    heartbeat_seconds=3600.0,
)
"""Quick to look, and nothing else that could notice."""


# The rules, on a clock of our own.


class FakeEnd:
    """As much of a connection as the watch looks at."""

    def __init__(self) -> None:
        self.address = "old:1"
        self.failure: str | None = None
        self.heard_at = 0.0
        self.held_count = 0
        self.owes_response = False

    def close(self, reason: str) -> None:
        self.failure = reason


class Scene:
    """A watch over one connection; silence of 1 s counts, and 3 s ask for a sign of life."""

    def __init__(self) -> None:
        self.now = 0.0
        self.leader: str | None = "old:1"
        self.end = FakeEnd()
        self.asked_at: list[float] = []
        self.probed_at: list[float] = []
        self.answers_while_asked = False
        self.name_servers_answer = True
        self.watch = SilenceWatch(
            lambda: [cast("Connection", self.end)],
            leader_for=self._leader_for,
            probe=lambda _: self.probed_at.append(self.now),
            silence_seconds=1.0,
            probe_seconds=3.0,
            check_seconds=0.25,
            clock=lambda: self.now,
        )

    async def _leader_for(self, address: str) -> str | None:
        assert address == "old:1"
        self.asked_at.append(self.now)
        if self.answers_while_asked:
            self.end.heard_at = self.now
        if not self.name_servers_answer:
            raise NameServersUnavailable({"ns": "silent"})
        return self.leader

    async def until(self, time: float, *, talks: bool = False) -> None:
        while self.now < time:
            self.now += 0.25
            if talks:
                self.end.heard_at = self.now
            await self.watch.check_all()


async def test_client_drops_a_silent_server_when_another_becomes_leader() -> None:
    scene = Scene()
    scene.end.owes_response = True
    await scene.until(5.0, talks=True)
    assert not scene.asked_at
    await scene.until(7.0)
    assert scene.asked_at == [6.0, 6.25, 6.5, 6.75, 7.0]
    lost_early = scene.end.failure
    assert lost_early is None
    scene.leader = "new:1"
    await scene.until(7.25)
    assert scene.end.failure == "no data for 2.2 s, and new:1 leads now"
    await scene.until(9.0)
    assert scene.asked_at[-1] == 7.25


async def test_long_silence_before_the_request_is_ignored() -> None:
    scene = Scene()
    scene.leader = "new:1"
    await scene.until(60.0)
    scene.end.owes_response = True
    await scene.until(61.0)
    assert not scene.asked_at
    await scene.until(61.25)
    assert scene.end.failure is not None


@pytest.mark.parametrize("leader", ["old:1", None])
async def test_silence_alone_does_not_close_a_connection(leader: str | None) -> None:
    scene = Scene()
    scene.leader = leader
    scene.end.owes_response = True
    await scene.until(30.0)
    assert scene.asked_at
    assert scene.end.failure is None


async def test_silent_name_servers_are_asked_again() -> None:
    scene = Scene()
    scene.leader = "new:1"
    scene.end.owes_response = True
    scene.name_servers_answer = False
    await scene.until(3.0)
    assert len(scene.asked_at) > 1
    assert scene.end.failure is None
    scene.name_servers_answer = True
    await scene.until(3.25)
    assert scene.end.failure is not None


async def test_answer_that_comes_while_we_ask_saves_the_connection() -> None:
    scene = Scene()
    scene.leader = "new:1"
    scene.end.owes_response = True
    scene.answers_while_asked = True
    await scene.until(10.0)
    assert scene.asked_at
    assert scene.end.failure is None


async def test_waiting_pull_triggers_only_a_probe_for_a_sign_of_life() -> None:
    scene = Scene()
    scene.leader = "new:1"
    scene.end.held_count = 1
    await scene.until(3.0)
    assert (scene.probed_at, scene.asked_at) == ([3.0], [])
    scene.end.heard_at = 3.0
    await scene.until(5.75)
    assert scene.probed_at == [3.0]
    await scene.until(6.0)
    scene.end.owes_response = True  # what `probe` sent
    await scene.until(7.0)
    assert scene.probed_at == [3.0, 6.0]
    assert scene.end.failure is None
    await scene.until(7.25)
    assert scene.end.failure is not None


# Whole clients, over sockets.


def pass_leadership(cluster: FakeCluster) -> FakeBroker:
    """The second replica leads; the first one is cut off, the name servers know both."""
    new = cluster.group.replicas[1]
    cluster.group.leader = new
    return new


@asynccontextmanager
async def cut_off(**options: Any) -> AsyncGenerator[tuple[FakeCluster, Producer]]:
    """A producer without haste of its own; its leader has answered once and is silent now."""
    chosen: dict[str, Any] = {"timeout": 60.0, "attempt_timeout": 60.0, "remoting": SOON} | options
    async with (
        FakeCluster.start(replicas=2, topics={"T": 2, "U": 1}) as cluster,
        Producer(cluster.namesrv, **chosen) as producer,
    ):
        await producer.send(Message("T", b"before"))
        cluster.leader.mute = True
        yield cluster, producer


async def test_sends_to_a_silent_leader_reach_its_successor() -> None:
    async with cut_off() as (cluster, producer):
        old = cluster.leader
        pending = [await producer.submit(Message("T", b"%d" % number)) for number in range(50)]
        await until(lambda: old.count(SEND) == 51)
        new = pass_leadership(cluster)
        results = [await each for each in pending]
        assert {(each.attempts, each.maybe_duplicated) for each in results} == {(2, True)}
        assert new.count(SEND) == 50
        assert not old.connections


async def test_possibly_stored_message_is_not_repeated_if_the_sender_forbids() -> None:
    async with cut_off(retry_unknown=False) as (cluster, producer):
        pending = await producer.submit(Message("T", b"x"))
        new = pass_leadership(cluster)
        with pytest.raises(SendOutcomeUnknown, match="leads now") as unknown:
            await pending
        assert unknown.value.stored == "unknown"
        assert new.count(SEND) == 0
        assert isinstance(await producer.send(Message("T", b"y")), SendResult)


async def test_silent_leader_without_successor_keeps_its_requests() -> None:
    async with cut_off() as (cluster, producer):
        [before] = cluster.leader.connections
        [name_server] = cluster.name_servers
        asked = name_server.count(ROUTE)
        pending = [await producer.submit(Message("T", b"x")) for _ in range(200)]
        await until(lambda: name_server.count(ROUTE) >= asked + 5)
        assert not any(each.done for each in pending)
        assert not before.closed
        assert name_server.count(ROUTE) < asked + 100  # one question for all of them, each time
        pass_leadership(cluster)
        assert all([(await each).attempts == 2 for each in pending])


async def test_deleted_topic_does_not_hide_the_new_leader() -> None:
    async with cut_off() as (cluster, producer):
        cluster.leader.mute = False
        await producer.send(Message("U", b"known"))
        cluster.leader.mute = True
        del cluster.group.topics["T"]
        pending = await producer.submit(Message("U", b"x"))
        new = pass_leadership(cluster)
        assert (await pending).attempts == 2
        assert new.count(SEND) == 1


async def test_disconnected_name_server_is_skipped() -> None:
    async with (
        FakeCluster.start(replicas=2, name_servers=2, topics={"T": 1}) as cluster,
        # On a busy machine, the server that answers may be skipped, too: then the client waits for the other one.
        Producer(
            cluster.namesrv, timeout=60.0, attempt_timeout=60.0, remoting=replace(SOON, request_seconds=2.0)
        ) as producer,
    ):
        await producer.send(Message("T", b"before"))
        [used] = [each for each in cluster.name_servers if each.count(ROUTE)]
        used.mute = cluster.leader.mute = True
        pass_leadership(cluster)
        with anyio.fail_after(50):
            assert (await producer.send(Message("T", b"x"))).attempts >= 2


async def test_consumer_leaves_a_leader_silent_during_a_waiting_pull() -> None:
    async with consuming(replicas=2, remoting=SOON, pull=PullSettings(hold_seconds=60.0)) as (cluster, consumer):
        [first] = fill(cluster, 1)
        assert [each.body for each in await take(consumer, 1)] == [first]
        old = cluster.leader
        await until(lambda: old.count(PULL) == 2)
        [before] = old.connections
        old.mute = True
        new = pass_leadership(cluster)
        await until(lambda: new.count(PULL) > 0)
        cluster.group.append("T", 0, stored(b"after"))
        assert [each.body for each in await take(consumer, 1)] == [b"after"]
        await until(lambda: before.closed)


async def test_waiting_pull_stays_while_the_broker_gives_signs_of_life() -> None:
    async with consuming(remoting=SOON, pull=PullSettings(hold_seconds=60.0)) as (cluster, _):
        await until(lambda: cluster.leader.count(PULL) == 1)
        [before] = cluster.leader.connections
        beats = cluster.leader.count(HEARTBEAT)
        await until(lambda: cluster.leader.count(HEARTBEAT) >= beats + 5)
        assert not before.closed
        assert cluster.leader.count(PULL) == 1


def test_default_timeout_lasts_for_all_attempts_of_a_send() -> None:
    producer = Producer("127.0.0.1:9876")
    assert producer.timeout >= 3 * 3.0
