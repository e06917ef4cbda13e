"""Locks queues for ordered consumption by one client: LOCK_BATCH_MQ (41), UNLOCK_BATCH_MQ (42).

The holder of a lock is replicated. Its expiry is tracked by the leader: 60 s after the last renewal. A new leader does
not know the last renewal and takes the moment when it began to lead. So a lock may last longer than 60 s, never
shorter.

While a lock is in force, other clients are fenced off its queue; see `mq.broker.consume.fencing`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

from mq.broker.base.periodic_task import Periodic
from mq.broker.consume.fencing import Fencing, QueueKey
from mq.broker.consume.lock_times import LockTimes
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.clients import ROUND_CALLS
from mq.broker.net.connection import ClientConnection
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.state.commands import CLIENT_ID_LENGTH_MAX, LockQueues, UnlockQueues, encode_command
from mq.broker.write_path.outcome import DiskFull, LeadershipLost, OnOutcome, Outcome, Stored, Unknown
from mq.protocol.codes import ResponseCode
from mq.protocol.errors import ProtocolError
from mq.protocol.names import check_group
from mq.protocol.requests.clients import LockBatchMq, LockedQueues, QueueLocks, UnlockBatchMq
from mq.protocol.wire.queue_tables import QueueRef

QUEUES_MAX = 16_384
"""Queues in one request: as many as a topic may have."""

COMMAND_ROWS_MAX = 200
"""Queues in one command: even with the longest names it fits the smallest log file."""


class _Grant:
    """The locks that one request asked for, while it is unknown whether they are stored."""

    __slots__ = ("client_id", "host")

    def __init__(self, client_id: str, host: bytes) -> None:
        self.client_id = client_id
        self.host = host


class QueueLockService(Service):
    """Locks and unlocks queues for clients (leader only).

    Attributes:
        fencing: keeps clients off queues that others have locked.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._metadata = context.metadata
        self._appender = context.appender
        self._read = context.reads.read_once
        self._removed_members = context.clients.removed_members
        self._clock = context.clock
        self._limits = context.limits.consume
        self._expired_at = float("-inf")
        self._led_since = 0.0
        self._renewals = LockTimes()
        self._to_expire: deque[tuple[str, str]] = deque()
        self._expire_count = 0
        self._grants: dict[QueueKey, _Grant] = {}
        self._host_grants: Counter[bytes] = Counter()
        self._releases: set[QueueKey] = set()
        self.fencing = Fencing(context, self._is_free)

    def routes(self) -> Iterator[Route]:
        yield Route(LockBatchMq, self.handle_lock, leader_only=True, repeatable=True)
        yield Route(UnlockBatchMq, self.handle_unlock, leader_only=True, repeatable=True)

    def counters(self) -> dict[str, int]:
        return {"locked_queues": self._metadata.lock_count, "fenced_commits": self.fencing.count}

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(self._limits.expire_some_seconds, self.expire_some, self._expires_next_at)

    def _expires_next_at(self) -> float:
        """Return when `expire_some` is due next: a round over few locks takes as long as one over many."""
        count = self._metadata.lock_count + len(self._metadata.queue_locks)
        return self._expired_at + self._limits.expire_some_seconds * ROUND_CALLS / count if count else float("inf")

    def lead(self) -> None:
        """Treat all locks as just renewed, since this replica becomes the leader."""
        self._led_since = self._clock()
        self.resign()

    def resign(self) -> None:
        """Forget the renewals of locks and the changes in flight, since this replica stops leading."""
        self._renewals.clear()
        self._grants.clear()
        self._host_grants.clear()
        self._releases.clear()

    def check_invariants(self) -> None:
        hosts = Counter(grant.host for grant in self._grants.values())
        assert hosts == self._host_grants, f"grants by host are {dict(hosts)}, counted {dict(self._host_grants)}"
        self._renewals.check_invariants()
        count, count_max = self._metadata.lock_count, self._limits.locks_max
        if self._appender.is_open:
            in_all = count + sum(self._metadata.lock_holder(*key) is None for key in self._grants)
            assert in_all <= count_max, f"{count} locks and {len(hosts)} grants in flight; maximum: {count_max}"
        if self._appender.is_idle:
            changes = len(self._grants), len(self._releases)
            assert changes == (0, 0), f"locks are granted and released: {changes}, and nothing is pending"

    def handle_lock(self, call: Call[LockBatchMq]) -> bytes | None:
        """Request code 41: lock queues; respond with the queues that the client holds, once that is committed."""
        self._appender.check_room()
        request = self._decode(call.body)
        client_id, group = request.client_id, request.group
        if self._removed_members.table and self._removed_members.get(group, client_id, self._clock()) is not None:
            return call.response(body=LockedQueues().encode())
        host = call.connection.host[:4]
        grant = _Grant(client_id, host)
        free: list[tuple[str, int]] = []
        for ref in request.queues:
            key = (group, ref.topic, ref.queue_id)
            earlier = self._grants.get(key)
            if self._exists(ref) and (self._is_free(key) or (earlier is not None and earlier.client_id == client_id)):
                if earlier is not None:
                    self._forget_grant(key, earlier)
                elif not self._has_room(host):
                    continue
                self._grants[key] = grant
                self._host_grants[host] += 1
                free.append((ref.topic, ref.queue_id))

        def forget_grants() -> None:
            for topic, queue_id in free:
                self._forget_grant((group, topic, queue_id), grant)

        def on_confirm(is_confirmed: bool) -> None:
            forget_grants()
            if is_confirmed:
                body = LockedQueues(self._renew(request, host)).encode()
                call.answer(call.response(body=body))
            else:
                self._serve_elsewhere(call)

        def on_outcome(outcome: Outcome) -> None:
            if isinstance(outcome, DiskFull):
                forget_grants()
                call.refuse(RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, outcome.remark))
            else:
                on_confirm(isinstance(outcome, Stored))

        if not free:
            self._read(on_confirm)
            return None
        for rows in _chunks(free):
            command = encode_command(LockQueues(group=group, client_id=client_id, queues=rows))
            if rows[-1] is free[-1]:
                self._appender.add_command(command, on_outcome)
            else:
                self._appender.add_command(command)
        return None

    def handle_unlock(self, call: Call[UnlockBatchMq]) -> bytes | None:
        """Request code 42: release queues of a client. Ignores queues that it does not hold."""
        request = self._decode(call.body)
        client_id, group = request.client_id, request.group
        # A lock that is being granted to another client must not be released, even if the metadata still names this
        # one.
        locks = [
            (ref.topic, ref.queue_id)
            for ref in request.queues
            if client_id == self._next_holder((group, ref.topic, ref.queue_id))
        ]
        response = call.response()
        if not locks:
            return response
        self._appender.check_room()

        def on_release(outcome: Outcome) -> None:
            match outcome:
                case Stored():
                    call.answer(response)
                case DiskFull(remark):
                    call.refuse(RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, remark))
                case LeadershipLost() | Unknown():
                    self._serve_elsewhere(call)

        self._release(group, client_id, locks, on_release)
        return None

    def member_removed(self, group: str, client_id: str, connections: Iterable[ClientConnection]) -> None:
        """Release the locks of a removed member, so that other members can lock its queues."""
        if not self._appender.is_open:
            return
        own_locks = [
            (topic, queue_id)
            for (of_group, topic), locks in self._metadata.queue_locks.items()
            if of_group == group
            for queue_id in locks
            if self._next_holder((group, topic, queue_id)) == client_id
        ]
        if own_locks:
            self._release(group, client_id, own_locks)

    def expire_some(self) -> None:
        """Release expired locks of some tables. A timer calls this.

        `ROUND_CALLS` calls cover all tables that existed at the first of them.
        """
        self._expired_at = self._clock()
        if not self._to_expire:
            # In a fixed order. Tables only among the renewals were deleted with their topic or group.
            self._to_expire.extend(dict.fromkeys((*self._metadata.queue_locks, *self._renewals)))
            self._expire_count = -(-(self._metadata.lock_count + len(self._to_expire)) // ROUND_CALLS)
        budget = self._expire_count
        while self._to_expire and budget > 0:
            group, topic = self._to_expire.popleft()
            locks = self._metadata.queue_locks.get((group, topic), {})
            budget -= 1 + len(locks)
            self._expire_table(group, topic, locks)

    def _expire_table(self, group: str, topic: str, locks: dict[int, str]) -> None:
        self._renewals.keep((group, topic), locks)
        if not self._appender.is_open:
            return
        expiries: dict[str, list[tuple[str, int]]] = {}
        for queue_id, client_id in locks.items():
            key = (group, topic, queue_id)
            if key not in self._releases and self._is_free(key):
                expiries.setdefault(client_id, []).append((topic, queue_id))
        for client_id, rows in expiries.items():
            self._release(group, client_id, rows)

    def _decode(self, body: bytes) -> QueueLocks:
        try:
            locks = QueueLocks.decode(body)
            check_group(locks.group)
        except ProtocolError as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"locks refused: {error}") from error
        if not 1 <= len(locks.client_id) <= CLIENT_ID_LENGTH_MAX:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"the client id has {len(locks.client_id)} characters; allowed: 1 to {CLIENT_ID_LENGTH_MAX}",
            )
        if len(locks.queues) > QUEUES_MAX:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"the request locks {len(locks.queues)} queues; maximum: {QUEUES_MAX}"
            )
        return locks

    def _exists(self, ref: QueueRef) -> bool:
        config = self._metadata.topics.get(ref.topic)
        return config is not None and 0 <= ref.queue_id < max(config.read_queues, config.write_queues)

    def _is_free(self, key: QueueKey) -> bool:
        """Return whether this queue is unlocked or its lock has expired, counting changes in flight."""
        if key in self._grants:
            return False
        if key in self._releases or self._metadata.lock_holder(*key) is None:
            return True
        group, topic, queue_id = key
        renewed_at = self._renewals.at((group, topic), queue_id)
        return self._clock() - (self._led_since if renewed_at is None else renewed_at) >= self._limits.lock_seconds

    def _has_room(self, host: bytes) -> bool:
        """Return whether a host may have one more lock: at most as many as all others could still get.

        So a single host never has more than half of all, whatever names its clients and groups have.
        """
        room = self._limits.locks_max - self._metadata.lock_count - len(self._grants)
        return self._renewals.of_host(host) + self._host_grants[host] < room

    def _next_holder(self, key: QueueKey) -> str | None:
        """Return the holder of this queue after the changes in flight."""
        grant = self._grants.get(key)
        return self._metadata.lock_holder(*key) if grant is None else grant.client_id

    def _forget_grant(self, key: QueueKey, grant: _Grant) -> None:
        """Forget a grant in flight, unless another request of its client has replaced it or leadership has ended."""
        if self._grants.get(key) is not grant:
            return
        del self._grants[key]
        self._host_grants[grant.host] -= 1
        assert self._host_grants[grant.host] >= 0, f"{self._host_grants[grant.host]} grants in flight to {grant.host!r}"
        if not self._host_grants[grant.host]:
            del self._host_grants[grant.host]

    def _renew(self, request: QueueLocks, host: bytes) -> list[QueueRef]:
        """Renew the locks of a client, and return those in force."""
        now = self._clock()
        ours: list[QueueRef] = []
        for ref in request.queues:
            key = (request.group, ref.topic, ref.queue_id)
            # While its request was in flight, an expired lock may have been granted to another client. A grant or
            # release in flight belongs to no client: if leadership is lost now, it may or may not take effect.
            if self._metadata.lock_holder(*key) == request.client_id == self._next_holder(key) and (
                key not in self._releases
            ):
                self._renewals.add((request.group, ref.topic), ref.queue_id, now, host)
                ours.append(ref)
        return ours

    def _release(
        self,
        group: str,
        client_id: str,
        rows: list[tuple[str, int]],
        on_outcome: OnOutcome | None = None,
    ) -> None:
        assert rows, f"{client_id} of group {group} releases no queues, and would not be answered"
        keys = [(group, topic, queue_id) for topic, queue_id in rows]
        self._releases.update(keys)

        def finish(outcome: Outcome) -> None:
            self._releases.difference_update(keys)
            for topic, queue_id in rows:
                if self._metadata.lock_holder(group, topic, queue_id) is None:
                    self._renewals.forget((group, topic), queue_id)
            if on_outcome is not None:
                on_outcome(outcome)

        for chunk in _chunks(rows):
            command = encode_command(UnlockQueues(group=group, client_id=client_id, queues=chunk))
            if chunk[-1] is rows[-1]:
                self._appender.add_command(command, finish)
            else:
                self._appender.add_command(command)

    def _serve_elsewhere(self, call: Call[Any]) -> None:
        """Pass a request to the new leader after leadership was lost. Locking is idempotent."""
        if not self._appender.is_open:
            call.dispatch()
            return
        remark = "the group has no leader to confirm this"
        code = ResponseCode.SERVICE_NOT_AVAILABLE
        call.answer(call.response(code, remark=remark))


def _chunks(rows: list[tuple[str, int]]) -> Iterable[list[tuple[str, int]]]:
    return (rows[at : at + COMMAND_ROWS_MAX] for at in range(0, len(rows), COMMAND_ROWS_MAX))
