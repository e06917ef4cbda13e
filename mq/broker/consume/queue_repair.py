"""Restores damaged blocks of consume queue files from the log or its archive: one at a time, in a worker thread.

Reads of such a block are refused with QueueFileDamaged, and the client retries or uses another replica; the rest of the
queue, and all other queues, are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from mq.broker.base.periodic_task import Periodic, now_if
from mq.broker.context import BrokerContext
from mq.broker.net.service import Service
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.dispatch import QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from mq.store.errors import QueueFileDamaged
from mq.store.queue_rebuild import BlockRebuild, RebuildFailed, WantedEntries
from mq.store.queue_store import DamagedBlock
from raftlog import SegmentError

_PAUSE_SECONDS = 1.0
"""Pause after a failure before the same block is retried."""


class QueueRepair(Service):
    """Restores damaged blocks of the broker's consume queues.

    Attributes:
        restored_count: how many blocks were restored.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._look_seconds = context.limits.consume.repair_look_seconds
        self._store = context.store
        self._log = context.replica.log
        self._tier = context.tier
        self._segment_bytes = context.replica.log.files.segment_bytes
        self._applied_index = context.applied_index
        self._in_background = context.environment.in_background
        self._archive = context.environment.archive
        self._clock = context.clock
        self._lines = context.log
        self._at_work = False
        self._wait_until: dict[tuple[str, int, int], float] = {}
        self.restored_count = 0

    def counters(self) -> dict[str, int]:
        return {"queue_blocks_restored": self.restored_count}

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(self._look_seconds, self.run, lambda: now_if(self._store.has_damage))

    def run(self) -> None:
        """Start restoring a damaged block, unless one is being restored already. A timer calls this."""
        if self._at_work or not (blocks := self._store.damaged_blocks()):
            return
        now = self._clock()
        self._wait_until = {key: at for key, at in self._wait_until.items() if at > now}
        for block in blocks:
            if _key(block) not in self._wait_until:
                self._begin(block)
                return

    def _begin(self, block: DamagedBlock) -> None:
        assert not self._at_work, "two blocks of queues are restored at a time"
        queue, start = block.queue, block.start
        self._lines.warning(
            "queue_block_damaged", topic=queue.topic, queue_id=queue.queue_id, offset=start, reason=block.reason
        )
        entries = queue.damaged_entries(start)
        try:
            if entries is None:
                self._restore(block, start, b"")
                return
            fetch = None if self._archive is None else self._archive.fetch
            rebuild = BlockRebuild(self._log_range(block, *entries), self._log.read_range, self._segment_bytes, fetch)
        except (SegmentError, OSError) as error:
            self._on_failure(block, error)
            return
        self._at_work = True
        self._schedule_step(block, rebuild)

    def _log_range(self, block: DamagedBlock, first: QueueOffset, end: QueueOffset) -> WantedEntries:
        """Return the log range that has the entries: from the readable entry before them to the one behind."""
        queue, log = block.queue, self._log
        local_pos = PhysicalOffset(log.base_pos)
        begin_pos, from_base = PhysicalOffset(self._tier.visible_pos), True
        before = block.start - 1
        while before >= queue.min_offset:
            try:
                position, _, _ = QUEUE_ENTRY.unpack(queue.read(before, 1))
            except QueueFileDamaged:
                before -= queue.entries_per_block
                continue
            if begin_pos <= position < local_pos:
                begin_pos, from_base = PhysicalOffset(position), False
            elif (entry := log.entry_at(position)) is not None:
                begin_pos, from_base = PhysicalOffset(entry.pos), False
            break
        last = log.locate(min(self._applied_index(), log.durable_index))
        end_pos = PhysicalOffset(min(last.pos + last.size, log.durable_pos))
        behind = end
        while behind < queue.max_offset:
            try:
                position, _, _ = QUEUE_ENTRY.unpack(queue.read(behind, 1))
            except QueueFileDamaged:
                behind += queue.entries_per_block
                continue
            if position < local_pos:
                end_pos = min(end_pos, PhysicalOffset(position + 1))  # the block of the archive with it is read
            elif (entry := log.entry_at(position)) is not None:
                end_pos = min(
                    end_pos, PhysicalOffset(entry.pos + entry.size)
                )  # the last wanted ones may be in the same log entry
            break
        return WantedEntries(queue.topic, queue.queue_id, first, end, begin_pos, end_pos, from_base, local_pos)

    def _schedule_step(self, block: DamagedBlock, rebuild: BlockRebuild) -> None:
        step = partial(self._step, block, rebuild)
        if rebuild.is_archived:
            assert self._archive is not None, f"{block.queue.key} is restored from an archive that is not read"
            self._archive.in_background(step)
        else:
            self._in_background(step)

    def _step(self, block: DamagedBlock, rebuild: BlockRebuild) -> Callable[[], None]:
        """Do one step of the repair in a worker thread."""
        try:
            is_done = rebuild.step()
        except (RebuildFailed, SegmentError) as error:
            return partial(self._on_failure, block, error)
        return partial(self._on_step, block, rebuild, is_done)

    def _on_step(self, block: DamagedBlock, rebuild: BlockRebuild, is_done: bool) -> None:
        assert self._at_work, f"{block.queue.key}: a block is restored that nobody began"
        if not is_done:
            self._schedule_step(block, rebuild)
            return
        try:
            first, entries = rebuild.result()
            if first > rebuild.wanted.first:
                block.queue.begin_at(first)  # the log and its archive no longer have the earlier ones
            self._restore(block, first, entries)
        except (RebuildFailed, OSError) as error:
            self._on_failure(block, error)

    def _restore(self, block: DamagedBlock, first: QueueOffset, entries: bytes) -> None:
        assert len(entries) % QUEUE_ENTRY_BYTES == 0, f"{block.queue.key}: entries of {len(entries)} bytes are restored"
        queue = block.queue
        self._at_work = False
        if self._store.restore(block, first, entries):
            self.restored_count += 1
            self._lines.info("queue_block_restored", topic=queue.topic, queue_id=queue.queue_id, offset=block.start)

    def _on_failure(self, block: DamagedBlock, error: Exception) -> None:
        queue = block.queue
        self._at_work = False
        self._wait_until[_key(block)] = self._clock() + _PAUSE_SECONDS
        self._lines.warning(
            "queue_block_not_restored",
            topic=queue.topic,
            queue_id=queue.queue_id,
            offset=block.start,
            error=str(error),
        )


def _key(block: DamagedBlock) -> tuple[str, int, QueueOffset]:
    return block.queue.topic, block.queue.queue_id, block.start
