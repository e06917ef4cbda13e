"""`raftmq doctor` with brokers that really are in each condition it reports."""

from __future__ import annotations

import datetime as dt
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

import raftlog
from mq.broker.admin.replica_status import ReplicaStatus
from mq.client import Admin, Message, MessageQueue, Producer, PushConsumer, ReceivedMessage, SubscriptionGroupConfig
from mq.inspection.catalogue import CatalogueAdmin
from mq.inspection.cluster import NEAR_ENTRIES
from mq.protocol.codes import RequestCode
from raftlog import Replica
from tests.support.certificates import Authority
from tests.support.commands import raftmq
from tests.support.name_server_and_broker import cluster_and_broker, name_server
from tests.support.replies import three_replicas
from tests.support.running_broker import running
from tests.support.waiting import until

DOCS = Path(__file__).parents[3] / "docs"
WORST_FIRST = ("critical", "warning", "notice")
EXIT_FAILED = 1


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the command found, and its exit status."""

    code: int
    findings: list[dict[str, str]]

    def about(self, words: str) -> dict[str, str]:
        """The finding that says this."""
        [found] = [each for each in self.findings if words in f"{each['subject']} {each['what']}"]
        return found


async def doctor(namesrv: str, watch: float = 0.0) -> Diagnosis:
    """Run it; each finding names a remedy and a page, and the worst comes first."""
    done = await raftmq("doctor", "--json", "--watch", str(watch), "--namesrv", namesrv)
    findings = json.loads(done.out)["findings"]
    for each in findings:
        assert each["remedy"], each
        assert (DOCS.parent / each["page"].partition("#")[0]).is_file(), each
    ranks = [WORST_FIRST.index(each["severity"]) for each in findings]
    assert ranks == sorted(ranks)
    assert done.code == (EXIT_FAILED if 0 in ranks or 1 in ranks else 0)
    return Diagnosis(done.code, findings)


def later(monkeypatch: pytest.MonkeyPatch, **after: float) -> None:
    """The command runs so much later than the rest."""
    added = int(dt.timedelta(**after).total_seconds() * 1e9)
    monkeypatch.setattr("mq.inspection.survey.time", SimpleNamespace(time_ns=lambda: time.time_ns() + added))


async def send(namesrv: str, topic: str, count: int, nbytes: int = 1) -> None:
    rng = random.Random(1)  # such bodies are not compressed
    async with Producer(namesrv) as producer:
        for _ in range(count):
            await producer.send(Message(topic, rng.randbytes(nbytes)))


async def consume(namesrv: str, group: str, topic: str, offset: int) -> None:
    """The group has consumed the messages before this offset of a topic with one queue."""
    async with CatalogueAdmin(namesrv) as admin:
        await admin.put_consumer_group(SubscriptionGroupConfig(group))
        await admin.store_offset(group, MessageQueue(topic, "broker-a", 0), offset)


async def test_doctor_lists_full_disks_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.broker.services.disk_usage", lambda directory: (0, 100))
    async with cluster_and_broker(tmp_path) as (namesrv, _):
        found = await doctor(namesrv)
        assert found.findings[0]["severity"] == "critical"
        assert "refuses messages: its disk is 100% full" in found.findings[0]["what"]
        assert found.code == EXIT_FAILED


async def test_doctor_names_a_deviating_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with name_server() as namesrv, running(tmp_path / "a", group="b-a", namesrv=namesrv):
        right = raftlog.Machine.wall_clock_ms
        monkeypatch.setattr("raftlog.Machine.wall_clock_ms", lambda self: right(self) + 3_600_000)
        async with running(tmp_path / "b", group="b-b", namesrv=namesrv):
            found = (await doctor(namesrv)).about("has a clock that is 3600.")
            assert found["severity"] == "warning"


async def test_soon_expiring_certificate_is_reported(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    ends_at = dt.datetime.now(dt.UTC) + dt.timedelta(days=3)
    certificate, key = authority.sign("server", "127.0.0.1", not_after=ends_at)
    given = {"tls_mode": "permissive", "tls_certificate": certificate, "tls_key": key}
    async with cluster_and_broker(tmp_path / "broker", **given) as (namesrv, _):
        found = (await doctor(namesrv)).about("has a certificate that expires at")
        assert f"{ends_at:%Y-%m-%dT%H}" in found["what"]


async def test_member_that_hangs_is_reported_with_host_queue_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_and_broker(tmp_path) as (namesrv, _):
        await send(namesrv, "T", 1)
        consumer = PushConsumer(namesrv, "billing", consume_from="first")
        handled: list[ReceivedMessage] = []

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            handled.append(message)
            if len(handled) > 1:
                await trio.sleep_forever()

        async with consumer, Admin(namesrv) as admin, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run)
            queue = MessageQueue("T", "broker-a", 0)

            async def has_committed() -> bool:
                return await admin.group_offset("billing", queue) == 1

            await until(has_committed)
            await send(namesrv, "T", 3)
            await until(lambda: len(handled) > 1)
            later(monkeypatch, minutes=5)
            found = (await doctor(namesrv, watch=0.2)).about("consumer group billing made no progress")
            assert "T broker-a/0, where 3 messages wait" in found["what"]
            assert f"the last message it consumed is from {dt.datetime.now(dt.UTC):%Y-%m-%d}" in found["what"]
            assert f"members: {consumer.client_id} at 127.0.0.1:" in found["what"]
            nursery.cancel_scope.cancel()


async def consume_with(consumer: PushConsumer) -> None:
    async with consumer:
        await consumer.run()


async def test_members_that_subscribe_differently_are_reported(tmp_path: Path) -> None:
    """Although no message waits: what one of them does not want is skipped for all."""
    async with cluster_and_broker(tmp_path) as (namesrv, _), trio.open_nursery() as nursery:
        async with Admin(namesrv) as admin:
            await admin.create_topic("T", 1)
            for expression in ("paid", "paid || sent"):
                consumer = PushConsumer(namesrv, "billing", consume_from="first")

                @consumer.on("T", expression)
                async def handle(message: ReceivedMessage) -> None:
                    del message

                nursery.start_soon(consume_with, consumer)

            async def are_there() -> bool:
                return len(await admin.group_members("billing")) == 2

            await until(are_there)
        found = (await doctor(namesrv)).about("has members that subscribe to different things")
        assert found["subject"] == "consumer group billing"
        assert "T paid" in found["what"]
        assert "T paid || sent" in found["what"]
        nursery.cancel_scope.cancel()


async def test_messages_that_are_too_old_soon_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_and_broker(tmp_path, retention_hours=1) as (namesrv, _):
        await send(namesrv, "T", 5)
        await consume(namesrv, "billing", "T", 2)
        later(monkeypatch, minutes=50)
        found = (await doctor(namesrv)).about("retention deletes them when they are 1 h old")
        assert "has not consumed 3 messages of T broker-a/0" in found["what"]


async def test_messages_that_the_size_of_their_topic_deletes_are_reported(tmp_path: Path) -> None:
    async with cluster_and_broker(tmp_path) as (namesrv, _):
        async with Admin(namesrv) as admin:
            await admin.create_topic("Readings", 1, retention_bytes=2**20)
            await send(namesrv, "Readings", 40, 60_000)
            queue = MessageQueue("Readings", "broker-a", 0)

            async def have_gone() -> bool:
                return await admin.min_offset(queue) > 0

            await until(have_gone)
            await consume(namesrv, "billing", "Readings", await admin.min_offset(queue))
        found = (await doctor(namesrv)).about("consumer group billing has not consumed")
        assert "more than 1,048,576 bytes (reserve.bytes)" in found["what"]
        assert "raftmq topic update Readings --retention-bytes" in found["remedy"]


async def test_messages_that_the_size_of_the_log_deletes_are_reported(tmp_path: Path) -> None:
    async with cluster_and_broker(tmp_path, retention_bytes=4 * 2**20) as (namesrv, _):
        async with Admin(namesrv) as admin:
            await admin.create_topic("Readings", 1)
        await send(namesrv, "Readings", 40, 60_000)
        await consume(namesrv, "billing", "Readings", 1)
        await consume(namesrv, "mail", "Readings", 39)
        found = await doctor(namesrv)
        assert not [each for each in found.findings if "retention_bytes" in each["what"]], "2.4 MB of 4 MiB"
        await send(namesrv, "Readings", 20, 60_000)
        found = await doctor(namesrv)
        [told] = [each for each in found.findings if "retention_bytes" in each["what"]]
        assert told["subject"] == "consumer group billing", "the other group has consumed what is deleted next"
        assert "among the oldest of the log of broker-a: they go next" in told["what"]
        assert "4,194,304 bytes" in told["what"]


async def test_unresolvable_host_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = trio.socket.getaddrinfo

    async def getaddrinfo(host: Any, *rest: Any, **given: Any) -> Any:
        if host == "localhost":
            raise OSError("Name or service not known")
        return await real(host, *rest, **given)

    async with name_server() as namesrv:
        settings: dict[str, Any] = {"namesrv": namesrv}
        async with running(tmp_path, **settings) as broker:
            await broker.connect()
        port = broker.settings.listen.rpartition(":")[2]
        async with running(tmp_path, **settings, listen=f"127.0.0.1:{port}", advertise=f"localhost:{port}"):
            async with Admin(namesrv) as admin:

                async def is_registered() -> bool:
                    brokers = (await admin.cluster_info()).brokers.values()
                    return any("localhost" in each for broker in brokers for each in broker.broker_addrs.values())

                await until(is_registered)
            monkeypatch.setattr(trio.socket, "getaddrinfo", getaddrinfo)
            found = (await doctor(namesrv)).about("host localhost is registered as a broker's host")
            assert "advertise" in found["remedy"]


@asynccontextmanager
async def group_of_three(directory: Path, **given: Any) -> AsyncIterator[tuple[str, list[Any]]]:
    async with name_server() as namesrv, three_replicas(directory, namesrv=namesrv, **given) as brokers:
        clients = [await broker.connect() for broker in brokers]
        assert (await clients[0].create_topic("T", 1)).code == 0
        yield namesrv, clients


async def test_differing_settings_are_reported(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as (namesrv, clients):
        changed = await clients[1].request(RequestCode.UPDATE_BROKER_CONFIG, body=b"raftmq.retention_hours=5")
        assert changed.code == 0, changed
        found = (await doctor(namesrv)).about("different values of retention_hours")
        assert "5.0" in found["what"]


async def test_lagging_replica_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with group_of_three(tmp_path) as (namesrv, clients):
        lost = (await clients[2].info())["raftmq.nodeId"]
        receive = Replica.receive

        def dropping(self: Replica, *arguments: Any) -> None:
            if self.core.node_id != lost:
                receive(self, *arguments)

        monkeypatch.setattr(Replica, "receive", dropping)
        for number in range(NEAR_ENTRIES + 10):
            assert (await clients[0].send("T", b"%d" % number)).code == 0
        found = (await doctor(namesrv)).about("entries")
        assert found["subject"].startswith(f"replica {lost} ")
        assert "the leader" in found["what"]


async def test_replica_of_another_version_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers of a process have one version: one of them says another one of itself."""
    async with group_of_three(tmp_path) as (namesrv, clients):
        other = (await clients[2].info())["raftmq.nodeId"]
        table = ReplicaStatus.table

        def with_other_version(self: ReplicaStatus) -> dict[str, str]:
            found = table(self)
            return found | {"raftmq.softwareVersion": "0.0.9"} if found["raftmq.nodeId"] == other else found

        monkeypatch.setattr(ReplicaStatus, "table", with_other_version)
        found = (await doctor(namesrv)).about("runs several versions")
        assert f"{other} 0.0.9" in found["what"]
        assert "raftmq group upgrade-check" in found["remedy"]
