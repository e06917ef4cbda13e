"""A cluster on hosts that have IPv6 only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.addresses import parse_metrics_address
from mq.broker.settings import BrokerSettings
from mq.cli.errors import CommandFailed
from mq.cli.servers import split_address as split_cli_address
from mq.client import Admin, Message, Producer, PushConsumer, TransactionProducer
from mq.client.net.connection import split_address
from mq.namesrv.server import serve
from mq.namesrv.settings import NamesrvSettings
from mq.protocol.codes import RequestCode
from mq.protocol.message_ids import parse_offset_message_id
from mq.protocol.messages.records import STORE_HOST_IPV6
from raftlog import parse_address
from spark.client import Connection as SparkConnection
from tests.free_ports import free_ports
from tests.support.popping import popped
from tests.support.running_broker import RunningBroker, running, send_ext
from tests.support.waiting import until


@asynccontextmanager
async def cluster(directory: Path, **given: Any) -> AsyncIterator[tuple[str, RunningBroker]]:
    """The address of a name server, and a broker; both listen on IPv6 only."""
    client_port, peer_port, metrics_port = free_ports(3)
    async with trio.open_nursery() as nursery:
        _, port = await nursery.start(serve, NamesrvSettings(listen_host="::1", listen_port=0, data_dir=None))
        namesrv = f"[::1]:{port}"
        async with running(
            directory,
            listen=f"[::1]:{client_port}",
            peers=f"n0@[::1]:{peer_port}",
            metrics_listen=f"[::1]:{metrics_port}",
            admin_networks="::1",
            namesrv=namesrv,
            **given,
        ) as broker:
            await (await broker.connect()).create_topic("T", 1)
            yield namesrv, broker
        nursery.cancel_scope.cancel()


async def test_messages_pass_through_a_cluster_on_ipv6(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (namesrv, broker), Admin(namesrv) as admin:
        info = await admin.cluster_info()
        (addresses,) = [group.broker_addrs for group in info.brokers.values()]
        assert addresses == {0: broker.settings.listen}
        async with Producer(namesrv, "P") as producer:
            sent = [await producer.send(Message("T", b"%d" % number, keys=["k"])) for number in range(3)]
            sent += await producer.send_batch([Message("T", b"batch"), Message("T", b"batch")])
            await producer.send(Message("T", b"late", delay=0.5))
        place = parse_offset_message_id(sent[0].offset_message_id)
        assert f"[{place.ip}]:{place.port}" == broker.settings.listen
        got: list[bytes] = []
        async with PushConsumer(namesrv, "G", consume_from="first") as consumer:
            consumer.subscribe("T")
            with trio.fail_after(60):
                async for message in consumer:
                    got.append(message.body)
                    if len(got) == 6:
                        break
        assert sorted(got) == [b"0", b"1", b"2", b"batch", b"batch", b"late"]
        found = await admin.message_by_id(sent[1].offset_message_id)
        assert found is not None
        assert found.body == b"1"
        assert found.record.sys_flag & STORE_HOST_IPV6
        assert found.record.born_host.ip == "0.0.0.0", "that of a sender has no room for IPv6"
        assert len(await admin.messages_by_key("T", "k")) == 3


async def test_broker_on_ipv6_restarts_with_its_log(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (_, broker):
        client = await broker.connect()
        assert (await client.send(body=b"kept")).code == 0
    (tmp_path / "checkpoint").unlink(missing_ok=True)  # everything is read from the log again
    async with cluster(tmp_path) as (_, broker):
        client = await broker.connect()
        assert [each.body for each in await popped(client, invisibleTime=300)] == [b"kept"]
        again: list[bytes] = []
        with trio.fail_after(60):
            while not again:
                again = [each.body for each in await popped(client, invisibleTime=60_000)]
        assert again == [b"kept"], "a copy that the broker has made of it"


async def test_transactions_end_on_ipv6(tmp_path: Path) -> None:
    def check(_: object) -> bool:
        return True

    async with cluster(tmp_path) as (namesrv, broker):
        async with (
            TransactionProducer(namesrv, "P", check=check) as producer,
            producer.transaction(Message("T", b"tx")),
        ):
            pass
        client = await broker.connect()

        async def is_visible() -> bool:
            return [record.body for record in (await client.pull()).records] == [b"tx"]

        await until(is_visible)


async def test_spark_reader_connects_over_ipv6(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (_, broker):

        def send() -> int:
            connection = SparkConnection(broker.settings.listen, 10.0)
            fields = {name: str(value) for name, value in send_ext().items()}
            number = connection.send(RequestCode.SEND_MESSAGE_V2, fields, b"x")
            code = connection.receive(number).code
            connection.close()
            return code

        assert await trio.to_thread.run_sync(send) == 0


@pytest.mark.parametrize("text", ["::1", "::1:10911", "fd00::2:9876", "2001:db8::1:80"])
def test_address_without_brackets_is_refused_with_the_remedy(text: str) -> None:
    for parse, error in (
        (parse_address, ValueError),
        (split_address, ValueError),
        (parse_metrics_address, ValueError),
        (split_cli_address, CommandFailed),
        (lambda given: BrokerSettings(listen=given), ValueError),
        (lambda given: BrokerSettings(peers=f"n0@{given}"), ValueError),
        (lambda given: BrokerSettings(namesrv=given), ValueError),
    ):
        with pytest.raises(error, match=r"needs brackets, as in \[::1\]:\d+"):
            parse(text)


@pytest.mark.parametrize(("text", "address"), [("[::1]:80", ("::1", 80)), ("localhost:80", ("localhost", 80))])
def test_addresses_are_parsed_the_same_everywhere(text: str, address: tuple[str, int]) -> None:
    assert [parse(text) for parse in (parse_address, split_address, parse_metrics_address, split_cli_address)] == [
        address
    ] * 4
