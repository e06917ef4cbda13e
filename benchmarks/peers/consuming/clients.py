"""The Python clients that users of each system run: how they are installed, and our programs for them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from tests.interop.clients import CACHE, run_tool


@dataclass(frozen=True, slots=True)
class Client:
    """A client library. ``requirement``: a version on PyPI; "" for our own. ``module``: makes a `ConsumerResult`."""

    name: str
    requirement: str
    module: str

    def environment(self) -> Mapping[str, str]:
        """The environment in which Python finds its packages."""
        return {"PYTHONPATH": str(CACHE / self.requirement)} if self.requirement else {}

    def install(self) -> None:
        """Install the client's package, once. Raises BuildFailed."""
        if self.requirement:
            install_package(self.requirement)


def install_package(requirement: str) -> None:
    """Have a package of PyPI, given with its version, in a directory of that name in `CACHE`. Raises BuildFailed."""
    if not (CACHE / requirement).exists():
        target = CACHE / f"{requirement}.part"
        CACHE.mkdir(exist_ok=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(target)]
        run_tool([*pip, requirement], CACHE)
        target.rename(CACHE / requirement)


CLIENTS = {
    "rocketmq": Client("raftmq", "", "benchmarks.peers.consuming.client_raftmq"),
    "nats": Client("nats-py", "nats-py==2.16.0", "benchmarks.peers.consuming.client_nats"),
    "kafka": Client("confluent-kafka", "confluent-kafka==2.16.1", "benchmarks.peers.consuming.client_kafka"),
    "amqp": Client("aio-pika", "aio-pika==10.2.1", "benchmarks.peers.consuming.client_amqp"),
}
"""The client libraries by protocol."""
WITH_CLIENTS = frozenset({"raftmq", "nats-2.12", "nats-always", "rabbitmq", "kafka", "kafka-flush"})
"""The systems that are also measured with their clients."""
