"""Checks sends to topics that keep the newest message of each key, and holds such sends during a compaction.

While the leader carries old messages of a queue forward (`mq.broker.admin.topic_compaction`), sends to that queue are
*held*, for the time that one round of the log takes. Otherwise a message that is on its way could come into the log
before the copy of an older one with the same key, and readers would see the older value last.
"""

from __future__ import annotations

from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.produce.batch import BatchSends, is_copied
from mq.broker.state.format_level import LEVEL_OF_COMPACTION
from mq.broker.state.metadata import Metadata
from mq.broker.write_path.appender import Appender
from mq.broker.write_path.pending import SendRequest
from mq.broker.write_path.queue_tails import QueueTail
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.message_types import PRIORITY_MARK
from mq.protocol.requests.compaction_attributes import CLEANUP_POLICY, COMPACTION, is_compacted, key_of
from mq.store.queue_store import QueueKey

_NOT_IN_ORDER = props.DELAY, *props.TIMER_PROPERTIES, props.TRANSACTION_PREPARED, props.LITE_TOPIC, props.PRIORITY
_CARRIED = props.CARRIED.encode()
_MARKS = "DELAY\x01", "TIMER_D", "TRAN_MSG\x01", "LITE_TOPIC\x01", PRIORITY_MARK


class CompactedTopics:
    """Checks and holds sends to compacted topics, on the leader.

    Attributes:
        is_full: whether the broker remembers as many keys as it may; then only messages without a body are taken.
        keys_max: how many these are, for the error.
    """

    def __init__(self, metadata: Metadata, appender: Appender) -> None:
        self._metadata = metadata
        self._appender = appender
        self._held_sends: dict[QueueKey, list[tuple[Call[SendRequest], int]]] = {}
        self.is_full = False
        self.keys_max = 0

    def takes(self, topic: str) -> bool:
        """Whether the broker compacts this topic: its attributes ask for it, and the format level allows it."""
        config = self._metadata.topics.get(topic)
        return (
            config is not None
            and is_compacted(config.attributes)
            and self._metadata.format_level.level >= LEVEL_OF_COMPACTION
        )

    def check(self, call: Call[SendRequest], batches: BatchSends, tail: QueueTail) -> None:
        """Raise RequestRefused if a compacted topic cannot store this send."""
        ext = call.request.ext
        text = ext.properties
        if ext.batch and is_copied(text):
            return  # they are what the other cluster has
        if props.CARRIED in text:  # a program forwards what it received: the new message is no copy
            text = ext.properties = props.without(text, props.CARRIED)
        if ext.batch and _CARRIED in call.body:
            call.body = batches.without(call, tail, props.CARRIED)
        if any(mark in text for mark in _MARKS):
            properties = props.decode(text)
            names = [name for name in _NOT_IN_ORDER if properties.get(name, "0") not in ("0", "false")]
            if names:
                raise RequestRefused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"topic {ext.topic} has {CLEANUP_POLICY}={COMPACTION} and refuses messages with {names[0]}: the "
                    "value of a key that was sent last must be its newest one, so messages must be visible in the "
                    "order in which they were sent",
                )
        if key_of(text) is None:
            number = batches.keyless(call, tail) if ext.batch else 0
            if number is not None:
                which = f"message {number} of the batch" if ext.batch else "the message"
                raise RequestRefused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"{which} has no key. Topic {ext.topic} has {CLEANUP_POLICY}={COMPACTION}: it keeps the newest "
                    "message of each key. Set the key of the message (KEYS)",
                )
        if self.is_full and (batches.has_bodies(call, tail) if ext.batch else call.body):
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"the compacted topics of this broker group have {self.keys_max} keys, the maximum: raise the "
                "setting compacted_keys_max, or delete keys: send a message without a body for each",
            )

    def hold_send(self, call: Call[SendRequest], queue_id: int) -> bool:
        """Hold a send if its queue is held: returns whether it was held. `release` serves it again."""
        if not self._held_sends or (sends := self._held_sends.get((call.request.ext.topic, queue_id))) is None:
            return False
        nbytes = len(call.body) + len(call.request.ext.properties)
        self._appender.pending_bytes += nbytes
        sends.append((call, nbytes))
        return True

    def hold(self, key: QueueKey) -> None:
        """Hold further sends to a queue, until `release`."""
        assert key not in self._held_sends, f"sends to {key} are held already"
        self._held_sends[key] = []

    def release(self, key: QueueKey) -> None:
        """Serve the held sends of a queue again, in their order."""
        for call, nbytes in self._held_sends.pop(key, []):
            self._appender.pending_bytes -= nbytes
            assert self._appender.pending_bytes >= 0, f"{self._appender.pending_bytes} bytes pend without held sends"
            call.dispatch()

    def resign(self) -> None:
        """Serve all held sends again, so that the new leader gets them, since this replica stops leading."""
        for key in list(self._held_sends):
            self.release(key)

    @property
    def held_count(self) -> int:
        """The number of queues whose sends are held."""
        return len(self._held_sends)
