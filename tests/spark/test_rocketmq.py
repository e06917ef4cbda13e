"""Brokers of Apache RocketMQ, read with requests of stock clients only. Their jars come from Maven."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from pyspark.errors import AnalysisException

from mq.client.message import Message
from tests.interop.clients import SERVERS_VERSION, BuildFailed, build_servers, servers_built, tools_missing
from tests.interop.rocketmq_servers import RocketMQCluster
from tests.spark.conftest import Query
from tests.spark.equal_rows import OTHERS, PLAIN, Kind, compare
from tests.spark.stage import Stage, bodies_of

ROWS = 1000

Read = Callable[..., Any]


@pytest.fixture(scope="module", params=[SERVERS_VERSION])
def rocketmq(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    version = request.param
    if not servers_built(version):
        if missing := tools_missing("mvn"):
            pytest.skip(f"RocketMQ {version}: {missing}")
        try:
            build_servers(version)
        except BuildFailed as error:
            pytest.skip(f"RocketMQ {version} is not available: {error}")
    opened = RocketMQCluster.open(tmp_path_factory.mktemp(f"rocketmq-{version}"), version=version)
    with start_blocking_portal("trio") as portal, portal.wrap_async_context_manager(opened) as cluster:
        yield Stage(cluster, portal)


@pytest.fixture
def pull(session: Any, rocketmq: Stage) -> Read:
    """A batch read in pull mode."""

    def load(**options: str) -> Any:
        given = {"namesrv": rocketmq.namesrv, "readMode": "pull", "readFrom": "any", **options}
        return session.read.format("raftmq").options(**given).load()

    return load


@pytest.mark.parametrize("kind", [PLAIN, *OTHERS], ids=lambda kind: kind.name)
def test_rows_equal_the_sent_messages(pull: Read, rocketmq: Stage, kind: Kind) -> None:
    compare(pull, rocketmq, kind, ROWS)


def test_ranges_tags_and_several_partitions(pull: Read, rocketmq: Stage) -> None:
    topic = rocketmq.topic(queues=2)
    sent = [Message(topic, b"%d" % number, tags="AB"[number % 2]) for number in range(400)]
    rocketmq.send(topic, sent)
    queues = [f"{rocketmq.group}:{number}" for number in range(2)]
    [first] = pull(subscribe=topic, columns="queue_id").where("queue_id = 0").groupBy().count().collect()

    assert bodies_of(pull(subscribe=topic, maxRecordsPerPartition="50").collect()) == Counter(
        message.body for message in sent
    )
    assert pull(subscribe=topic, tags="B").count() == 200
    starting = json.dumps({topic: {queues[0]: 10, queues[1]: -1}})
    assert pull(subscribe=topic, startingOffsets=starting).count() == first["count"] - 10
    assert pull(subscribe=topic, startingTimestamp="0").count() == 400


def test_stream_resumes_at_its_end(session: Any, rocketmq: Stage, query: Query) -> None:
    topic = rocketmq.topic(queues=2)
    options = {"namesrv": rocketmq.namesrv, "readMode": "pull", "readFrom": "any", "subscribe": topic}
    frame = session.readStream.format("raftmq").options(**options, startingOffsets="earliest").load()
    sent = [b"%d" % number for number in range(300)]
    rocketmq.send(topic, sent[:200])
    query.run(frame)
    rocketmq.send(topic, sent[200:])
    query.run(frame)
    assert bodies_of(query.rows()) == Counter(sent)


def test_bulk_reads_are_refused_with_the_option_that_helps(pull: Read, rocketmq: Stage) -> None:
    with pytest.raises(AnalysisException, match="brokers of Apache RocketMQ are read with readMode=pull"):
        pull(subscribe=rocketmq.topic(), readMode="bulk").count()
