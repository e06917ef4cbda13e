"""RocketMQ's own servers as child processes: its proxy for gRPC clients, and a name server and broker to compare with.

All are of the version `SERVERS_VERSION` unless told otherwise, and listen on the loopback address.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from mq.cli.dev_cluster import HOST, DevClusterFailed, Ports
from mq.client import Admin, ClientError
from tests.interop.clients import SERVERS_VERSION, servers_lib

GROUP = "broker-a"
CLUSTER = "DefaultCluster"

READY_SECONDS_MAX = 120.0
_STOP_SECONDS_MAX = 10.0

_NAMESRV = "org.apache.rocketmq.namesrv.NamesrvStartup"
_BROKER = "org.apache.rocketmq.broker.BrokerStartup"

_OPENED = ("java.base/java.nio", "java.base/sun.nio.ch", "java.base/java.util.concurrent.locks")


@dataclass(slots=True)
class RocketMQServer:
    """A running JVM; its configuration, data, logs and output are in ``directory``."""

    name: str
    directory: Path
    process: trio.Process

    @classmethod
    async def start(
        cls,
        name: str,
        main: str,
        directory: Path,
        arguments: list[str],
        version: str = SERVERS_VERSION,
        options: Mapping[str, str] | None = None,
    ) -> RocketMQServer:
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
        with (directory / "output").open("ab") as output:
            process = await trio.lowlevel.open_process(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={**os.environ, **homes},
                start_new_session=True,
            )
        return cls(name, directory, process)

    def check(self) -> None:
        """Raises DevClusterFailed if it has ended."""
        code = self.process.poll()
        if code is not None:
            raise DevClusterFailed(f"{self.name} stopped with exit code {code}; see {self.directory}")

    async def wait_listening(self, port: int) -> None:
        """Until it accepts connections. Raises DevClusterFailed."""
        with trio.move_on_after(READY_SECONDS_MAX):
            while True:
                self.check()
                try:
                    stream = await trio.open_tcp_stream(HOST, port)
                except OSError:
                    await trio.sleep(0.2)
                else:
                    await trio.aclose_forcefully(stream)
                    return
        raise DevClusterFailed(f"{self.name} does not listen on port {port}; see {self.directory}")

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL if it takes too long."""
        with trio.CancelScope(shield=True):
            for number in (signal.SIGTERM, signal.SIGKILL):
                if self.process.poll() is None:
                    self.process.send_signal(number)
                    with trio.move_on_after(_STOP_SECONDS_MAX):
                        await self.process.wait()


@dataclass(slots=True)
class RocketMQCluster:
    """A name server and a broker of RocketMQ."""

    namesrv: str
    group: str
    _servers: list[RocketMQServer]
    _by_address: dict[str, RocketMQServer] = field(default_factory=dict)

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
            DevClusterFailed: one of them did not come up; its output and logs are in ``directory``.
        """
        ports = Ports.free(4 * max(dledger, 1))  # a broker has further ones: two before, and one behind its own
        namesrv = f"{HOST}:{ports.namesrv}"
        peers = ";".join(f"n{n}-{HOST}:{ports.replication[n]}" for n in range(dledger))
        cluster = cls(namesrv, GROUP, [])
        try:
            home = directory / "namesrv"
            path = _written(home, {"listenPort": ports.namesrv, "rocketmqHome": home})
            server = await RocketMQServer.start("the name server", _NAMESRV, home, ["-c", str(path)], version)
            cluster._servers.append(server)
            await server.wait_listening(ports.namesrv)
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
                server = await RocketMQServer.start(
                    "the broker", _BROKER, home, ["-c", str(_written(home, given))], version
                )
                cluster._servers.append(server)
                cluster._by_address[f"{HOST}:{broker_port}"] = server
            for address, server in cluster._by_address.items():
                await server.wait_listening(int(address.rpartition(":")[2]))
            await cluster._wait_registered()
            yield cluster
        finally:
            for server in reversed(cluster._servers):
                await server.stop()

    def check(self) -> None:
        """Raises DevClusterFailed if a server has ended."""
        for server in self._servers:
            server.check()

    async def kill_leader(self) -> None:
        """SIGKILL for the replica that leads. Raises ClientError."""
        async with Admin(self.namesrv) as admin:
            leader = (await admin.cluster_info()).brokers[self.group].broker_addrs[0]
        server = self._by_address[leader]
        self._servers.remove(server)  # `check` must not miss it
        server.process.kill()
        await server.process.wait()

    async def _wait_registered(self) -> None:
        with trio.move_on_after(READY_SECONDS_MAX):
            while True:
                self.check()
                try:
                    async with Admin(self.namesrv) as admin:
                        if self.group in (await admin.cluster_info()).brokers:
                            return
                except ClientError:
                    pass  # not yet
                await trio.sleep(0.2)
        raise DevClusterFailed(f"RocketMQ's broker did not register within {READY_SECONDS_MAX:g} s")


def _written(home: Path, settings: Mapping[str, object]) -> Path:
    (home / "conf").mkdir(parents=True)
    for name in ("namesrv", "broker"):  # servers of 4.9 do not start without
        (home / "conf" / f"logback_{name}.xml").write_text("<configuration/>\n")
    path = home / "server.conf"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path
