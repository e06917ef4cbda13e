"""Runs RocketMQ's servers: three nodes with DLedger, or a single one that syncs each message. Jars come from Maven."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from benchmarks.load.frames import QUEUES, TOPIC
from benchmarks.peers.peer import Peer, Target
from mq.client.admin import Admin
from mq.client.errors import ClientError
from mq.local_cluster import HOST, Ports, Processes, open_processes
from tests.interop.clients import build_servers, servers_built, servers_lib, tools_missing

GROUP = "broker-a"
DLEDGER_VERSION, SINGLE_VERSION = "4.9.7", "5.3.3"
DLEDGER_NODES = 3

_JVM = ("-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=1g")
OPENED = ("java.base/java.nio", "java.base/sun.nio.ch", "java.base/java.util.concurrent.locks")
NAMESRV, BROKER = "org.apache.rocketmq.namesrv.NamesrvStartup", "org.apache.rocketmq.broker.BrokerStartup"

_PATIENT = {
    "waitTimeMillsInSendQueue": "60000",
    "osPageCacheBusyTimeOutMills": "60000",
    "sendThreadPoolQueueCapacity": "100000",
    "sendMessageThreadPoolNums": "16",
    "diskMaxUsedSpaceRatio": "95",
}
"""Settings against refusals of messages that waited for 200 ms. Thread counts are as in the DLedger examples."""


def start_java(servers: Processes, name: str, main: str, settings: Mapping[str, object], version: str) -> int:
    home = servers.logs / name
    home.mkdir()
    (home / "conf").mkdir()
    for log in ("logback_namesrv.xml", "logback_broker.xml"):  # servers of 4.9 do not start without it
        (home / "conf" / log).write_text("<configuration/>\n")
    path = home / "server.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in {**settings, "rocketmqHome": home}.items()))
    options = {"user.home": home, "rocketmq.home.dir": home, "rocketmq.log.dir": home / "logs"}
    command = ["java", *_JVM, *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED)]
    command += [*(f"-D{key}={value}" for key, value in options.items()), "-cp", f"{servers_lib(version)}/*", main]
    return servers.start(name, [*command, "-c", str(path)], {"ROCKETMQ_HOME": str(home)})


@asynccontextmanager
async def _open(version: str, nodes: int, directory: Path) -> AsyncIterator[Target]:
    base = Ports.free(2 * nodes + 1).namesrv
    namesrv = f"{HOST}:{base}"
    with open_processes(directory) as servers:
        start_java(servers, "namesrv", NAMESRV, {"listenPort": base}, version)
        await servers.wait_listening("namesrv", base)
        # A broker also listens two ports below its own, and one above.
        ports = {f"n{number}": base + 3 + 4 * number for number in range(nodes)}
        log_port = base + 4 * nodes + 1
        peers = ";".join(f"{node}-{HOST}:{log_port + number}" for number, node in enumerate(ports))
        pids = []
        for node, port in ports.items():
            settings: dict[str, object] = {
                "brokerClusterName": "DefaultCluster",
                "brokerName": GROUP,
                "brokerIP1": HOST,
                "listenPort": port,
                "haListenPort": port + 1,
                "namesrvAddr": namesrv,
                "storePathRootDir": directory / node / "store",
                **_PATIENT,
            }
            if nodes > 1:
                settings |= {"enableDLegerCommitLog": "true", "dLegerGroup": GROUP, "dLegerPeers": peers}
                settings |= {"dLegerSelfId": node}
            else:
                settings |= {"brokerId": 0, "brokerRole": "ASYNC_MASTER", "flushDiskType": "SYNC_FLUSH"}
            pids.append(start_java(servers, node, BROKER, settings, version))

        async def leader() -> str | None:
            try:
                async with Admin(namesrv) as admin:
                    group = (await admin.cluster_info()).brokers.get(GROUP)
                    if group is None or len(group.broker_addrs) < nodes or 0 not in group.broker_addrs:
                        return None
                    await admin.create_topic(TOPIC, QUEUES)
                    return group.broker_addrs[0]
            except ClientError:
                return None  # not yet

        host, _, port_text = (await servers.wait_until("leader of RocketMQ", leader)).rpartition(":")
        yield Target((host, int(port_text)), pids, servers.check)


def _missing_programs(version: str) -> str | None:
    if (reason := tools_missing("java")) is not None:
        return f"{reason}: apt-get install openjdk-17-jre-headless"
    if not servers_built(version) and (reason := tools_missing("mvn")) is not None:
        return f"{reason}: apt-get install maven"
    return None


def _prepare(version: str) -> None:
    if not servers_built(version):
        build_servers(version)


ROCKETMQ = (
    Peer(
        name="rocketmq-dledger",
        system="RocketMQ with DLedger",
        replicas=DLEDGER_NODES,
        durability="majority, page cache",
        settings="1 GiB of heap with G1; 16 send threads; messages are not refused for waiting too long",
        wire="rocketmq",
        has_batches=True,
        missing_programs=partial(_missing_programs, DLEDGER_VERSION),
        prepare=partial(_prepare, DLEDGER_VERSION),
        version=lambda: DLEDGER_VERSION,
        open=partial(_open, DLEDGER_VERSION, DLEDGER_NODES),
        is_jvm=True,
    ),
    Peer(
        name="rocketmq-single",
        system="RocketMQ, a single broker",
        replicas=1,
        durability="one server, on disk",
        settings="`flushDiskType=SYNC_FLUSH`; otherwise as with DLedger",
        wire="rocketmq",
        has_batches=True,
        missing_programs=partial(_missing_programs, SINGLE_VERSION),
        prepare=partial(_prepare, SINGLE_VERSION),
        version=lambda: SINGLE_VERSION,
        open=partial(_open, SINGLE_VERSION, 1),
        is_jvm=True,
    ),
)
