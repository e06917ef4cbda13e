"""Breaks the object storage of the group's archive, while brokers need it for old messages."""

from __future__ import annotations

from pathlib import Path
from random import Random

import trio

from jepsen.deployments.cluster import Cluster
from jepsen.deployments.object_storage import ObjectStorage
from jepsen.nemeses.disks import REPAIR_SECONDS_MAX
from jepsen.nemeses.injection import Injection
from jepsen.schedule import FaultStep

PREFIX = "broker-a"
MANIFEST = "manifest.json"
ARCHIVED_SECONDS_MAX = 60.0
SLOW_SECONDS = 2.0
FLIP_EVERY_BYTES = 4096
"""The bytes between two flipped bits: every part that is read from there is damaged."""
FILES_MIN = 3


def _storage(injection: Injection) -> ObjectStorage:
    storage = injection.cluster.storage
    assert storage is not None, "the brokers of this run have no archive"
    return storage


def _log_files(storage: ObjectStorage) -> list[Path]:
    return sorted(storage.files(f"{PREFIX}/log").glob("*"))


async def wait_archived(cluster: Cluster, storage: ObjectStorage) -> None:
    """Wait until some log files exist only in the archive, at most `ARCHIVED_SECONDS_MAX`."""

    async def is_cold() -> bool:
        figures = await cluster.all_figures()
        begins = [int(table["raftmq.basePosition"]) for table in figures.values()]
        return len(_log_files(storage)) >= FILES_MIN and len(begins) == len(cluster.nodes) and min(begins) > 0

    with trio.move_on_after(ARCHIVED_SECONDS_MAX):
        while not await is_cold():  # noqa: ASYNC110 - no event to wait for
            await trio.sleep(0.2)


async def _restart(injection: Injection) -> str:
    """Restart a broker, so that it has nothing of the archive in its memory; returns its name."""
    cluster = injection.cluster
    node = injection.rng.choice(cluster.nodes)
    await cluster.stop(node)
    await cluster.start(node)
    await cluster.wait_caught_up(node, REPAIR_SECONDS_MAX)
    return node


async def store_gone(injection: Injection, step: FaultStep, leader: str) -> None:
    """Kill the store, and restart it with all objects. One variant restarts a broker in between."""
    storage = _storage(injection)
    await wait_archived(injection.cluster, storage)
    number = injection.begin(step, injection.cluster.nodes)
    await storage.kill()
    if not storage.is_running:
        injection.confirm(number, "the process of the store has ended")
    if step.variant.what == "and a broker restarts":
        await _restart(injection)
    await trio.sleep(step.seconds)
    await storage.start()
    injection.end(number)


async def store_slow(injection: Injection, step: FaultStep, leader: str) -> None:
    """Delay each request to the store by two seconds, and restart a broker, which must read everything again."""
    storage = _storage(injection)
    await wait_archived(injection.cluster, storage)
    number = injection.begin(step, injection.cluster.nodes)
    storage.delay(SLOW_SECONDS)
    before = len(storage.answered_requests())
    node = await _restart(injection)
    await trio.sleep(step.seconds)
    if (count := len(storage.answered_requests()) - before) > 0:
        injection.confirm(number, f"{count} requests were answered late, and {node} was restarted")
    storage.delay(0.0)
    injection.end(number)


async def store_rot(injection: Injection, step: FaultStep, leader: str) -> None:
    """Flip bits in all objects with messages, and restart a broker. It may refuse to read them, but not serve them."""
    storage = _storage(injection)
    await wait_archived(injection.cluster, storage)
    number = injection.begin(step, injection.cluster.nodes)
    whole = {path: path.read_bytes() for path in _log_files(storage)}
    for path, content in whole.items():
        path.write_bytes(rotten(injection.rng, content))
    count = sum(path.read_bytes() != content for path, content in whole.items())
    node = await _restart(injection)
    if count:
        injection.confirm(number, f"{count} objects differ, and {node} was restarted")
    await trio.sleep(step.seconds)
    for path, content in whole.items():
        path.write_bytes(content)
    injection.end(number)


def rotten(rng: Random, content: bytes) -> bytes:
    """Return the content with one bit flipped in each `FLIP_EVERY_BYTES`."""
    data = bytearray(content)
    for begin in range(0, len(data), FLIP_EVERY_BYTES):
        at = rng.randrange(begin, min(begin + FLIP_EVERY_BYTES, len(data)))
        data[at] ^= 1 << rng.randrange(8)
    return bytes(data)


async def store_rollback(injection: Injection, step: FaultStep, leader: str) -> None:
    """Replace the manifest with an older one, and restart a broker. It must report files missing there, or archive
    them.

    If no broker has replaced the older one meanwhile, the newer one is put back at the end, as an operator would.
    """
    storage = _storage(injection)
    await wait_archived(injection.cluster, storage)
    manifest = storage.files(f"{PREFIX}/{MANIFEST}")
    older = manifest.read_bytes()
    number = injection.begin(step, injection.cluster.nodes)
    with trio.move_on_after(ARCHIVED_SECONDS_MAX):
        while manifest.read_bytes() == older:  # noqa: ASYNC110 - no event to wait for
            await trio.sleep(0.1)
    newer = manifest.read_bytes()
    replace_manifest(manifest, older)
    if newer != older:
        injection.confirm(number, f"the manifest has {len(older)} bytes again, instead of {len(newer)}")
    await _restart(injection)
    await trio.sleep(step.seconds)
    if manifest.read_bytes() == older:
        replace_manifest(manifest, newer)
    injection.end(number)


def replace_manifest(manifest: Path, content: bytes) -> None:
    """Replace the manifest atomically, as the store does."""
    new = manifest.with_name(f".{MANIFEST}")
    new.write_bytes(content)
    new.rename(manifest)
