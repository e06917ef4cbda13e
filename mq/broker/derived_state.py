"""Loads the state on disk that a broker derives from its log, and writes checkpoints of it."""

from __future__ import annotations

import trio

from mq.broker.base.archive_tier import QUEUES_FROM, store_queues_from
from mq.broker.base.rate_limited_log import Log
from mq.broker.broker import Broker
from mq.broker.limits import BrokerLimits
from mq.broker.security import StartRefused
from mq.broker.settings import BrokerSettings
from mq.broker.state.metadata import Metadata
from mq.broker.state.table import SnapshotDamaged
from mq.protocol.numbers import PhysicalOffset
from mq.store.checkpoint import Checkpoint, seconds_between_checkpoints
from mq.store.errors import StoreError, StoreLost
from mq.store.opening import LogBounds, OpenedStore, begin_to_note_floors, open_store
from mq.store.queue_floors import has_gap, note_gap
from mq.store.queue_store import QueueStore
from raftlog import SegmentLog, this_machine
from raftlog.segment import REFILLED, SNAPSHOT_NAME

_GATHER_PAUSE_SECONDS = 0.005
"""Between two portions of a thousand queues of a checkpoint."""


def open_derived(settings: BrokerSettings, segment_log: SegmentLog, log: Log) -> OpenedStore:
    """Load the stored state, or an empty one if it belongs to another log. Raises StartRefused."""
    directory = str(settings.data_dir)
    bounds = LogBounds(
        base_index=segment_log.base[0],
        base_pos=PhysicalOffset(segment_log.base_pos),
        last_index=segment_log.last_index,
        term_at=lambda index: segment_log.locate(index).term,
    )
    try:
        is_refilled = REFILLED in segment_log.notes
        derives_again = is_refilled or (settings.has_tiers and has_gap(directory))
        store = open_store(
            directory, log=bounds, incoming=str(settings.log_dir / SNAPSHOT_NAME), is_refilled=derives_again
        )
        segment_log.set_note(REFILLED, None)
        if not settings.has_tiers and QUEUES_FROM in segment_log.notes:
            note_gap(directory)
        store_queues_from(segment_log, has_tiers=settings.has_tiers, is_fresh=store.is_fresh)
        if settings.has_tiers and store.is_fresh:
            begin_to_note_floors(directory, store.queues)
    except StoreLost as error:
        raise StartRefused(str(error)) from error
    except OSError as error:
        raise StartRefused(f"{error.filename or directory}: {error.strerror}", may_pass=True) from error
    if is_refilled:
        log.info("log_refilled", first_index=segment_log.first_index, base_pos=segment_log.base_pos)
    if store.rebuild_reason is not None:
        log.warning("queues_rebuilt", reason=store.rebuild_reason)
    if QUEUES_FROM not in segment_log.notes:  # otherwise older messages may be in the archive
        while store.queues.expire_some(PhysicalOffset(segment_log.base_pos)):
            pass
    return store


def restored_metadata(settings: BrokerSettings, checkpoint: Checkpoint, limits: BrokerLimits) -> Metadata:
    """Restore the metadata in a checkpoint. Raises StartRefused."""
    metadata = Metadata(limits=limits.state)
    try:
        metadata.restore(checkpoint.state)
    except SnapshotDamaged as error:
        raise StartRefused(f"{settings.data_dir}: {error}") from error
    return metadata


async def checkpoint_forever(seconds: float, queues: QueueStore, broker: Broker, log: Log) -> None:
    """Write checkpoints until cancelled, less often if there are many queues."""
    while True:
        await trio.sleep(seconds_between_checkpoints(seconds, len(queues)))
        try:
            if (checkpoint := broker.prepare_checkpoint()) is not None:
                while checkpoint.gather():  # noqa: ASYNC110 - other tasks get their turn; this waits for none
                    await trio.sleep(_GATHER_PAUSE_SECONDS)
                await this_machine().in_thread(checkpoint.commit)
        except (OSError, StoreError) as error:
            # Nothing is lost: without the checkpoint, a restart replays more of the log.
            log.error("checkpoint_failed", error=str(error))


def checkpoint_last(broker: Broker, log: Log) -> None:
    """Write a last checkpoint before the process ends."""
    try:
        if (checkpoint := broker.prepare_checkpoint()) is not None:
            while checkpoint.gather():
                pass
            checkpoint.commit()
    except (OSError, StoreError) as error:
        log.error("checkpoint_failed", error=str(error))
