"""RESUME_CHECK_HALF_MESSAGE (request code 323): restarts the check-backs of a transaction that was given up.

Half messages that were given up are in a separate internal topic. Resuming one appends it as a new half message, in one
entry with a mark; so however often an operator requests it, each is resumed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.state.commands import encode_command
from mq.broker.state.completion_marks import CompleteEntries, SkipEntries
from mq.broker.transaction.half_messages import HALF_QUEUE_ID
from mq.broker.write_path.outcome import OnOutcome, Outcome, Stored, answer_outcome
from mq.broker.write_path.pending import PendingCommand
from mq.broker.write_path.record_copy import copy_record
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.message_ids import MessageIdInvalid, parse_offset_message_id
from mq.protocol.messages.records import RawRecord, RecordError, decode_record, split_record
from mq.protocol.names import HALF_TOPIC, UNENDED_TOPIC
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset
from mq.protocol.requests.transactions import ResumeCheckHalfMessage
from mq.store.log_records import LogRecords
from raftlog import SegmentError

_QUEUE_ID: Final = 0
"""The only queue of that topic."""


class ResumeCheck(Service):
    """Restarts the check-backs of transactions that were given up.

    Attributes:
        resume_count: messages resumed since the start of this replica.
    """

    def __init__(self, context: BrokerContext, *, records: LogRecords) -> None:
        self._is_on = context.settings.transactions
        self._metadata = context.metadata
        self._store = context.store
        self._records = records
        self._appender = context.appender
        self._beginning = context.beginning
        self._tails = context.queue_tails
        self._log = context.log
        self._under_way: set[int] = set()
        self.resume_count = 0

    def routes(self) -> Iterator[Route]:
        yield Route(ResumeCheckHalfMessage, self.handle, leader_only=True, repeatable=True)

    def counters(self) -> dict[str, int]:
        return {"transactions_resumed": self.resume_count}

    def resign(self) -> None:
        """Forget the restarts in flight, since this replica stops leading."""
        self._under_way = set()

    def check_invariants(self) -> None:
        if self._appender.is_idle:
            assert not self._under_way, f"messages {sorted(self._under_way)} are resumed, and nothing is pending"

    def handle(self, call: Call[ResumeCheckHalfMessage]) -> bytes | None:
        """Request code 323: store a given-up message as a half message again. A repeat succeeds without effect.

        Raises RequestRefused.
        """
        if not self._is_on:
            raise RequestRefused(ResponseCode.NO_PERMISSION, "transactional messages are not allowed by this broker")
        self._appender.check_room()
        message_id = call.request.ext.message_id
        offset, raw = self._find(message_id)
        if self._metadata.marks.get(UNENDED_TOPIC, _QUEUE_ID).is_done(offset):
            return call.response(remark="check-backs of this message were resumed before")
        if offset in self._under_way:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"message {message_id} is being resumed")
        under_way = self._under_way
        under_way.add(offset)

        def respond(_: Stored) -> bytes:
            self.resume_count += 1
            self._log.info("half_message_resumed", message_id=message_id)
            return call.response()

        def finish(outcome: Outcome) -> None:
            assert offset in under_way, f"message {message_id} is resumed twice"
            under_way.discard(offset)
            answer_outcome(call, "a half message was being resumed", respond, outcome)

        half = copy_record(
            raw, self._tails.get(HALF_TOPIC, HALF_QUEUE_ID), _without_check(raw.properties), transaction=0
        )
        self._appender.add_atomically([half, *self._forget_lost(), self._done_command(offset, finish)])
        return None

    def _find(self, message_id: str) -> tuple[QueueOffset, RawRecord]:
        """Return a message that was given up, and its offset in that topic. Raises RequestRefused."""
        try:
            place = parse_offset_message_id(message_id)
            record = self._records.at(place.physical_offset)
            if record is None:
                if not self._beginning.is_first:
                    raise self._beginning.refusal()
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"there is no message {message_id}")
            message, raw = decode_record(memoryview(record)), split_record(record)
        except (MessageIdInvalid, SegmentError, RecordError) as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no message {message_id[:64]}: {error}") from error
        if (message.topic, message.queue_id) != (UNENDED_TOPIC, _QUEUE_ID):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"message {message_id} is in topic {message.topic}, not {UNENDED_TOPIC}"
            )
        return message.queue_offset, raw

    def _forget_lost(self) -> list[PendingCommand]:
        """Return commands that drop the marks of messages that the queue does not have any more."""
        queue = self._store.get(UNENDED_TOPIC, _QUEUE_ID)
        first = FIRST_OFFSET if queue is None else queue.min_offset
        low = self._metadata.marks.get(UNENDED_TOPIC, _QUEUE_ID).low
        if first <= low or self._beginning.may_be_elsewhere(first, low):
            return []
        return [PendingCommand(encode_command(SkipEntries(topic=UNENDED_TOPIC, queue_id=_QUEUE_ID, offset=first)))]

    @staticmethod
    def _done_command(offset: QueueOffset, finish: OnOutcome) -> PendingCommand:
        command = CompleteEntries(topic=UNENDED_TOPIC, queue_id=_QUEUE_ID, offsets=[offset])
        return PendingCommand(encode_command(command), finish)


def _without_check(properties: bytes) -> bytes:
    """Return the properties with a check count of zero, as stock brokers write them. The message is checked at once."""
    text = props.decode(properties.decode("utf-8", "replace")) | {props.TRANSACTION_CHECK_TIMES: "0"}
    text.pop(props.CHECK_IMMUNITY_SECONDS, None)
    result = props.encode(text).encode()
    return result if len(result) <= props.PROPERTIES_BYTES_MAX else properties
