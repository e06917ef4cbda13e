"""A program that the tests of forks and of the end of a process run: `python forking_program.py NAME NAMESRV`.

Functions at module level, so that processes which are not forked can import them.
"""

from __future__ import annotations

import asyncio
import ctypes
import datetime as dt
import inspect
import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import anyio
import trio

from mq.client import (
    Admin,
    ClientForked,
    Every,
    GroupCommand,
    Message,
    MessageQueue,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    Schedule,
    SubscriptionGroupConfig,
)
from mq.client.sync import (
    SyncAdmin,
    SyncPopConsumer,
    SyncProducer,
    SyncPullConsumer,
    SyncPushConsumer,
    SyncTransactionProducer,
)

QUEUE = MessageQueue("T", "b-0", 0)
ARGUMENTS: dict[str, Any] = {
    "message": Message("T", b"x"),
    "messages": [Message("T", b"x")],
    "on_done": print,
    "middleware": print,
    "handle": "x",
    "topic": "T",
    "queue": QUEUE,
    "queues": [QUEUE],
    "position": "first",
    "body": b"x",
    "address": "127.0.0.1:1",
    "command": GroupCommand("status"),
    "name": "N",
    "key": "K",
    "offset_message_id": "0" * 32,
    "message_id": "0" * 32,
    "config": SubscriptionGroupConfig(group_name="G"),
    "group": "G",
    "client_id": "C",
    "letter": None,
    "reason": "x",
    "schedule": Schedule("N", "T", b"x", Every(dt.timedelta(minutes=1))),
    "offset": 0,
    "parent": "T",
    "lite_topic": "L",
    "seconds": 1.0,
}
"""By parameter."""
ALLOWED = {"health", "open", "close", "aclose", "group", "client_id", "timeout", "topic", "invisible"}


def fork_in_c() -> int:
    """As servers in C fork, such as uWSGI: Python calls no hooks in the child."""
    return int(ctypes.PyDLL(None).fork())


def in_child(work: Callable[[], object], fork: Callable[[], int] = os.fork) -> Any:
    """What `work` returns in a forked process."""
    reading, writing = os.pipe()
    if fork() == 0:
        try:
            answer = json.dumps(work())
        except BaseException as error:
            answer = json.dumps(repr(error))
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as answers:
        text = answers.read()
    os.wait()
    return json.loads(text)


def unrefused(client: object) -> Iterator[tuple[str, Any]]:
    """The public names of a client, with what evaluating or calling each gives unless ClientForked."""
    for name in dir(type(client)):
        if name.startswith("_") or name in ALLOWED:
            continue
        try:
            found = getattr(client, name)
            if name in ("schedules", "lite", "removed_members"):
                yield from unrefused(found)
                continue
            if not callable(found):
                yield name, None
                continue
            given = [
                ARGUMENTS[parameter.name]
                for parameter in inspect.signature(found).parameters.values()
                if parameter.default is parameter.empty and parameter.name in ARGUMENTS
            ]
            result = found(*given)
            if name == "deliveries" and inspect.isgenerator(result):
                result = next(result)
            yield name, result
        except ClientForked as error:
            if "after the fork" not in str(error):
                yield name, str(error)


def sync_clients(namesrv: str) -> list[Any]:
    return [
        SyncProducer(namesrv),
        SyncTransactionProducer(namesrv, "pg", check=lambda message: None),
        SyncPushConsumer(namesrv, "G"),
        SyncPullConsumer(namesrv, "G"),
        SyncPopConsumer(namesrv, "G", "T"),
        SyncAdmin(namesrv),
    ]


def ids(producer: SyncProducer, count: int = 50) -> list[str]:
    """The id of the client and of some messages."""
    with producer:
        requests = producer._client._requests
        assert requests is not None
        sent = [producer.send(Message("T", b"x")).message_id for _ in range(count)]
        return [producer._client.client_id, requests.open().correlation_id, *sent]


def made_before(namesrv: str) -> None:
    """Clients that were made before a fork, also with a generator of their own, are different ones."""
    for rng in (None, random.Random(1)):
        producer = SyncProducer(namesrv, rng=rng)
        send = partial(ids, producer)
        all_ids = [*send(), *in_child(send), *in_child(send)]
        assert len(all_ids) == len(set(all_ids)) == 156, sorted(all_ids)


def opened_before(namesrv: str, fork: Callable[[], int] = os.fork) -> None:
    """Clients that were opened before a fork refuse to work in the child; the parent's go on."""
    clients = [client.open() for client in sync_clients(namesrv)]
    clients[0].send(Message("T", b"1"))

    def child() -> object:
        began = time.monotonic()
        found = [(type(client).__name__, name) for client in clients for name, _ in unrefused(client)]
        for client in clients:
            client.close()
            client.close()
        again = clients[0].open().send(Message("T", b"2")).queue_offset
        clients[0].close()
        return [found, time.monotonic() - began < 20, again]

    answer = in_child(child, fork)
    assert answer == [[], True, 1], answer
    assert clients[0].send(Message("T", b"3")).queue_offset == 2
    for client in clients:
        client.close()


def forked_in_c(namesrv: str) -> None:
    opened_before(namesrv, fork_in_c)


def child_leaves_block(namesrv: str) -> None:
    """A child that leaves the block, and ends as any process, says nothing to the brokers."""
    with SyncProducer(namesrv) as producer:
        producer.send(Message("T", b"1"))
        if (child := os.fork()) == 0:
            sys.exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        sys.stdout.write("left\n")
        assert producer.send(Message("T", b"2")).queue_offset == 1


def opened_in_event_loop(namesrv: str) -> None:
    """The same for asynchronous clients, whose event loop the child has a copy of."""

    async def refused(client: Any) -> list[str]:
        found = []
        for name, result in unrefused(client):
            try:
                if inspect.isawaitable(result):
                    with anyio.fail_after(5):
                        await result
                found.append(name)
            except ClientForked:
                pass
        await client.aclose()
        return found

    async def use(client: Any) -> list[str]:
        return await refused(client)

    loop = asyncio.new_event_loop()
    clients: list[Any] = [
        Producer(namesrv),
        PushConsumer(namesrv, "G"),
        PullConsumer(namesrv, "G"),
        PopConsumer(namesrv, "G", "T"),
        Admin(namesrv),
    ]
    for client in clients:
        loop.run_until_complete(client.open())
    loop.run_until_complete(clients[0].send(Message("T", b"1")))

    def child(run: Callable[[Any], list[str]]) -> object:
        return [run(client) for client in clients]

    # In the copy of the parent's loop, in a new one, and on trio.
    nothing: list[list[str]] = [[]] * len(clients)
    for run in (
        lambda client: loop.run_until_complete(use(client)),
        lambda client: asyncio.run(use(client)),
        lambda client: trio.run(use, client),
    ):
        answer = in_child(partial(child, run))
        assert answer == nothing, answer
    result = loop.run_until_complete(clients[0].send(Message("T", b"2")))
    assert result.queue_offset == 1, result
    for client in clients:
        loop.run_until_complete(client.aclose())
    loop.close()


def forked_on_trio(namesrv: str) -> None:
    """A fork in a block of trio; the child unwinds the block."""

    async def main() -> None:
        async with Producer(namesrv) as producer:
            await producer.send(Message("T", b"1"))
            child = os.fork()
            if child == 0:
                try:
                    await producer.send(Message("T", b"x"))
                except ClientForked:
                    os._exit(5)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5  # noqa: ASYNC222 - it ends at once
            result = await producer.send(Message("T", b"2"))
            assert result.queue_offset == 1, result

    trio.run(main)


_shared: SyncProducer | None = None


def send_shared(namesrv: str) -> str:
    """In a process of a pool: with the parent's producer, then with one of its own."""
    if _shared is not None:
        try:
            _shared.send(Message("T", b"x"))
        except ClientForked:
            pass
        else:
            return "sent with the parent's producer"
    with SyncProducer(namesrv) as own:
        return own.send(Message("T", b"x")).message_id


def pools(namesrv: str) -> None:
    """Processes of `multiprocessing` and of a pool, started in each way."""
    global _shared
    with SyncProducer(namesrv) as _shared:
        sent = [_shared.send(Message("T", b"x")).message_id]
        for method in ("fork", "forkserver", "spawn"):
            context: Any = multiprocessing.get_context(method)
            with ProcessPoolExecutor(2, mp_context=context) as pool:
                sent += pool.map(send_shared, [namesrv] * 3)
            process = context.Process(target=send_shared, args=(namesrv,))
            process.start()
            process.join()
            assert process.exitcode == 0, method
        sent.append(_shared.send(Message("T", b"x")).message_id)
    assert len(set(sent)) == 11, sent


# Programs that close nothing.


def open_all(namesrv: str) -> list[Any]:
    clients = [client.open() for client in sync_clients(namesrv)]
    clients[0].send(Message("T", b"1"))
    return clients


def end_of_file(namesrv: str) -> None:
    open_all(namesrv)


def exits(namesrv: str) -> None:
    open_all(namesrv)
    sys.exit(3)


def raises(namesrv: str) -> None:
    open_all(namesrv)
    raise LookupError("mine")


def interrupted(namesrv: str) -> None:
    clients = open_all(namesrv)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    clients[2].subscribe("U")
    clients[2].receive()


def terminated(namesrv: str) -> None:
    open_all(namesrv)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)  # the signal arrives in the meantime


def pending(namesrv: str) -> None:
    producer = open_all(namesrv)[0]
    producer.submit(Message("T", b"stored"))
    producer.submit(Message("mute", b"lost"))


def loop_ends(namesrv: str) -> None:
    async def main() -> None:
        producer = await Producer(namesrv).open()
        await producer.submit(Message("mute", b"lost"))

    asyncio.run(main())
    trio.run(main)


def loop_stops(namesrv: str) -> None:
    async def main() -> None:
        global _kept
        _kept = await Producer(namesrv).open()
        await _kept.submit(Message("mute", b"lost"))

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())


_kept: Producer | None = None

if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
