"""What `deploy/` has for Prometheus and Grafana, tried with Prometheus: Debian's package `prometheus`, where it is.

The board is not drawn; each of its queries is asked, and must find something.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trio
import yaml

from mq.addresses import metrics_address_beside
from mq.client import Admin, Message, Producer, PushConsumer, ReceivedMessage, SubscriptionGroupConfig
from mq.local_cluster import DevCluster, Ports
from tests.free_ports import free_ports
from tests.support.waiting import until, until_accepted

pytestmark = pytest.mark.process

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
ALERTS: Final = DEPLOY / "prometheus" / "alerts.yml"
TESTS: Final = DEPLOY / "prometheus" / "alerts.test.yml"
BOARD: Final = DEPLOY / "grafana" / "raftmq.json"
SECONDS_MAX: Final = 60.0
SCRAPE: Final = "1s"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing: apt install prometheus"
)
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="apt install prometheus")


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_configuration_and_rules_are_valid() -> None:
    promtool("check", "config", DEPLOY / "prometheus" / "prometheus.yml")
    assert "SUCCESS" in promtool("check", "rules", ALERTS)


@needs_promtool
def test_alerts_fire_exactly_when_expected() -> None:
    assert "SUCCESS" in promtool("test", "rules", TESTS)


def test_each_alert_has_a_firing_and_a_quiet_test() -> None:
    alerts = {rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}
    tried = [each for test in yaml.safe_load(TESTS.read_text())["tests"] for each in test["alert_rule_test"]]
    assert {each["alertname"] for each in tried if each.get("exp_alerts")} == alerts
    assert {each["alertname"] for each in tried if not each.get("exp_alerts")} == alerts


def queries() -> Iterator[str]:
    """The queries of the board, for all clusters and groups."""
    for panel in json.loads(BOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield re.sub(r"\$\w+", ".*", target["expr"])


def test_board_and_the_guide_have_queries() -> None:
    found = list(queries())
    assert len(found) > 20
    assert len(expressions()) > 5
    assert not any("$" in query for query in found)


def expressions() -> list[str]:
    """What the guide asks."""
    return re.findall(r"^\| .*\? \| `([^`]+)`", (DEPLOY.parent / "docs" / "monitoring.md").read_text(), re.MULTILINE)


class Prometheus:
    """A server that scrapes a cluster, and is asked by HTTP."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    async def get(self, path: str, **parameters: str) -> Any:
        url = f"{self._url}/{path}?{urllib.parse.urlencode(parameters)}"

        def ask() -> Any:
            try:
                with urllib.request.urlopen(url, timeout=SECONDS_MAX) as answer:
                    return json.load(answer)["data"]
            except urllib.error.HTTPError as error:
                error.close()  # it is an answer, too
                raise

        return await trio.to_thread.run_sync(ask)

    async def targets(self) -> dict[str, str]:
        """Health of each target."""
        return {each["scrapeUrl"]: each["health"] for each in (await self.get("targets"))["activeTargets"]}

    async def series(self, query: str) -> list[Any]:
        return list((await self.get("query", query=query))["result"])


@asynccontextmanager
async def scraping(directory: Path, cluster: DevCluster) -> AsyncIterator[Prometheus]:
    """Prometheus with our configuration, but for the addresses and the intervals."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": SCRAPE, "evaluation_interval": SCRAPE}
    config["rule_files"] = [str(ALERTS)]
    brokers, name_servers = config["scrape_configs"]
    for job, ports in ((brokers, cluster.ports.clients), (name_servers, (cluster.ports.namesrv,))):
        addresses = [metrics_address_beside(("127.0.0.1", port)) for port in ports]
        job["static_configs"] = [{"targets": [f"{host}:{port}" for host, port in filter(None, addresses)]}]
    directory.mkdir()  # noqa: ASYNC240 - a test has nothing else to do
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    [port] = free_ports(1)
    command = [
        "prometheus",
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    async with trio.open_nursery() as nursery:
        with (directory / "log").open("wb") as log:
            process = await nursery.start(partial(trio.run_process, command, stdout=log, stderr=log, check=False))
        server = Prometheus(port)

        async def answers() -> None:
            assert process.poll() is None, (directory / "log").read_text()
            await server.get("status/config")

        await until_accepted(answers, OSError, seconds=SECONDS_MAX)
        try:
            yield server
        finally:
            process.terminate()


async def use_everything(namesrv: str) -> None:
    """Messages, a group that is behind, one that gives up on a message."""
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic("T", 2)
        await admin.put_consumer_group(SubscriptionGroupConfig(group_name="G", retry_max_times=0))
        await producer.send_many(Message("T", b"%d" % number) for number in range(20))
        consumer = PushConsumer(namesrv, "G", consume_from="first", ordered=False, retry_delay=0.1)

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"7":
                raise ValueError("not this one")

        async with consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run)
            await until(lambda: sum(consumer.positions.values()) >= 20)
            await consumer.commit()
            nursery.cancel_scope.cancel()


async def speak_nonsense(cluster: DevCluster) -> None:
    """So that a warning is logged."""
    async with await trio.open_tcp_stream("127.0.0.1", cluster.ports.clients[0]) as stream:
        await stream.send_all(b"\xff" * 64)
        await stream.receive_some()


@needs_prometheus
@pytest.mark.slow
async def test_prometheus_scrapes_all_servers_and_every_board_query_finds_data(
    tmp_path: Path,
) -> None:
    async with (
        DevCluster.open(tmp_path / "cluster", ports=Ports.free(3)) as cluster,
        scraping(tmp_path / "prometheus", cluster) as server,
    ):
        with trio.fail_after(SECONDS_MAX):
            await use_everything(cluster.namesrv)
            await speak_nonsense(cluster)
        silent = [*queries(), 'ALERTS{alertname="RaftmqDeadLetters"}', "raftmq_namesrv_brokers == 3"]
        with trio.move_on_after(SECONDS_MAX):
            while silent:
                await trio.sleep(0.5)
                silent = [query for query in silent if not await server.series(query)]
        assert not silent, "queries that find nothing"
        assert [*(await server.targets()).values()] == ["up"] * 4
        rules = [rule for group in (await server.get("rules"))["groups"] for rule in group["rules"]]
        assert rules
        assert {rule["health"] for rule in rules} == {"ok"}, [rule.get("lastError") for rule in rules]
        for expression in expressions():
            await server.series(expression)  # raises unless it is valid
        assert not await server.series("raftmq_no_such_metric")
