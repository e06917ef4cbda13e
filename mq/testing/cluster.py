"""The servers of a kit, a name server and the replicas of one broker group, in the event loop that opens them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

import anyio.abc
import structlog
import trio
from pydantic_settings import PydanticBaseSettingsSource

from mq.broker.broker import Broker
from mq.broker.context import BrokerContext
from mq.broker.limits import DEFAULT, BrokerLimits
from mq.broker.server import serve as serve_broker
from mq.broker.settings import BrokerSettings
from mq.broker.state.format_level import announced_level
from mq.client import Admin, ClientError
from mq.client.task_group import open_task_group
from mq.local_cluster.any_disk import ANY_DISK
from mq.namesrv.server import serve as serve_names
from mq.namesrv.settings import NamesrvSettings
from mq.testing.clock import KitClock
from mq.testing.directory import new_directory
from mq.testing.faults import Faults
from mq.testing.machine import KitMachine
from mq.testing.network import Network, StreamListener
from raftlog import standing_in
from raftlog.net.secret_file import FILE_NAME, create_secret

NAME_SERVER_PORT: Final = 9876
_CLIENT_PORT = 10911
_REPLICA_PORT = 40911

_FOREVER_HOURS = 1_000_000.0
_SEGMENT_BYTES = 8 * 1024 * 1024

LIMITS: Final = replace(
    DEFAULT,
    consume=replace(DEFAULT.consume, expire_seconds=0.25, expire_some_seconds=0.5),
    pop=replace(DEFAULT.pop, revive_seconds=0.25),
    waiting=replace(DEFAULT.waiting, deliver_seconds=0.25, check_seconds=0.25),
    upkeep=replace(DEFAULT.upkeep, raise_level_seconds=0.25),
)
"""Slower timers than in production: a tick costs a test whose clock is virtual, and advancing the clock runs them."""

_LOGGER: Final = logging.getLogger("raftmq.testing")
_LOGGER.addHandler(logging.NullHandler())
_SAYS_NOTHING = frozenset(("broker_connection_closed", "clients_not_authenticated", "retention_waits_for_clock"))


class _OwnSettings:
    """The settings of a kit, which ignore the environment of the tests."""

    @classmethod
    def _sources(
        cls, flags: PydanticBaseSettingsSource, environment: PydanticBaseSettingsSource
    ) -> list[PydanticBaseSettingsSource]:
        del environment
        return [flags]


class _KitBrokerSettings(_OwnSettings, BrokerSettings):
    pass


class _KitNamesrvSettings(_OwnSettings, NamesrvSettings):
    pass


class Cluster:
    """Runs the replicas of a test kit's broker group in this process.

    Attributes:
        replicas: the ids of all replicas.
    """

    def __init__(
        self, network: Network, clock: KitClock, directory: Path, replica_count: int, options: Mapping[str, Any]
    ) -> None:
        self.network = network
        self.clock = clock
        self.replicas = tuple(f"n{number}" for number in range(replica_count))
        self._directory = directory
        self._options = options
        self._brokers: dict[str, Broker] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, replica_count: int, options: Mapping[str, Any]) -> AsyncIterator[Self]:
        """Start all servers, and wait until they serve clients. Stop them at the end of the block.

        Raises ValueError, pydantic.ValidationError for settings that a broker does not have.
        """
        if replica_count not in (1, 3, 5):
            raise ValueError(f"a group has 1, 3 or 5 replicas, not {replica_count}")
        network, clock = Network(Faults()), KitClock()
        with new_directory() as directory:
            cluster = cls(network, clock, directory, replica_count, options)
            settings = {node: cluster._settings(node) for node in cluster.replicas}
            create_secret(str(directory / FILE_NAME))  # else only the first replica makes it, when it starts
            async with network.open(), open_task_group() as servers:
                try:
                    await cluster._start(servers, settings)
                    yield cluster
                    cluster.check_invariants()
                finally:
                    network.close_all()

    @property
    def namesrv(self) -> str:
        """The address of the name server."""
        return f"{self.network.host}:{NAME_SERVER_PORT}"

    def address(self, node_id: str) -> str:
        """Return the client address of a replica."""
        return f"{self.network.host}:{_CLIENT_PORT + int(node_id[1:])}"

    @property
    def leader(self) -> str | None:
        """The replica that accepts messages now. A replica that was cut off may still believe that it leads."""
        leaders = [
            (broker.context.replica.core.term, node_id)
            for node_id, broker in self._brokers.items()
            if broker.appender.is_open and not self.network.is_cut_off(node_id)
        ]
        return max(leaders)[1] if leaders else None

    @property
    def context(self) -> BrokerContext:
        """The state of the broker that leads. Raises RuntimeError while none leads."""
        leader = self.leader
        if leader is None:
            raise RuntimeError("no replica leads at the moment: call wait_ready()")
        return self._brokers[leader].context

    def check_invariants(self) -> None:
        """Assert the invariants of each broker, as a simulation does after each turn."""
        for broker in self._brokers.values():
            broker.check_invariants()

    def run_timers(self) -> None:
        """Run the timed work of the brokers now."""
        for broker in self._brokers.values():
            for _, action, _ in broker.services.periodic:
                action()
            broker.context.reactor.end_turn()

    async def wait_ready(self) -> None:
        """Wait until a replica leads and clients find it."""
        async with Admin(self.namesrv) as admin:
            while True:
                if self.leader is not None:
                    with contextlib.suppress(ClientError):
                        await admin.ping()
                        return
                await trio.sleep(0.001)

    async def wait_following(self, node_id: str) -> None:
        """Wait until a replica has applied all entries that the leader has committed."""
        while True:
            leader = self.leader
            replica = self._brokers[node_id].context.replica
            follows = leader is not None and replica.core.leader_id == leader
            if follows and replica.applied_index >= self.context.replica.commit_index:
                return
            await trio.sleep(0.001)

    async def _start(self, servers: anyio.abc.TaskGroup, settings: Mapping[str, BrokerSettings]) -> None:
        names = _KitNamesrvSettings(
            listen_host=self.network.host,
            listen_port=NAME_SERVER_PORT,
            data_dir=None,
            metrics_listen="off",
        )
        listener = StreamListener(self.network, "namesrv", NAME_SERVER_PORT)
        servers.start_soon(_serve_names, names, listener)
        for node_id in self.replicas:
            servers.start_soon(self._serve, node_id, settings[node_id])
        await self.wait_ready()
        await self._wait_level()

    async def _wait_level(self) -> None:
        """Wait until the group has the highest format level that its settings allow: tests use the newest features.

        In a broker process this takes a second, since its leader looks once per second.
        """
        while True:
            if self.leader is not None:
                context = self.context
                if context.metadata.format_level.level >= announced_level(context.settings.format_level_max):
                    return
                self.run_timers()
            await trio.sleep(0.001)

    async def _serve(self, node_id: str, settings: BrokerSettings) -> None:
        def on_broker(broker: Broker) -> None:
            self._brokers[node_id] = broker

        with standing_in(KitMachine(node_id, self.network, self.clock)):
            await serve_broker(settings, self._limits(), log=_log(), on_broker=on_broker)

    def _limits(self) -> BrokerLimits:
        return LIMITS

    def _settings(self, node_id: str) -> BrokerSettings:
        host, number = self.network.host, int(node_id[1:])
        ours: dict[str, Any] = {
            "cluster": "TestCluster",
            "node_id": node_id,
            "peers": ",".join(f"{each}@{host}:{_REPLICA_PORT + int(each[1:])}" for each in self.replicas),
            "listen": f"{host}:{_CLIENT_PORT + number}",
            "namesrv": self.namesrv,
            "data_dir": self._directory / node_id,
            "secret_file": self._directory / FILE_NAME,
            "metrics_listen": "off",
            "segment_bytes": _SEGMENT_BYTES,
            "retention_hours": _FOREVER_HOURS,
            **ANY_DISK,
        }
        if len(self.replicas) > 1:
            # Elections of a test take as long as they must.
            ours |= {
                "heartbeat_seconds": 0.02,
                "election_timeout_seconds_min": 0.1,
                "election_timeout_seconds_max": 0.2,
            }
        if fixed_names := self._options.keys() & ours.keys() & _FIXED:
            raise ValueError(f"the test kit sets {', '.join(sorted(fixed_names))} itself")
        return _KitBrokerSettings(**ours | dict(self._options))


_FIXED = frozenset(("node_id", "peers", "listen", "namesrv", "data_dir", "secret_file", "metrics_listen"))


async def _serve_names(settings: NamesrvSettings, listener: StreamListener) -> None:
    await serve_names(settings, listener=listener, log=_log())


def _log() -> structlog.stdlib.BoundLogger:
    """Python's logging under the name ``raftmq.testing``."""
    log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        _LOGGER,
        processors=[structlog.stdlib.filter_by_level, _as_text],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return log


def _as_text(_: Any, __: str, event: Any) -> Any:
    if event["event"] in _SAYS_NOTHING:
        raise structlog.DropEvent
    exc_info = event.pop("exc_info", None)
    text = " ".join([event.pop("event"), *(f"{name}={value!r}" for name, value in event.items())])
    return (text,), {"exc_info": exc_info}
