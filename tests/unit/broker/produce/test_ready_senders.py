"""Plain sends of many clients that are received in one call, in both forms, as if `Sends` had handled one by one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.compiled import IS_COMPILED
from raftlog import LogIndex, Refusal
from tests.support.cut_streams import unread_bytes
from tests.support.send_paths import Broker, Connection, batched, frame

FORMS = [
    pytest.param("compiled", marks=pytest.mark.skipif(not IS_COMPILED, reason="not compiled: python -m mq.compiled")),
    pytest.param("python"),
]
both_forms = pytest.mark.parametrize("form", FORMS)

EPOLLIN, EPOLLHUP = 1, 16
PRODUCES = frame()
NOT_PLAIN = frame(header={"code": 34})
DELAYED = frame(i="UNIQ_KEY\x01A\x02DELAY\x013\x02")
BATCH = frame(batched(b"one", "UNIQ_KEY\x01A\x02") + batched(b"two", "UNIQ_KEY\x01B\x02"), header={"code": 320}, i="")


class Client(Connection):
    """The broker's end of a connection, and the client's own end of it."""

    def __init__(self, number: int, undo: ExitStack) -> None:
        super().__init__(bytes((10, 0, 0, number % 256, 0, 0, 0, 1)))
        ours, self.sock = socket.socketpair()
        ours.setblocking(False)
        self.ours = undo.enter_context(ours)
        undo.enter_context(self.sock)
        self.fd = self.descriptor = ours.fileno()
        self._written = b""

    def write(self, data: bytes) -> None:
        self.sock.sendall(data)
        self._written += data

    def received_by_broker(self) -> bytes:
        return self._written[: len(self._written) - unread_bytes(self.ours)]

    def serve_rest(self, rest: bytes) -> None:
        raise NotImplementedError("tests look at what is to be called")


class Crowd:
    """Clients whose last chunks consisted of plain sends, and the broker that receives from them."""

    def __init__(self, form: str, count: int, undo: ExitStack, **given: Any) -> None:
        self.broker = Broker(form=form, **given)
        self.reference = Broker(form="handler", **{**given, "receive_into": None, "is_signed": False})
        self.clients = [Client(number, undo) for number in range(count)]
        for client in self.clients:
            assert self.broker.sends.take(cast("Any", client), PRODUCES) == len(PRODUCES)
            self.broker.appender.close()  # nothing of it is stored
            self.broker.appender.open()
            client.served_again.clear()

    @property
    def fast_senders(self) -> frozenset[int]:
        return self.broker.sends.receiver.fast_senders

    @property
    def ready(self) -> list[tuple[int, int]]:
        return [(client.fd, EPOLLIN) for client in self.clients]

    def receive(self) -> list[tuple[int, int]]:
        """One turn; what it takes is handled by the reference as well. Returns what is left to be served."""
        rest, begun = self.broker.sends.receive(self.ready)
        self.others = {fd: go_on.args[0] for fd, go_on in begun}  # type: ignore[attr-defined]
        self.taken = {client.fd: client.received_by_broker() for client in self.clients}
        for client in self.clients:
            if other := self.others.get(client.fd):
                assert self.taken[client.fd].endswith(other)
                self.taken[client.fd] = self.taken[client.fd].removesuffix(other)
            assert self.reference.receive(client, self.taken[client.fd]) == len(self.taken[client.fd])
        return rest

    def assert_same(self) -> None:
        for client in self.clients:
            client.received = b""
        stored = self.broker.commit()
        replies = [client.received for client in self.clients]
        for client in self.clients:
            client.received = b""
        assert stored == self.reference.commit()
        assert replies == [client.received for client in self.clients]


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


PLAIN = st.builds(lambda opaque, queue, body: frame(body, header={"opaque": opaque}, e=queue),
                  st.integers(0, 999), st.sampled_from("0123"), st.binary(max_size=40))  # fmt: skip
ONEWAY = st.just(frame(header={"flag": 2}))
ANY = st.one_of(PLAIN, PLAIN, ONEWAY, st.sampled_from([BATCH, frame(b="Orders", e="299"), NOT_PLAIN, DELAYED]))
CHUNKS = st.builds(lambda frames, cut: b"".join(frames)[cut:], st.lists(ANY, max_size=4), st.just(0)) | st.builds(
    lambda frames, cut: b"".join(frames)[: -cut or None], st.lists(ANY, max_size=4), st.integers(0, 30)
)


@both_forms
@given(st.lists(CHUNKS, min_size=1, max_size=6))
def test_chunks_of_many_clients_equal_the_reference(form: str, chunks: list[bytes]) -> None:
    with ExitStack() as undo:
        crowd = Crowd(form, len(chunks), undo)
        for client, chunk in zip(crowd.clients, chunks, strict=True):
            client.write(chunk)
        assert crowd.receive() == []
        for client, chunk in zip(crowd.clients, chunks, strict=True):
            # Nothing is lost, and what comes first from a client is served first.
            assert crowd.taken[client.fd] + crowd.others.get(client.fd, b"") == chunk
            assert client.heard == bool(chunk)
            # One with anything else is served alone from now on.
            assert (client.fd in crowd.fast_senders) == (crowd.taken[client.fd] == chunk)
            # Nothing at its beginning would be taken alone either.
            rest = crowd.others.get(client.fd, b"")
            assert crowd.broker.sends.take(cast("Any", client), rest) == 0
        crowd.assert_same()


@both_forms
def test_turn_receives_from_each_sender_once_until_its_buffer_is_full(form: str, undo: ExitStack) -> None:
    crowd = Crowd(form, 6, undo)
    chunk = frame(b"x" * 1500) * 60
    for client in crowd.clients:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        client.write(chunk)
    left = crowd.receive()
    served = 4 if form == "compiled" else 1  # Python needs more time for the same bytes
    assert left == crowd.ready[served:]
    for client in crowd.clients[:served]:
        assert len(crowd.taken[client.fd] + crowd.others[client.fd]) == 64 * 1024
        assert client.ours.recv(1 << 20) == chunk[64 * 1024 :]
    for client in crowd.clients[served:]:
        assert client.ours.recv(1 << 20) == chunk
    crowd.assert_same()


@both_forms
def test_messages_beyond_a_block_begin_another_block(form: str, undo: ExitStack) -> None:
    crowd = Crowd(form, 3, undo, body_bytes_max=20_000)
    batch = frame(b"".join(batched(b"", "UNIQ_KEY\x01A\x02") for _ in range(50)), header={"code": 320}, i="")
    for client in crowd.clients:
        client.write(batch * 7)
    assert crowd.receive() == []
    assert len(crowd.broker.appender.pending_items) > 1
    assert not crowd.others
    assert crowd.broker.appender.waiting_requests == 21
    crowd.assert_same()


@both_forms
def test_tags_of_an_unaccepted_request_do_not_reach_other_senders(form: str, undo: ExitStack) -> None:
    """Both requests would have their tags, of the same length, at the same place in the block."""
    crowd = Crowd(form, 2, undo)
    without_key = batched(b"one", "UNIQ_KEY\x01A\x02TAGS\x01aaaa\x02") + batched(b"two", "TAGS\x01aaaa\x02")
    crowd.clients[0].write(frame(without_key, header={"code": 320}, i=""))
    crowd.clients[1].write(frame(batched(b"one", "UNIQ_KEY\x01B\x02TAGS\x01bbbb\x02"), header={"code": 320}, i=""))
    assert crowd.receive() == []
    assert list(crowd.others) == [crowd.clients[0].fd]
    crowd.assert_same()


@both_forms
def test_compiled_receiver_leaves_excess_sends_to_the_reference(form: str, undo: ExitStack) -> None:
    crowd = Crowd(form, 5, undo, uncommitted_bytes_max=500)
    for client in crowd.clients:
        client.write(frame(b"x" * 100))
    assert crowd.receive() == []
    refused = [client.fd for client in crowd.clients if client.fd in crowd.others]
    assert refused == [client.fd for client in crowd.clients[2:]]
    assert crowd.broker.appender.pending_bytes > 500
    assert crowd.broker.sends.receive(crowd.ready) == (crowd.ready, ())
    crowd.assert_same()


@both_forms
def test_receiver_does_not_wait_for_closed_or_idle_senders(form: str, undo: ExitStack) -> None:
    crowd = Crowd(form, 5, undo)
    quiet, ended, broken, hung_up, busy = crowd.clients
    ended.write(frame())
    ended.sock.shutdown(socket.SHUT_WR)
    broken.ours.close()  # any error
    busy.write(frame())
    ready = [(client.fd, EPOLLIN | (EPOLLHUP if client is hung_up else 0)) for client in crowd.clients]
    rest, begun = crowd.broker.sends.receive([*ready, (999, EPOLLIN)])
    assert rest == [ready[3], (999, EPOLLIN), ready[2]]
    assert not begun
    assert crowd.broker.appender.waiting_requests == 2
    assert (quiet.heard, ended.heard, busy.heard) == (False, True, True)
    # The end comes in the next turn, and is handled as for any connection.
    assert crowd.broker.sends.receive(ready[:2]) == ([ready[1]], ())


@both_forms
def test_round_waits_for_as_many_senders_as_were_answered(form: str, undo: ExitStack) -> None:
    crowd = Crowd(form, 9, undo)
    for client in crowd.clients:
        client.write(frame() * 2)
    crowd.receive()
    assert len(crowd.broker.appender.pending_items) == 1
    assert crowd.broker.appender.waiting_senders == 9
    crowd.broker.appender.close()
    assert crowd.broker.appender.waiting_senders == 0
    # Nothing was stored: every client's requests are served again, in order.
    assert [len(client.served_again) for client in crowd.clients] == [2] * 9
    assert crowd.broker.appender.pending_bytes == 0


@both_forms
def test_round_of_unknown_outcome_closes_its_senders_connections(form: str, undo: ExitStack) -> None:
    crowd = Crowd(form, 5, undo)
    for number, client in enumerate(crowd.clients):
        client.write(frame(header={"flag": 2 if number == 3 else 0}))
    crowd.receive()
    assert crowd.broker.appender.start_round()
    crowd.broker.appender.outcome_unknown(LogIndex(1))
    # One that wants no answer is told nothing.
    assert [client.closed is not None for client in crowd.clients] == [True, True, True, False, True]
    assert crowd.broker.appender.pending_bytes == 0


@both_forms
def test_refused_round_keeps_its_senders(form: str, undo: ExitStack) -> None:
    crowd = Crowd(form, 4, undo)
    for client in crowd.clients:
        client.write(frame())
    crowd.receive()
    crowd.broker.log.refusals = [Refusal.BUSY]
    assert not crowd.broker.appender.start_round()
    assert crowd.broker.appender.waiting_senders == 4


@both_forms
def test_each_sender_is_asked_for_its_own_keys(form: str, undo: ExitStack) -> None:
    crowd = Crowd(form, 3, undo, is_signed=True)
    asked: list[tuple[int, bytes, bytes]] = []

    def keys_of(number: int) -> object:
        def key_of(access_key: bytes, topic: bytes) -> None:
            asked.append((number, access_key, topic))

        return key_of

    for number, client in enumerate(crowd.clients):
        client.keys = keys_of(number) if number else None
        client.write(frame(AccessKey="who", Signature="s" * 28))
    assert crowd.receive() == []
    # The form in Python leaves all signed sends to the check of accounts.
    assert list(dict.fromkeys(asked)) == ([(1, b"who", b"T"), (2, b"who", b"T")] if form == "compiled" else [])
    assert crowd.broker.appender.waiting_requests == 1
    assert list(crowd.others) == [client.fd for client in crowd.clients[1:]]


@both_forms
def test_sends_are_received_by_the_function_for_simulated_sockets(form: str, undo: ExitStack) -> None:
    """It is asked for each producer, and its errors are those of a socket."""
    arrived: dict[int, bytes | OSError] = {}

    def receive_into(descriptor: int, buffer: memoryview) -> int:
        data = arrived.pop(descriptor)
        if isinstance(data, OSError):
            raise data
        buffer[: len(data)] = data
        return len(data)

    crowd = Crowd(form, 5, undo, receive_into=receive_into)
    whole, cut, quiet, ended, broken = crowd.clients
    arrived |= {whole.fd: frame(), cut.fd: frame() + NOT_PLAIN, ended.fd: b""}
    arrived |= {quiet.fd: BlockingIOError(), broken.fd: ConnectionResetError()}
    rest, begun = crowd.broker.sends.receive(crowd.ready)
    assert rest == [(ended.fd, EPOLLIN), (broken.fd, EPOLLIN)]
    assert [(fd, go_on.args[0]) for fd, go_on in begun] == [(cut.fd, NOT_PLAIN)]  # type: ignore[attr-defined]
    assert crowd.broker.appender.waiting_requests == 2
    assert [client.heard for client in crowd.clients] == [True, True, False, False, False]
    assert crowd.fast_senders == {whole.fd, quiet.fd, ended.fd, broken.fd}


@both_forms
def test_receiver_rejects_more_bytes_than_fit(form: str, undo: ExitStack) -> None:
    crowd = Crowd(form, 1, undo, receive_into=lambda descriptor, buffer: len(buffer) + 1)
    with pytest.raises(AssertionError, match="65537 bytes were received"):
        crowd.broker.sends.receive(crowd.ready)
