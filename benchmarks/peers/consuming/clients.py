"""The Python clients that users of each system run: how they are installed, and our programs for them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from tests.interop.clients import CACHE, run_tool


@dataclass(frozen=True, slots=True)
class Client:
    """``requirement``: from PyPI, with its version; "" for our own. ``module``: reads a `Job`, writes a `Consumed`."""

    name: str
    requirement: str
    module: str

    def environment(self) -> Mapping[str, str]:
        """Where its packages are."""
        return {"PYTHONPATH": str(CACHE / self.requirement)} if self.requirement else {}

    def install(self) -> None:
        """Once. Raises BuildFailed."""
        if self.requirement and not (CACHE / self.requirement).exists():
            target = CACHE / f"{self.requirement}.part"
            CACHE.mkdir(exist_ok=True)
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(target)]
            run_tool([*pip, self.requirement], CACHE)
            target.rename(CACHE / self.requirement)


CLIENTS = {
    "rocketmq": Client("raftmq", "", "benchmarks.peers.consuming.client_raftmq"),
    "nats": Client("nats-py", "nats-py==2.16.0", "benchmarks.peers.consuming.client_nats"),
    "amqp": Client("aio-pika", "aio-pika==10.2.1", "benchmarks.peers.consuming.client_amqp"),
}
"""By protocol."""
WITH_CLIENTS = frozenset({"raftmq", "nats-2.12", "nats-always", "rabbitmq"})
"""The systems that are also measured with their clients."""
