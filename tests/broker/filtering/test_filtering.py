"""Consumption through a filter server, on the brokers of the test kit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from structlog.testing import capture_logs

from mq.client import Admin, BodyFilter, Message, Producer, PushConsumer, WasmFilter
from mq.client.filters import Filter
from mq.testing import Kit, open_kit
from tests.support.filter_servers import ENDLESS, EVERYTHING, NOTHING, begins_with, fails_at, filter_server
from tests.support.waiting import until

TOPIC = "Orders"


@asynccontextmanager
async def kit_with(*bodies: bytes) -> AsyncIterator[Kit]:
    """Brokers with these messages."""
    async with open_kit() as kit:
        await send(kit, *bodies)
        yield kit


async def send(kit: Kit, *bodies: bytes) -> None:
    async with Producer(kit.namesrv) as producer:
        for body in bodies:
            await producer.send(Message(TOPIC, body, tags="A", properties={"size": str(len(body))}))


async def receive(kit: Kit, wanted: Filter, count: int, group: str = "billing", tags: str = "*") -> list[bytes]:
    """What a group receives until it is at the end of all queues."""
    bodies: list[bytes] = []
    consumer = PushConsumer(kit.namesrv, group=group, consume_from="first", commit_seconds=0.05)

    async def read() -> None:
        async for message in consumer:
            bodies.append(message.body)

    consumer.subscribe(TOPIC, tags, filter=wanted)
    async with consumer, trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await until(lambda: len(bodies) >= count, seconds=60)
        await until(lambda: offsets_at_the_end(kit, group), seconds=60)
        nursery.cancel_scope.cancel()
    return sorted(bodies)


async def offsets_at_the_end(kit: Kit, group: str) -> bool:
    async with Admin(kit.namesrv) as admin:
        route = await admin.route(TOPIC)
        ends = [await admin.max_offset(queue) for queue in route.read_queues]
        stored = [await admin.group_offset(group, queue) for queue in route.read_queues]
    return [each or 0 for each in stored] == ends


async def test_consumer_gets_only_messages_that_the_module_accepts() -> None:
    async with kit_with(b"apple", b"bread", b"avocado", b"cheese") as kit, filter_server(kit, TOPIC):
        assert await receive(kit, WasmFilter(begins_with("a")), 2) == [b"apple", b"avocado"]


async def test_message_must_match_both_the_tags_and_the_filter() -> None:
    async with kit_with(b"apple", b"bread") as kit, filter_server(kit, TOPIC):
        async with Producer(kit.namesrv) as producer:
            for tag, body in (("B", b"avocado"), ("B", b"butter"), ("C", b"almond")):
                await producer.send(Message(TOPIC, body, tags=tag))
        assert await receive(kit, WasmFilter(begins_with("a")), 2, tags="A || B") == [b"apple", b"avocado"]


async def test_filter_is_uploaded_once_for_all_queues() -> None:
    with capture_logs() as logs:
        async with kit_with(b"apple", b"bread", b"avocado") as kit, filter_server(kit, TOPIC):
            await receive(kit, WasmFilter(begins_with("a")), 2)
    assert len([each for each in logs if each["event"] == "filter_uploaded" and "program" in each]) == 1


async def test_large_filtered_answer_is_cut_at_the_size_of_the_pull() -> None:
    """32 messages of a pull are let through, of hundreds that were read: the others come again, each once."""
    bodies = [b"a%04d" % number for number in range(700)]
    async with open_kit() as kit:
        async with Producer(kit.namesrv) as producer:
            await producer.send_batch([Message(TOPIC, body) for body in bodies])
        async with filter_server(kit, TOPIC):
            assert await receive(kit, WasmFilter(EVERYTHING), 700) == bodies


async def test_expression_looks_into_bodies_and_at_properties() -> None:
    bodies = [b'{"amount": 5}', b'{"amount": 500.5}', b"no JSON", b'{"amount": 700, "test": true}']
    async with kit_with(*bodies) as kit, filter_server(kit, TOPIC):
        wanted = BodyFilter("TAGS = 'A' AND size > 1 AND BODY('$.amount') > 100 AND BODY('$.test') IS NULL")
        assert await receive(kit, wanted, 1) == [b'{"amount": 500.5}']


async def test_module_sees_the_original_of_compressed_bodies() -> None:
    long = b"z" * 20_000
    async with kit_with(b"short", long) as kit, filter_server(kit, TOPIC):
        assert await receive(kit, WasmFilter(begins_with("z")), 1) == [long]


async def test_error_policy_passes_or_skips_messages_that_fail_the_filter() -> None:
    with capture_logs() as logs:
        async with kit_with(b"a", b"fatal", b"b") as kit, filter_server(kit, TOPIC):
            assert await receive(kit, WasmFilter(fails_at("f")), 3, "keeps") == [b"a", b"b", b"fatal"]
            assert await receive(kit, WasmFilter(fails_at("f"), on_error="skip"), 2, "skips") == [b"a", b"b"]
    told = {each["group"]: each for each in logs if each["event"] == "filter_failed"}
    assert told["keeps"]["outcome"] == "passed on"
    assert told["skips"]["outcome"] == "skipped"
    assert (told["skips"]["topic"], told["skips"]["offset"]) == (TOPIC, 0)
    assert told["skips"]["reason"] == "it gave up (unreachable)"


async def test_endless_filter_affects_only_its_group() -> None:
    limits: dict[str, Any] = {"fuel_per_message": 100_000_000, "seconds_per_message": 0.05, "threads": 2}
    async with (
        kit_with(*[b"f%d" % number for number in range(20)]) as kit,
        filter_server(kit, TOPIC, **limits),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(receive, kit, WasmFilter(fails_at("f", ENDLESS)), 20, "endless")
        assert len(await receive(kit, WasmFilter(EVERYTHING), 20, "fine")) == 20


async def test_consumer_offset_advances_when_the_filter_drops_everything() -> None:
    async with open_kit() as kit:
        async with Producer(kit.namesrv) as producer:
            for _ in range(40):
                await producer.send_batch([Message(TOPIC, b"x" * 100) for _ in range(500)])
        async with (
            filter_server(kit, TOPIC),
            PushConsumer(kit.namesrv, group="billing", consume_from="first", commit_seconds=0.05) as consumer,
        ):
            consumer.subscribe(TOPIC, filter=WasmFilter(NOTHING))
            await until(lambda: offsets_at_the_end(kit, "billing"), seconds=60)


async def test_new_message_wakes_a_waiting_pull() -> None:
    async with kit_with(b"bread") as kit, filter_server(kit, TOPIC):
        received: list[bytes] = []
        async with PushConsumer(kit.namesrv, group="billing", consume_from="first", commit_seconds=0.05) as consumer:
            consumer.subscribe(TOPIC, filter=WasmFilter(begins_with("a")))
            async with trio.open_nursery() as nursery:

                async def read() -> None:
                    async for message in consumer:
                        received.append(message.body)

                nursery.start_soon(read)
                await until(lambda: offsets_at_the_end(kit, "billing"))
                begun = trio.current_time()
                await send(kit, b"butter", b"apple")
                await until(lambda: received)
                assert trio.current_time() - begun < 10, "it waited for the end of the poll"
                nursery.cancel_scope.cancel()
        assert received == [b"apple"]


async def test_filter_survives_a_restart_of_the_filter_server() -> None:
    uploads = "filter_uploaded"
    wanted = WasmFilter(begins_with("a"))
    async with kit_with(b"apple", b"bread") as kit:
        async with filter_server(kit, TOPIC):
            assert await receive(kit, wanted, 1) == [b"apple"]
        await send(kit, b"avocado")
        with capture_logs() as logs:
            async with filter_server(kit, TOPIC):
                assert await receive(kit, wanted, 1) == [b"avocado"]
        assert not [each for each in logs if each["event"] == uploads], "the broker did not have it"


async def test_new_filter_of_a_group_replaces_its_old_filter() -> None:
    async with kit_with(b"apple", b"bread") as kit, filter_server(kit, TOPIC):
        assert await receive(kit, WasmFilter(begins_with("a")), 1) == [b"apple"]
        await send(kit, b"avocado", b"butter")
        assert await receive(kit, WasmFilter(begins_with("b")), 1) == [b"butter"]


async def stuck_reason(kit: Kit, wanted: Filter, text: str) -> str:
    """Why a consumer gets nothing, once a reason has this text."""
    async with PushConsumer(kit.namesrv, group="billing", consume_from="first", commit_seconds=0.05) as consumer:
        consumer.subscribe(TOPIC, filter=wanted)
        found: list[str] = []

        def is_there() -> bool:
            found[:] = [each for each in consumer.health().reasons if text in each]
            return bool(found)

        await until(is_there, seconds=30)
        return found[0]


async def test_consumer_without_filter_server_names_the_command_to_start() -> None:
    async with kit_with(b"apple") as kit:
        assert "raftmq filter-server" in await stuck_reason(kit, WasmFilter(EVERYTHING), "no filter server")


async def test_unusable_module_is_refused_with_the_reason() -> None:
    async with kit_with(b"apple") as kit, filter_server(kit, TOPIC):
        assert "exports no memory" in await stuck_reason(kit, WasmFilter(b"\0asm\1\0\0\0"), "exports no memory")
