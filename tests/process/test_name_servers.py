"""Two name servers, of which one is dead when clients start, and then the other while they work."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio

from jepsen.deployments.cluster import node_names, open_cluster
from jepsen.deployments.leftovers import lock_directory
from jepsen.deployments.local import open_loopback
from jepsen.deployments.network import NAME_SERVERS
from mq.cli.errors import run_trio
from mq.client import Admin, ClientError, Message, Producer, PullConsumer
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.namesrv import BrokerData
from tests.support.waiting import until_accepted, until_found
from tests.unit.namesrv.serving import Peer, broker_fields

pytestmark = [pytest.mark.process]

FIRST, SECOND = NAME_SERVERS
READY_SECONDS_MAX = 60.0


@pytest.mark.slow
def test_clients_survive_the_loss_of_name_servers(tmp_path: Path) -> None:
    with lock_directory(tmp_path):
        run_trio(partial(_clients_work, tmp_path))


async def _clients_work(directory: Path) -> None:
    settings = {"register_seconds": "1"}
    async with (
        open_loopback(1) as network,
        open_cluster(directory, network, node_names(1), settings=settings) as servers,
    ):
        await servers.kill(FIRST)
        async with Admin(servers.namesrv) as admin:
            await until_accepted(lambda: admin.create_topic("Orders", 1), ClientError)  # the broker registers first
        async with (
            Producer(servers.namesrv, "senders") as producer,
            PullConsumer(servers.namesrv, "readers", consume_from="first") as consumer,
        ):
            await consumer.assign(await consumer.queues("Orders"))
            await _send_and_read(producer, consumer, "the first is dead at the start")
            await servers.start(FIRST)
            await servers.kill(SECOND)
            await _send_and_read(producer, consumer, "the second died while clients worked")
            await servers.kill(FIRST)
            await _send_and_read(producer, consumer, "both are dead")
            await servers.start(FIRST)
        await _wait_known(servers.namesrv)
        async with Producer(servers.namesrv, "late") as producer:
            await producer.send(Message("Orders", b"a new client while the second is dead"))


@pytest.mark.slow
def test_unregistered_group_is_registered_again_at_once(tmp_path: Path) -> None:
    with lock_directory(tmp_path):
        run_trio(partial(_unregistered_by_others, tmp_path))


async def _unregistered_by_others(directory: Path) -> None:
    settings = {"register_seconds": "60"}  # they come back earlier than that
    async with (
        open_loopback(3) as network,
        open_cluster(directory, network, node_names(3), settings=settings) as servers,
    ):
        async with Admin(servers.namesrv) as admin:
            await until_accepted(lambda: admin.create_topic("Orders", 1), ClientError)
        host, _, port = servers.namesrv.split(";")[0].partition(":")
        third = Peer(await trio.open_tcp_stream(host, int(port)))
        async with third.stream:
            group = await _whole(third, seconds=READY_SECONDS_MAX)
            leader, *followers = sorted(group.broker_addrs)
            for wanted in ([leader], followers, [leader, *followers], [*followers, leader]):
                for broker_id in wanted:
                    fields = broker_fields(broker_id, group.broker_addrs[broker_id], group.broker_name)
                    fields["clusterName"] = group.cluster
                    answer, _ = await third.ask(RequestCode.UNREGISTER_BROKER, fields)
                    assert answer.code == ResponseCode.SUCCESS
                assert (await _whole(third, seconds=30.0)).broker_addrs == group.broker_addrs, wanted


async def _whole(peer: Peer, seconds: float) -> BrokerData:
    """The group in the route of Orders, once all its brokers are there."""

    async def look() -> BrokerData | None:
        route = await peer.route("Orders")
        return route.broker_datas[0] if route and len(route.broker_datas[0].broker_addrs) == 3 else None

    return await until_found(look, seconds=seconds)


async def _send_and_read(producer: Producer, consumer: PullConsumer, text: str) -> None:
    await producer.send(Message("Orders", text.encode()))
    with trio.fail_after(READY_SECONDS_MAX):
        while not (got := await consumer.poll(timeout=1.0)):
            pass
    assert [message.body for message in got] == [text.encode()]


async def _wait_known(namesrv: str) -> None:
    """Until the name server that came back knows the broker again."""

    async def ask() -> None:
        async with Producer(namesrv, "askers") as asking:
            await asking.send(Message("Orders", b"is it known?"))

    await until_accepted(ask, ClientError, seconds=READY_SECONDS_MAX)
