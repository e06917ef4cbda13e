"""Compares raftmq proxy with RocketMQ's: CPU per sent and per received message, latency, memory.

Each proxy has a broker of its own system behind it, a single one that syncs before it acknowledges. The same client
(`benchmarks.proxy.load`) sends messages of 1 KiB to both by turns, and receives and acknowledges them, with 1 and with
64 in flight; and the same with 256 lite topics. CPU is the use of the proxy's process, and in brackets the broker's.

``python -m benchmarks.proxy`` (``make bench-proxy``) prints a table, and puts it into docs/grpc-clients.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import trio

from benchmarks.peers.rocketmq import BROKER, NAMESRV, OPENED, start_java
from benchmarks.procfs import REAL_TIME_HELP, load_average, machine, own_cpu_seconds, rss_bytes, run_before_others
from benchmarks.proxy.load import LITE_GROUP
from benchmarks.report.run_record import replace_section
from mq.cli.errors import run_trio
from mq.client import Admin, SubscriptionGroupConfig
from mq.client.errors import ClientError
from mq.local_cluster import HOST, DevCluster, Ports, Processes, open_processes
from mq.protocol.messages.message_types import MESSAGE_TYPE_ATTRIBUTE
from mq.protocol.requests.lite_attributes import BIND_TOPIC, LITE
from tests.interop.clients import build_servers, servers_built, servers_lib, tools_missing

VERSION = "5.5.0"
PAGE = Path(__file__).parents[2] / "docs" / "grpc-clients.md"
BEGIN = "<!-- measured by `make bench-proxy`: begin -->"
END = "<!-- measured by `make bench-proxy`: end -->"
TOPIC, LITE_PARENT, QUEUES = "BenchmarkProxy", "BenchmarkLite", 8
KINDS = ("send", "receive", "send-lite", "receive-lite")
WORK = tuple((kind, in_flight) for kind in KINDS for in_flight in (1, 64))
LITE_SETTINGS = {"storeType": "defaultRocksDB", "enableLmq": "true", "enableMultiDispatch": "true"}
"""Without them, a broker of RocketMQ has no lite topics."""
LITE_SHARE = 10
"""The factor by which fewer messages are sent to lite topics: RocketMQ's broker delivers some ten of them a second."""
BEFORE_OTHERS = " Servers and clients got the processors before the other work (`--real-time`)."
_MIB = 1024 * 1024


@dataclass(slots=True)
class RunningProxy:
    """A running proxy, and the broker behind it. ``figures``: one for each round, by work and messages in flight."""

    name: str
    address: str
    proxy: int
    broker: int
    figures: dict[tuple[str, int], list[TurnFigures]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """The figures of one turn: CPU in microseconds per message, latency in milliseconds."""

    proxy_us: float
    broker_us: float
    p50_ms: float
    p99_ms: float
    per_second: float


@asynccontextmanager
async def raftmq(directory: Path) -> AsyncIterator[RunningProxy]:
    """Run one replica of raftmq, and raftmq proxy."""
    async with DevCluster.open(directory / "raftmq", nodes=1, ports=Ports.free(1)) as cluster:
        async with Admin(cluster.namesrv) as admin:
            with trio.fail_after(30):
                while not await _created(admin):  # noqa: ASYNC110 - the group is just being formed
                    await trio.sleep(0.1)
        with open_processes(directory) as servers:
            port = Ports.free(1).namesrv
            command = [
                sys.executable,
                "-m",
                "mq.cli",
                "proxy",
                "--namesrv",
                cluster.namesrv,
                "--listen",
                f"{HOST}:{port}",
            ]
            pid = servers.start("raftmq-proxy", [*command, "--set", "metrics_listen=off"])
            await servers.wait_listening("raftmq proxy", port)
            yield RunningProxy("raftmq", f"{HOST}:{port}", pid, cluster.pid(cluster.node_ids[0]))


@asynccontextmanager
async def rocketmq(directory: Path) -> AsyncIterator[RunningProxy]:
    """Run a name server, a broker and a proxy of RocketMQ."""
    ports = Ports.free(8)
    namesrv = f"{HOST}:{ports.namesrv}"
    with open_processes(directory) as servers:
        start_java(servers, "namesrv", NAMESRV, {"listenPort": ports.namesrv}, VERSION)
        await servers.wait_listening("namesrv", ports.namesrv)
        broker_port = ports.clients[2]
        settings = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "brokerRole": "ASYNC_MASTER",
            "brokerIP1": HOST,
            "listenPort": broker_port,
            "haListenPort": broker_port + 1,
            "namesrvAddr": namesrv,
            "storePathRootDir": directory / "rocketmq-store",
            "flushDiskType": "SYNC_FLUSH",
            "diskMaxUsedSpaceRatio": "95",
            "osPageCacheBusyTimeOutMills": "60000",
            "waitTimeMillsInSendQueue": "60000",
            **LITE_SETTINGS,
        }
        broker = start_java(servers, "broker", BROKER, settings, VERSION)
        await servers.wait_until("broker", partial(_topics_created, namesrv))
        address = await _start_proxy(servers, directory / "proxy", namesrv, ports)
        yield RunningProxy(f"RocketMQ {VERSION}", *address, broker)


async def _topics_created(namesrv: str) -> bool | None:
    try:
        async with Admin(namesrv) as admin:
            if "broker-a" not in (await admin.cluster_info()).brokers:
                return None
            # The proxy creates this one, and ends if name servers do not know it at once.
            await admin.create_topic("DefaultHeartBeatSyncerTopic", 1)
            return await _created(admin) or None
    except ClientError:
        return None


async def _created(admin: Admin) -> bool:
    try:
        await _create(admin)
    except ClientError:
        return False
    return True


async def _create(admin: Admin) -> None:
    """Create the topics. Raises ClientError, as while a group of brokers is being formed."""
    await admin.create_topic(TOPIC, QUEUES)
    await admin.create_topic(LITE_PARENT, QUEUES, attributes={MESSAGE_TYPE_ATTRIBUTE: LITE})
    group = SubscriptionGroupConfig(group_name=LITE_GROUP, attributes={f"+{BIND_TOPIC}": LITE_PARENT})
    await admin.put_consumer_group(group)


async def _start_proxy(servers: Processes, home: Path, namesrv: str, ports: Ports) -> tuple[str, int]:
    port, remoting_port = ports.replication[:2]
    (home / "conf").mkdir(parents=True)
    settings = {
        "rocketMQClusterName": "DefaultCluster",
        "namesrvAddr": namesrv,
        "grpcServerPort": port,
        "remotingListenPort": remoting_port,
        "localServeAddr": HOST,
    }
    path = home / "conf" / "rmq-proxy.json"
    path.write_text(json.dumps(settings) + "\n")
    options = {"user.home": home, "rocketmq.home.dir": home, "rocketmq.log.dir": home / "logs"}
    command = ["java", "-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC"]
    command += [f"--add-opens={package}=ALL-UNNAMED" for package in OPENED]
    command += [*(f"-D{key}={value}" for key, value in options.items()), "-cp", f"{servers_lib(VERSION)}/*"]
    main = "org.apache.rocketmq.proxy.ProxyStartup"
    pid = servers.start("proxy", [*command, main, "-pc", str(path)], {"RMQ_PROXY_HOME": str(home)})
    await servers.wait_listening("proxy", port)
    return f"{HOST}:{port}", pid


async def turn(system: RunningProxy, work: str, in_flight: int, count: int) -> TurnFigures:
    """Put one load on one system, from a separate process."""
    before = own_cpu_seconds(system.proxy), own_cpu_seconds(system.broker)
    topic = LITE_PARENT if work.endswith("lite") else TOPIC
    command = [sys.executable, "-m", "benchmarks.proxy.load", system.address, topic, work, str(in_flight), str(count)]
    process = await trio.run_process(command, capture_stdout=True)
    report = json.loads(process.stdout)
    proxy, broker = own_cpu_seconds(system.proxy) - before[0], own_cpu_seconds(system.broker) - before[1]
    per_message = 1e6 / count
    return TurnFigures(
        proxy * per_message,
        broker * per_message,
        report["p50_ms"],
        report["p99_ms"],
        count / max(report["seconds"], 1e-9),
    )


def table(systems: list[RunningProxy]) -> str:
    """Format the medians of all rounds as a table."""
    rows = [
        "| work | in flight | proxy | CPU us/message (broker) | p50 ms | p99 ms | messages/s |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for work in WORK:
        for system in systems:
            turns = system.figures[work]
            proxy, broker = median(each.proxy_us for each in turns), median(each.broker_us for each in turns)
            p50, p99 = median(each.p50_ms for each in turns), median(each.p99_ms for each in turns)
            rate = median(each.per_second for each in turns)
            load = f"{work[0].replace('-', ', ')} | {work[1]} | {system.name}"
            rows.append(f"| {load} | {proxy:.0f} ({broker:.0f}) | {p50:.1f} | {p99:.1f} | {rate:,.0f} |")
    return "\n".join(rows)


async def measure(directory: Path, messages: int, rounds: int, warm_up: int, *, real_time: bool) -> str:
    """Measure both systems in turns. Returns the report."""
    before = load_average()
    async with raftmq(directory) as ours, rocketmq(directory) as theirs:
        systems = [ours, theirs]
        for system in systems:
            await turn(system, "send", 64, warm_up)
            await turn(system, "prime", 1, 1)
            for work in ("send-lite", "receive-lite"):
                await turn(system, work, 64, warm_up // LITE_SHARE)
        idle = {system.name: rss_bytes(system.proxy) / _MIB for system in systems}
        for _ in range(rounds):
            for work, in_flight in WORK:
                count = (messages if in_flight > 1 else messages // 5) // (LITE_SHARE if work.endswith("lite") else 1)
                count = max(1, count)
                for system in systems:
                    figures = await turn(system, work, in_flight, count)
                    system.figures.setdefault((work, in_flight), []).append(figures)
        medians = "One round" if rounds == 1 else f"Medians of {rounds} rounds"
        how = BEFORE_OTHERS if real_time else ""
        lines = [
            f"On {dt.datetime.now(tz=dt.UTC):%Y-%m-%d}, {machine()}, with other work: load average {before:.1f} before"
            f" and {load_average():.1f} after. {medians}, by turns.{how}",
            "",
            table(systems),
            "",
        ]
        rss = {system.name: rss_bytes(system.proxy) / _MIB for system in systems}
        for name, after in rss.items():
            lines.append(f"Memory of the proxy of {name}: {idle[name]:.0f} MiB warm, {after:.1f} MiB after.  ")
        lines.append(f"That of raftmq takes {rss[ours.name] / rss[theirs.name]:.1%} of the memory of the other one.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=5_000, help="messages of a turn with 64 in flight")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=5_000, help="messages sent before: Java compiles what is busy")
    parser.add_argument("--real-time", action="store_true", help=REAL_TIME_HELP)
    options = parser.parse_args()
    if options.real_time:
        run_before_others()
    if (reason := tools_missing("java")) is not None:
        sys.exit(f"raftmq: {reason}: apt-get install openjdk-17-jre-headless")
    if not servers_built(VERSION):
        build_servers(VERSION)
    with tempfile.TemporaryDirectory(prefix="raftmq-bench-") as directory:
        plan = options.messages, options.rounds, options.warm_up
        table = run_trio(partial(measure, Path(directory), *plan, real_time=options.real_time))
    print(table)
    PAGE.write_text(replace_section(PAGE.read_text(), table, BEGIN, END))


if __name__ == "__main__":
    main()
