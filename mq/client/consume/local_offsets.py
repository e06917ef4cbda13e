"""Offsets of a broadcast consumer, in a local file or in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping

from mq.client.consume.offsets import ConsumeFrom, queue_offset
from mq.client.errors import OffsetsFileDamaged
from mq.client.logs import log
from mq.client.message import MessageQueue
from mq.client.net.client_core import ClientCore
from mq.protocol.errors import BodyError
from mq.protocol.wire.queue_tables import QueueRef, offset_table_body, read_offsets_file


def offsets_path(broadcast: str | os.PathLike[str] | bool | None) -> str | None:
    """Return the path of a consumer's offsets file; None without one. Raises ValueError if it is empty, TypeError."""
    if broadcast is None or isinstance(broadcast, bool):
        return None
    path = os.fspath(broadcast)
    if not path:
        raise ValueError("broadcast is the path of a file for offsets, or True to keep them in memory, not ''")
    return path


class LocalOffsets:
    """Keeps offsets in memory, or in one file in the format of Java clients, which only one consumer may use."""

    commits_with_pulls = False
    """Whether pulls carry offsets to the leader."""

    def __init__(self, core: ClientCore, path: str | None, consume_from: ConsumeFrom) -> None:
        """Read the file. Raises OffsetsFileDamaged, OSError."""
        self._core = core
        self._path = path
        self._consume_from = consume_from
        self._offsets = {} if path is None else _read(path)
        self._known_topics = {queue.topic for queue in self._offsets}
        self._at_first: dict[str, frozenset[MessageQueue]] = {}
        """The queues that a topic had when the first one was begun."""

    async def begin(self, queue: MessageQueue) -> int:
        """Return the offset at which to start consuming `queue`. Raises ClientError."""
        offset = self._offsets.get(queue)
        if offset is not None:
            return offset
        route = self._core.known_route(queue.topic)
        queues = frozenset((queue,)) if route is None else frozenset(route.read_queues)
        # A member reads all queues of a topic: one that is not known was added later, and nothing of it was read.
        was_added = queue.topic in self._known_topics or queue not in self._at_first.setdefault(queue.topic, queues)
        return await queue_offset(self._core, queue, "first" if was_added else self._consume_from)

    def add_missing(self, topic: str) -> None:
        """Record that a topic does not exist yet. Its queues are then consumed from their first message."""
        self._known_topics.add(topic)

    def commit_soon(self, offsets: Mapping[MessageQueue, int]) -> set[str]:
        """Write the file durably if offsets changed. Returns the empty set."""
        if any(self._offsets.get(queue) != offset for queue, offset in offsets.items()):
            all_offsets = self._offsets | dict(offsets)
            if self._path is None:
                self._offsets = all_offsets
                return set()
            table = {QueueRef(queue.topic, queue.broker_name, queue.queue_id): at for queue, at in all_offsets.items()}
            from pathlib import Path

            from mq.durable_files import replace_file  # here, because most consumers have no file

            try:
                replace_file(Path(self._path), offset_table_body(table))
                self._offsets = all_offsets
            except OSError as error:  # retried with the next progress
                log.error("offsets_not_written", path=self._path, reason=str(error))
        return set()

    async def commit(self, offsets: Mapping[MessageQueue, int], *, seconds: float) -> None:  # noqa: ASYNC910
        """Write the offsets, as `commit_soon` does."""
        self.commit_soon(offsets)


def _read(path: str) -> dict[MessageQueue, int]:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return {}
    try:
        table = read_offsets_file(data)
        return {MessageQueue(ref.topic, ref.broker_name, ref.queue_id): at for ref, at in table.items()}
    except (BodyError, ValueError) as error:
        raise OffsetsFileDamaged(f"{path}, {len(data)} bytes: {error}") from error
