"""Copies queues, each in its own task: reads ahead at the source, stores one batch after the other at the target.

Theory of operation. Each batch has sequence numbers: the source offsets, under a producer id that only this queue of
this mirror has. So a batch that is sent again after an unknown outcome, by this process or by the next one, is stored
once. Only one batch of a queue is on its way at a time, so its order is kept.

Each copy names the place of its original. So a process that starts reads the end of the target queue behind the last
copy that the state file knows, and is up to date, however old that file is; without one it reads the whole target
queue.

Then it compares the last copy with its original: a topic that was deleted and created again has another message there,
unless it is shorter. What retention has deleted at the source cannot be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NoReturn

import trio

from mq.cli.mirror.clusters import ClusterAdmin
from mq.cli.mirror.copies import CopyBatch, batches_of, is_another, place_of
from mq.cli.mirror.state import MirroredQueue, MirrorState
from mq.cli.mirror.state_file import save
from mq.client.errors import BrokerError, ClientError, UnreadableAnswer
from mq.client.message import MessageQueue
from mq.protocol.codes import ResponseCode
from mq.protocol.errors import BodyError
from mq.protocol.messages.records import StoredMessage

GROUP: Final = "raftmq_mirror"
"""The producer group of copies."""
PULLS_AHEAD: Final = 4
"""Answers of the source that wait for their turn, per queue."""
PULLS_IN_MEMORY: Final = 256
"""The pulls in memory for all queues: each has 256 KiB at most, or one message."""
GATHERED_MAX: Final = 1024
PAUSE_SECONDS: Final = (0.2, 5.0)
SAVE_SECONDS: Final = 1.0
LOOKS_MAX: Final = 10
"""The number of looks, within half a minute, at a source queue that lacks copied messages, before that is believed."""
_FORGOTTEN: Final = "SEQUENCE_FORGOTTEN"

OnRefusal = Callable[[MirroredQueue, StoredMessage, str], None]
"""Gets a message that is left out, and why the target has refused it."""
OnCopy = Callable[[MirroredQueue, list[StoredMessage]], None]
"""Gets messages that were copied."""


class MirrorStopped(Exception):
    """The mirror cannot continue without the operator; the message says what to do."""


class _BlockedQueue(Exception):
    """A queue cannot be copied further without the operator."""


class Copier:
    """Copies the queues of a mirror's state; see the module.

    Args:
        looks_max: how often a queue whose source lacks copied messages is looked at again, before it is blocked.

    Attributes:
        queue_numbers: the numbers of the queues that are copied, or blocked.
        copied_count: messages copied since the start.
        troubles: why queues do not progress at the moment, by queue number.
        block_reasons: queues that continue only after a restart, with the reason.
        unreadable_queues: the numbers of queues that cannot be read at the source, which are not waited for; None
            before it was asked.
        refusals: topics that the target cannot take, with the reason; they have queues that are not copied.
    """

    def __init__(
        self,
        source: ClusterAdmin,
        target: ClusterAdmin,
        state: MirrorState,
        path: Path,
        *,
        on_refusal: OnRefusal | None = None,
        on_copy: OnCopy | None = None,
        looks_max: int = LOOKS_MAX,
    ) -> None:
        self._looks_max = looks_max
        self._source, self._target = source, target
        self._state, self._path = state, path
        self._on_refused = on_refusal
        self._on_copied = on_copy
        self._in_memory = trio.Semaphore(PULLS_IN_MEMORY)
        self._ends: dict[int, int] = {}
        self._dirty = False
        self._doubts: dict[int, int] = {}
        self.queue_numbers: set[int] = set()
        self.copied_count = 0
        self.troubles: dict[int, str] = {}
        self.block_reasons: dict[int, str] = {}
        self.unreadable_queues: frozenset[int] | None = None
        self.refusals: Mapping[str, str] = {}

    @property
    def behind(self) -> int | None:
        """The number of source messages that are not copied yet; None while it is unknown for some queue."""
        total = 0
        for queue in self._state.queues:
            if self.is_over(queue):
                continue
            end = self._ends.get(queue.number)
            if end is None or queue.next_offset is None:
                return None
            total += max(end - queue.next_offset, 0)
        return total

    @property
    def known_behind(self) -> int:
        """The number of messages not copied yet, in the queues whose end at the source is known."""
        return sum(
            max(self._ends[queue.number] - (queue.next_offset or 0), 0)
            for queue in self._state.queues
            if queue.number in self._ends and not self.is_over(queue)
        )

    def is_over(self, queue: MirroredQueue) -> bool:
        """Whether copying of the queue has stopped for now: it is blocked, or cannot be read at the source."""
        return queue.number in self.block_reasons or queue.number in (self.unreadable_queues or ())

    def has_copied(self, queue: MirroredQueue, behind: int) -> bool:
        """Whether all messages before ``behind`` are copied, and the source still has the same ones, if any."""
        return behind == 0 or (queue.number in self._ends and (queue.next_offset or 0) >= behind)

    def save(self) -> None:
        """Write the state file if something has changed. Raises CommandFailed."""
        if self._dirty:
            self._dirty = False
            save(self._path, self._state)

    def on_state_change(self) -> None:
        """Have the state saved, because another task changed it."""
        self._dirty = True

    async def save_forever(self) -> None:
        """Write the state file from time to time until cancelled, and once more then."""
        try:
            while True:
                await trio.sleep(SAVE_SECONDS)
                began = trio.current_time()
                self.save()
                # With thousands of queues the file is large: it takes a twentieth of the time at most.
                await trio.sleep(20 * (trio.current_time() - began))
        finally:
            self.save()

    def start(self, queue: MirroredQueue, nursery: trio.Nursery) -> None:
        """Start a task that copies a queue, unless the queue has one already or is over."""
        if queue.number not in self.queue_numbers and not self.is_over(queue):
            self.queue_numbers.add(queue.number)
            nursery.start_soon(self.copy, queue)

    async def copy(self, queue: MirroredQueue) -> None:
        """Copy a queue until cancelled. Raises MirrorStopped if an account lacks permissions."""
        pause = PAUSE_SECONDS[0]
        while True:
            began = self.copied_count
            error: Exception | None = None
            try:
                await self._copy(queue)
            except* (_BlockedQueue, ClientError) as errors:
                error = _gravest(errors)
            if isinstance(error, _BlockedQueue):
                self.block_reasons[queue.number] = str(error)
                self.troubles.pop(queue.number, None)
                return
            if isinstance(error, BrokerError) and error.code == ResponseCode.NO_PERMISSION:
                raise MirrorStopped(f"{queue}: {error}. Give the mirror's account this permission") from error
            self.troubles[queue.number] = f"{queue}: {error}"
            pause = PAUSE_SECONDS[0] if self.copied_count > began else min(2 * pause, PAUSE_SECONDS[1])
            await trio.sleep(pause)
            await self._refresh_route(queue)

    async def _refresh_route(self, queue: MirroredQueue) -> None:
        for admin, topic in ((self._source, queue.topic), (self._target, queue.target_topic)):
            try:
                await admin.refresh_route(topic)
            except ClientError as error:
                self.troubles[queue.number] = f"{queue}: {error}"

    async def _copy(self, queue: MirroredQueue) -> None:
        await self._catch_up_with_target(queue)
        await self._compare_last(queue)
        if queue.next_offset is None:
            queue.next_offset = (await self._source.pull(_source_queue(queue), 0, count_max=1)).begin
            self._dirty = True
        sender, receiver = trio.open_memory_channel[tuple[list[StoredMessage], int]](PULLS_AHEAD)
        batch_count = [0]
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, queue, sender, batch_count)
                nursery.start_soon(self._write, queue, receiver, batch_count)
        finally:
            for _ in range(batch_count[0]):
                self._in_memory.release()

    async def _catch_up_with_target(self, queue: MirroredQueue) -> None:
        """Learn of copies behind the last known one."""
        goal = _target_queue(queue)
        begin = queue.target_next or 0
        edges = await self._target.pull(goal, begin, count_max=1)
        if begin > edges.end:
            raise _BlockedQueue(
                f"{queue}: the target has lost copies, its queue ends at {edges.end}, and there were messages up to "
                f"{begin}: was topic {queue.target_topic} deleted there?"
            )
        begin = max(begin, edges.begin)
        copies = self._target.read(goal, begin, edges.end)
        async for messages in copies:
            for message in messages:
                place = place_of(message.properties)
                # Redeliveries carry the place of the message that failed, in another topic or copied before.
                if place is None or place[:3] != (queue.topic, queue.broker, queue.queue_id):
                    continue
                if queue.next_offset is None or place.offset >= queue.next_offset:
                    queue.add_copies(place.offset, message.queue_offset, 1)
        if copies.next_offset < edges.end:
            raise UnreadableAnswer(
                f"the target queue ends at {edges.end}, but returns no messages from {copies.next_offset} on"
            )
        queue.target_next = max(queue.target_next or 0, edges.end)
        self._dirty = True

    async def _compare_last(self, queue: MirroredQueue) -> None:
        """Raises _BlockedQueue if the source has another message than the last copied one, ClientError at first."""
        if not queue.stretches:
            return
        first, target_first, count = queue.stretches[-1]
        offset = first + count - 1
        original = await self._source.message_at(_source_queue(queue), offset)
        copy = await self._target.message_at(_target_queue(queue), target_first + count - 1)
        if original is not None and copy is not None and is_another(original, copy, queue.broker):
            self._doubt(queue, f"the source has another message at offset {offset} than the one that was copied")

    def _doubt(self, queue: MirroredQueue, what: str) -> NoReturn:
        """The source lacks messages that were copied. A broker that has just started may not have all again yet."""
        looks = self._doubts[queue.number] = self._doubts.get(queue.number, 0) + 1
        if looks <= self._looks_max:
            raise UnreadableAnswer(what)
        raise _BlockedQueue(
            f"{queue}: {what}: was the topic deleted and created again, or did the source lose messages? To copy it "
            f"from the beginning, delete topic {queue.target_topic} at the target, and start with another state"
        )

    async def _read(
        self,
        queue: MirroredQueue,
        sender: trio.MemorySendChannel[tuple[list[StoredMessage], int]],
        batch_count: list[int],
    ) -> None:
        """Read ahead. Raises _BlockedQueue, ClientError."""
        assert queue.next_offset is not None, f"{queue} is read before its beginning is known"
        place, offset = _source_queue(queue), queue.next_offset
        while True:
            at_end = queue.number in self._ends and offset >= self._ends[queue.number]
            pull = await self._source.pull(place, offset, hold=at_end)
            if offset <= pull.end:
                self._doubts.pop(queue.number, None)
                self._ends[queue.number] = pull.end
            if pull.moved:
                if offset > pull.end:
                    self._doubt(queue, f"the source ends at {pull.end}, and {offset} messages were there before")
                if offset < pull.begin:
                    await sender.send(([], pull.begin))
                    offset = pull.begin
                    continue
            elif not pull.messages and pull.next_offset == offset:
                self.troubles.pop(queue.number, None)
                await trio.sleep(PAUSE_SECONDS[0])  # some answers come at once
                continue
            offset = max(pull.next_offset, offset)
            if pull.messages:
                await self._in_memory.acquire()
                batch_count[0] += 1
            await sender.send((pull.messages, offset))

    async def _write(
        self,
        queue: MirroredQueue,
        receiver: trio.MemoryReceiveChannel[tuple[list[StoredMessage], int]],
        batch_count: list[int],
    ) -> None:
        """Store the messages that were read. Raises _BlockedQueue, ClientError, MirrorStopped."""
        while True:
            messages, behind = await receiver.receive()
            pulls = int(bool(messages))
            all_messages = list(messages)
            while len(all_messages) < GATHERED_MAX:
                try:
                    more, behind = receiver.receive_nowait()
                except trio.WouldBlock:
                    break
                all_messages += more
                pulls += bool(more)
            for batch in batches_of(all_messages):
                await self._store(queue, batch)
            assert queue.next_offset is not None, f"{queue} is copied before its beginning is known"
            if queue.next_offset < behind:
                queue.lose(queue.next_offset, behind)
                self._dirty = True
            if self._on_copied is not None:
                self._on_copied(queue, all_messages)
            self.troubles.pop(queue.number, None)
            for _ in range(pulls):
                batch_count[0] -= 1
                self._in_memory.release()

    async def _store(self, queue: MirroredQueue, batch: CopyBatch) -> None:
        assert queue.next_offset is not None, f"{queue} is copied before its beginning is known"
        rest = [message for message in batch.messages if message.queue_offset >= queue.next_offset]
        if not rest:
            return  # learned from the target meanwhile
        batch = CopyBatch(rest)
        if batch.first_offset > queue.next_offset:
            queue.lose(queue.next_offset, batch.first_offset)
        fields = batch.fields(
            GROUP, queue.target_topic, queue.target_broker, queue.target_queue, self._state.producer(queue)
        )
        try:
            offset = await self._target.store(fields, batch.body(queue.broker))
        except BodyError as error:  # with the additional ones of a copy, the properties are too long
            await self._on_refusal(queue, batch, str(error))
            return
        except BrokerError as error:
            if error.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            if _FORGOTTEN in (error.remark or ""):
                raise _BlockedQueue(
                    f"{queue}: the target no longer knows whether message {batch.first_offset} was stored: the state "
                    "file is older than the last copy. Move it away: then the mirror finds out from the target"
                ) from error
            await self._on_refusal(queue, batch, error.remark or str(error))
            return
        if offset is None:  # sent before, and divided differently
            before = queue.next_offset
            await self._catch_up_with_target(queue)
            if queue.next_offset < batch.first_offset + len(batch.messages):
                raise _BlockedQueue(
                    f"{queue}: the target says that the messages from {before} on are stored, but its queue "
                    f"lacks them: was topic {queue.target_topic} deleted there?"
                )
        else:
            queue.add_copies(batch.first_offset, offset, len(batch.messages))
        self.copied_count += len(batch.messages)
        self._dirty = True

    async def _on_refusal(self, queue: MirroredQueue, batch: CopyBatch, why: str) -> None:
        if halves := batch.halves():
            for half in halves:
                await self._store(queue, half)
            return
        [message] = batch.messages
        if self._on_refused is None:
            raise _BlockedQueue(
                f"{queue}: the target refuses message {message.queue_offset}: {why}. Raise the limit there "
                "(message_bytes_max), or start with --skip-refused FILE, which leaves out such messages and lists them"
            )
        self._on_refused(queue, message, why)
        queue.skip(message.queue_offset)
        self._dirty = True


def _source_queue(queue: MirroredQueue) -> MessageQueue:
    return MessageQueue(queue.topic, queue.broker, queue.queue_id)


def _target_queue(queue: MirroredQueue) -> MessageQueue:
    return MessageQueue(queue.target_topic, queue.target_broker, queue.target_queue)


def _gravest(group: BaseExceptionGroup[Exception]) -> Exception:
    """The error that blocks a queue, if there is one; else the first error."""
    errors = [_gravest(error) if isinstance(error, BaseExceptionGroup) else error for error in group.exceptions]
    return next((error for error in errors if isinstance(error, _BlockedQueue)), errors[0])
