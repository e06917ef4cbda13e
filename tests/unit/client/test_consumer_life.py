"""The steps that a consumer goes through, of whichever kind, and the last offsets that it stores."""

from __future__ import annotations

import anyio
import anyio.abc
import pytest

from mq.client import ClientClosed, PopConsumer, PullConsumer, PushConsumer
from mq.client.consume.consumer import Consumer
from mq.client.net.client_core import ClientCore
from tests.support.waiting import until
from tests.unit.client.consuming import IMPATIENT, consumer_of, fill, offset_of, stored, take
from tests.unit.client.fake_cluster import FakeBroker, FakeCluster
from tests.unit.client.fake_server import FakeConnection, FakeRequest

pytestmark = pytest.mark.anyio


class Recorded(Consumer):
    """Writes its steps down; `fails` is the one that raises."""

    _kind = "recorded"

    def __init__(self, namesrv: str, *, fails: str = "") -> None:
        super().__init__(namesrv, "G")
        self.steps: list[str] = []
        self._fails = fails

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if name == self._fails:
            raise ZeroDivisionError(name)

    def _on_connect(self, remoting: ClientCore) -> None:
        self._step("connected")

    async def _start(self, remoting: ClientCore, tasks: anyio.abc.TaskGroup) -> None:
        self._step("start")
        self.works = anyio.Event()
        tasks.start_soon(self._work)

    async def _work(self) -> None:
        try:
            self.works.set()
            await anyio.sleep_forever()
        finally:
            self._step("work cancelled")

    def _stop(self) -> None:
        self._step("stop")

    def _on_close(self) -> None:
        self._step("closed")

    async def _leave(self, remoting: ClientCore) -> None:
        self._step("leave")


STOPPED = ["stop", "work cancelled", "closed", "leave"]


async def test_consumer_can_be_entered_twice(cluster: FakeCluster) -> None:
    consumer = Recorded(cluster.namesrv)
    for _ in range(2):
        consumer.steps.clear()
        async with consumer:
            await consumer.works.wait()
            consumer.steps.append("block")
        assert consumer.steps == ["connected", "start", "block", *STOPPED]


async def test_failing_block_ends_like_any_other(cluster: FakeCluster) -> None:
    consumer = Recorded(cluster.namesrv)

    async def enter_and_fail() -> None:
        async with consumer:
            await consumer.works.wait()
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        await enter_and_fail()
    assert consumer.steps == ["connected", "start", *STOPPED]


async def test_cancelled_pop_consumer_unregisters(cluster: FakeCluster) -> None:
    consumer = Recorded(cluster.namesrv)
    with anyio.CancelScope() as scope:
        async with consumer:
            await consumer.works.wait()
            scope.cancel()
            await anyio.sleep_forever()
    # The cancellation reaches the block and the tasks in any order.
    assert set(consumer.steps[2:4]) == {"stop", "work cancelled"}
    assert consumer.steps[4:] == ["closed", "leave"]


@pytest.mark.parametrize(
    ("fails", "steps"), [("connected", ["connected"]), ("start", ["connected", "start", "closed", "leave"])]
)
async def test_consumer_that_cannot_start_is_not_open(cluster: FakeCluster, fails: str, steps: list[str]) -> None:
    consumer = Recorded(cluster.namesrv, fails=fails)
    with pytest.raises(ZeroDivisionError, match=fails):
        async with consumer:
            pytest.fail("the block was entered")
    assert consumer.steps == steps
    with pytest.raises(ClientClosed):
        consumer._open_core()


@pytest.mark.parametrize("kind", ["push", "pull", "pop"])
async def test_repr_shows_the_state_of_every_client_kind(cluster: FakeCluster, kind: str) -> None:
    consumer: Consumer
    match kind:
        case "push":
            consumer = PushConsumer(cluster.namesrv, "G")
        case "pull":
            consumer = PullConsumer(cluster.namesrv, "G")
        case _:
            consumer = PopConsumer(cluster.namesrv, "G", "T")
    name = type(consumer).__name__
    with pytest.raises(ClientClosed, match=f"open it first: async with {name}"):
        consumer._open_core()
    async with consumer:
        consumer._open_core()
        assert not repr(consumer).endswith("closed>")
    with pytest.raises(ClientClosed, match=f"this {name} is closed"):
        consumer._open_core()
    assert repr(consumer).endswith("closed>")


async def test_closing_consumer_waits_for_the_next_leader() -> None:
    async with FakeCluster.start(topics={"T": 1}, replicas=2) as cluster:
        fill(cluster, 4)
        consumer = await consumer_of(cluster).open()
        consumer.subscribe("T")
        await take(consumer, 4)
        await cluster.kill(cluster.leader)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.aclose)
                # It has asked for the leader again, and there is none.
                asked = cluster.name_servers[0].count(105)
                await until(lambda: cluster.name_servers[0].count(105) >= asked + 2)
                cluster.group.leader = cluster.group.replicas[1]
        assert offset_of(cluster) == 3


async def test_closing_consumer_names_offsets_it_failed_to_store(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeCluster.start(topics={"T": 1}, replicas=2) as cluster:
        fill(cluster, 4)
        async with consumer_of(cluster, remoting=IMPATIENT) as consumer:
            consumer.subscribe("T")
            await take(consumer, 4)
            await cluster.kill(cluster.leader)
        assert offset_of(cluster) != 3
    assert caplog.text.count("offset_commit_failed") == 1
    assert "has no leader" in caplog.text


async def test_new_group_ending_at_once_stores_offsets_consistently(monkeypatch: pytest.MonkeyPatch) -> None:
    """It began in one queue after the other, and had offsets in some: a later start skipped in the others."""
    answer = FakeBroker._query_offset
    begun = anyio.Event()

    async def silent_for_the_last(broker: FakeBroker, connection: FakeConnection, request: FakeRequest) -> None:
        if request.ext["queueId"] == "3":
            begun.set()
            await anyio.sleep_forever()
        await answer(broker, connection, request)

    monkeypatch.setattr(FakeBroker, "_query_offset", silent_for_the_last)
    async with FakeCluster.start(topics={"T": 4}) as cluster:
        for queue_id in range(4):
            cluster.group.append("T", queue_id, stored(b"before"))
        async with consumer_of(cluster, consume_from="last") as consumer:
            consumer.subscribe("T")
            with anyio.fail_after(30):
                await begun.wait()
        assert [offset_of(cluster, queue_id) for queue_id in range(4)] == [None] * 4
