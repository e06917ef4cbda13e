"""A stock client that never looks its route up again, while leadership moves and leaders die: three processes."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.client import Admin
from mq.local_cluster import DevCluster, Ports
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import split_frames
from mq.protocol.incoming.headers import Response
from mq.protocol.incoming.server_decoding import decode_header
from mq.protocol.requests.clients import ConsumerData, HeartbeatData, QueueLocks, SubscriptionData
from mq.protocol.wire.encoding import encode_request
from mq.protocol.wire.queue_tables import QueueRef
from tests.support.real_groups import transfer
from tests.support.running_broker import Client, pull_ext, send_ext
from tests.support.waiting import until, until_accepted

pytestmark = [pytest.mark.process, pytest.mark.slow]

TIMEOUT_SECONDS = 20.0
"""How long a client waits for an response. Stock ones wait for three seconds, which a busy machine needs for itself."""
SENDS_PER_SECOND = 1000
REGISTRATION_SECONDS = 30.0
"""How often brokers register when nothing has changed."""
QUEUES = 4


class StockClient:
    """One connection to one address; keeps count of everything that it asks for. Fails like stock clients do."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.errors: list[str] = []
        self.stored: list[tuple[bytes, int, int]] = []
        """Body, queue, queue offset."""
        self.seconds: list[float] = []
        self.given_back = 0
        self.committed: dict[int, int] = {}
        self.last_position = -1
        self._opaque = itertools.count(1)
        self._waiting: dict[int, tuple[float, Callable[[Response], None]]] = {}
        self.ended = False

    async def ask(
        self,
        code: int,
        ext: dict[str, Any],
        body: bytes,
        on_response: Callable[[Response], None],
        *,
        oneway: bool = False,
    ) -> None:
        opaque = next(self._opaque)
        if not oneway:
            self._waiting[opaque] = (trio.current_time(), on_response)
        fields = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in ext.items()}
        frame = encode_request(code, opaque, ext=fields, body=body, oneway=oneway, language="JAVA")
        try:
            with trio.CancelScope(shield=True):  # what is waited for has been sent
                await self.stream.send_all(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.ended = True  # `receive` notices and tells

    async def receive(self) -> None:
        """Take answers until the connection is closed."""
        received = bytearray()
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while chunk := await self.stream.receive_some():
                received += chunk
                frames, consumed = split_frames(memoryview(bytes(received)))
                del received[:consumed]
                for serialization, header, _ in frames:
                    response = decode_header(serialization, header)
                    if isinstance(response, Response):
                        since, on_response = self._waiting.pop(response.opaque)
                        self.seconds.append(trio.current_time() - since)
                        if self.seconds[-1] > TIMEOUT_SECONDS:
                            self.errors.append(f"response after {self.seconds[-1]:.1f} s")
                        on_response(response)
        self.errors.append("the connection was closed")
        self.ended = True

    async def send(self, body: bytes, queue: int) -> None:
        def on_response(response: Response) -> None:
            if response.code != ResponseCode.SUCCESS:
                self.errors.append(f"send: code {response.code}, {response.remark}")
            else:
                self.stored.append((body, int(response.ext["queueId"]), int(response.ext["queueOffset"])))
                self.last_position = int(response.ext["msgId"][-16:], 16)

        await self.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T", e=queue), body, on_response)

    async def commit(self, queue: int, offset: int, *, oneway: bool) -> None:
        ext = {"consumerGroup": "G", "topic": "T", "queueId": queue, "commitOffset": offset}

        def committed(response: Response) -> None:
            self.committed[queue] = offset

        await self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext, b"", self._expect("commit", committed), oneway=oneway)

    async def send_back(self) -> None:
        """Give the last message that was stored back, for a second."""

        def taken(response: Response) -> None:
            self.given_back += 1

        ext = {"offset": self.last_position, "group": "G", "delayLevel": 1, "originTopic": "T"}
        await self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext, b"", self._expect("send back", taken))

    async def heartbeat(self) -> None:
        consumer = ConsumerData(group="G", subscriptions=[SubscriptionData(topic="T")])
        body = HeartbeatData(client_id="C", consumers=[consumer]).encode()
        await self.ask(RequestCode.HEART_BEAT, {}, body, self._expect("heartbeat"))

    async def lock(self) -> None:
        queues = [QueueRef("T", "broker-a", queue) for queue in range(QUEUES)]
        body = QueueLocks(client_id="C", group="G", queues=queues).encode()
        await self.ask(RequestCode.LOCK_BATCH_MQ, {}, body, self._expect("lock"))

    async def look(self, queue: int) -> None:
        await self.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": queue}, b"", self._expect("end"))
        ext = {"consumerGroup": "G", "topic": "T", "queueId": queue}

        def known(response: Response) -> None:
            if response.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
                self.errors.append(f"offset query: code {response.code}, {response.remark}")

        await self.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext, b"", known)

    def _expect(
        self, what: str, then: Callable[[Response], None] = lambda response: None
    ) -> Callable[[Response], None]:
        def on_response(response: Response) -> None:
            if response.code == ResponseCode.SUCCESS:
                then(response)
            else:
                self.errors.append(f"{what}: code {response.code}, {response.remark}")

        return on_response

    async def work(self, prefix: str) -> None:
        """A thousand sends a second and what consumers ask, until cancelled or the connection ends."""
        started = trio.current_time()
        await self.heartbeat()
        for number in itertools.count():
            if self.ended:
                return
            queue = number % QUEUES
            await self.send(b"%s-%d" % (prefix.encode(), number), queue)
            if number % 21 == 0:
                # Grows from client to client, as the offsets of a group do whose members take over from each other.
                offset = 1 + max((offset for _, stored_in, offset in self.stored if stored_in == queue), default=-1)
                if offset:
                    await self.commit(queue, offset, oneway=number % 63 == 0)
            if number % 50 == 0:
                await self.look(queue)
            if number % 100 == 0:
                await self.lock()
            if number % 101 == 0 and self.last_position >= 0:
                await self.send_back()
            await trio.sleep_until(started + number / SENDS_PER_SECOND)

    async def wait_until_answered(self) -> None:
        """Until everything is on_response."""
        with trio.move_on_after(TIMEOUT_SECONDS + 1):
            await until(lambda: self.ended or not self._waiting)
        self.errors += [f"no response to {opaque}" for opaque in self._waiting]


@contextlib.asynccontextmanager
async def three_brokers(directory: Path) -> AsyncIterator[DevCluster]:
    async with DevCluster.open(directory, ports=Ports.free(3)) as cluster:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic("T", QUEUES)
        yield cluster


@contextlib.asynccontextmanager
async def stock_client(cluster: DevCluster, node_id: str) -> AsyncIterator[StockClient]:
    async with await connect(cluster, node_id) as stream, trio.open_nursery() as nursery:
        client = StockClient(stream)
        nursery.start_soon(client.receive)
        yield client
        nursery.cancel_scope.cancel()


async def has_worked(client: StockClient) -> None:
    """Wait until the client has got some more messages stored, and some given back."""
    stored, given_back = len(client.stored), client.given_back
    await until(lambda: len(client.stored) >= stored + 500 and client.given_back > given_back)


async def connect(cluster: DevCluster, node_id: str) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", cluster.port(node_id))


async def stored_messages(cluster: DevCluster) -> dict[tuple[int, int], bytes]:
    """Every message of the topic by queue and queue offset, as the leader has it."""
    found: dict[tuple[int, int], bytes] = {}
    async with await connect(cluster, await cluster.leader()) as stream:
        client = Client(stream)
        for queue in range(QUEUES):
            end = await client.offset(RequestCode.GET_MAX_OFFSET, "T", queue)
            offset = 0
            while offset < end:
                response = await client.request(RequestCode.PULL_MESSAGE, pull_ext("T", queue, offset))
                assert response.code == ResponseCode.SUCCESS, response
                found |= {(queue, record.queue_offset): record.body for record in response.records}
                offset = int(response.ext["nextBeginOffset"])
    return found


async def check_offsets_and_retries(cluster: DevCluster, stock: StockClient) -> None:
    """No commit that was on_response is lost, and each message that was given back comes again exactly once."""
    async with await connect(cluster, await cluster.leader()) as stream:
        client = Client(stream)
        assert len(stock.committed) == QUEUES
        for queue, offset in stock.committed.items():
            known = await client.committed("G", "T", queue)
            assert known is not None
            assert known >= offset
        assert stock.given_back > 0

        async def are_delivered() -> bool:
            return await client.offset(RequestCode.GET_MAX_OFFSET, "%RETRY%G", 0) >= stock.given_back

        await until(are_delivered)
        await trio.sleep(0.5)  # what is delivered twice comes by then
        assert await client.offset(RequestCode.GET_MAX_OFFSET, "%RETRY%G", 0) == stock.given_back


def say(text: str) -> None:
    sys.stdout.write(text + "\n")  # shown with -s: these are figures for people


def report(what: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    say(
        f"{what}: {len(ordered)} answers, median {statistics.median(ordered) * 1000:.1f} ms, "
        f"99 % within {ordered[len(ordered) * 99 // 100] * 1000:.1f} ms, longest {ordered[-1] * 1000:.1f} ms"
    )


async def test_transfer_costs_a_stock_client_no_error(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        first = await cluster.leader()
        second, third = (node for node in cluster.node_ids if node != first)
        async with stock_client(cluster, first) as client:
            async with trio.open_nursery() as working:
                working.start_soon(client.work, "m")
                for to in (first, second, third, first):
                    await transfer(cluster, to)
                    await has_worked(client)
                    report(f"led by {to}, connected to {first}", client.seconds)
                    client.seconds.clear()
                working.cancel_scope.cancel()
            await client.wait_until_answered()
            assert client.errors == []
        stored = await stored_messages(cluster)
        # Nothing is lost, doubled, or elsewhere than where it was said to be.
        assert {(queue, offset): body for body, queue, offset in client.stored} == stored
        assert stored
        await check_offsets_and_retries(cluster, client)
        async with Admin(cluster.namesrv) as admin:
            figures = await admin.broker_runtime(cluster.address(first))
        assert int(figures["raftmq.forwardedSends"]) > 0
        assert int(figures["raftmq.forwardedOffsets"]) > 0
        assert figures["raftmq.forwardedWaiting"] == figures["raftmq.forwardedRefused"] == "0"


async def test_messages_of_a_stock_client_stay_in_order_over_transfers(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        leader = await cluster.leader()
        other = next(node for node in cluster.node_ids if node != leader)
        async with stock_client(cluster, other) as client:
            async with trio.open_nursery() as working:
                working.start_soon(client.work, "m")
                for to in (other, leader, other):
                    await has_worked(client)
                    await transfer(cluster, to)
                await has_worked(client)  # with the last leader
                working.cancel_scope.cancel()
            await client.wait_until_answered()
            assert client.errors == []
        stored = sorted((await stored_messages(cluster)).items())
        for queue in range(QUEUES):
            numbers = [int(body[2:]) for (at, _), body in stored if at == queue]
            assert numbers == sorted(numbers)


async def test_killed_leader_serves_its_clients_again_as_a_follower(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        leader = await cluster.leader()
        async with stock_client(cluster, leader) as client, trio.open_nursery() as working:
            working.start_soon(client.work, "before")
            await has_worked(client)
            cluster.kill(leader)
            await until(lambda: client.ended and not cluster.is_running(leader), seconds=TIMEOUT_SECONDS)
            working.cancel_scope.cancel()
        with pytest.raises(OSError, match="all attempts to connect"):
            await connect(cluster, leader)
        started = trio.current_time()
        await cluster.start(leader)
        await until_listening(cluster, leader)
        listening = trio.current_time() - started
        async with stock_client(cluster, leader) as again:
            async with trio.open_nursery() as working:
                working.start_soon(again.work, "after")
                await has_worked(again)
                working.cancel_scope.cancel()
            await again.wait_until_answered()
            assert again.errors == []
        say(f"{leader} listens {listening:.2f} s after its start, first response {again.seconds[0]:.3f} s later")
        report("from then on", again.seconds)
        stored = await stored_messages(cluster)
        for body, queue, offset in client.stored + again.stored:
            assert stored[queue, offset] == body
        assert len(set(stored.values())) == len(stored)


async def test_killed_leader_causes_unknown_outcomes_but_no_errors_at_a_follower(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        leader = await cluster.leader()
        follower = next(node for node in cluster.node_ids if node != leader)
        clients: list[StockClient] = []

        async def come_again() -> None:
            """Work, and connect anew whenever the connection is closed."""
            while True:
                async with stock_client(cluster, follower) as client:
                    clients.append(client)
                    await client.work(f"c{len(clients)}")

        async with trio.open_nursery() as working:
            working.start_soon(come_again)
            await until(lambda: clients and len(clients[0].stored) >= 500)
            cluster.kill(leader)
            await trio.sleep(5.0)  # long enough for an election, and for work after it
            working.cancel_scope.cancel()
        errors = [error for client in clients for error in client.errors]
        assert set(errors) <= {"the connection was closed"}, errors
        assert len(clients) <= 2, "what waited for the new leader was served on the same connection"
        stored = await stored_messages(cluster)
        acknowledged = [each for client in clients for each in client.stored]
        for body, queue, offset in acknowledged:
            assert stored[queue, offset] == body
        assert len(set(stored.values())) == len(stored)
        report("over the death of the leader", [second for client in clients for second in client.seconds])


async def until_listening(cluster: DevCluster, node_id: str) -> None:
    async def listens() -> None:
        await (await connect(cluster, node_id)).aclose()

    await until_accepted(listens, OSError)


async def test_new_leader_registers_at_name_servers_at_once(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster, Admin(cluster.namesrv) as admin:
        taken: list[float] = []
        for _ in range(5):
            leader = await cluster.leader()
            to = next(node for node in cluster.node_ids if node != leader)
            started = trio.current_time()
            await transfer(cluster, to)
            expected = {
                number + 1: cluster.address(node) for number, node in enumerate(cluster.node_ids) if node != to
            } | {0: cluster.address(to)}

            async def is_registered(expected: dict[int, str] = expected) -> bool:
                return (await admin.cluster_info()).brokers[cluster.group].broker_addrs == expected

            await until(is_registered, seconds=REGISTRATION_SECONDS)
            taken.append(trio.current_time() - started)
        say(f"from the command to the name server's route: {[f'{seconds * 1000:.0f} ms' for seconds in taken]}")
        # Telling it only when the next regular registration is due takes half of the time between two, on average.
        assert statistics.median(taken) < REGISTRATION_SECONDS / 4
