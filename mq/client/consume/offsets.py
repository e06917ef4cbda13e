"""The offsets of a group: reads them from the leaders of the queues, and stores them there."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from functools import partial
from typing import Literal

import anyio

from mq.client.errors import BrokerError, ClientError, ConnectionLost
from mq.client.logs import log
from mq.client.message import MessageQueue
from mq.client.net.client_core import ClientCore
from mq.client.net.connection import ResponseOrLoss
from mq.client.net.leader_calls import Repeat, call_leader, known_leader
from mq.client.net.replies import fields_of
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.names import retry_topic
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.offsets import (
    OffsetReply,
    QueryConsumerOffsetExt,
    QueueExt,
    SearchOffsetExt,
    UpdateConsumerOffsetExt,
)
from mq.protocol.wire.request import Ext

ConsumeFrom = Literal["first", "last"] | dt.datetime
"""The begin of a group without a stored offset: at the first or after the last message, or at the first one of a
time.
"""


def check_position(position: ConsumeFrom) -> None:
    """Raise ValueError for an invalid position, or for a time without a time zone."""
    if isinstance(position, dt.datetime):
        if position.tzinfo is None:
            raise ValueError(f"{position} needs a time zone")
    elif position not in ("first", "last"):
        raise ValueError(f"{position!r} is neither 'first' nor 'last' nor a datetime")


async def _call(core: ClientCore, queue: MessageQueue, code: int, ext: Ext, seconds: float | None) -> Response:
    """Return the answer of a queue's leader; retried for `seconds`, or not if that is None. Raises ClientError."""
    response, _ = await call_leader(
        core,
        queue.topic,
        queue.broker_name,
        code,
        ext.fields(),
        seconds=core.settings.request_seconds if seconds is None else seconds,
        repeat=Repeat.NEVER if seconds is None else Repeat.ALWAYS,
    )
    return response


async def queue_offset(
    core: ClientCore, queue: MessageQueue, position: ConsumeFrom, *, seconds: float | None = None
) -> int:
    """Ask the leader for an offset: of the first message, the next one, or the first one stored at or after a time.

    Retried for `seconds`, or not if that is None. Raises ValueError for an invalid position, and the errors of
    `call_leader`.
    """
    check_position(position)
    ext: Ext
    if isinstance(position, dt.datetime):
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        timestamp_ms = int(position.timestamp() * 1000)
        ext = SearchOffsetExt(topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=timestamp_ms)
    else:
        code = RequestCode.GET_MIN_OFFSET if position == "first" else RequestCode.GET_MAX_OFFSET
        ext = QueueExt(topic=queue.topic, queue_id=queue.queue_id)
    response = await _call(core, queue, code, ext, seconds)
    # Stock brokers answer -1 for the first offset of a queue that never had messages.
    return max(0, fields_of(OffsetReply, response).offset)


async def stored_offset(
    core: ClientCore,
    group: str,
    queue: MessageQueue,
    *,
    zero_if_young: bool = False,
    seconds: float | None = None,
) -> int | None:
    """Ask the leader for a group's stored offset; None if there is none. Raises the errors of `call_leader`.

    Retried for `seconds`, or not if that is None. With `zero_if_young` brokers answer 0 instead of None for a queue
    that they hold in memory from its first message on.
    """
    ext = QueryConsumerOffsetExt(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        set_zero_if_not_found=None if zero_if_young else False,
    )
    try:
        response = await _call(core, queue, RequestCode.QUERY_CONSUMER_OFFSET, ext, seconds)
    except BrokerError as error:
        if error.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        raise
    return fields_of(OffsetReply, response).offset


async def lag_of(core: ClientCore, positions: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    """Return, for each queue, the number of messages from its position to its end. Raises ClientError."""
    behind: dict[MessageQueue, int] = {}

    async def ask(queue: MessageQueue, position: int) -> None:
        end = await queue_offset(core, queue, "last", seconds=core.settings.request_seconds)
        behind[queue] = max(end - position, 0)

    try:
        async with anyio.create_task_group() as tasks:
            for queue, position in positions.items():
                tasks.start_soon(ask, queue, position)
    except BaseExceptionGroup as group:
        if isinstance(error := group.exceptions[0], ClientError):
            raise error from None
        raise
    return {queue: behind[queue] for queue in sorted(behind)}


class GroupOffsets:
    """The stored offsets of one group. A stored offset is that of the next message to consume.

    `by_hand`: offsets are stored only on request, not with pulls, and `consume_from` always applies. Otherwise a group
    begins at 0 in a young queue: consumers notice new queues seconds after their first message. `begin`, `store` and
    `load` retry for `seconds`, or not if that is None.
    """

    def __init__(
        self,
        core: ClientCore,
        group: str,
        consume_from: ConsumeFrom,
        *,
        by_hand: bool = False,
        seconds: float | None = None,
    ) -> None:
        self.commits_with_pulls = not by_hand
        self._by_hand = by_hand
        self._seconds = seconds
        self._core = core
        self._group = group
        self._consume_from = consume_from
        self._logged_topics: set[str] = set()
        """Topics in which it begins at the end."""
        self._sent_offsets: dict[MessageQueue, int] = {}
        """Sent to the leader, or read from it."""
        self._confirmed_offsets: dict[MessageQueue, int] = {}
        """Stored, as the leader has answered."""

    async def begin(self, queue: MessageQueue) -> int:
        """Return the offset at which to start consuming `queue`.

        `consume_from` applies only if a broker says that nothing is stored (QUERY_NOT_FOUND); any other failure is
        raised, because jumping to the end after a transient error would lose messages. Raises ClientError.
        """
        offset = await stored_offset(
            self._core, self._group, queue, zero_if_young=not self._by_hand, seconds=self._seconds
        )
        if offset is None:
            # Messages in the retry topic were delivered before, so they are never too old for the group.
            is_retry = queue.topic == retry_topic(self._group)
            position = "first" if is_retry else self._consume_from
            begin = await queue_offset(self._core, queue, position, seconds=self._seconds)
            if position == "last" and begin > 0:
                self._tell_of_the_end(queue.topic)
            return begin
        # Brokers also answer the first offset of a queue without a stored one. So that the group still begins there
        # after a long absence, its first position is stored, too.
        self._sent_offsets.pop(queue, None)
        return offset

    def _tell_of_the_end(self, topic: str) -> None:
        """Log, once for a topic, that a group starts after its messages: it may look as if it got none."""
        if topic in self._logged_topics:
            return
        self._logged_topics.add(topic)
        tell = log.info if self._by_hand else log.warning  # a group that stores its offsets begins once
        tell(
            "begins_at_the_end",
            group=self._group,
            topic=topic,
            reason="the group has no stored offset, and gets what is sent from now on; "
            'consume_from="first" is for what is there already',
        )

    def commit_soon(self, offsets: Mapping[MessageQueue, int]) -> set[str]:
        """Send changed offsets without waiting. The next call, or the last commit, repeats those without an answer.

        Offsets stored by pulls are stored again: answers to pulls do not say whether the replica leads, those to these
        requests do (see `ClientCore`).

        Returns the topics whose leader is unknown or not connected; their offsets wait.
        """
        postponed_topics: set[str] = set()
        for queue, offset in offsets.items():
            if self._sent_offsets.get(queue) == offset:
                continue
            try:
                connection = self._core.find_connection(known_leader(self._core, queue.topic, queue.broker_name))
                if connection is None:
                    postponed_topics.add(queue.topic)
                    continue
                fields = self._ext(queue, offset).fields()
                on_response = partial(self._on_response, queue, offset)
                connection.request_nowait(RequestCode.UPDATE_CONSUMER_OFFSET, fields, b"", on_response)
                self._sent_offsets[queue] = offset
            except ClientError as error:
                postponed_topics.add(queue.topic)
                log.debug("offset_commit_postponed", queue=queue, offset=offset, reason=str(error))
        return postponed_topics

    def _on_response(self, queue: MessageQueue, offset: int, response: ResponseOrLoss, _body: memoryview) -> None:
        if isinstance(response, ConnectionLost) or response.code != ResponseCode.SUCCESS:
            reason = (
                str(response) if isinstance(response, ConnectionLost) else f"code {response.code}: {response.remark}"
            )
            log.info("offset_not_stored", queue=queue, offset=offset, reason=reason)
            if self._sent_offsets.get(queue) == offset:
                del self._sent_offsets[queue]
        else:
            self._confirmed_offsets[queue] = offset

    def forget(self, queue: MessageQueue) -> None:
        """Drop the cached offset of `queue`, because another member or an operator changed it."""
        self._sent_offsets.pop(queue, None)
        self._confirmed_offsets.pop(queue, None)

    async def commit(self, offsets: Mapping[MessageQueue, int], *, seconds: float) -> None:
        """Store these offsets and wait for the answers, for at most `seconds`, even if cancelled.

        Before it releases a queue, a member must be sure that its offsets are stored before the next owner requests
        them. So it retries while there is time, also across a change of leader; storing an offset twice changes
        nothing. A failure is logged: it causes redelivery, never loss.
        """
        owed = {queue: offset for queue, offset in offsets.items() if self._confirmed_offsets.get(queue) != offset}
        reasons: dict[MessageQueue, str] = {}

        async def store(queue: MessageQueue, offset: int) -> None:
            try:
                await call_leader(
                    self._core,
                    queue.topic,
                    queue.broker_name,
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    self._ext(queue, offset).fields(),
                    seconds=seconds,
                    repeat=Repeat.ALWAYS,
                )
                self._confirmed_offsets[queue] = offset
                del owed[queue]
            except ClientError as error:
                reasons[queue] = str(error)
            self._sent_offsets.pop(queue, None)

        # The calls end in time by themselves, and then say why.
        with anyio.move_on_after(seconds + 1.0, shield=True):
            async with anyio.create_task_group() as tasks:
                for queue, offset in list(owed.items()):
                    tasks.start_soon(store, queue, offset)
        if owed:
            log.warning(
                "offset_commit_failed",
                group=self._group,
                offsets={str(queue): offset for queue, offset in sorted(owed.items())},
                reason=next(iter(reasons.values()), f"no answer within {seconds:g} s"),
            )

    async def store(self, queue: MessageQueue, offset: int) -> None:
        """Store one offset. Raises ClientError."""
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        await _call(self._core, queue, code, self._ext(queue, offset), self._seconds)

    async def load(self, queue: MessageQueue) -> int | None:
        """Ask the leader for the stored offset; None if there is none. Raises ClientError."""
        return await stored_offset(self._core, self._group, queue, seconds=self._seconds)

    def _ext(self, queue: MessageQueue, offset: int) -> UpdateConsumerOffsetExt:
        return UpdateConsumerOffsetExt(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=QueueOffset(offset),
            # Another member may have the queue by now, and have committed further.
            forward_only=not self._by_hand,
        )
