"""The metrics of a broker: complete, the same numbers as other tools tell, and bounded."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from mq.broker.admin.metrics import _BY_PREFIX, BY_COUNTER
from mq.broker.broker import Broker
from mq.monitoring.families import Families, Family, Histogram, Kind, render
from mq.monitoring.process import certificate_families, process_families
from mq.namesrv.metrics import collect
from mq.namesrv.route_table import RouteTable
from mq.protocol.codes import RequestCode
from tests.support.popping import popped
from tests.support.running_broker import Client, broker_client, properties, running
from tests.support.steps import result_of
from tests.support.waiting import until

GUIDE = Path(__file__).parents[3] / "docs" / "monitoring.md"
BEGIN, END = "<!-- metrics -->", "<!-- end of metrics -->"
COMMON_LABELS = ("cluster", "group", "node", "node_type", "node_id")


def values(families: Families, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """The samples of a metric by some of its labels."""
    (family,) = [each for each in families if each.name == name]
    assert isinstance(family, Family)
    at = [family.labels.index(label) for label in labels]
    return {tuple(sample[0][each] for each in at): sample[1] for sample in family.samples}


async def commit(client: Client, group: str, queue_id: int, offset: int) -> None:
    ext = {"consumerGroup": group, "topic": "T", "queueId": queue_id, "commitOffset": offset}
    assert (await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == 0


async def test_every_counter_has_its_own_metric(tmp_path: Path, brokers: list[Broker]) -> None:
    async with running(tmp_path):
        counters = {name for name in brokers[0]._counters() if not name.startswith((*_BY_PREFIX,))}
        families = result_of(brokers[0].services.metrics.collect())
    assert counters == set(BY_COUNTER)
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "two families have one name"
    for family in families:
        assert not family.name.endswith("_total"), "the format adds this to counters"
        assert family.help.endswith(".")
        assert isinstance(family, Histogram) or family.kind in (Kind.COUNTER, Kind.GAUGE)
    for accept in ("", "application/openmetrics-text"):
        assert b"raftmq_raft_term" in result_of(render(families, accept))[1]


async def test_popped_messages_are_counted_by_priority(tmp_path: Path, brokers: list[Broker]) -> None:
    async with broker_client(tmp_path) as client:
        await client.create_topic("T", 12, attributes="+message.type=PRIORITY")
        for priority in (0, 3, 3, 10, 11, 900):
            sent = await client.send(i=properties(_SYS_MSG_PRIORITY_=str(priority), UNIQ_KEY="K"))
            assert sent.code == 0
        assert len(await popped(client, maxMsgNums=32)) == 6
        families = result_of(brokers[0].services.metrics.collect())
        counted = values(families, "raftmq_priority_messages_popped", "level")
    assert {level: count for (level,), count in counted.items() if count} == {"0": 1, "3": 2, "10+": 3}


async def test_lag_equals_consumer_progress(tmp_path: Path, brokers: list[Broker]) -> None:
    async with broker_client(tmp_path, queues=2) as client:
        for number in range(10):
            await client.send(body=b"%d" % number, e=number % 2, i=properties(KEYS="k"))
        await commit(client, "G", 0, 2)
        assert len(await popped(client, consumerGroup="P", maxMsgNums=3)) == 3
        metrics = brokers[0].services.metrics

        async def is_counted() -> bool:
            await client.info()
            return values(result_of(metrics.collect()), "rocketmq_messages_in", "topic").get(("T",)) == 10

        await until(is_counted)
        families = result_of(metrics.collect())
        lag = values(families, "rocketmq_consumer_lag_messages", "consumer_group", "topic")
        in_flight = values(families, "rocketmq_consumer_inflight_messages", "consumer_group", "topic")
        assert lag["G", "T"] == 8
        assert (lag["P", "T"], in_flight["P", "T"]) == (10, 3)
        answer = await client.request(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False})
        told = re.search(rb'"totalDiff":(\d+),"totalInflightDiff":(\d+)', answer.body)
        assert told is not None
        # The tool's request leaves out groups that nobody has configured, as G.
        assert (lag["P", "T"], in_flight["P", "T"]) == (int(told[1]), int(told[2]))


async def test_metric_series_are_bounded_and_omitted_ones_are_counted(tmp_path: Path, brokers: list[Broker]) -> None:
    async with broker_client(tmp_path, queues=1, metrics_series_max=100) as client:
        for number in range(150):
            await commit(client, f"G{number}", 0, 0)
        families = result_of(brokers[0].services.metrics.collect())
    named = [family for family in families if isinstance(family, Family) and family.name.startswith("rocketmq_")]
    assert sum(len(family.samples) for family in named) == 100
    (dropped,) = values(families, "raftmq_metrics_series_dropped", "node").values()
    assert 200 <= dropped < 220, "lag and messages under way of 150 groups, less those that have room"


async def test_follower_does_not_repeat_the_metrics_of_the_leader(tmp_path: Path, brokers: list[Broker]) -> None:
    async with running(tmp_path) as broker:
        await (await broker.connect()).send()
        brokers[0].appender.is_open = False
        names = {family.name for family in result_of(brokers[0].services.metrics.collect())}
        brokers[0].appender.is_open = True
    assert "raftmq_raft_term" in names
    assert "rocketmq_messages_out" in names
    assert not names & {"rocketmq_messages_in", "rocketmq_consumer_lag_messages", "rocketmq_storage_size"}


async def test_guide_names_every_metric(tmp_path: Path, brokers: list[Broker]) -> None:
    """With REWRITE=1 the table is written anew."""
    async with running(tmp_path):
        families = result_of(brokers[0].services.metrics.collect())
    server = [*process_families({}), *certificate_families({}, None)]
    name_server = result_of(collect(RouteTable(), dict, None))[len(server) :]
    rows = [
        f"| `{family.name}{'_total' if isinstance(family, Family) and family.kind is Kind.COUNTER else ''}` | "
        f"{', '.join(f'`{label}`' for label in family.labels if label not in COMMON_LABELS) or ' '} | {family.help} |"
        for family in (*server, *families, *name_server)
    ]
    table = "\n".join(("| metric | labels | |", "|---|---|---|", *rows))
    text = GUIDE.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    if os.environ.get("REWRITE"):
        GUIDE.write_text(f"{text[:begin]}\n\n{table}\n\n{text[end:]}")
    assert GUIDE.read_text()[begin:].startswith(f"\n\n{table}\n\n{END}"), "docs/monitoring.md: REWRITE=1"


@pytest.mark.parametrize("path", ["grafana/raftmq.json", "prometheus/alerts.yml"])
async def test_dashboards_and_alerts_query_existing_metrics(path: str) -> None:
    text = (GUIDE.parent.parent / "deploy" / path).read_text()
    asked = set(re.findall(r"\b(?:raftmq|rocketmq|process)_[a-z_]+\b", text)) - {"raftmq_name_servers"}
    there = set(re.findall(r"`([a-z_]+)`", GUIDE.read_text()))
    there |= {f"{name}_bucket" for name in there if name.endswith("_seconds")}
    assert asked <= there
    assert len(asked) > 10
