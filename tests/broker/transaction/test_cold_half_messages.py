"""Old half messages are loaded by a thread before they are ended, or their producers are asked; nobody else waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from mq.broker.transaction.transactions import Transactions
from mq.protocol.codes import RequestCode, ResponseCode
from tests.support.check_backs import FAST, produce
from tests.support.cold_disk import Reads
from tests.support.half_messages import COMMIT, ROLLBACK, end, end_ext, send_half
from tests.support.running_broker import Answer, broker_client, running
from tests.support.stored_messages import stored
from tests.support.waiting import until


async def send_halves(directory: Path, count: int) -> list[Answer]:
    """Half messages of a broker that has ended."""
    async with broker_client(directory, queues=1) as client:
        return [await send_half(client, b"%d" % number * 1000) for number in range(count)]


async def test_other_clients_are_served_during_a_cold_transaction_end(tmp_path: Path, reads: Reads) -> None:
    (half,) = await send_halves(tmp_path, 1)
    async with running(tmp_path) as broker:
        reads.gate.clear()
        slow, other = await broker.connect(), await broker.connect()
        answers: list[Answer] = []

        async def commit() -> None:
            answers.append(await end(slow, half, COMMIT))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            await reads.wait_asked()
            assert (await other.send(body=b"meanwhile")).code == 0
            assert answers == []
            reads.gate.set()
        assert [answer.code for answer in answers] == [0]
        assert [record.body for record in await stored(other)] == [b"meanwhile", b"0" * 1000]


async def test_event_loop_ends_only_loaded_half_messages(tmp_path: Path, reads: Reads) -> None:
    halves = await send_halves(tmp_path, 40)
    async with broker_client(tmp_path) as client:
        reads.by_loop = 0
        for number, half in enumerate(halves):
            assert (await end(client, half, ROLLBACK if number % 2 else COMMIT)).code == 0
        assert reads.by_loop == 0
        assert reads.brought
        assert [record.body for record in await stored(client)] == [b"%d" % number * 1000 for number in range(0, 40, 2)]


@pytest.mark.parametrize(("first", "second"), [(COMMIT, ROLLBACK), (ROLLBACK, COMMIT)], ids=["commit", "rollback"])
async def test_first_of_two_ends_decides_even_if_loaded_later(
    tmp_path: Path, reads: Reads, first: int, second: int
) -> None:
    (half,) = await send_halves(tmp_path, 1)
    async with running(tmp_path) as broker:
        reads.gate.clear()
        reads.only_first_waits = True
        winner, loser, other = [await broker.connect() for _ in range(3)]
        winning = await winner.post(RequestCode.END_TRANSACTION, end_ext(half, first))
        await reads.wait_asked()
        losing = [await loser.post(RequestCode.END_TRANSACTION, end_ext(half, second)) for _ in range(3)]
        repeated = await loser.post(RequestCode.END_TRANSACTION, end_ext(half, first))
        for _ in range(20):
            assert (await loser.send("T", b"meanwhile")).code == 0
        assert not loser.answers, "an end was answered before the one that arrived first"
        reads.gate.set()
        assert (await winner.answer(winning)).code == 0
        how = "committed" if first == COMMIT else "rolled back"
        for each in losing:
            late = await loser.answer(each)
            assert (late.code, how in str(late.remark)) == (ResponseCode.SYSTEM_ERROR, True)
        assert (await loser.answer(repeated)).code == 0
        copies = [record.body for record in await stored(other) if record.body != b"meanwhile"]
        assert copies == ([b"0" * 1000] if first == COMMIT else [])
    async with broker_client(tmp_path) as client:
        assert (await end(client, half, first)).code == 0
        assert (await end(client, half, second)).code == ResponseCode.SYSTEM_ERROR


async def test_too_many_ends_that_wait_for_one_load_are_refused(tmp_path: Path, reads: Reads) -> None:
    (half,) = await send_halves(tmp_path, 1)
    async with running(tmp_path) as broker:
        reads.gate.clear()
        client = await broker.connect()
        posted = [await client.post(RequestCode.END_TRANSACTION, end_ext(half, COMMIT)) for _ in range(300)]
        refused = await client.answer(posted[-1])
        assert (refused.code, "maximum number of requests" in str(refused.remark)) == (ResponseCode.SYSTEM_BUSY, True)
        reads.gate.set()
        codes = [(await client.answer(each)).code for each in posted[:-1]]
        assert codes == [0] * 256 + [ResponseCode.SYSTEM_BUSY] * 43


async def test_end_without_an_answer_counts_although_its_client_is_gone(tmp_path: Path, reads: Reads) -> None:
    (half,) = await send_halves(tmp_path, 1)
    async with running(tmp_path) as broker:
        reads.gate.clear()
        gone, client = await broker.connect(), await broker.connect()
        await gone.post(RequestCode.END_TRANSACTION, end_ext(half, COMMIT), oneway=True)
        await reads.wait_asked()
        await gone.stream.aclose()
        assert (await client.send(body=b"so that it is noticed")).code == 0
        reads.gate.set()

        async def visible() -> bool:
            return len(await stored(client)) == 2

        await until(visible)


async def test_event_loop_ends_half_messages_if_threads_fail(tmp_path: Path, reads: Reads) -> None:
    (half,) = await send_halves(tmp_path, 1)
    async with running(tmp_path) as broker:
        reads.fails = True
        assert (await end(await broker.connect(), half, COMMIT)).code == 0
        assert reads.asked.is_set()


async def test_loaded_end_is_refused_if_too_much_is_pending(
    tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    (half,) = await send_halves(tmp_path, 1)
    async with running(tmp_path) as broker:
        reads.gate.clear()
        client = await broker.connect()
        answers: list[Answer] = []

        async def commit() -> None:
            answers.append(await end(client, half, COMMIT))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            await reads.wait_asked()
            monkeypatch.setattr(Transactions, "_uncommitted_bytes_max", property(lambda _: -1), raising=False)
            reads.gate.set()
        assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_BUSY]


@pytest.mark.parametrize("given", [{}, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}], ids=["passed", "postponed"])
async def test_event_loop_checks_only_loaded_half_messages(tmp_path: Path, reads: Reads, given: dict[str, Any]) -> None:
    async with broker_client(tmp_path) as client:
        for number in range(10):
            await send_half(client, b"%d" % number * 1000, **given)
    async with running(tmp_path, transaction_checks_max=1, **FAST) as broker:
        client, producer = await broker.connect(), await broker.connect()
        reads.by_loop = 0
        await produce(producer)
        asked = {(await producer.question())[0].ext.half_queue_offset for _ in range(10)}
        assert asked == set(range(10))
        assert reads.by_loop == 0
        assert reads.brought


async def test_broker_checks_half_messages_if_threads_fail(tmp_path: Path, reads: Reads) -> None:
    await send_halves(tmp_path, 1)
    async with running(tmp_path, **FAST) as broker:
        reads.fails = True
        producer = await broker.connect()
        await produce(producer)
        assert (await producer.question())[0].ext.half_queue_offset == 0
