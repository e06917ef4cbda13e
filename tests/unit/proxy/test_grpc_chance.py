"""Clients by chance: what they send is cut, reset and stopped anywhere, and frames are damaged.

No seed may make the server fail in another way than by a refusal, and none may leave a call behind.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import trio
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from mq.proxy.grpc.call_stream import CallStream
from mq.proxy.grpc.framing import frame_message
from mq.proxy.grpc.limits import GrpcLimits
from mq.proxy.grpc.status import BrokenCall, Status
from tests.support.grpc_client import Loop
from tests.support.grpc_serving import serving

LIMITS = GrpcLimits(
    streams_max=8,
    stream_window_bytes=2_000,
    connection_window_bytes=70_000,
    message_bytes_max=200_000,
    unfinished_bytes_max=100_000,
    output_bytes_max=20_000,
    control_frames_burst=100_000,
    resets_burst=100_000,
)


class ByChance:
    """A client that begins, feeds, reads and cancels calls, and methods that take, send and end, all by chance.

    Attributes:
        sent, answered: the messages of each call, as the client sent them, and as its method sent them.
        taken: what the methods got.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.loop = Loop(LIMITS, self._begun)
        self.client = self.loop.client
        self.sent: dict[int, list[bytes]] = {}
        self.unsent: dict[int, bytes] = {}
        self.taken: dict[int, list[bytes]] = {}
        self.answered: dict[int, list[bytes]] = {}
        self.calls: dict[int, CallStream] = {}
        self.on_the_way: tuple[bytearray, bytearray] = (bytearray(), bytearray())

    def _begun(self, call: CallStream) -> None:
        self.calls[call.stream_id] = call
        self.taken[call.stream_id], self.answered[call.stream_id] = [], []

    def _message(self) -> bytes:
        return self.chance.randbytes(self.chance.choice((0, 1, 100, 3_000, 50_000)))

    def step(self) -> None:
        """One thing happens."""
        happens = self.chance.choices(
            (
                self._begin,
                self._feed,
                self._cancel,
                self._window,
                self._take,
                self._answer,
                self._finish,
                self._deliver,
            ),
            (2, 6, 1, 1, 6, 4, 2, 12),
        )
        happens[0]()

    def _begin(self) -> None:
        if self.client.http2.open_outbound_streams < LIMITS.streams_max:
            stream_id = self.client.call(end=False)
            self.sent[stream_id] = [self._message() for _ in range(self.chance.randrange(4))]
            self.unsent[stream_id] = b"".join(frame_message(each, compress=False) for each in self.sent[stream_id])

    def _feed(self) -> None:
        if self.unsent:
            stream_id = self.chance.choice(list(self.unsent))
            answer, data = self.client.answers[stream_id], self.unsent[stream_id]
            if answer.ended or answer.reset is not None:
                del self.unsent[stream_id]
                return
            room = min(self.client.http2.local_flow_control_window(stream_id), 16_384, len(data))
            nbytes = self.chance.choice((room, self.chance.randint(0, max(room, 0))))
            if nbytes > 0 or not data:
                self.client.send(stream_id, data[:nbytes], end=nbytes == len(data))
                self.unsent[stream_id] = data[nbytes:]
                if nbytes == len(data):
                    del self.unsent[stream_id]

    def _cancel(self) -> None:
        live = [each for each, answer in self.client.answers.items() if not answer.ended and answer.reset is None]
        if live:
            stream_id = self.chance.choice(live)
            self.client.http2.reset_stream(stream_id, ErrorCodes.CANCEL)
            self.client.answers[stream_id].reset = int(ErrorCodes.CANCEL)
            self.unsent.pop(stream_id, None)

    def _window(self) -> None:
        self.client.http2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: self.chance.choice((1, 500, 65_535))})

    def _take(self) -> None:
        if self.calls:
            call = self.chance.choice(list(self.calls.values()))
            if (message := self.loop.server.take(call)) is not None:
                self.taken[call.stream_id].append(message)

    def _answer(self) -> None:
        waiting = [call for call in self.calls.values() if not call.unsent and not call.closed]
        if waiting:
            call, message = self.chance.choice(waiting), self._message()
            try:
                self.loop.server.send(call, frame_message(message, compress=False))
            except BrokenCall:
                return
            self.answered[call.stream_id].append(message)

    def _finish(self) -> None:
        for stream_id, call in list(self.calls.items()):
            if call.closed:
                del self.calls[stream_id]
            elif call.refusal is not None or self.chance.random() < 0.2:
                status = Status.OK if call.refusal is None else call.refusal.status
                self.loop.server.finish(call, status)
                del self.calls[stream_id]

    def _deliver(self, nbytes: int | None = None) -> None:
        to_server, to_client = self.on_the_way
        to_server += self.client.bytes_to_send()
        to_client += self.loop.taken()
        for way, side in ((to_server, self.loop.feed), (to_client, self.client.receive)):
            cut = self.chance.choice((1, 10, 1_000, 100_000)) if nbytes is None else nbytes
            data = bytes(way[:cut])
            del way[:cut]
            if data:
                side(data)

    def end(self) -> None:
        """Deliver and answer until all is over."""
        self.client.http2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 65_535})
        for _ in range(3_000):
            self._deliver(1_000_000)
            for _ in range(len(self.unsent)):
                self._feed()
            for call in list(self.calls.values()):
                while (message := self.loop.server.take(call)) is not None:
                    self.taken[call.stream_id].append(message)
                if call.closed or call.half_closed or call.refusal is not None:
                    self.loop.server.finish(call, Status.OK if call.refusal is None else call.refusal.status)
                    del self.calls[call.stream_id]
            quiet = not (self.client.unsent_bytes or self.loop.server.unsent_bytes or any(self.on_the_way))
            if quiet and not self.unsent and not self.calls:
                return
        raise AssertionError(f"{len(self.unsent)} requests and {len(self.calls)} calls never end")

    def check(self) -> None:
        """What arrived is what was sent, and nothing is left."""
        for stream_id, messages in self.taken.items():
            assert messages == self.sent[stream_id][: len(messages)], f"stream {stream_id}"
        for stream_id, answer in self.client.answers.items():
            wanted = self.answered.get(stream_id, [])
            assert answer.messages == wanted[: len(answer.messages)], f"stream {stream_id}"
            if answer.status is Status.OK:
                assert len(answer.messages) == len(wanted), f"stream {stream_id} ended with OK too early"
        server = self.loop.server
        assert self.loop.failed is None, str(self.loop.failed)
        assert not server.streams
        assert self.loop.partial_requests.nbytes == self.loop.partial_requests.waiting_count == 0
        assert server._http2._window_in + server._http2._window_update_bytes == LIMITS.connection_window_bytes


def run_by_chance(seed: int, steps: int) -> None:
    world = ByChance(seed)
    for _ in range(steps):
        world.step()
    world.end()
    world.check()


@pytest.mark.parametrize("seed", range(12))
def test_random_grpc_calls_end_with_messages_in_order(seed: int) -> None:
    run_by_chance(seed, 300)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1_000, 1_400))
def test_random_grpc_calls_pass_for_many_seeds(seed: int) -> None:
    run_by_chance(seed, 1_000)


def recorded() -> bytes:
    """What a client sends for a few calls."""
    loop = Loop()
    sent = []
    taken = loop.client.bytes_to_send
    loop.client.bytes_to_send = lambda: sent.append(taken()) or sent[-1]  # type: ignore[method-assign,func-returns-value]
    for nbytes in (0, 10, 20_000):
        loop.client.call(messages=[bytes(nbytes)] * 2, headers=[("x-field", "value" * 5)])
        loop.client.http2.ping(b"12345678")
        loop.turn()
        loop.answer(loop.begun.pop(), b"y")
    return b"".join(sent)


RECORDED = recorded()


def damaged(seed: int) -> Iterator[bytes]:
    """The same with some bytes changed, removed and repeated, in chunks."""
    chance, data = random.Random(seed), bytearray(RECORDED)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(24, len(data))
        match chance.randrange(4):
            case 0:
                data[at] = chance.randrange(256)
            case 1:
                del data[at : at + chance.randint(1, 30)]
            case 2:
                data[at:at] = data[at - chance.randint(1, 20) : at]
            case _:
                data[at] ^= 1 << chance.randrange(8)
    while data:
        nbytes = chance.choice((1, 9, 100, 5_000))
        yield bytes(data[:nbytes])
        del data[:nbytes]


def feed_damaged(seed: int) -> None:
    loop = Loop()
    # After damage, the client cannot follow any more.
    loop._fail = lambda error: setattr(loop, "failed", error)  # type: ignore[method-assign]
    for chunk in damaged(seed):
        loop.feed(chunk)
        for call in loop.begun:
            while loop.server.take(call) is not None:
                pass
            if call.half_closed or call.refusal is not None:
                loop.server.finish(call, Status.OK)
        loop.taken()
        if loop.failed is not None:
            break
    loop.server.on_loss()
    assert not loop.server.streams
    assert loop.partial_requests.nbytes == loop.partial_requests.waiting_count == 0


def test_damaged_frames_are_refused_and_end_their_calls() -> None:
    for seed in range(150):
        feed_damaged(seed)


@pytest.mark.nightly
def test_damaged_frames_for_many_seeds() -> None:
    for seed in range(10_000, 30_000):
        feed_damaged(seed)


@given(st.binary(max_size=200))
def test_any_bytes_never_fail_the_connection(data: bytes) -> None:
    loop = Loop()
    loop._fail = lambda error: setattr(loop, "failed", error)  # type: ignore[method-assign]
    loop.feed(data)


@pytest.mark.parametrize("seed", range(4))
async def test_lost_connections_end_their_calls_and_tasks(seed: int, autojump_clock: MockClock) -> None:
    chance = random.Random(seed)
    async with serving(LIMITS) as server:
        for _ in range(15):
            client = await server.connect()
            for _ in range(chance.randint(1, 6)):
                path = f"/raftmq.Test/{chance.choice(('Echo', 'Wait', 'Large', 'Nothing'))}"
                await client.call(path, b"%d" % chance.choice((0, 10, 100_000)), end=chance.random() < 0.7)
                await trio.sleep(chance.choice((0, 0.01)))
            if chance.random() < 0.5:
                await client.stream.aclose()
            else:
                await trio.aclose_forcefully(client.stream)
        await trio.testing.wait_all_tasks_blocked()
        assert server.counters.connections == server.counters.streams == 0
        survivor = await server.connect()
        assert (await survivor.unary("/raftmq.Test/Echo", b"on")).messages == [b"on"]
