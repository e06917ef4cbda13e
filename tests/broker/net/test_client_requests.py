"""What the broker asks, and who is told when nobody answers."""

from __future__ import annotations

import pytest
import trio

from mq.broker.limits import NetLimits
from mq.broker.net.client_requests import ClientRequests, NoResponse
from mq.broker.replication.peer_calls import PeerCalls
from mq.protocol.codes import RequestCode
from mq.protocol.incoming.chunks import decode_chunk
from mq.protocol.incoming.headers import Response
from mq.protocol.requests.replicas import AuthenticateReplica
from raftlog import Reactor
from tests.support.replica_client import ListenerSide, replica_authentication


@pytest.mark.parametrize("by_time", [False, True])
def test_callback_may_close_the_connection_of_the_next_request(by_time: bool) -> None:
    now = 0.0
    questions: ClientRequests[str] = ClientRequests(lambda: now)
    told: list[tuple[int, Response | NoResponse]] = []

    def first(reason: Response | NoResponse, body: bytes) -> None:
        told.append((1, reason))
        questions.connection_closed("b")

    questions.add("a" if by_time else "b", 1.0, first)
    questions.add("b", 1.0, lambda reason, body: told.append((2, reason)))
    if by_time:
        now = 2.0
        questions.expire()
    else:
        questions.connection_closed("b")
    assert told == [(1, NoResponse.TIMEOUT if by_time else NoResponse.GONE), (2, NoResponse.GONE)]
    assert len(questions) == 0


@pytest.mark.parametrize("authenticates", [True, False])
async def test_data_for_a_replica_that_does_not_read_is_bounded(authenticates: bool) -> None:
    limits = NetLimits(peer_waiting_bytes_max=1024 * 1024)
    now = 0.0
    reactor = Reactor()
    calls = PeerCalls(reactor, replica_authentication("n0"), lambda: now, limits)
    answers: list[Response | NoResponse] = []

    async def prove(stream: trio.SocketStream) -> None:
        side, received = ListenerSide(address), b""
        while authenticates and not side.trusted:
            received += await stream.receive_some()
            incoming, consumed = decode_chunk(received)
            received = received[consumed:]
            for request, _, _ in incoming:
                assert isinstance(request, AuthenticateReplica)
                await stream.send_all(side.answer(request))
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, prove, [listener])
        nursery.start_soon(reactor.run)
        with trio.fail_after(60):
            while NoResponse.BUSY not in answers:
                assert len(answers) < 200, "a hundred megabytes wait for who reads nothing"
                calls.ask(address, RequestCode.RELAY_REPLY, {}, bytes(512 * 1024), 1.0, lambda a, _: answers.append(a))
                await trio.sleep(0.002)
                now += 0.05 if authenticates else 0.0
                calls.expire()
        now += 2.0
        calls.expire()
        nursery.cancel_scope.cancel()
    assert answers.count(NoResponse.TIMEOUT) > 0
    calls.close()
    reactor.close()
