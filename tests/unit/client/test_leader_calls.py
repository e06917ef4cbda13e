"""Requests to the leader of a broker group: which failures lead to another attempt, and for how long. Virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from mq.client import (
    BrokerError,
    ClientClosed,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    NoRoute,
    RemotingSettings,
    RequestTimeout,
    TopicNotFound,
    TopicRoute,
)
from mq.client.net.client_core import ClientCore
from mq.client.net.leader_calls import PAUSE_SECONDS, Repeat, call_leader, known_leader
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response

OLD, NEW = "127.0.0.1:1", "127.0.0.1:2"
CODE = RequestCode.UPDATE_CONSUMER_OFFSET
Answer = Callable[[], Response]


def refuses(error: ClientError) -> Answer:
    def answer() -> Response:
        raise error

    return answer


def busy(code: int = ResponseCode.SERVICE_NOT_AVAILABLE) -> Answer:
    return refuses(BrokerError(code, "not now", OLD))


LOST = refuses(ConnectionLost(OLD, "reset", sent=True))
NEVER_SENT = refuses(ConnectionLost(OLD, "reset", sent=False))


class Brokers:
    """One group that `leads` by the name servers, and what its replicas answer, in turn; the last answer for ever.

    An answer that is None never comes. Routes are cached until somebody refreshes them, as `ClientCore` does.
    """

    def __init__(self, *answers: Answer | None, leads: str | None = NEW, cached: str | None = NEW) -> None:
        self.answers = list(answers)
        self.leads = leads
        self.known: str | None = cached
        self.is_known = True
        self.silent: set[str] = set()
        self.refreshes_that_find_nothing = 0
        self.asked: list[tuple[float, str]] = []
        self.timeouts: list[float] = []
        self.settings = RemotingSettings(request_seconds=3.0, credentials=None, tls=None)

    def known_route(self, topic: str) -> TopicRoute | None:
        if not self.is_known:
            return None
        brokers = {"b": {} if self.known is None else {0: self.known}}
        return TopicRoute(topic, read_queues=(), write_queues=(), brokers=brokers)

    async def route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        await trio.lowlevel.checkpoint()
        if refresh and self.refreshes_that_find_nothing:
            self.refreshes_that_find_nothing -= 1
            raise TopicNotFound(topic)
        if refresh:
            self.known = self.leads
        route = self.known_route(topic)
        if route is None:
            raise TopicNotFound(topic)
        return route

    def find_connection(self, address: str) -> Connection | None:
        return None if address in self.silent else Connection(self, address)

    async def connection(self, address: str) -> Connection:
        await trio.lowlevel.checkpoint()
        if address in self.silent:
            await trio.sleep_forever()
        return Connection(self, address)


class Connection:
    def __init__(self, brokers: Brokers, address: str) -> None:
        self._brokers = brokers
        self._address = address

    async def call(
        self, code: int, _ext: dict[str, str] | None, _body: bytes, *, timeout: float
    ) -> tuple[Response, memoryview]:
        brokers = self._brokers
        brokers.asked.append((trio.current_time(), self._address))
        brokers.timeouts.append(timeout)
        answer = brokers.answers.pop(0) if len(brokers.answers) > 1 else brokers.answers[0]
        if answer is None:
            await trio.sleep(timeout)
            raise RequestTimeout(self._address, code, timeout)
        await trio.lowlevel.checkpoint()
        return answer(), memoryview(b"")


def served() -> Response:
    return Response(code=ResponseCode.SUCCESS, opaque=1, flag=1, remark=None, ext={})


async def ask(brokers: Brokers, repeat: Repeat, *, seconds: float = 10.0, busy_codes: tuple[int, ...] = ()) -> Response:
    response, _ = await call_leader(
        cast("ClientCore", brokers), "T", "b", CODE, {}, b"", seconds=seconds, repeat=repeat, busy_codes=busy_codes
    )
    return response


@pytest.mark.parametrize("repeat", [Repeat.UNLESS_CARRIED_OUT, Repeat.ALWAYS])
@pytest.mark.parametrize(
    "failure",
    [
        busy(),
        busy(ResponseCode.NOT_LEADER_FOR_QUEUE),
        busy(ResponseCode.GO_AWAY),
        NEVER_SENT,
        refuses(ConnectFailed(OLD, "refused")),
    ],
)
async def test_request_without_effect_is_repeated_at_the_new_leader(
    autojump_clock: MockClock, failure: Answer, repeat: Repeat
) -> None:
    brokers = Brokers(failure, served, cached=OLD)
    assert (await ask(brokers, repeat)).code == ResponseCode.SUCCESS
    assert [address for _, address in brokers.asked] == [OLD, NEW]


@pytest.mark.parametrize("failure", [LOST, None, busy(ResponseCode.SYSTEM_BUSY)])
async def test_unknown_outcomes_are_repeated_only_if_safe(autojump_clock: MockClock, failure: Answer | None) -> None:
    assert (await ask(Brokers(failure, served), Repeat.ALWAYS)).code == ResponseCode.SUCCESS
    brokers = Brokers(failure, served)
    with pytest.raises(ClientError) as raised:
        await ask(brokers, Repeat.UNLESS_CARRIED_OUT)
    assert (raised.value.stored, len(brokers.asked)) == ("unknown", 1)


@pytest.mark.parametrize("repeat", list(Repeat))
async def test_refusal_is_final(autojump_clock: MockClock, repeat: Repeat) -> None:
    brokers = Brokers(busy(ResponseCode.NO_PERMISSION), served)
    with pytest.raises(BrokerError):
        await ask(brokers, repeat)
    assert len(brokers.asked) == 1


async def test_request_may_define_its_own_busy_codes(autojump_clock: MockClock) -> None:
    code = ResponseCode.SYSTEM_ERROR
    assert (await ask(Brokers(busy(code), served), Repeat.ALWAYS, busy_codes=(code,))).code == ResponseCode.SUCCESS
    with pytest.raises(BrokerError):
        await ask(Brokers(busy(code), served), Repeat.ALWAYS)


async def test_single_attempt_call_is_never_repeated(autojump_clock: MockClock) -> None:
    brokers = Brokers(busy(), served)
    with pytest.raises(BrokerError):
        await ask(brokers, Repeat.NEVER)
    assert len(brokers.asked) == 1
    with pytest.raises(NoRoute):
        await ask(Brokers(served, cached=None), Repeat.NEVER)


async def test_unreachable_attempt_keeps_the_earlier_failure(autojump_clock: MockClock) -> None:
    brokers = Brokers(busy(), leads=OLD)
    brokers.silent = {OLD}
    begun = trio.current_time()
    with pytest.raises(BrokerError, match="not now"):
        await ask(brokers, Repeat.ALWAYS, seconds=2.0)
    assert trio.current_time() - begun == pytest.approx(2.0)


async def test_attempts_end_with_the_time_and_the_last_failure(autojump_clock: MockClock) -> None:
    begun = trio.current_time()
    with pytest.raises(NoRoute, match="group b has no leader"):
        await ask(Brokers(served, leads=None, cached=None), Repeat.ALWAYS, seconds=2.0)
    assert 2.0 - 2 * PAUSE_SECONDS <= trio.current_time() - begun <= 2.0


async def test_silent_leader_takes_only_part_of_the_time_if_others_remain(autojump_clock: MockClock) -> None:
    brokers = Brokers(None, served, cached=OLD)
    await ask(brokers, Repeat.ALWAYS)
    assert [address for _, address in brokers.asked] == [OLD, NEW]
    assert brokers.timeouts[0] == 3.0
    patient = Brokers(served)
    await ask(patient, Repeat.UNLESS_CARRIED_OUT)
    assert patient.timeouts == [10.0]


async def test_unreachable_leader_ends_the_call_in_time(autojump_clock: MockClock) -> None:
    brokers = Brokers(served)
    brokers.silent.add(NEW)
    with pytest.raises(NoRoute, match="was not reached within 2 s") as raised:
        await ask(brokers, Repeat.ALWAYS, seconds=2.0)
    assert raised.value.stored == "no"


async def test_leader_call_fails_at_once_for_an_unknown_topic(autojump_clock: MockClock) -> None:
    brokers = Brokers(served)
    brokers.is_known = False
    begun = trio.current_time()
    with pytest.raises(TopicNotFound):
        await ask(brokers, Repeat.ALWAYS)
    assert trio.current_time() == begun
    with pytest.raises(NoRoute, match="not known yet"):
        known_leader(cast("ClientCore", brokers), "T", "b")


async def test_topic_unknown_to_a_new_name_server_is_requested_again(autojump_clock: MockClock) -> None:
    brokers = Brokers(NEVER_SENT, served)
    brokers.refreshes_that_find_nothing = 3
    assert (await ask(brokers, Repeat.ALWAYS)).code == ResponseCode.SUCCESS
    assert len(brokers.asked) == 2


async def test_closed_client_repeats_no_request(autojump_clock: MockClock) -> None:
    brokers = Brokers(refuses(ClientClosed("this client is closed")), served)
    with pytest.raises(ClientClosed):
        await ask(brokers, Repeat.ALWAYS)
    assert len(brokers.asked) == 1
