"""What a replica that does not lead does with its clients' writes; the leader is played by the test."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.replication.forwarder import Forwarder
from mq.protocol.codes import ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.incoming.chunks import decode_chunk
from mq.protocol.incoming.headers import Response
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.requests.offsets import UpdateConsumerOffset, UpdateConsumerOffsetExt
from mq.protocol.requests.replicas import AuthenticateReplica, Forward
from mq.protocol.requests.send import ConsumerSendMsgBack, SendBackExt, SendExt, SendMessageV2
from mq.protocol.requests.topics import DeleteTopicInBroker, DeleteTopicInBrokerExt
from mq.protocol.wire.encoding import encode_response
from raftlog import Reactor
from tests.support.broker_contexts import context_of
from tests.support.replica_client import ListenerSide, replica_authentication
from tests.support.running_broker import broker_settings
from tests.support.waiting import until

HOST = bytes((127, 0, 0, 1, 0, 0, 0x12, 0x34))


class FakeConnection:
    """A client of the replica."""

    host = HOST

    def __init__(self) -> None:
        self.closed = False
        self.answers: list[Response] = []
        self.served: list[tuple[Any, bytes, int]] = []

    def send(self, data: bytes) -> None:
        for answer, _, _ in decode_chunk(data)[0]:
            assert isinstance(answer, Response)
            self.answers.append(answer)

    def close(self, reason: str) -> None:
        self.closed = True

    def dispatch(self, request: Any, body: bytes, serialization: int) -> None:
        self.served.append((request, body, serialization))

    @property
    def opaques(self) -> list[int]:
        return [answer.opaque for answer in self.answers]


def send(opaque: int, *, oneway: bool = False) -> SendMessageV2:
    ext = SendExt(
        producer_group="P",
        topic="T",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=1,
        sys_flag=0,
        born_timestamp_ms=5,
        flag=0,
        properties="a\x01\u20ac\x02",
    )
    return SendMessageV2(opaque=opaque, flag=2 if oneway else 0, language="JAVA", version=401, ext=ext)


def commit(opaque: int) -> UpdateConsumerOffset:
    ext = UpdateConsumerOffsetExt(consumer_group="G", topic="T", queue_id=0, commit_offset=QueueOffset(7))
    return UpdateConsumerOffset(opaque=opaque, ext=ext)


class FakeLeader:
    """Listens like a leader; what comes in waits until the test answers it."""

    def __init__(self) -> None:
        self.incoming: list[tuple[Forward, Any, bytes, trio.SocketStream]] = []
        self.streams: list[trio.SocketStream] = []
        self.address = ""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        task_status.started()
        await trio.serve_listeners(self._serve, listeners)

    async def _serve(self, stream: trio.SocketStream) -> None:
        self.streams.append(stream)
        received = b""
        async with stream:
            await self._receive(stream, received)

    async def _receive(self, stream: trio.SocketStream, received: bytes) -> None:
        side = ListenerSide(self.address)
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while chunk := await stream.receive_some():
                incoming, consumed = decode_chunk(received + chunk)
                received = (received + chunk)[consumed:]
                for request, body, _ in incoming:
                    if isinstance(request, AuthenticateReplica):
                        await stream.send_all(side.answer(request))
                        continue
                    assert side.trusted
                    assert isinstance(request, Forward)
                    [(inner, inner_body, _)], _ = decode_chunk(body)
                    self.incoming.append((request, inner, inner_body, stream))

    async def take(self, count: int) -> list[tuple[Forward, Any, bytes, trio.SocketStream]]:
        await until(lambda: len(self.incoming) >= count)
        taken, self.incoming = self.incoming[:count], self.incoming[count:]
        return taken

    async def serve(self, count: int) -> list[int]:
        """Do what is asked; returns the clients' opaques."""
        taken = await self.take(count)
        for request, inner, _, stream in taken:
            reply = encode_response(inner.opaque, 0, ext={"queueOffset": "3"}, serialization=request.ext.serialization)
            await stream.send_all(encode_response(request.opaque, 0, body=reply))
        return [inner.opaque for _, inner, _, _ in taken]

    async def refuse(self, count: int, code: int = ResponseCode.SERVICE_NOT_AVAILABLE) -> None:
        for request, _, _, stream in await self.take(count):
            await stream.send_all(encode_response(request.opaque, code, remark="not now"))


class World:
    """A forwarder, with a leader to ask or without."""

    def __init__(self, directory: Path, nursery: trio.Nursery, **given: Any) -> None:
        self.reactor = Reactor()
        self.leader_address: str | None = None
        self.serves_locally = False
        self._nursery = nursery
        self.forwarder = Forwarder(
            context_of(
                settings=broker_settings(directory, **given),
                reactor=self.reactor,
                client_id=lambda connection, group: f"client of {group}",
                leader_address=lambda: self.leader_address,
                clock=trio.current_time,
                log=structlog.get_logger(),
            ),
            authentication=replica_authentication("n0"),
            repeatable={UpdateConsumerOffset},
            serve_locally=self._serve_locally,
        )

    def _serve_locally(self) -> None:
        self.serves_locally = True

    async def leader(self) -> FakeLeader:
        """Somebody leads."""
        leader = FakeLeader()
        await self._nursery.start(leader.run)
        self.follow(leader)
        return leader

    def follow(self, leader: FakeLeader | None) -> None:
        self.leader_address = None if leader is None else leader.address
        self.forwarder.replicas_changed()
        self.reactor.wake()

    def ask(self, connection: FakeConnection, request: Any, body: bytes = b"body", serialization: int = JSON) -> None:
        client: Any = connection
        self.forwarder.handle(Call(client, request, body, serialization))
        self.reactor.wake()

    @property
    def figures(self) -> dict[str, int]:
        return self.forwarder.counters()


@contextlib.asynccontextmanager
async def a_world(directory: Path, **given: Any) -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        world = World(directory, nursery, **given)
        nursery.start_soon(world.reactor.run)
        nursery.start_soon(world.forwarder.run)
        try:
            yield world
        finally:
            world.forwarder.on_stop()
        nursery.cancel_scope.cancel()
    world.reactor.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with a_world(tmp_path) as world:
        yield world


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_request_and_its_answer_are_forwarded_unchanged(world: World, serialization: int) -> None:
    leader, client = await world.leader(), FakeConnection()
    world.ask(client, send(7), b"\x00\xff", serialization)
    world.ask(client, commit(8), b"", serialization)
    (first, inner, body, stream), (second, offset, _, _) = await leader.take(2)
    assert (inner, body) == (send(7), b"\x00\xff")
    assert offset == commit(8)
    assert first.ext.born_host == HOST.hex()
    assert first.ext.serialization == serialization
    assert (first.ext.client_id, second.ext.client_id) == ("", "client of G")
    reply = encode_response(7, 13, remark="too \u20ac", ext={"x": "1"}, serialization=serialization)
    await stream.send_all(encode_response(first.opaque, 0, body=reply))
    await until(lambda: bool(client.answers))
    assert (client.answers[0].code, client.answers[0].remark, client.answers[0].ext) == (
        13,
        "too \u20ac",
        {"x": "1"} | ({"forwardedTo": leader.address} if serialization == JSON else {}),
    )
    assert world.figures["forwarded_sends"] == world.figures["forwarded_offsets"] == 1
    assert world.figures["forwarded_waiting"] == 1


async def test_unserved_requests_reach_the_next_leader_in_order(world: World) -> None:
    old, client = await world.leader(), FakeConnection()
    for opaque in range(1, 6):
        world.ask(client, send(opaque))
    await old.serve(2)
    await until(lambda: client.opaques == [1, 2])
    new = await world.leader()
    for opaque in range(6, 9):
        world.ask(client, send(opaque))
    await old.refuse(3)
    assert await new.serve(6) == [3, 4, 5, 6, 7, 8]
    await until(lambda: client.opaques == [1, 2, 3, 4, 5, 6, 7, 8])
    assert not client.closed
    assert world.figures["forwarded_retried"] == 3
    assert old.incoming == []


async def test_forwarder_retries_at_a_leader_that_is_not_ready(world: World) -> None:
    leader, client = await world.leader(), FakeConnection()
    world.ask(client, send(1))
    world.ask(client, send(2))
    await leader.refuse(2)
    await leader.refuse(2, ResponseCode.NO_PERMISSION)
    assert await leader.serve(2) == [1, 2]
    await until(lambda: client.opaques == [1, 2])


async def test_leader_crash_leaves_sends_with_unknown_outcome_and_repeats_commits(world: World) -> None:
    leader = await world.leader()
    sender, consumer, returner = FakeConnection(), FakeConnection(), FakeConnection()
    world.ask(sender, send(1))
    world.ask(consumer, commit(2))
    back = SendBackExt(physical_offset=PhysicalOffset(1), group="G", delay_level=0)
    world.ask(returner, ConsumerSendMsgBack(opaque=3, ext=back))
    await leader.take(3)
    world.follow(None)
    await leader.streams[0].aclose()
    await until(lambda: sender.closed and returner.closed)
    assert await (await world.leader()).serve(1) == [2]
    await until(lambda: consumer.opaques == [2])
    assert not consumer.closed
    assert world.figures["forwarded_unknown"] == 2


async def test_request_with_unknown_outcome_is_not_refused(tmp_path: Path) -> None:
    """A leader did what was asked and was cut off; the follower then said that nobody could be asked."""
    async with a_world(tmp_path, forwarded_seconds_max=0.2) as world:
        leader, consumer, late = await world.leader(), FakeConnection(), FakeConnection()
        world.ask(consumer, commit(1))
        await leader.take(1)
        world.follow(None)
        await leader.streams[0].aclose()
        world.ask(late, commit(2))
        await until(lambda: consumer.closed and bool(late.answers))
        assert consumer.answers == []
        assert late.answers[0].code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert not late.closed
        assert (world.figures["forwarded_unknown"], world.figures["forwarded_refused"]) == (1, 1)


async def test_topic_change_with_an_unknown_outcome_is_not_repeated(world: World) -> None:
    """Repeated, it would undo what another operator has changed since, through another replica."""
    leader, operator = await world.leader(), FakeConnection()
    world.ask(operator, DeleteTopicInBroker(opaque=1, ext=DeleteTopicInBrokerExt(topic="T")))
    await leader.take(1)
    world.follow(None)
    await leader.streams[0].aclose()
    await until(lambda: operator.closed)
    assert operator.answers == []
    assert world.figures["forwarded_waiting"] == 0


async def test_answer_of_unknown_outcome_closes_the_connection_of_the_sender_only(world: World) -> None:
    leader, lucky, unlucky = await world.leader(), FakeConnection(), FakeConnection()
    world.ask(unlucky, send(1))
    world.ask(lucky, send(2))
    await leader.refuse(1, ResponseCode.SYSTEM_ERROR)
    await leader.serve(1)
    await until(lambda: lucky.opaques == [2])
    assert (unlucky.closed, lucky.closed) == (True, False)


async def test_requests_wait_for_a_leader_and_are_then_refused(tmp_path: Path) -> None:
    async with a_world(tmp_path, forwarded_seconds_max=0.1) as world:
        client, oneway = FakeConnection(), FakeConnection()
        world.ask(client, send(1), serialization=BINARY)
        world.ask(oneway, send(2, oneway=True))
        assert world.figures["forwarded_waiting"] == 2
        await until(lambda: world.figures["forwarded_refused"] == 2)
        assert client.answers[0].code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert client.answers[0].opaque == 1
        assert oneway.answers == []
        assert not client.closed
        assert world.figures["forwarded_waiting"] == 0


async def test_waiting_requests_are_served_by_a_new_leader(world: World) -> None:
    client, gone = FakeConnection(), FakeConnection()
    world.ask(client, send(1))
    world.ask(gone, send(2))
    gone.closed = True
    world.ask(client, send(3, oneway=True))
    leader = await world.leader()
    assert await leader.serve(2) == [1, 3]
    await until(lambda: client.opaques == [1])
    world.ask(client, send(4))
    await leader.serve(1)
    await until(lambda: client.opaques == [1, 4])  # and nothing for the one-way request


async def test_forwarder_retries_an_unreachable_address(world: World) -> None:
    client = FakeConnection()
    world.leader_address = "127.0.0.1:1"
    world.forwarder.replicas_changed()
    world.ask(client, send(1))
    await trio.sleep(0.05)  # attempts to connect fail meanwhile
    assert client.answers == []
    leader = await world.leader()
    await leader.serve(1)
    await until(lambda: client.opaques == [1])


async def test_new_leader_serves_its_waiting_requests(world: World) -> None:
    old, client = await world.leader(), FakeConnection()
    world.ask(client, send(1), b"one", BINARY)
    [(request, _, _, stream)] = await old.take(1)
    world.follow(None)
    world.ask(client, send(2), b"two")
    world.forwarder.lead()
    assert not world.serves_locally, "the fate of the first is open, the second must not overtake it"
    code = ResponseCode.SERVICE_NOT_AVAILABLE
    await stream.send_all(encode_response(request.opaque, code))
    await until(lambda: world.serves_locally)
    assert client.served == [(send(1), b"one", BINARY), (send(2), b"two", JSON)]
    assert world.figures["forwarded_waiting"] == 0


async def test_waiting_requests_are_bounded(tmp_path: Path) -> None:
    async with a_world(tmp_path, forwarded_requests_max=2) as world:
        client = FakeConnection()
        world.ask(client, send(1))
        world.ask(client, send(2))
        with pytest.raises(RequestRefused, match="SYSTEM_BUSY"):
            world.ask(client, send(3))
        await (await world.leader()).serve(2)
        await until(lambda: client.opaques == [1, 2])
        world.ask(client, send(4))


async def test_bytes_that_wait_are_bounded(tmp_path: Path) -> None:
    async with a_world(tmp_path, forwarded_bytes_max=1024 * 1024) as world:
        client, leader = FakeConnection(), await world.leader()
        for opaque in (1, 2):
            world.ask(client, send(opaque), bytes(600_000))
        with pytest.raises(RequestRefused, match="SYSTEM_BUSY"):
            world.ask(client, send(3))
        await leader.serve(2)
        await until(lambda: client.opaques == [1, 2])
        world.ask(client, send(4), bytes(600_000))


async def test_request_too_large_to_be_forwarded_is_refused(world: World) -> None:
    with pytest.raises(RequestRefused, match="MESSAGE_ILLEGAL"):
        world.ask(FakeConnection(), send(1), bytes(16 * 1024 * 1024 - 300))


async def test_hung_leader_does_not_block_requests_to_its_successor(world: World) -> None:
    hung, sender, client = await world.leader(), FakeConnection(), FakeConnection()
    world.ask(sender, send(1))
    await hung.take(1)
    new = await world.leader()
    world.ask(client, send(2))
    assert await new.serve(1) == [2]
    await until(lambda: client.opaques == [2])
    assert sender.closed
