"""What one client asks or answers must not hurt the process or the others."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.broker.consume.pull import COMMIT_OFFSET
from mq.broker.net import slow_responses
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.slow_responses import SlowResponses
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.wire import fastjson
from tests.support.running_broker import SUBSCRIPTION, Client, RunningBroker, broker_client, limited, pull_ext, running
from tests.support.waiting import until

# -- answers of clients that are passed on -----------------------------------------------------------------------------


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_unrelayable_answer_is_an_error_for_its_caller(tmp_path: Path, serialization: int) -> None:
    answers: list[tuple[int, dict[str, Any]]] = [
        (32768, {}),
        (-32769, {}),
        (0, {"remark": "\x01" * 10_000}),
        (0, {"ext": {"n" * 40_000: ""}}),
    ]
    async with running(tmp_path) as broker:
        member, asker = await broker.connect(), await broker.connect()
        await member.heartbeat("c1", "G")
        for code, given in answers:
            fields = {"consumerGroup": "G", "clientId": "c1"}
            opaque = await asker.post(RequestCode.GET_CONSUMER_RUNNING_INFO, fields, serialization=serialization)
            question, _ = await member.question()
            await member.reply(question, code, **given)
            answer = await asker.answer(opaque)
            assert (answer.code, answer.ext) == (ResponseCode.SYSTEM_ERROR, {}), (code, given)
            assert "sent an invalid answer" in str(answer.remark)
        assert await member.alive()


async def test_broker_does_not_forward_impossible_offsets(broker: RunningBroker) -> None:
    member, asker = await broker.connect(), await broker.connect()
    await asker.create_topic("T")
    await member.heartbeat("c1", "G")
    for number in (2**63, -(10**30)):
        opaque = await asker.post(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"group": "G", "topic": "T"})
        question, _ = await member.question()
        key = '{"topic":"T","brokerName":"b","queueId":0}'
        await member.reply(question, body=f'{{"messageQueueTable":{{{key}:{number}}}}}'.encode())
        answer = await asker.answer(opaque)
        assert fastjson.parse(answer.body) == {"consumerTable": {"c1": {}}, "messageQueueTable": {}}


async def test_pull_of_an_invalid_group_is_refused_when_groups_are_full(
    tmp_path: Path,
) -> None:
    async with broker_client(tmp_path, queues=1, limits=limited(state={"groups_max": 0})) as client:
        fields = pull_ext(consumerGroup="no group!", sysFlag=SUBSCRIPTION | COMMIT_OFFSET, commitOffset=1)
        answer = await client.request(RequestCode.PULL_MESSAGE, fields)
        assert (answer.code, "no group!" in str(answer.remark)) == (ResponseCode.INVALID_PARAMETER, True)
        assert (await client.request(RequestCode.PULL_MESSAGE, pull_ext())).code == ResponseCode.PULL_NOT_FOUND


# -- questions about all queues ----------------------------------------------------------------------------------------


async def test_topic_named_repeatedly_is_examined_once(client: Client) -> None:
    await client.create_topic("T", 1000)
    fields = {"consumerGroup": "G", "topicList": "T;" * 50_000}
    answer = await client.request(RequestCode.GET_CONSUME_STATS, fields)
    assert answer.code == ResponseCode.SUCCESS
    assert len(fastjson.parse(answer.body)["offsetTable"]) == 1000


async def test_other_clients_are_served_during_a_long_answer(tmp_path: Path) -> None:
    async with running(tmp_path, limits=limited(net={"slice_seconds": 0.0001})) as broker:
        asker, other = await broker.connect(), await broker.connect()
        await asker.create_topic("T", 1000)
        for code, fields in (
            (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}),
            (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G", "topic": "T"}),
            (RequestCode.QUERY_CONSUME_TIME_SPAN, {"group": "G", "topic": "T"}),
        ):
            opaque = await asker.post(code, fields)
            await asker.request(RequestCode.GET_ALL_DELAY_OFFSET)
            assert opaque not in asker.answers  # it was asked first, and is still being made
            assert await other.alive()
            assert (await asker.answer(opaque)).code == ResponseCode.SUCCESS


# -- Gradually ---------------------------------------------------------------------------------------------------------


class _Connection:
    """Keeps what it is to send."""

    def __init__(self) -> None:
        self.closed = False
        self.sent: list[bytes] = []
        self.refusals: list[str] = []

    def answer(self, request: Any, reply: bytes) -> None:
        self.sent.append(reply)

    def refuse(self, request: Any, serialization: int, error: Exception) -> None:
        assert isinstance(error, RequestRefused)
        self.refusals.append(error.remark)


def _answer(steps: int, text: bytes) -> Generator[None, None, bytes]:
    for _ in range(steps):
        yield
    return text


async def test_long_answers_are_bounded_and_dropped_with_their_client() -> None:
    seconds = iter(range(1_000_000))
    gradually = SlowResponses(wake=lambda: None, clock=lambda: float(next(seconds)))  # so each slice is one step
    request: Any = None
    clients: list[Any] = [_Connection() for _ in range(5)]
    for client in clients:
        for number in range(5):
            gradually.work(Call(client, request, b"", JSON), _answer(3, b"%d" % number))
    assert len(gradually) == slow_responses.WAITING_MAX
    assert [len(client.refusals) for client in clients] == [1, 1, 1, 1, 5]
    clients[0].closed = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gradually.run)
        await until(lambda: not len(gradually))
        nursery.cancel_scope.cancel()
    assert [client.sent for client in clients] == [[], *[[b"0", b"1", b"2", b"3"]] * 3, []]


async def test_short_deferred_answer_is_built_later_too() -> None:
    gradually = SlowResponses(wake=lambda: None, clock=trio.current_time)
    client, begun = _Connection(), False

    def answer() -> Generator[None, None, bytes]:
        nonlocal begun
        begun = True
        yield
        return b"text"

    request: Any = None
    connection: Any = client
    gradually.work(Call(connection, request, b"", JSON), answer(), may_begin=False)
    assert (len(gradually), begun) == (1, False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gradually.run)
        await until(lambda: client.sent)
        nursery.cancel_scope.cancel()
    assert client.sent == [b"text"]


async def test_answer_longer_than_a_frame_is_refused() -> None:
    parts = slow_responses.join_parts(bytes(1024 * 1024) for _ in range(20))
    with pytest.raises(RequestRefused, match="longer than"):
        for _ in parts:
            pass
