"""Members of consumer groups as other clients implement them: heartbeats, rebalancing, long polls, commits.

A member handles the messages that it pulls and commits the offset below everything that is still unhandled. In a group
that consumes in order, a member handles a queue only while it holds its lock, one message at a time. It reports each
step to `OffsetChecker` when it takes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from chaos.broker_sim.clients import Client, ClientResponse, Connection, ResponseOrLoss, pull_fields
from chaos.broker_sim.offset_checker import LOCK_SECONDS, GroupPlan, Key, OffsetChecker
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.records import StoredMessage, decode_records
from mq.protocol.requests.clients import (
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    LockedQueues,
    NotifyConsumerIdsChanged,
    QueueLocks,
    SubscriptionData,
)
from mq.protocol.requests.group_progress import ResetConsumerClientOffset
from mq.protocol.wire.queue_tables import QueueRef, read_offset_table

if TYPE_CHECKING:
    from chaos.broker_sim.workload import Workload

_COMMIT_OFFSET, _SUSPEND = 1, 2
_BROKER = "broker-a"
_HEARTBEAT_SECONDS = 1.0
_REBALANCE_SECONDS = 1.0
_COMMIT_SECONDS = 0.5
_SEEK_SECONDS = 3.0
_RARE_COMMIT_SECONDS = 4.0
"""The pause between commits of a group that consumes in order: much is uncommitted when a queue changes hands."""
_LOCK_PERIOD_SECONDS = 0.7
_AGAIN_SECONDS = 0.3
_BUFFERED_MAX = 64


class GivingBack(Protocol):
    """Decides which messages a member sends back, and sends them back."""

    def wants_to_give_back(self, record: StoredMessage) -> bool:
        """Whether to send a message back instead of handling it."""

    def give_back(self, member: Member, queue: MemberQueue, offset: int, record: StoredMessage) -> None:
        """Send a message back; `Member.on_give_back` is called in the end."""


class MemberQueue:
    """A queue that a member owns. ``position`` is the offset to pull next; None while it is unknown."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.position: int | None = None
        self.dropped = False
        self.locked_until = 0.0
        self.messages: dict[int, StoredMessage] = {}
        self.asked = False
        self.round = 0
        """Incremented whenever the member restarts at some offset: responses and timers of before are ignored."""

    @property
    def commit_offset(self) -> int | None:
        """The offset below which everything is handled; None while the member does not know its position."""
        return min(self.messages, default=self.position)

    def begin_at(self, position: int | None) -> None:
        """Restart at ``position`` (None: at the group's offset), and ignore responses to earlier requests."""
        self.position = position
        self.messages.clear()
        self.round += 1
        self.asked = False


class Member:
    """A client that is a member of a consumer group.

    Args:
        number: distinguishes its address from others.
        client_id: its name in the group; never reused once it has left.
        backs: sends messages back; without it all are handled.
    """

    def __init__(
        self,
        workload: Workload,
        checker: OffsetChecker,
        plan: GroupPlan,
        *,
        number: int,
        client_id: str,
        backs: GivingBack | None = None,
    ) -> None:
        self._workload = workload
        self._cluster = workload.cluster
        self._rng = workload.rng
        self._checker = checker
        self._plan = plan
        self._backs = backs
        self._client = Client(workload.cluster, number, self._on_request)
        self.client_id = client_id
        self.gone = False
        self._awake_at = 0.0
        self._queues: dict[Key, MemberQueue] = {}
        for period, step in (
            (_HEARTBEAT_SECONDS, self._send_heartbeat),
            (_REBALANCE_SECONDS, self._rebalance),
            (_RARE_COMMIT_SECONDS if plan.ordered else _COMMIT_SECONDS, self._commit_all),
            (_LOCK_PERIOD_SECONDS, self._lock),
            (_SEEK_SECONDS, self._seek_back),
        ):
            self._run_later(self._rng.uniform(0.0, 0.2), self._run_periodically, period, step)

    # -- life ----------------------------------------------------------------------------------------------------------

    def sleep(self, seconds: float) -> None:
        """Stop acting for ``seconds`` without noticing it, as a suspended process does."""
        self._awake_at = self._cluster.now + seconds

    def lose_connections(self) -> None:
        """Break all connections; brokers cannot map the new ones to this client until the next heartbeat."""
        self._client.reset()

    def leave(self, *, politely: bool) -> None:
        """Leave the group, with or without unregistering."""
        if politely:
            self._commit_all()
            for queue in list(self._queues.values()):
                self._drop(queue)
            ext = {"clientID": self.client_id, "consumerGroup": self._plan.name}
            for node in self._cluster.nodes.values():
                self._client.request(node, RequestCode.UNREGISTER_CLIENT, ext, b"", None)
        self.gone = True
        self._cluster.at(self._cluster.now + (1.0 if politely else 0.0), self._client.reset)

    def _run_periodically(self, period: float, step: Any) -> None:
        step()
        self._run_later(period * self._rng.uniform(0.8, 1.2), self._run_periodically, period, step)

    def _run_later(self, seconds: float, step: Any, *arguments: object) -> None:
        """Run a step later, or when this client wakes up, but not after it has left the group."""
        self._cluster.at(self._cluster.now + seconds, self._run_awake, step, arguments)

    def _run_awake(self, step: Any, arguments: tuple[object, ...]) -> None:
        if self.gone:
            return
        if self._cluster.now < self._awake_at:
            self._cluster.at(self._awake_at, self._run_awake, step, arguments)
        else:
            step(*arguments)

    def _ask(self, code: RequestCode, ext: dict[str, Any] | None, body: bytes, then: Any) -> None:
        """Send a request to some replica. ``then`` gets the response when this client is awake, but not after it has
        left.
        """

        def on_response(response: ResponseOrLoss) -> None:
            self._run_awake(then, (response,))

        self._client.request(
            self._cluster.some_node(self._rng),
            code,
            ext,
            body,
            None if then is None else on_response,
            serialization=self._workload.encoding(code),
        )

    # -- the group -----------------------------------------------------------------------------------------------------

    def _send_heartbeat(self) -> None:
        topics = sorted({topic for topic, _ in self._plan.queues})
        consumer = ConsumerData(group=self._plan.name, subscriptions=[SubscriptionData(topic=each) for each in topics])
        body = HeartbeatData(client_id=self.client_id, consumers=[consumer]).encode()
        for node in self._cluster.nodes.values():
            self._client.request(node, RequestCode.HEART_BEAT, None, body, lambda _: None)

    def _on_request(self, connection: Connection, request: Any, body: bytes) -> None:
        if self.gone:
            return
        if isinstance(request, NotifyConsumerIdsChanged):
            self._run_later(0.0, self._rebalance)
        elif isinstance(request, ResetConsumerClientOffset):
            for ref, offset in read_offset_table(body).items():
                queue = self._queues.get((request.ext.group, ref.topic, ref.queue_id))
                if queue is not None:
                    self._run_later(0.0, self._reset, queue, offset)

    def _reset(self, queue: MemberQueue, offset: int) -> None:
        if not queue.dropped:
            self._workload.counts["resets heard"] += 1
            queue.begin_at(offset)
            self._pull_next(queue)

    def _rebalance(self) -> None:
        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
                members = sorted(ConsumerList.decode(response.body).consumer_ids)
                if self.client_id in members:
                    self._assign_queues(members.index(self.client_id), len(members))

        self._ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self._plan.name}, b"", on_response)

    def _assign_queues(self, place: int, members: int) -> None:
        mine = {key for number, key in enumerate(self._plan.keys) if number % members == place}
        for key in [key for key in self._queues if key not in mine]:
            self._workload.counts["queues that went to others"] += 1
            self._drop(self._queues[key])
        for key in self._plan.keys:
            if key in mine and key not in self._queues:
                queue = self._queues[key] = MemberQueue(key)
                self._pull_next(queue)

    def _drop(self, queue: MemberQueue) -> None:
        self._commit(queue)
        queue.dropped = True
        del self._queues[queue.key]
        if not self._plan.ordered:
            return
        key = queue.key
        self._checker.begin_unlock(self.client_id, key)

        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
                self._checker.end_unlock(self.client_id, key)

        self._ask(RequestCode.UNLOCK_BATCH_MQ, None, self._locks_of([key]), on_response)

    # -- own queues ----------------------------------------------------------------------------------------------------

    def _locks_of(self, keys: list[Key]) -> bytes:
        refs = [QueueRef(topic, _BROKER, queue_id) for _, topic, queue_id in keys]
        return QueueLocks(client_id=self.client_id, group=self._plan.name, queues=refs).encode()

    def _lock(self) -> None:
        if not self._plan.ordered or not self._queues:
            return
        since, queues = self._cluster.now, list(self._queues.values())

        def on_response(response: ResponseOrLoss) -> None:
            if not isinstance(response, ClientResponse) or response.code != ResponseCode.SUCCESS:
                return
            keys = {(self._plan.name, ref.topic, ref.queue_id) for ref in LockedQueues.decode(response.body).queues}
            for queue in queues:
                if not queue.dropped:
                    self._on_lock(queue, since, is_mine=queue.key in keys)

        self._ask(RequestCode.LOCK_BATCH_MQ, None, self._locks_of([queue.key for queue in queues]), on_response)

    def _on_lock(self, queue: MemberQueue, since: float, *, is_mine: bool) -> None:
        if not is_mine:
            self._workload.counts["locks of others"] += 1
            queue.locked_until = 0.0
            self._commit(queue)
            queue.begin_at(None)
            return
        self._checker.check_lock(self.client_id, queue.key, since)
        if not self._holds(queue):  # another member may have had it meanwhile
            queue.begin_at(None)
        queue.locked_until = max(queue.locked_until, since + LOCK_SECONDS / 2)
        self._pull_next(queue)

    def _holds(self, queue: MemberQueue) -> bool:
        return not self._plan.ordered or self._cluster.now < queue.locked_until

    # -- pulling -------------------------------------------------------------------------------------------------------

    def _pull_next(self, queue: MemberQueue) -> None:
        if queue.dropped or queue.asked or len(queue.messages) >= _BUFFERED_MAX or not self._holds(queue):
            return
        queue.asked = True
        if queue.position is None:
            self._query_offset(queue)
        else:
            self._pull(queue, queue.position)

    def _end_request(self, queue: MemberQueue, round_number: int) -> bool:
        """Record that a request has ended. Return whether its response is still valid."""
        if queue.dropped or queue.round != round_number:
            return False
        queue.asked = False
        return True

    def _query_offset(self, queue: MemberQueue) -> None:
        round_number, query = queue.round, self._checker.begin_query(queue.key)

        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse):
                self._checker.end_query(queue.key, query, response)
            if not self._end_request(queue, round_number):
                return
            if isinstance(response, ClientResponse) and response.code in (
                ResponseCode.SUCCESS,
                ResponseCode.QUERY_NOT_FOUND,
            ):
                queue.begin_at(int(response.ext.get("offset", 0)))
            self._run_later(self._rng.uniform(0.0, _AGAIN_SECONDS), self._pull_next, queue)

        group, topic, queue_id = queue.key
        ext = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
        self._ask(RequestCode.QUERY_CONSUMER_OFFSET, ext, b"", on_response)

    def _pull(self, queue: MemberQueue, offset: int) -> None:
        round_number = queue.round
        group, topic, queue_id = queue.key
        position = queue.commit_offset or 0
        carries = self._rng.random() < (0.02 if self._plan.ordered else 0.5)
        if carries:
            self._checker.begin_commit(self.client_id, queue.key, position)
        self._checker.begin_pull(self.client_id, queue.key, offset)

        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse):
                self._checker.end_pull(queue.key, offset)
            if self._end_request(queue, round_number):
                if isinstance(response, ClientResponse):
                    self._on_pull(queue, offset, response)
                self._run_later(self._rng.uniform(0.0, _AGAIN_SECONDS), self._pull_next, queue)

        flags, count = _SUSPEND | (_COMMIT_OFFSET if carries else 0), self._rng.choice((1, 8, 32))
        ext = pull_fields(group, topic, queue_id, offset, count, sys_flag=flags, commit_offset=position)
        self._ask(RequestCode.PULL_MESSAGE, ext, b"", on_response)

    def _on_pull(self, queue: MemberQueue, offset: int, response: ClientResponse) -> None:
        if response.code == ResponseCode.PULL_OFFSET_MOVED:
            self._workload.counts[f"sent elsewhere: {response.remark}"] += 1
            queue.begin_at(int(response.ext["nextBeginOffset"]))
        elif response.code == ResponseCode.SUCCESS:
            idle = not queue.messages
            for record in decode_records(response.body):
                self._workload.check_next(queue.key[1], queue.key[2], offset, record)
                queue.messages[offset] = record
                offset += 1
                if not self._plan.ordered:
                    later = self._rng.choice((0.0, self._rng.uniform(0.0, 0.5)))
                    self._run_later(later, self._handle, queue, offset - 1, queue.round)
            queue.position = offset
            if self._plan.ordered and idle:
                self._handle_in_order(queue, queue.round)

    def _seek_back(self) -> None:
        """Move a queue back by some messages, and commit from there on."""
        queues = [queue for queue in self._queues.values() if queue.commit_offset and self._holds(queue)]
        if self._backs is not None or not queues:
            return  # a message is sent back only once
        queue = self._rng.choice(queues)
        position = queue.commit_offset or 0
        self._workload.counts["members that sought back"] += 1
        queue.begin_at(max(0, position - self._rng.randint(1, 8)))
        self._pull_next(queue)

    # -- handling ------------------------------------------------------------------------------------------------------

    def _handle(self, queue: MemberQueue, offset: int, round_number: int) -> None:
        record = queue.messages.get(offset)
        if queue.dropped or queue.round != round_number or record is None:
            return
        if self._backs is not None and self._backs.wants_to_give_back(record):
            self._backs.give_back(self, queue, offset, record)
        else:
            self._checker.check_handling(self.client_id, queue.key, offset)
            del queue.messages[offset]
            self._pull_next(queue)

    def on_give_back(self, queue: MemberQueue, offset: int, round_number: int, *, is_stored: bool) -> None:
        """Drop a message of round ``round_number`` if a broker stored it for redelivery; else handle it later."""
        if is_stored:
            if queue.round == round_number:
                queue.messages.pop(offset, None)
            self._pull_next(queue)
        else:
            self._run_later(self._rng.uniform(0.1, 0.5), self._handle, queue, offset, round_number)

    def ask_to_take_back(self, ext: dict[str, Any], on_response: Any) -> None:
        """Send a message back, with request code 36."""
        self._ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext, b"", on_response)

    def _handle_in_order(self, queue: MemberQueue, round_number: int) -> None:
        if queue.dropped or queue.round != round_number or not queue.messages:
            return
        if not self._holds(queue):
            self._run_later(_AGAIN_SECONDS, self._handle_in_order, queue, round_number)
            return
        offset = min(queue.messages)
        self._checker.check_handling(self.client_id, queue.key, offset)
        del queue.messages[offset]
        self._run_later(self._rng.choice((0.0, 0.02, 0.2)), self._handle_in_order, queue, round_number)
        self._pull_next(queue)

    # -- commits -------------------------------------------------------------------------------------------------------

    def _commit_all(self) -> None:
        for queue in self._queues.values():
            self._commit(queue)

    def _commit(self, queue: MemberQueue) -> None:
        group, topic, queue_id = queue.key
        if (offset := queue.commit_offset) is None:
            return
        # A commit that wants a response takes effect even if its connection maps to no client; no fence applies.
        waits = not self._plan.ordered and self._rng.random() < 0.5
        commit = self._checker.begin_commit(self.client_id, queue.key, offset, waits=waits)

        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
                self._checker.end_commit(queue.key, offset, commit)

        ext = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset}
        self._ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext, b"", on_response if waits else None)
