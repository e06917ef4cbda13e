"""Lists the Python client that users of each system run: how to install it, and our program for it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from tests.interop.clients import CACHE, run_tool


@dataclass(frozen=True, slots=True)
class ClientLibrary:
    """A client library. ``requirement``: its version on PyPI; "" for ours. ``module``: the program that uses it."""

    name: str
    requirement: str
    module: str

    def environment(self) -> Mapping[str, str]:
        """Return the environment in which Python finds the client's packages."""
        return {"PYTHONPATH": str(CACHE / self.requirement)} if self.requirement else {}

    def install(self) -> None:
        """Install the client's package, unless it is installed. Raises BuildFailed."""
        if self.requirement:
            install_package(self.requirement)


def install_package(requirement: str) -> None:
    """Install a package of PyPI in a given version, into a directory of that name in `CACHE`. Raises BuildFailed."""
    if not (CACHE / requirement).exists():
        target = CACHE / f"{requirement}.part"
        CACHE.mkdir(exist_ok=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(target)]
        run_tool([*pip, requirement], CACHE)
        target.rename(CACHE / requirement)


CLIENTS = {
    "rocketmq": ClientLibrary("raftmq", "", "benchmarks.peers.consuming.client_raftmq"),
    "nats": ClientLibrary("nats-py", "nats-py==2.16.0", "benchmarks.peers.consuming.client_nats"),
    "kafka": ClientLibrary("confluent-kafka", "confluent-kafka==2.16.1", "benchmarks.peers.consuming.client_kafka"),
    "amqp": ClientLibrary("aio-pika", "aio-pika==10.2.1", "benchmarks.peers.consuming.client_amqp"),
}
"""The client libraries by protocol."""
WITH_CLIENTS = frozenset({"raftmq", "nats-2.12", "nats-always", "rabbitmq", "kafka", "kafka-flush"})
"""The systems that are also measured with their clients."""
