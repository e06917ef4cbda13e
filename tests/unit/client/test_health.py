"""What the application can ask a client: whether its addresses are right, whether it works, how far behind it is."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest

from mq.client import (
    Admin,
    ClientClosed,
    ClientError,
    ClientEvent,
    Health,
    Message,
    NameServersUnavailable,
    NoRoute,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    RemotingSettings,
    TopicNotFound,
)
from mq.client.limits import TEST_MIN
from mq.client.long_wait import LongWait
from mq.client.sync import SyncAdmin, SyncProducer, SyncPullConsumer, SyncPushConsumer
from tests.support.waiting import until
from tests.unit.client.consuming import consumer_of, fill, filled, offset_of, stored, take
from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.client.strange_servers import black_hole, strange_server

pytestmark = pytest.mark.anyio

QUICK = RemotingSettings(request_seconds=0.3, silence_seconds=0.1)

Kind = Callable[..., Any]
KINDS: list[Kind] = [
    Producer,
    Admin,
    functools.partial(PullConsumer, group="G"),
    functools.partial(PushConsumer, group="G"),
    functools.partial(PopConsumer, group="G", topic="T"),
]


async def failure(kind: Kind, address: str, *topics: str) -> str:
    """What a client says that is told that a name server is at `address`; both ways must say the same, in time."""
    said: list[str] = []
    with anyio.fail_after(8), pytest.raises(ClientError) as raised:
        await kind(address, ping=True).open()
    said.append(str(raised.value))
    if kind is not KINDS[-1]:  # a pop consumer that cannot pop is not opened
        async with kind(address) as client:
            with anyio.fail_after(8), pytest.raises(ClientError) as raised:
                await client.ping(*topics)
        said.append(str(raised.value))
        assert said[0] == said[1]
    return said[0]


async def check_a_black_hole(kind: Kind) -> None:
    with black_hole() as address:
        assert "is the address right, and does a firewall drop packets?" in await failure(kind, address)


async def check_a_server_that_never_answers(kind: Kind) -> None:
    async with strange_server(None) as address:
        assert f"{address}: no answer within 2 s" in await failure(kind, address)


async def check_a_broker_and_a_name_server_whose_leader_is_gone(kind: Kind) -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster:
        assert "is it a broker's address?" in await failure(kind, cluster.leader.address)
        await cluster.kill(cluster.leader)
        assert "leader now" in await failure(kind, cluster.namesrv)


async def test_wrong_address_fails_within_seconds_with_a_remedy() -> None:
    """All kinds of clients at the same time: most of them wait for an answer that never comes."""
    async with anyio.create_task_group() as tasks:
        for kind in KINDS:
            tasks.start_soon(check_a_black_hole, kind)
            tasks.start_soon(check_a_server_that_never_answers, kind)
            tasks.start_soon(check_a_broker_and_a_name_server_whose_leader_is_gone, kind)


async def test_ping_asks_all_name_servers_at_once(cluster: FakeCluster) -> None:
    with black_hole() as address:
        for addresses in ([address, cluster.namesrv], [cluster.namesrv, address]):
            async with Producer(addresses, ping=True) as producer:
                await producer.ping("T")


async def test_missing_topic_and_leader_are_reported() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, Producer(cluster.namesrv, ping=True) as producer:
        await producer.ping("T")
        with pytest.raises(TopicNotFound, match="topic U does not exist; is it spelled right"):
            await producer.ping("T", "U")
        consumer = PushConsumer(cluster.namesrv, "G", ping=True)
        consumer.subscribe("U")
        with pytest.raises(TopicNotFound):
            await consumer.open()
        cluster.group.leader = None
        with pytest.raises(NoRoute, match="leader now"):
            await producer.ping("T")
        with pytest.raises(ValueError, match="must be positive"):
            await producer.ping(timeout=0)
    with pytest.raises(ClientClosed):
        await producer.ping()


async def test_health_names_the_problem() -> None:
    producer = Producer("127.0.0.1:1", remoting=QUICK)
    assert not producer.health()
    assert "open it first" in str(producer.health())
    async with producer:
        assert (bool(producer.health()), str(producer.health())) == (True, "ok")
        with pytest.raises(NameServersUnavailable):
            await producer.send(Message("T", b"x"), timeout=0.1)
        assert "no name server answered: 127.0.0.1:1: " in str(producer.health())
    assert str(producer.health()) == "this Producer is closed"


async def test_health_of_a_consumer_follows_its_queues() -> None:
    async with filled(1) as cluster, consumer_of(cluster, remoting=QUICK) as consumer:
        assert consumer.health().reasons == ("nothing is subscribed: call subscribe",)
        consumer.subscribe("T")
        await take(consumer, 1)
        await until(lambda: bool(consumer.health()))
        cluster.leader.fail_codes = {11: 14}
        await until(lambda: "code 14" in str(consumer.health()), seconds=60)
        cluster.leader.fail_codes = {}
        cluster.group.append("T", 0, stored(b"more"))
        await until(lambda: consumer.health() == Health(), seconds=60)


async def test_lag_counts_unfinished_messages() -> None:
    async with filled(10, queues=2) as cluster:
        async with consumer_of(cluster) as consumer:
            assert await consumer.lag() == {}
            consumer.subscribe("T")
            await take(consumer, 4)
            lag = await consumer.lag()
            assert (len(lag), sum(lag.values())) == (2, 7), "the last one that was taken is not finished"
        async with PullConsumer(
            cluster.namesrv, "H", consume_from="first", remoting=RemotingSettings(request_seconds=1.0)
        ) as reader:
            await reader.assign(await reader.queues("T"))
            messages = await reader.poll(3)
            assert sum((await reader.lag()).values()) == 10 - len(messages)
            await cluster.kill(cluster.leader)
            with pytest.raises(ClientError):
                await reader.lag()


async def test_application_receives_client_events() -> None:
    events: list[ClientEvent] = []
    async with FakeCluster.start(topics={"T": 2}) as cluster:
        fill(cluster, 1)
        async with consumer_of(cluster, on_event=events.append, remoting=replace(QUICK, limits=TEST_MIN)) as consumer:
            consumer.subscribe("T")
            queues = await consumer.wait_assigned()
            await until(lambda: any(event.kind == "assigned" for event in events))
            [assigned] = [event for event in events if event.kind == "assigned"]
            assert (assigned.subject, assigned.queues) == ("T", queues)
            assert {event.subject for event in events if event.kind == "connected"} == {
                cluster.namesrv,
                cluster.leader.address,
            }
            cluster.leader.fail_codes = {11: 14}
            await until(lambda: any(event.kind == "stuck" for event in events), seconds=60)
            await cluster.kill(cluster.leader)
            await until(lambda: any(event.kind == "lost" for event in events), seconds=60)
            consumer.unsubscribe("T")
            await until(lambda: any(event.kind == "revoked" for event in events), seconds=60)
    stuck = next(event for event in events if event.kind == "stuck")
    assert "code 14" in stuck.reason
    lost = next(event for event in events if event.kind == "lost")
    assert lost.reason


async def test_offsets_are_stored_before_revocation_is_announced() -> None:
    seen: list[int | None] = []
    async with filled(3) as cluster:

        def note(event: ClientEvent) -> None:
            if event.kind == "revoked":
                seen.append(offset_of(cluster))

        async with consumer_of(cluster, on_event=note, commit_seconds=3600.0) as consumer:
            consumer.subscribe("T")
            await take(consumer, 3)
            consumer.unsubscribe("T")
            await until(lambda: seen)
    assert seen == [2]


async def test_connection_is_closed_when_its_event_ends_the_program() -> None:
    def end(event: ClientEvent) -> None:
        raise SystemExit(3)

    async with FakeCluster.start(topics={"T": 1}) as cluster:
        with pytest.raises(SystemExit):
            async with Producer(cluster.namesrv, on_event=end) as producer:
                await producer.queues("T")
        await until(lambda: not cluster.name_servers[0].connections, seconds=20)


async def test_ping_ends_unavailable_name_server() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, Producer(cluster.namesrv) as producer:
        assert producer._core is not None
        producer._core._unavailable = NameServersUnavailable({cluster.namesrv: "no answer"})
        assert not producer.health()
        await producer.ping()
        assert producer.health()


async def test_reopened_pop_consumer_forgets_its_troubles(cluster: FakeCluster) -> None:
    consumer = PopConsumer(cluster.namesrv, "cg", "T")
    async with consumer:
        await until(lambda: consumer._waits)
        consumer._waits["gone"] = wait = LongWait("cannot_pop", TEST_MIN)
        wait.warn_if_long("its broker group is gone")
        assert not consumer.health()
    async with consumer:
        assert consumer.health()


def test_asking_a_closing_client_for_its_health_does_not_fail(threads: FakeCluster) -> None:
    producer = SyncProducer(threads.namesrv).open()
    thread = producer._thread
    producer.close()
    producer._thread = thread  # as another thread saw it just before
    assert str(producer.health()) == "the client is closed"
    producer._thread = None


async def test_failing_event_function_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fails(event: ClientEvent) -> None:
        raise LookupError(event.kind)

    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        Producer(cluster.namesrv, on_event=fails) as producer,
    ):
        assert (await producer.send(Message("T", b"x"))).queue_offset == 0
    assert "on_event_failed" in caplog.text


def test_synchronous_clients_have_health_and_events(threads: FakeCluster) -> None:
    fill(threads, 3)
    told: set[int] = set()

    def note(event: ClientEvent) -> None:
        told.add(threading.get_ident())

    with (
        SyncProducer(threads.namesrv, ping=True, on_event=note) as producer,
        SyncAdmin(threads.namesrv, ping=True) as admin,
        SyncPushConsumer(threads.namesrv, "cg", consume_from="first") as consumer,
        SyncPullConsumer(threads.namesrv, "H", consume_from="first") as reader,
    ):
        producer.ping("T")
        with pytest.raises(TopicNotFound):
            admin.ping("U")
        assert producer.health()
        consumer.subscribe("T")
        consumer.receive(timeout=30)
        assert sum(consumer.lag().values()) == 3
        reader.assign(reader.queues("T"))
        assert sum(reader.lag().values()) == 3
    assert not producer.health()
    assert threading.get_ident() not in told
    assert told
