"""What a scenario plays on: a cluster, a client's program, and our own client to look at the outcome from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import trio

from mq.client import Admin, MessageQueue, PushConsumer, ReceivedMessage
from mq.client.net.client_core import ClientCore
from mq.local_cluster import DevCluster
from mq.protocol.codes import RequestCode
from mq.protocol.requests.raft_group import GroupAnswer
from mq.protocol.wire import fastjson
from tests.interop.clients import Client
from tests.interop.security import Security

QUEUES = 4
READ_SECONDS_MAX = 30.0

Event = dict[str, Any]


class Unmet(Exception):
    """The outcome is not what it should be; the message says what is, with numbers."""


def require(condition: object, what: object) -> None:
    """Raises Unmet unless ``condition`` is true."""
    if not condition:
        raise Unmet(str(what))


@dataclass
class Program:
    """A running program: what it reports on standard output, line by line."""

    events: list[Event] = field(default_factory=list)
    _changed: trio.Event = field(default_factory=trio.Event)
    _process: trio.Process | None = None

    def of(self, name: str, /, **fields: object) -> list[Event]:
        """The events of that name with these values."""
        return [e for e in self.events if e["event"] == name and all(e.get(k) == v for k, v in fields.items())]

    def one(self, name: str) -> Event:
        """The only event of that name. Raises Unmet."""
        found = self.of(name)
        require(len(found) == 1, f"{len(found)} events {name!r}")
        return found[0]

    async def wait_for(self, *names: str, number: int = 1) -> None:
        """Until it has reported one of these, that often. Raises Unmet when it failed or ended instead."""
        ended = False
        while not any(len(self.of(name)) >= number for name in names):
            self.check()
            require(not ended, f"ended before {' or '.join(names)}")
            ended = self._process is not None and self._process.returncode is not None
            with trio.move_on_after(1 if ended else 0.2):  # its last words may be on their way
                await self._changed.wait()

    async def say(self, line: str) -> None:
        """A line for its standard input. Raises Unmet when it has ended."""
        assert self._process is not None, "not started"
        assert self._process.stdin is not None, "started without a pipe"
        try:
            await self._process.stdin.send_all(line.encode() + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.check()
            raise Unmet("ended before it was told to; see stderr") from error

    def check(self) -> None:
        """Raises Unmet with the program's own words if it has reported failure."""
        for event in self.of("failed"):
            raise Unmet(event["why"])

    async def _read(self, stdout: trio.abc.ReceiveStream, copy: Path) -> None:
        rest = b""
        with copy.open("ab") as file:
            async for chunk in stdout:
                file.write(chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.startswith(b'{"event":'):  # libraries may print there, too
                        self.events.append(json.loads(line))
                self._changed.set()
                self._changed = trio.Event()


class Servers(Protocol):
    """A name server and the brokers behind it."""

    @property
    def namesrv(self) -> str:
        """Address of the name server."""

    @property
    def group(self) -> str:
        """Name of the broker group, or of the only broker."""

    def check(self) -> None:
        """Raises ServersFailed if a server has ended that nobody killed or stopped."""


class RestartableProxy(Protocol):
    """`raftmq proxy`, to be disturbed."""

    async def start(self) -> None:
        """Until it listens at its address. Raises ServersFailed."""

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal, and wait for its end."""


class BrokerLogs:
    """What replicas of ours log from now on; nothing of servers of RocketMQ."""

    def __init__(self, servers: Servers) -> None:
        self._logs: list[Path] = []
        if isinstance(servers, DevCluster):
            self._logs = [servers.log_path(node_id) for node_id in servers.node_ids]
        self._sizes = [log.stat().st_size for log in self._logs]

    def text(self) -> str:
        """All of it."""
        added = (log.read_bytes()[size:] for log, size in zip(self._logs, self._sizes, strict=True))
        return b"".join(added).decode(errors="replace")

    def denials(self) -> list[str]:
        """Why clients were refused what they have no right to; some clients keep that to themselves."""
        lines = [json.loads(line) for line in self.text().splitlines() if '"access_denied"' in line]
        return sorted({line["reason"] for line in lines})


@dataclass(frozen=True)
class Stage:
    """One run of one scenario by one client. ``name`` is its topic, which exists, and begins its groups' names.

    ``address`` is what the program is given: that of the name server, or of the proxy in front of it.
    """

    servers: Servers
    address: str
    client: Client
    security: Security
    directory: Path
    name: str
    proxy: RestartableProxy | None = None
    """The proxy of ours to which the client connects, if it does."""

    @property
    def cluster(self) -> DevCluster:
        """Our own replicas, for scenarios that disturb them."""
        assert isinstance(self.servers, DevCluster), "these are servers of RocketMQ"
        return self.servers

    @asynccontextmanager
    async def playing(self, scenario: str) -> AsyncIterator[Program]:
        """The program at work; it is killed at the end of the block unless it has ended by itself."""
        program = Program()
        arguments = [*self.client.command(self.directory, self.security), scenario, self.address, self.name]
        with (self.directory / "stderr").open("ab") as stderr:
            process = await trio.lowlevel.open_process(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=self.directory,
                env={**os.environ, **self.security.program},
            )
        program._process = process
        assert process.stdout is not None, "started with a pipe"
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(program._read, process.stdout, self.directory / "events")
                nursery.start_soon(process.wait)
                try:
                    yield program
                finally:
                    if process.returncode is None:
                        process.kill()
        finally:
            if process.returncode is None:
                process.kill()
            await process.stdout.aclose()

    async def play(self, scenario: str) -> Program:
        """The program from start to end. Raises Unmet when it fails."""
        async with self.playing(scenario) as program:
            assert program._process is not None, "started"
            await program._process.wait()
            while not program.of("done") and not program.of("failed"):
                with trio.move_on_after(1) as scope:
                    await program._changed.wait()
                if scope.cancelled_caught:
                    break
        program.check()
        require(program.of("done"), f"ended with code {program._process.returncode} without a word; see stderr")
        return program

    async def stored(self, topic: str | None = None) -> list[ReceivedMessage]:
        """All messages of a topic (default: the stage's), read by our own client. Raises Unmet if it takes too long."""
        topic = topic or self.name
        messages: list[ReceivedMessage] = []
        with trio.move_on_after(READ_SECONDS_MAX):
            async with (
                Admin(self.servers.namesrv) as admin,
                PushConsumer(self.servers.namesrv, f"{self.name}-outside", consume_from="first") as consumer,
            ):
                queues = (await admin.route(topic)).read_queues
                ends = {queue: await admin.max_offset(queue) for queue in queues}
                consumer.subscribe(topic)
                if not sum(ends.values()):
                    return []
                async for message in consumer:
                    messages.append(message)
                    if len(messages) == sum(ends.values()):
                        return messages
        raise Unmet(f"{len(messages)} messages of {topic} were read from outside within {READ_SECONDS_MAX:g} s")

    async def count(self, topic: str, queues: Iterable[int] = (0,)) -> int:
        """How many messages these queues have ever held, for topics whose messages clients may not read."""
        async with Admin(self.servers.namesrv) as admin:
            total = 0
            for queue_id in queues:
                total += await admin.max_offset(MessageQueue(topic, self.servers.group, queue_id))
            return total

    async def reset(self, group: str, to_ms: int) -> dict[int, int]:
        """An operator sends the members of ``group`` back to a time; the offset of each queue. Raises BrokerError."""
        ext = {"topic": self.name, "group": group, "timestamp": str(to_ms), "isForce": "true"}
        leader = self.cluster.address(await self.cluster.leader())
        async with ClientCore.open([self.cluster.namesrv]) as remoting:
            _, body = await remoting.call(leader, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
        return {json.loads(queue)["queueId"]: n for queue, n in fastjson.parse(body)["offsetTable"].items()}

    async def recreate(self) -> None:
        """An operator deletes the stage's topic and creates it again with the same queues."""
        async with Admin(self.servers.namesrv) as admin:
            config = (await admin.topic_config(self.name))[self.servers.group]
            await admin.delete_topic(self.name)
            await admin.create_topic(self.name, config.read_queue_nums)

    async def order_pop(self, group: str) -> None:
        """An operator has a group consume the stage's topic by POP. Raises BrokerError."""
        order = {"topic": self.name, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
        leader = self.cluster.address(await self.cluster.leader())
        async with ClientCore.open([self.cluster.namesrv]) as remoting:
            await remoting.call(leader, RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(order).encode())

    async def transfer(self) -> GroupAnswer:
        """Leadership goes to another replica, as an operator orders it. Raises Unmet."""
        from mq.cli.group_session import open_session

        async with open_session(self.cluster.namesrv, None, on_progress=lambda _: None) as session:
            answer = await session.change("transfer")
        require(answer.done, f"transfer: {answer.code} {answer.text}")
        return answer
