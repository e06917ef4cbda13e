"""A small program for each extra, in an environment that has this extra alone: does it bring what it needs?

All programs get the address of the name server of a running `raftmq dev`.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, Final

from distributions.build import ROOT
from distributions.interpreters import Environment, Interpreter, new_environment

_COMPRESSED: Final = """
import sys
from raftmq import Message
from raftmq.sync import SyncAdmin, SyncProducer

codec, namesrv = sys.argv[2], sys.argv[1]
with SyncProducer(namesrv, compress=codec, compress_bytes_min=100) as producer:
    sent = producer.send(Message("Extra-" + codec, b"x" * 10_000))
with SyncAdmin(namesrv) as admin:
    assert admin.message_by_id(sent.offset_message_id).body == b"x" * 10_000
"""

_METRICS: Final = """
import sys
from raftmq import Message, {metrics}
from raftmq.sync import SyncProducer

with SyncProducer(sys.argv[1], {option}) as producer:
    producer.send(Message("Extra-metrics", b"x"))
"""

_PYDANTIC: Final = """
from pydantic import BaseModel
from raftmq import PydanticCodec

class Order(BaseModel):
    fruit: str

codec = PydanticCodec(Order)
assert codec.decode(codec.encode(Order(fruit="pear"))) == Order(fruit="pear")
"""

_CELERY: Final = """
import sys
import raftmq.celery
from kombu import Connection

with Connection("raftmq://" + sys.argv[1]) as connection:
    queue = connection.SimpleQueue("extra")
    queue.put({"fruit": "pear"})
    message = queue.get(timeout=60)
    assert message.payload == {"fruit": "pear"}
    message.ack()
"""

_TASKIQ: Final = """
import asyncio, sys
from raftmq.taskiq import RaftmqBroker

broker = RaftmqBroker(sys.argv[1])

@broker.task
async def add(a: int, b: int) -> int:
    return a + b

async def main():
    broker.is_worker_process = True
    await broker.startup()
    await add.kiq(1, 2)
    async with asyncio.timeout(60):
        async for message in broker.listen():
            assert b"add" in message.data
            await message.ack()
            break
    await broker.shutdown()

asyncio.run(main())
"""

_DRAMATIQ: Final = """
import sys, threading
import dramatiq
from raftmq.dramatiq import RaftmqBroker

broker = RaftmqBroker(sys.argv[1])
dramatiq.set_broker(broker)
done = threading.Event()

@dramatiq.actor
def act(fruit):
    assert fruit == "pear"
    done.set()

worker = dramatiq.Worker(broker, worker_threads=1)
worker.start()
act.send("pear")
assert done.wait(60)
worker.stop()
broker.close()
"""

_FASTSTREAM: Final = """
import asyncio, sys
from raftmq.faststream import RaftmqBroker

broker = RaftmqBroker(sys.argv[1])
got = []

@broker.subscriber("extra-fruit", group="extra", consume_from="first")
async def handle(fruit: str) -> None:
    got.append(fruit)

async def main():
    async with broker:
        await broker.start()
        await broker.publish("pear", "extra-fruit")
        async with asyncio.timeout(60):
            while not got:
                await asyncio.sleep(0.01)
    assert got == ["pear"]

asyncio.run(main())
"""

CLIENT_EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    "lz4": (_COMPRESSED, "lz4"),
    "zstd": (_COMPRESSED, "zstd"),
    "otel": (_METRICS.format(metrics="OpenTelemetryMetrics", option="otel=True, metrics=OpenTelemetryMetrics()"),),
    "prometheus": (_METRICS.format(metrics="PrometheusMetrics", option="metrics=PrometheusMetrics()"),),
    "celery": (_CELERY,),
    "taskiq": (_TASKIQ,),
    "dramatiq": (_DRAMATIQ,),
    "pydantic": (_PYDANTIC,),
    "faststream": (_FASTSTREAM,),
}
"""By extra: a program, and its arguments after the address. Any other extra brings one of our other distributions, or
is for a checkout.
"""

SERVER_EXTRAS: Final[dict[str, str]] = {
    "compiled": "from isal import isal_zlib",
    "console": "import mq.console.server as s, mq.console.app as a; assert len(a.static_files()) == 3, s; "
    "assert (a.HERE / 'templates' / 'page.html').exists()",
    "filter": "import mq.filter_server.server",
    "proxy": "import mq.proxy.server",
    "s3": "import boto3, raftlog.segment.s3_storage",
}
"""By extra of the distribution of the servers: a program."""

_SPARK: Final = """
import fastavro, google.protobuf, pyspark, pyspark_raftmq, spark.task_reader, spark.tables.schema_files
"""

_ELSEWHERE: Final = {"server", "testing", "spark", "tables", "avro", "protobuf", "dev", "docs"}
"""Tried with the servers; for Apache Spark, which `make test-spark` runs; for a checkout."""


def untried() -> set[str]:
    """The extras in pyproject.toml without a program here; empty if each has one."""
    return _extras() - CLIENT_EXTRAS.keys() - SERVER_EXTRAS.keys() - _ELSEWHERE


def _extras() -> set[str]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return set(project["optional-dependencies"])


def install_together(interpreter: Interpreter, directory: Path, client_wheel: Path) -> Environment:
    """A new environment with all extras but those of a checkout: do their dependencies agree? Raises
    CalledProcessError.
    """
    environment = new_environment(interpreter, directory)
    extras = ",".join(sorted(_extras() - {"dev", "docs"}))
    environment.pip("install", "--find-links", str(client_wheel.parent), f"raftmq[{extras}] @ {client_wheel.as_uri()}")
    environment.pip("check")
    return environment


def check_together(environment: Environment, namesrv: str, *, listing: str) -> str:
    """Run the programs of all extras in one environment; returns how much is installed. Raises CalledProcessError."""
    for program, *arguments in CLIENT_EXTRAS.values():
        environment.run("-c", program, namesrv, *arguments)
    for program in [*SERVER_EXTRAS.values(), _SPARK]:
        environment.run("-c", program)
    sizes: dict[str, int] = json.loads(environment.run("-c", listing))
    return f"all extras together: {sum(sizes.values()) / 1e6:.0f} MB in {len(sizes)} distributions"


def check_client_extra(
    extra: str, interpreter: Interpreter, directory: Path, client_wheel: Path, namesrv: str, *, listing: str
) -> str:
    """Run the program of an extra of the client; returns how much is installed. Raises CalledProcessError.

    Args:
        directory: where a new environment is made.
        listing: a program that prints the installed distributions with their bytes, as JSON.
    """
    environment = new_environment(interpreter, directory)
    environment.pip("install", f"raftmq[{extra}] @ {client_wheel.as_uri()}")
    environment.pip("check")
    program, *arguments = CLIENT_EXTRAS[extra]
    environment.run("-c", program, namesrv, *arguments)
    sizes: dict[str, int] = json.loads(environment.run("-c", listing))
    return f"raftmq[{extra}]: {sum(sizes.values()) / 1e6:.1f} MB in {len(sizes)} distributions"


def check_server_extra(extra: str, server: Environment, server_distribution: Path) -> str:
    """Add an extra of the servers to their environment, and run its program. Raises CalledProcessError."""
    server.pip("install", f"raftmq-server[{extra}] @ {server_distribution.as_uri()}")
    server.pip("check")
    server.run("-c", SERVER_EXTRAS[extra])
    return f"raftmq-server[{extra}]: installed and imported"
