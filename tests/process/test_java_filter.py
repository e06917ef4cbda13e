"""RocketMQ's Java client 4.9.8, as it is, filters with a class of its own in a filter server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mq.client import Message
from mq.client.sync import SyncAdmin, SyncProducer
from mq.testing import ServerProcesses, running_processes
from tests.free_ports import free_ports
from tests.interop.clients import CACHE, HERE, BuildFailed, JavaClient
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.nightly]

SOURCE = """
package demo;
import org.apache.rocketmq.common.filter.*;
import org.apache.rocketmq.common.message.MessageExt;
public class Large implements MessageFilter {
    public boolean match(MessageExt message, FilterContext context) {
        return context.getConsumerGroup().equals("billing") && Integer.parseInt(message.getProperty("amount")) > 100;
    }
}
"""


@contextmanager
def filter_server(
    servers: ServerProcesses, directory: Path, port: int, *more: str
) -> Iterator[subprocess.Popen[bytes]]:
    """The command, beside the only replica."""
    given = ["--broker", servers.address(servers.replicas[0]), "--namesrv", servers.namesrv]
    given += ["--listen", f"127.0.0.1:{port}", "--set", "metrics_listen=off", "--set", "seconds_per_message=2", *more]
    process = subprocess.Popen(
        [sys.executable, "-m", "mq.cli", "filter-server", *given, "--until-stdin-closes"],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(directory)},  # what is killed leaves its classes there
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def java_consumer(namesrv: str, directory: Path) -> Iterator[Path]:
    """The program; yields the file with what it prints."""
    source, printed = directory / "Large.java", directory / "printed"
    source.write_text(SOURCE)
    options = [f"-Duser.home={directory}", f"-Drocketmq.client.logRoot={directory}", "-XX:TieredStopAtLevel=1"]
    command = ["java", *options, "-cp", f"{CACHE / 'java4' / 'lib'}/*", str(HERE / "java/filtering/Filtering.java")]
    with printed.open("wb") as output, (directory / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [*command, namesrv, "billing", "Orders", "demo.Large", str(source)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
        )
    try:
        yield printed
    finally:
        process.kill()
        process.communicate()


def test_java_client_gets_messages_its_class_accepts(tmp_path: Path) -> None:
    client = JavaClient("java4")
    if (why := client.missing()) is not None or shutil.which("javac") is None:
        pytest.skip(why or "no JDK")
    try:
        client.build(offline=True)
    except BuildFailed as error:
        pytest.skip(f"cannot be built without fetching: {str(error).splitlines()[0]}")
    (port,) = free_ports(1)
    with running_processes(replicas=1) as servers, SyncAdmin(servers.namesrv) as admin:
        admin.create_topic("Orders", queues=2)

        with SyncProducer(servers.namesrv, timeout=30) as producer:

            def send(*amounts: int) -> None:
                for amount in amounts:
                    message = Message("Orders", str(amount).encode(), properties={"amount": str(amount)})
                    producer.send(message)

            send(7, 700, 70)
            with java_consumer(servers.namesrv, tmp_path) as printed:
                log = tmp_path / "rocketmq_client.log"

                def has_printed(*amounts: int) -> bool:
                    return sorted(printed.read_text().split()) == sorted(map(str, amounts))

                with filter_server(servers, tmp_path, port):
                    wait_until(lambda: log.exists() and "start it with --allow-java" in log.read_text(errors="replace"))
                    assert has_printed()
                with filter_server(servers, tmp_path, port, "--allow-java") as process:
                    wait_until(lambda: has_printed(700))
                    send(800, 80)
                    wait_until(lambda: has_printed(700, 800))
                    process.kill()  # while pulls are open: the client waits 30 s for their answers
                with filter_server(servers, tmp_path, port, "--allow-java"):
                    send(90, 900)
                    wait_until(lambda: has_printed(700, 800, 900))
