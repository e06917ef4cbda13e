"""The lite commands of RocketMQ 5.5.0's `mqadmin` against a broker of ours: each must end, and show what is there.

``python -m tests.interop.lite_mqadmin`` prints what each said, and ends with 1 if one does not show it. Takes about a
minute; needs Java.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import trio

from mq.cli.errors import run_trio
from mq.client import Admin, BrokerError, LiteConsumer, Message, Producer, SubscriptionGroupConfig
from mq.local_cluster import DevCluster, Ports
from tests.interop.clients import build_servers, servers_built, servers_lib, tools_missing
from tests.support.waiting import until_accepted

VERSION = "5.5.0"
MAIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
PARENT, GROUP, LITES = "Sessions", "agents", ("session-17", "session-18")
SECONDS_MAX = 60.0


def mqadmin(home: Path, namesrv: str, arguments: list[str]) -> str:
    """What a command prints. Blocks."""
    options = [f"-Drocketmq.home.dir={home}", f"-Duser.home={home}", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command = ["java", *options, "-cp", f"{servers_lib(VERSION)}/*", MAIN, *arguments, "-n", namesrv]
    environment = {**os.environ, "ROCKETMQ_HOME": str(home)}
    done = subprocess.run(command, capture_output=True, timeout=SECONDS_MAX, env=environment, check=False)
    return done.stdout.decode() + (done.stderr.decode() if done.returncode else "")


async def prepared(namesrv: str) -> None:
    """Create the topic and the group, and send two messages to each of the lite topics."""
    async with Admin(namesrv) as admin, Producer(namesrv, "users") as producer:
        create = partial(admin.create_topic, PARENT, 2, attributes={"message.type": "LITE"})
        await until_accepted(create, BrokerError)  # once the replica has said what it understands
        attributes = {"+lite.bind.topic": PARENT}
        await admin.put_consumer_group(SubscriptionGroupConfig(group_name=GROUP, attributes=attributes))
        for lite in LITES * 2:
            await producer.send(Message(PARENT, b"x", lite_topic=lite))


async def play(directory: Path) -> list[str]:
    """Each command; returns those that do not show what is there."""
    wrong: list[str] = []
    async with DevCluster.open(directory / "raftmq", nodes=1, ports=Ports.free(1)) as cluster:
        await prepared(cluster.namesrv)
        async with LiteConsumer(cluster.namesrv, GROUP, PARENT, lite_topics=LITES) as consumer:
            message = await anext(consumer)  # it is connected, and one lite topic is popped
            client, lite = consumer.client_id, message.lite_topic or ""
            steps: list[tuple[list[str], tuple[str, ...]]] = [
                (["getBrokerLiteInfo", "-b", cluster.address("n0"), "-d"], (cluster.address("n0"), PARENT, GROUP)),
                (["getParentTopicInfo", "-p", PARENT], (PARENT, GROUP)),
                (["getLiteTopicInfo", "-p", PARENT, "-l", lite, "-s"], (lite, client)),
                (["getLiteClientInfo", "-p", PARENT, "-g", GROUP, "-c", client, "-s"], (client, *LITES)),
                (["getLiteGroupInfo", "-p", PARENT, "-g", GROUP], (GROUP, "4")),
                (["getLiteGroupInfo", "-p", PARENT, "-g", GROUP, "-l", lite], ("broker-a", "Total Lag Count: 2")),
                (["triggerLiteDispatch", "-p", PARENT, "-g", GROUP], ("broker-a",)),
            ]
            for arguments, wanted in steps:
                said = await trio.to_thread.run_sync(partial(mqadmin, directory, cluster.namesrv, arguments))
                missing = [each for each in wanted if each not in said]
                if missing or "Exception" in said:
                    wrong.append(f"{' '.join(arguments)}: without {missing}")
                print(f"$ mqadmin {' '.join(arguments)}\n{said.strip()}\n", flush=True)
    return wrong


def main() -> None:
    """Play it on this machine."""
    if (reason := tools_missing("java", "mvn")) is not None:
        sys.exit(f"raftmq: {reason}")
    if not servers_built(VERSION):
        build_servers(VERSION)
    with tempfile.TemporaryDirectory(prefix="raftmq-lite-mqadmin-", ignore_cleanup_errors=True) as directory:
        wrong = run_trio(partial(play, Path(directory)))
    if wrong:
        sys.exit("\n".join(wrong))
    print("all of them show what is there")


if __name__ == "__main__":
    main()
