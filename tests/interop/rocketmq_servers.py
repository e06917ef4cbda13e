"""RocketMQ's own servers as child processes: its proxy for gRPC clients, and a name server and broker to compare with.

All are of the version `SERVERS_VERSION` unless told otherwise, and listen on the loopback address.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mq.client import Admin, ClientError
from mq.local_cluster import HOST, Ports, Processes
from tests.interop.clients import SERVERS_VERSION, servers_lib

GROUP = "broker-a"
CLUSTER = "DefaultCluster"

READY_SECONDS_MAX = 120.0

_NAMESRV = "org.apache.rocketmq.namesrv.NamesrvStartup"
_BROKER = "org.apache.rocketmq.broker.BrokerStartup"

_OPENED = ("java.base/java.nio", "java.base/sun.nio.ch", "java.base/java.util.concurrent.locks")


def start_java(
    processes: Processes,
    name: str,
    main: str,
    directory: Path,
    arguments: list[str],
    version: str = SERVERS_VERSION,
    options: Mapping[str, str] | None = None,
) -> None:
    """Start a server of RocketMQ; its configuration, data and logs are in ``directory``."""
    options = {
        **(options or {}),
        "user.home": str(directory),
        "rocketmq.home.dir": str(directory),
        "rocketmq.log.dir": str(directory / "logs"),
    }
    opened = [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED]
    command = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *opened]
    command += [*(f"-D{key}={value}" for key, value in options.items()), "-cp", f"{servers_lib(version)}/*", main]
    homes = {"ROCKETMQ_HOME": str(directory), "RMQ_PROXY_HOME": str(directory)}
    processes.start(name, [*command, *arguments], homes, directory=directory)


@dataclass(slots=True)
class RocketMQCluster:
    """A name server and a broker of RocketMQ."""

    namesrv: str
    group: str
    _processes: Processes
    _by_address: dict[str, str] = field(default_factory=dict)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        version: str = SERVERS_VERSION,
        dledger: int = 0,
    ) -> AsyncIterator[RocketMQCluster]:
        """Start both and wait until the broker is registered.

        Args:
            settings: further settings of the broker, by its own names.
            version: of both servers; their jars have been fetched.
            dledger: how many replicas the broker has, with DLedger; 0 for one without.

        Raises:
            ServersFailed: one of them did not come up; its output and logs are in ``directory``.
        """
        ports = Ports.free(4 * max(dledger, 1))  # a broker has further ones: two before, and one behind its own
        namesrv = f"{HOST}:{ports.namesrv}"
        peers = ";".join(f"n{n}-{HOST}:{ports.replication[n]}" for n in range(dledger))
        processes = Processes(directory)
        cluster = cls(namesrv, GROUP, processes)
        try:
            home = directory / "namesrv"
            path = _written(home, {"listenPort": ports.namesrv, "rocketmqHome": home})
            start_java(processes, "namesrv", _NAMESRV, home, ["-c", str(path)], version)
            await processes.wait_listening("namesrv", ports.namesrv, READY_SECONDS_MAX)
            for n in range(max(dledger, 1)):
                home = directory / ("broker" if n == 0 else f"broker-n{n}")
                broker_port = ports.clients[2 + 4 * n]
                given = {
                    "brokerClusterName": CLUSTER,
                    "brokerName": GROUP,
                    "brokerId": 0,
                    "brokerIP1": HOST,
                    "listenPort": broker_port,
                    "haListenPort": broker_port + 1,
                    "namesrvAddr": namesrv,
                    "rocketmqHome": home,
                    "storePathRootDir": home / "store",
                    "mappedFileSizeCommitLog": 64 * 1024 * 1024,
                    "diskMaxUsedSpaceRatio": 95,
                    **(settings or {}),
                }
                if dledger:
                    given |= {"enableDLegerCommitLog": "true", "dLegerGroup": GROUP}
                    given |= {"dLegerPeers": peers, "dLegerSelfId": f"n{n}"}
                path = _written(home, given)
                start_java(processes, home.name, _BROKER, home, ["-c", str(path)], version)
                cluster._by_address[f"{HOST}:{broker_port}"] = home.name
            for address, name in cluster._by_address.items():
                await processes.wait_listening(name, int(address.rpartition(":")[2]), READY_SECONDS_MAX)
            await cluster._wait_registered()
            yield cluster
        finally:
            await processes.stop_all(last=["namesrv"])

    def check(self) -> None:
        """Raises ServersFailed if a server has ended."""
        self._processes.check()

    async def kill_leader(self) -> None:
        """SIGKILL for the replica that leads. Raises ClientError."""
        async with Admin(self.namesrv) as admin:
            leader = (await admin.cluster_info()).brokers[self.group].broker_addrs[0]
        name = self._by_address[leader]
        self._processes.kill(name)
        await self._processes.wait_ended(name)

    async def _wait_registered(self) -> None:
        async def registered() -> bool | None:
            try:
                async with Admin(self.namesrv) as admin:
                    return self.group in (await admin.cluster_info()).brokers or None
            except ClientError:
                return None  # not yet

        await self._processes.wait_until("registered broker of RocketMQ", registered, READY_SECONDS_MAX)


def _written(home: Path, settings: Mapping[str, object]) -> Path:
    (home / "conf").mkdir(parents=True)
    for name in ("namesrv", "broker"):  # servers of 4.9 do not start without
        (home / "conf" / f"logback_{name}.xml").write_text("<configuration/>\n")
    path = home / "server.conf"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path
