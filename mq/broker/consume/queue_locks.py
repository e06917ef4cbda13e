"""Queues that one client of a group has for itself, for ordered consumption: LOCK_BATCH_MQ (41), UNLOCK_BATCH_MQ (42).

Who holds a queue is replicated. How long it holds it without a further request is the leader's business: 60 s, and a
new leader, which cannot know when the last request came, counts each lock from the moment when it began to lead. So a
lock may last longer than it should, never shorter.

A client that was away for so long does not know that its queue is another one's by now. Therefore locks are *fences* as
well: as long as a lock is in force, no other client's offset gets past it, and no message is taken back from another
client. It would come twice, and the second time out of its order.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

import structlog

from mq.broker.consume.lock_renewals import LockRenewals
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.clients import EXPIRE_SOME_SECONDS, ROUND_CALLS
from mq.broker.net.connection import ClientConnection
from mq.broker.net.errors import RequestRefused
from mq.broker.net.service import Periodic, Route, Service
from mq.broker.state.commands import CLIENT_ID_LENGTH_MAX, LockQueues, UnlockQueues, encode_command
from mq.broker.write_path.outcome import LeadershipLost, OnOutcome, Outcome, Refused, Stored, Unknown
from mq.protocol.codes import ResponseCode
from mq.protocol.errors import ProtocolError
from mq.protocol.group_bodies import LockedQueues, QueueLocks
from mq.protocol.headers import LockBatchMq, UnlockBatchMq
from mq.protocol.names import check_group
from mq.protocol.queue_tables import QueueRef

Log = structlog.stdlib.BoundLogger

LOCK_SECONDS = 60.0
"""A queue is free for others when its holder was not heard for so long."""

QUEUES_MAX = 16_384
"""Queues in one request: as many as one topic may have."""

LOCKS_MAX = 100_000
"""Locked queues of all groups; beyond it no further ones are given out, and to one host at most half of them."""

COMMAND_ROWS_MAX = 200
"""Queues in one command: with the longest names it still fits the smallest file of a log."""

_REPORTS_MAX = 1000

_Key = tuple[str, str, int]
"""Group, topic and queue id."""


class QueueLockService(Service):
    """The lock handlers of a broker (leader only).

    Attributes:
        fenced: how many offset commits did not count, and how many messages were not taken back, because another client
            held the queue.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._metadata = context.metadata
        self._appender = context.appender
        self._client_id = context.client_id
        self._read = context.reads.read_once
        self._clock = context.clock
        self._log = context.log
        self._led_since = 0.0
        self._renewed = LockRenewals()
        self._to_expire: deque[tuple[str, str]] = deque()
        self._expire_count = 0
        self._granting: dict[_Key, str] = {}
        self._granting_to: Counter[bytes] = Counter()
        self._releasing: set[_Key] = set()
        self._reported: set[tuple[str, str]] = set()
        self.fenced = 0

    def routes(self) -> Iterator[Route]:
        """The requests that are served here; see `Service`."""
        yield Route(LockBatchMq, self.handle_lock, leader_only=True, repeatable=True)
        yield Route(UnlockBatchMq, self.handle_unlock, leader_only=True, repeatable=True)

    def counters(self) -> dict[str, int]:
        """Counts since the start; see `Service`."""
        return {"locked_queues": self._metadata.lock_count, "fenced_commits": self.fenced}

    def periodic(self) -> Iterator[Periodic]:
        """Actions and the seconds in between; see `Service`."""
        yield EXPIRE_SOME_SECONDS, self.expire_some

    def lead(self) -> None:
        """This replica leads from now on; all locks are as if just renewed."""
        self._led_since = self._clock()
        self.resign()

    def resign(self) -> None:
        """This replica does not lead any more."""
        self._renewed.clear()
        self._granting.clear()
        self._granting_to.clear()
        self._releasing.clear()

    def handle_lock(self, call: Call[LockBatchMq]) -> bytes | None:
        """Request code 41: answered with those queues that are the client's, when that is certain."""
        self._appender.check_room()
        wanted = self._decoded(call.body)
        client_id, group = wanted.client_id, wanted.group
        host = call.connection.host[:4]
        free: list[tuple[str, int]] = []
        for ref in wanted.queues:
            key = (group, ref.topic, ref.queue_id)
            if self._exists(ref) and (self._is_free(key) or self._granting.get(key) == client_id):
                if key not in self._granting:
                    if not self._has_room(host):
                        continue
                    self._granting_to[host] += 1
                self._granting[key] = client_id
                free.append((ref.topic, ref.queue_id))

        def settle() -> None:
            for topic, queue_id in free:
                if self._granting.pop((group, topic, queue_id), None) is not None:
                    self._granting_to[host] -= 1
            if not self._granting_to[host]:
                del self._granting_to[host]

        def confirmed(known: bool) -> None:
            settle()
            if known:
                reply = LockedQueues(self._renew(wanted, host)).encode()
                call.answer(call.response(body=reply))
            else:
                self._serve_elsewhere(call)

        def on_outcome(outcome: Outcome) -> None:
            if isinstance(outcome, Refused):
                settle()
                call.refuse(RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, outcome.remark))
            else:
                confirmed(isinstance(outcome, Stored))

        if not free:
            self._read(confirmed)
            return None
        for rows in _chunks(free):
            command = encode_command(LockQueues(group=group, client_id=client_id, queues=rows))
            if rows[-1] is free[-1]:
                self._appender.add_command(command, on_outcome)
            else:
                self._appender.add_command(command)
        return None

    def handle_unlock(self, call: Call[UnlockBatchMq]) -> bytes | None:
        """Request code 42: a client gives queues back. Those that it does not hold are left alone."""
        given = self._decoded(call.body)
        client_id, group = given.client_id, given.group
        # What is on its way to another client is not this one's to give back, even if it still says so in the metadata.
        held = [
            (ref.topic, ref.queue_id)
            for ref in given.queues
            if client_id == self._next_holder((group, ref.topic, ref.queue_id))
        ]
        reply = call.response()
        if not held:
            return reply
        self._appender.check_room()

        def released(outcome: Outcome) -> None:
            match outcome:
                case Stored():
                    call.answer(reply)
                case Refused(remark):
                    call.refuse(RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, remark))
                case LeadershipLost() | Unknown():
                    self._serve_elsewhere(call)

        self._release(group, client_id, held, released)
        return None

    def fences(
        self, connection: ClientConnection, group: str, topic: str, queue_id: int, *, only_known: bool = False
    ) -> bool:
        """Whether another client holds this queue, so that what ``connection`` says of it does not count.

        A connection without a heartbeat of the group is nobody's: it is fenced, too, unless ``only_known``.
        """
        holder = self._metadata.lock_holder(group, topic, queue_id)
        if holder is None:
            return False
        client_id = self._client_id(connection, group)
        if client_id == holder or (client_id is None and only_known) or self._is_free((group, topic, queue_id)):
            return False
        self._note_fenced(group, topic, queue_id, client_id, holder)
        return True

    def fences_topic(self, connection: ClientConnection, group: str, topic: str) -> bool:
        """Whether others hold queues of this topic and the client none: it has no message of it to do anything with.

        A connection without a heartbeat of the group is not fenced: its client may not have found this leader before.
        """
        client_id = self._client_id(connection, group)
        if client_id is None:
            return False
        held = self._metadata.queue_locks.get((group, topic), {})
        in_force = {
            queue_id: holder for queue_id, holder in held.items() if not self._is_free((group, topic, queue_id))
        }
        if not in_force or client_id in in_force.values():
            return False
        queue_id, holder = next(iter(in_force.items()))
        self._note_fenced(group, topic, queue_id, client_id, holder)
        return True

    def _note_fenced(self, group: str, topic: str, queue_id: int, client_id: str | None, holder: str) -> None:
        self.fenced += 1
        if (group, client_id or "") not in self._reported and len(self._reported) < _REPORTS_MAX:
            self._reported.add((group, client_id or ""))
            self._log.warning(
                "client_fenced",
                consumer_group=group,
                topic=topic,
                queue_id=queue_id,
                client_id=client_id,
                holder=holder,
            )

    def expire_some(self) -> None:
        """Take from their holders what was not renewed in time, of some tables; called by a timer.

        `ROUND_CALLS` calls look at all that were there at the first of them.
        """
        if not self._to_expire:
            # Always in the same order. What is only among the renewed was deleted with its topic or group.
            self._to_expire.extend(dict.fromkeys((*self._metadata.queue_locks, *self._renewed)))
            self._expire_count = -(-(self._metadata.lock_count + len(self._to_expire)) // ROUND_CALLS)
        left = self._expire_count
        while self._to_expire and left > 0:
            group, topic = self._to_expire.popleft()
            locks = self._metadata.queue_locks.get((group, topic), {})
            left -= 1 + len(locks)
            self._expire_table(group, topic, locks)

    def _expire_table(self, group: str, topic: str, locks: dict[int, str]) -> None:
        self._renewed.keep((group, topic), locks)
        if not self._appender.is_open:
            return
        gone: dict[str, list[tuple[str, int]]] = {}
        for queue_id, client_id in locks.items():
            key = (group, topic, queue_id)
            if key not in self._releasing and self._is_free(key):
                gone.setdefault(client_id, []).append((topic, queue_id))
        for client_id, rows in gone.items():
            self._release(group, client_id, rows)

    def _decoded(self, body: bytes) -> QueueLocks:
        try:
            locks = QueueLocks.decode(body)
            check_group(locks.group)
        except ProtocolError as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"locks refused: {error}") from error
        if not 1 <= len(locks.client_id) <= CLIENT_ID_LENGTH_MAX:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"client id of {len(locks.client_id)} characters; allowed: 1 to {CLIENT_ID_LENGTH_MAX}",
            )
        if len(locks.queues) > QUEUES_MAX:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"locks of {len(locks.queues)} queues; maximum: {QUEUES_MAX}"
            )
        return locks

    def _exists(self, ref: QueueRef) -> bool:
        config = self._metadata.topics.get(ref.topic)
        return config is not None and 0 <= ref.queue_id < max(config.read_queues, config.write_queues)

    def _is_free(self, key: _Key) -> bool:
        """Whether nobody holds this queue, or its holder was silent for too long; what is on its way counts."""
        if key in self._granting:
            return False
        if key in self._releasing or self._metadata.lock_holder(*key) is None:
            return True
        group, topic, queue_id = key
        renewed_at = self._renewed.at((group, topic), queue_id)
        return self._clock() - (self._led_since if renewed_at is None else renewed_at) >= LOCK_SECONDS

    def _has_room(self, host: bytes) -> bool:
        """Whether a host may have one more lock: as many as are left for everybody else.

        So a single host, whatever it calls its clients and groups, never has more than half of all.
        """
        left = LOCKS_MAX - self._metadata.lock_count - len(self._granting)
        return self._renewed.of_host(host) + self._granting_to[host] < left

    def _next_holder(self, key: _Key) -> str | None:
        """Who holds this queue once what is on its way is done."""
        return self._granting.get(key) or self._metadata.lock_holder(*key)

    def _renew(self, wanted: QueueLocks, host: bytes) -> list[QueueRef]:
        """Count the locks of a client from now on; returns those that are in force."""
        now = self._clock()
        ours: list[QueueRef] = []
        for ref in wanted.queues:
            key = (wanted.group, ref.topic, ref.queue_id)
            # While its request was under way, an expired lock may have become another client's. What is only on its
            # way, to this client or away from it, is nobody's: if the leadership is lost now, it may come or not.
            granted_to = self._granting.get(key, wanted.client_id)
            if self._metadata.lock_holder(*key) == wanted.client_id == granted_to and key not in self._releasing:
                self._renewed.note((wanted.group, ref.topic), ref.queue_id, now, host)
                ours.append(ref)
        return ours

    def _release(
        self,
        group: str,
        client_id: str,
        rows: list[tuple[str, int]],
        on_outcome: OnOutcome | None = None,
    ) -> None:
        keys = [(group, topic, queue_id) for topic, queue_id in rows]
        self._releasing.update(keys)

        def settled(outcome: Outcome) -> None:
            self._releasing.difference_update(keys)
            for topic, queue_id in rows:
                if self._metadata.lock_holder(group, topic, queue_id) is None:
                    self._renewed.forget((group, topic), queue_id)
            if on_outcome is not None:
                on_outcome(outcome)

        for chunk in _chunks(rows):
            command = encode_command(UnlockQueues(group=group, client_id=client_id, queues=chunk))
            if chunk[-1] is rows[-1]:
                self._appender.add_command(command, settled)
            else:
                self._appender.add_command(command)

    def _serve_elsewhere(self, call: Call[Any]) -> None:
        """Leadership was lost. Locking twice is locking once, so whoever serves this now does it again."""
        if not self._appender.is_open:
            call.dispatch()
            return
        remark = "the group has no leader to confirm this"
        code = ResponseCode.SERVICE_NOT_AVAILABLE
        call.answer(call.response(code, remark=remark))


def _chunks(rows: list[tuple[str, int]]) -> Iterable[list[tuple[str, int]]]:
    return (rows[at : at + COMMAND_ROWS_MAX] for at in range(0, len(rows), COMMAND_ROWS_MAX))
