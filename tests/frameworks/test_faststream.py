"""The broker for FastStream: handlers, publishers, requests, and tests without brokers."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Annotated, Any

import anyio
import httpx2
import pytest
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from faststream import AckPolicy, FastStream, TestApp
from faststream.exceptions import NackMessage, RejectMessage
from faststream.specification import AsyncAPI
from pydantic import BaseModel

from mq.client import Admin, NameServersUnavailable, PushConsumer, sql
from raftmq.faststream import (
    RaftmqBroker,
    RaftmqMessage,
    RaftmqPublisher,
    RaftmqResponse,
    RaftmqRoute,
    RaftmqRouter,
    TestRaftmqBroker,
)
from raftmq.faststream.fastapi import Context
from raftmq.faststream.fastapi import RaftmqRouter as FastAPIRouter
from tests.frameworks.pages import examples
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

SECONDS_MAX = 30.0
_numbers = itertools.count()


class Order(BaseModel):
    """What handlers get."""

    fruit: str
    count: int


@pytest.fixture
def topic() -> str:
    return f"stream-{next(_numbers)}"


async def test_faststream_handlers_get_typed_messages_and_publish_results(namesrv: str, topic: str) -> None:
    broker = RaftmqBroker(namesrv)
    received: list[Any] = []

    @broker.subscriber(topic, consume_from="first")
    @broker.publisher(f"{topic}-bills", tags="new", headers={"currency": "EUR"})
    async def bill(order: Order, message: RaftmqMessage) -> dict[str, int]:
        received.append((order, message.raw_message.tags, message.headers["region"]))
        return {"sum": 3 * order.count}

    @broker.subscriber(f"{topic}-bills", tags="new", consume_from="first")
    async def note(bill: dict[str, int], message: RaftmqMessage) -> None:
        received.append((bill, message.headers["currency"]))

    with anyio.fail_after(SECONDS_MAX):
        async with broker:
            await broker.start()
            result = await broker.publish(
                Order(fruit="apple", count=2), topic, tags="fruit", keys=("o-1",), headers={"region": "eu"}
            )
            await until(lambda: len(received) == 2)
            async with Admin(namesrv) as admin:
                [stored] = await admin.messages_by_key(topic, "o-1")
                assert stored.message_id == result.message_id
    assert received == [(Order(fruit="apple", count=2), "fruit", "eu"), ({"sum": 6}, "EUR")]


async def test_ack_policies_apply_to_failed_handlers(namesrv: str, topic: str) -> None:
    broker = RaftmqBroker(namesrv)
    calls: list[str] = []

    @broker.subscriber(topic, group=f"{topic}-g", consume_from="first", retry_delay=0.05)
    async def handle(name: str) -> None:
        calls.append(name)
        if calls.count(name) > 1:
            return
        if name == "again":
            raise NackMessage(delay=0.01)
        if name == "fails":
            raise LookupError("once")
        if name == "dead":
            raise RejectMessage(reason="no such fruit")

    with anyio.fail_after(SECONDS_MAX):
        async with broker:
            await broker.start()
            for name in ("again", "fails", "dead", "good"):
                await broker.publish(name, topic)
            await until(lambda: len(calls) == 6)
    assert sorted(calls) == ["again", "again", "dead", "fails", "fails", "good"]
    async with PushConsumer(namesrv, group="dead", consume_from="first") as consumer:
        consumer.subscribe(f"%DLQ%{topic}-g")
        with anyio.fail_after(SECONDS_MAX):
            letter = await anext(aiter(consumer))
    assert (letter.body, letter.properties["RAFTMQ_FAILURE"]) == (b"dead", "no such fruit")


async def test_message_that_always_fails_becomes_a_dead_letter(
    namesrv: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = RaftmqBroker(namesrv)
    calls: list[str] = []

    @broker.subscriber(topic, consume_from="first", retry_delay=0.01, max_attempts=3)
    async def handle(name: str) -> None:
        calls.append(name)
        raise LookupError("always")

    with anyio.fail_after(SECONDS_MAX), caplog.at_level(logging.ERROR, "raftmq.faststream"):
        async with broker:
            await broker.start()
            await broker.publish("x", topic, keys=("poison",))
            await until(lambda: "poison is a dead letter, it was delivered 3 times" in caplog.text)
    assert calls == ["x"] * 3


async def test_message_is_redelivered_after_shutdown_cuts_off_its_handler(namesrv: str, topic: str) -> None:
    calls: list[str] = []

    def broker_of(name: str) -> RaftmqBroker:
        broker = RaftmqBroker(namesrv, graceful_timeout=0.05)

        @broker.subscriber(topic, consume_from="first", ack_policy=AckPolicy.ACK)
        async def handle(body: str) -> None:
            calls.append(name)
            if name == "first":
                await anyio.sleep_forever()

        return broker

    with anyio.fail_after(SECONDS_MAX):
        async with broker_of("first") as broker:
            await broker.start()
            await broker.publish("x", topic)
            await until(lambda: calls == ["first"])
        async with broker_of("second") as broker:
            await broker.start()
            await until(lambda: calls == ["first", "second"])


async def test_workers_handle_at_most_their_maximum_at_a_time(namesrv: str, topic: str) -> None:
    broker = RaftmqBroker(namesrv)
    running: set[int] = set()
    most = 0
    go_on = anyio.Event()

    @broker.subscriber(topic, consume_from="first", max_workers=3)
    async def handle(number: int) -> None:
        nonlocal most
        running.add(number)
        most = max(most, len(running))
        await go_on.wait()
        running.discard(number)

    with anyio.fail_after(SECONDS_MAX):
        async with broker:
            await broker.start()
            for number in range(6):
                await broker.publish(number, topic)
            await until(lambda: len(running) == 3)
            go_on.set()
            await until(lambda: not running)
    assert most == 3


async def test_requests_are_answered_or_time_out(namesrv: str, topic: str) -> None:
    broker = RaftmqBroker(namesrv)

    @broker.subscriber(topic, consume_from="first")
    async def double(number: int) -> RaftmqResponse:
        if number < 0:
            await anyio.sleep(0.5)  # longer than its caller waits
        return RaftmqResponse(2 * number, headers={"by": "double"})

    with anyio.fail_after(SECONDS_MAX):
        async with broker:
            await broker.start()
            reply = await broker.request(21, topic)
            assert (await reply.decode(), reply.headers["by"]) == (42, "double")
            with pytest.raises(TimeoutError, match="no reply"):
                await broker.request(-1, topic, timeout=0.2)
            assert await (await broker.publisher(topic).request(1)).decode() == 2


async def test_get_one_and_iteration(namesrv: str, topic: str) -> None:
    broker = RaftmqBroker(namesrv)
    subscriber = broker.subscriber(topic, consume_from="first")
    with anyio.fail_after(SECONDS_MAX):
        async with broker:
            await broker.start()
            assert await subscriber.get_one(timeout=0.05) is None
            await broker.publish(None, topic)
            await broker.publish("two", topic, delay=0.1)
            message = await subscriber.get_one()
            assert message is not None
            assert await message.decode() == b""
            await message.ack()
            async for message in subscriber:
                assert await message.decode() == "two"
                await message.ack()
                break
            assert await broker.ping()
        assert not await broker.ping()


async def test_routers_prefix_their_topics(namesrv: str, topic: str) -> None:
    received: list[str] = []

    async def shout(text: str) -> str:
        received.append(text)
        return text.upper()

    router = RaftmqRouter(
        prefix=f"{topic}-",
        handlers=[RaftmqRoute(shout, "in", publishers=[RaftmqPublisher("out")], consume_from="first")],
    )

    @router.subscriber("out", consume_from="first")
    async def note(text: str) -> None:
        received.append(text)

    broker = RaftmqBroker(namesrv, routers=[router])
    with anyio.fail_after(SECONDS_MAX):
        async with broker:
            await broker.start()
            await broker.publish("hello", f"{topic}-in")
            await until(lambda: received == ["hello", "HELLO"])


async def test_test_needs_no_broker() -> None:
    broker = RaftmqBroker("127.0.0.1:1")

    @broker.subscriber("in", group="one")
    @broker.publisher("out")
    async def double(number: int) -> int:
        return 2 * number

    @broker.subscriber("in", group="two", tags="x")
    async def other(number: int, message: RaftmqMessage) -> None:
        assert message.raw_message.tags == "x"
        await message.ack()

    publisher = broker.publisher("out")
    async with TestRaftmqBroker(broker) as tested:
        await tested.publish(21, "in", tags="x")
        double.mock.assert_called_once_with(21)
        other.mock.assert_called_once_with(21)
        publisher.mock.assert_called_once_with(42)
        assert await (await tested.request(1, "in")).decode() == 2


async def test_test_broker_filters_messages_like_a_real_broker() -> None:
    broker = RaftmqBroker("127.0.0.1:1")

    @broker.subscriber("in", group="tagged", tags="x || y")
    async def tagged(number: int) -> int:
        return number + 1

    @broker.subscriber("in", group="selected", tags=sql("price > 5"))
    async def selected(number: int) -> int:
        return number + 2

    @broker.subscriber("in", group="all")
    async def everything(number: int) -> int:
        return number + 3

    async with TestRaftmqBroker(broker) as tested:
        await tested.publish(1, "in", tags="y", headers={"price": "5"})
        tagged.mock.assert_called_once_with(1)
        selected.mock.assert_not_called()
        everything.mock.assert_called_once_with(1)
        assert await (await tested.request(1, "in", tags="x")).decode() == 2, "of several, the first answers"
        assert await (await tested.request(1, "in", headers={"price": "6"})).decode() == 3
        assert await (await tested.request(1, "in")).decode() == 4


async def test_start_without_a_name_server_fails_within_seconds() -> None:
    broker = RaftmqBroker("127.0.0.1:1")

    @broker.subscriber("in")
    async def handle(body: str) -> None:
        raise AssertionError("nothing comes")

    with anyio.fail_after(SECONDS_MAX), pytest.raises(NameServersUnavailable, match=r"127\.0\.0\.1:1"):
        async with broker:
            await broker.start()


async def test_asyncapi_lists_channels_and_servers() -> None:
    broker = RaftmqBroker("10.0.0.1:9876;10.0.0.2:9876")

    @broker.subscriber("orders")
    @broker.publisher("bills")
    async def bill(order: Order) -> int:
        return order.count

    description = AsyncAPI(broker).to_specification().to_jsonable()
    assert {each["address"] for each in description["channels"].values()} == {"orders", "bills"}
    assert "rocketmq" in {each["protocol"] for each in description["servers"].values()}
    assert "Order" in description["components"]["schemas"]


async def test_examples_of_the_faststream_page_run(
    namesrv: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    application, _, tests = examples("faststream.md", namesrv)
    names: dict[str, Any] = {"__name__": "page"}

    def run(source: str, name: str) -> None:
        path = tmp_path / name  # FastStream looks into the source of tests
        path.write_text(source)
        exec(compile(source, str(path), "exec", dont_inherit=True), names)

    run(application, "application.py")
    app = names["app"]
    assert isinstance(app, FastStream)
    with anyio.fail_after(SECONDS_MAX):
        async with TestApp(app):
            await names["broker"].publish({"fruit": "apple", "count": 2}, "fruit-orders")
            shown = ""
            while "bill of 6 EUR" not in shown:
                shown += capsys.readouterr().out
                await anyio.sleep(0.01)  # until the handlers have printed it
    run(tests, "tests.py")
    await names["test_bill"]()


async def test_router_for_fastapi_on_the_page(namesrv: str) -> None:
    _, source, _ = examples("faststream.md", namesrv)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(source, "faststream.md", "exec", dont_inherit=True), names)
    app, broker = names["app"], names["router"].broker
    with anyio.fail_after(SECONDS_MAX):
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://shop") as client,
        ):
            assert await broker.ping()
            assert (await client.get("/shop/prices/apple")).json() is None
            response = await client.post("/shop/prices/apple", params={"cents": 30})
            assert (response.status_code, len(response.json())) == (200, 32)
            await until(lambda: names["prices"] == {"apple": 30})
            assert (await client.get("/shop/prices/apple")).json() == 30
            described = (await client.get("/shop/asyncapi.json")).json()
            assert {each["address"] for each in described["channels"].values()} == {"fruit-prices"}
    assert not await broker.ping()


async def test_router_for_fastapi_needs_no_broker_in_tests() -> None:
    router = FastAPIRouter()

    @router.subscriber("numbers", response_model=Order)
    async def order(count: int, message: Annotated[Any, Context("message")]) -> dict[str, Any]:
        return {"fruit": message.headers["fruit"], "count": count, "secret": 1}

    app = FastAPI()
    app.include_router(router)
    async with TestRaftmqBroker(router.broker) as tested, app.router.lifespan_context(app):
        answer = await tested.request({"count": 2}, "numbers", headers={"fruit": "apple"})
        assert await answer.decode() == {"fruit": "apple", "count": 2}
        with pytest.raises(RequestValidationError):
            await tested.publish({"count": "two"}, "numbers", headers={"fruit": "apple"})
