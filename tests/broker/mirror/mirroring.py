"""Two clusters in this process, and a mirror between them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import trio

from mq.cli.mirror.clusters import ClusterAdmin
from mq.cli.mirror.commands import open_state
from mq.cli.mirror.copier import Copier
from mq.cli.mirror.cut_over import CutOverReport, cut_over
from mq.cli.mirror.plan import Choice
from mq.cli.mirror.setup import extend_mirror
from mq.cli.mirror.state import MirrorState
from mq.cli.mirror.state_file import load, save
from mq.client import Admin, Message, Producer, PullConsumer, ReceivedMessage
from tests.support.name_server_and_broker import cluster_and_broker
from tests.support.waiting import until

NOTHING = Choice()


@contextlib.asynccontextmanager
async def two_clusters(directory: Path, **target: object) -> AsyncIterator[tuple[ClusterAdmin, ClusterAdmin]]:
    async with (
        cluster_and_broker(directory / "source") as (source, _),
        cluster_and_broker(directory / "target", **target) as (other, _),
        Admin(other) as admin,
        ClusterAdmin(source) as one,
        ClusterAdmin(other) as two,
    ):
        await admin.delete_topic("T")
        yield one, two


class OrdersMirror(NamedTuple):
    """Topic Orders at the source, a producer of the source, and the state file of a mirror to the target."""

    source: ClusterAdmin
    target: ClusterAdmin
    producer: Producer
    path: Path


@contextlib.asynccontextmanager
async def orders_mirror(directory: Path, *, queues: int = 1) -> AsyncIterator[OrdersMirror]:
    """Two clusters; nothing is copied yet."""
    async with two_clusters(directory) as (source, target), Producer(address(source)) as producer:
        await source.create_topic("Orders", queues)
        yield OrdersMirror(source, target, producer, directory / "state")


async def send_orders(producer: Producer, first: int, end: int) -> None:
    """Send messages to Orders whose bodies are the numbers from ``first`` to before ``end``."""
    for number in range(first, end):
        await producer.send(Message("Orders", b"%d" % number))


async def change_over(source: ClusterAdmin, target: ClusterAdmin, path: Path, **given: Any) -> CutOverReport:
    """Cut over all groups from the source, which nobody sends to, or as ``given``."""
    options: dict[str, Any] = {"groups": NOTHING, "quiet_seconds": 0.1, "producers_run": False, "dry_run": False}
    return await cut_over(source, target, saved(path), path, **options | given)


def saved(path: Path) -> MirrorState:
    """What the mirror with this state file has noted."""
    state = load(path)
    assert state is not None, f"{path} is not there"
    return state


def address(admin: ClusterAdmin) -> str:
    [namesrv] = admin._name_servers
    return namesrv


async def copy_all(
    source: ClusterAdmin, target: ClusterAdmin, path: Path, *, stop_after: int | None = None, **options: object
) -> Copier:
    """Mirror until nothing is behind; or drop everything after so many stores, as SIGKILL does: without a save."""
    state = await open_state(source, target, path)
    found = await extend_mirror(source, target, state, NOTHING, lambda _: None)
    save(path, state)
    copier = Copier(source, target, state, path, **options)  # type: ignore[arg-type]
    copier.unreadable_queues = found.unreadable_queues
    stores = 0
    killed = trio.Event()
    store = target.store

    async def counted(fields: dict[str, str], body: bytes) -> int | None:
        nonlocal stores
        stores += 1
        offset = await store(fields, body)
        if stop_after is not None and stores >= stop_after:
            killed.set()
            await trio.sleep_forever()  # the answer is never seen
        return offset

    with mock.patch.object(target, "store", counted):
        async with trio.open_nursery() as nursery:
            for queue in state.queues:
                copier.start(queue, nursery)
            await until(lambda: copier.behind == 0 or killed.is_set() or bool(copier.block_reasons))
            nursery.cancel_scope.cancel()
    if not killed.is_set():
        copier.save()
    return copier


async def content(namesrv: str, topic: str) -> dict[int, list[ReceivedMessage]]:
    found: dict[int, list[ReceivedMessage]] = {}
    async with PullConsumer(namesrv, "reading", consume_from="first") as consumer:
        await consumer.assign(await consumer.queues(topic))
        async for message in await consumer.read_to_end():
            found.setdefault(message.queue.queue_id, []).append(message)
    return found


async def orders(admin: ClusterAdmin) -> dict[int, list[bytes]]:
    """The bodies in topic Orders of a cluster, by queue."""
    return bodies(await content(address(admin), "Orders"))


def bodies(messages: dict[int, list[ReceivedMessage]]) -> dict[int, list[bytes]]:
    return {queue: [bytes(each.body) for each in mine] for queue, mine in sorted(messages.items())}
