"""The workload "compacted": a topic keeps the newest message of each key, and deletes old ones after seconds.

What must hold: a message is deleted only if its queue has a newer one with its key, or if it is an expired tombstone;
on each replica. A copy that the leader carries forward is a copy of the newest message of its key, at the place where
it is stored, and not of a former topic of the name. So readers see the values of each key in the order in which they
were sent, and readers from the first offset on get the newest of each. In the end, everything stored before is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, ClassVar, Final, NamedTuple

from chaos.broker_sim.clients import ClientResponse, ResponseOrLoss
from chaos.broker_sim.log_oracle import OF_DELETED_TOPIC, CommittedRecord, SentMessage
from chaos.broker_sim.process import BrokerProcess
from chaos.broker_sim.workload import SimulatedBrokers, Workload
from chaos.limits import override
from chaos.violation import Violation
from checkers import Checker
from mq.broker.admin import topic_compaction
from mq.broker.state.commands import DeleteTopic
from mq.broker.state.expired_messages import ExpireMessages
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.compaction_attributes import CLEANUP_POLICY, COMPACTION, DELETE_RETENTION
from mq.protocol.requests.retention_attributes import RESERVE_TIME

_OLD_MS: Final = 2000
_TOMBSTONE_MS: Final = 5000
_KEYS: Final = 12
_AGAIN, _DELETE, _TOMBSTONE = 0.02, 0.01, 0.2
"""The shares of operations that create the topic again, delete it, or send a tombstone."""
_QUICK: Final = {"_HOUR_MS": _OLD_MS, "_LINGER_SECONDS": 0.5, "_LOOK_SECONDS": 0.3, "_AGAIN_SECONDS": 0.2}


class _Newest(NamedTuple):
    """The newest message of a key: its offset and unique key, whether it is a tombstone, and when it was sent."""

    offset: int
    unique_key: str
    is_tombstone: bool
    sent_ms: int


class CompactedTopic(Workload):
    checkers: ClassVar[tuple[Checker, ...]] = ()
    """None, since checkers do not know messages that disappear when newer ones come."""
    name = "compacted"
    topic = "C"

    def __init__(self, cluster: SimulatedBrokers) -> None:
        super().__init__(cluster)
        self._exists = False
        self._newest: dict[tuple[int, str], _Newest] = {}
        self._begins: dict[int, int] = {}
        self._commands: list[ExpireMessages | DeleteTopic] = []
        self._tombstones = 0
        self._ends: dict[int, int] = {}
        """The ends of queues when clients stopped."""

    def copies_topic(self, message: SentMessage) -> str | None:
        """Return None: the broker writes kept messages to the log again."""
        return None

    def changed_limits(self) -> AbstractContextManager[None]:
        """Shorten an hour to seconds, so that old messages are deleted soon."""
        return _quick()

    # -- what clients do -----------------------------------------------------------------------------------------------

    def run_operation(self) -> None:
        chance = self.rng.random()
        if not self._exists or chance < _AGAIN:
            self._create()
        elif chance < _AGAIN + _DELETE:
            ext = {"topic": self.topic}
            self.counts["deletions asked for"] += 1
            self._ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext)
        if chance > 1 - _TOMBSTONE:
            self._send_tombstone()
        else:
            self.send(self.new("plain", {props.KEYS: self._key()}))

    def _key(self) -> str:
        return f"k{min(self.rng.randrange(_KEYS), self.rng.randrange(_KEYS))}"

    def _create(self) -> None:
        attributes = {CLEANUP_POLICY: COMPACTION, RESERVE_TIME: 1, DELETE_RETENTION: _TOMBSTONE_MS}

        def on_response(response: ResponseOrLoss) -> None:
            self._exists |= isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS

        ext = self.topic_fields(attributes=",".join(f"+{name}={value}" for name, value in attributes.items()))
        self._ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext, on_response)

    def _send_tombstone(self) -> None:
        self._tombstones += 1
        ext = self.send_fields(self.topic, {props.UNIQUE_KEY: f"D{self._tombstones}", props.KEYS: self._key()})
        self._ask(RequestCode.SEND_MESSAGE_V2, ext)

    def _ask(self, code: RequestCode, ext: dict[str, Any], on_response: Any = None) -> None:
        self.rng.choice(self.clients).request(self.cluster.some_node(self.rng), code, ext, b"", on_response)

    def send_fields(self, topic: str, properties: dict[str, str], **other: Any) -> dict[str, str]:
        """Build the fields of a send that does not create the topic."""
        return super().send_fields(topic, properties, default_topic="none", **other)

    def stop(self) -> None:
        if not self.stopped:
            self._ends = {queue_id: self.ledger.end(self.topic, queue_id) for queue_id in range(self.queues)}
        super().stop()

    # -- what is committed ---------------------------------------------------------------------------------------------

    def on_commit(self, commit: CommittedRecord) -> None:
        record = commit.record
        if record.topic != self.topic:
            return
        place = record.queue_id, record.properties[props.KEYS]
        unique_key = record.properties[props.UNIQUE_KEY]
        before = self._newest.get(place)
        if props.CARRIED in record.properties:
            self.counts["carried"] += 1
            if before is None or before.unique_key != unique_key:
                raise Violation(f"carried: {unique_key} to {commit.place}, behind {before}")
            self._newest[place] = before._replace(offset=record.queue_offset)
        else:
            self._newest[place] = _Newest(record.queue_offset, unique_key, not record.body, record.store_timestamp_ms)

    def on_command(self, command: Any) -> None:
        if isinstance(command, ExpireMessages | DeleteTopic):
            self._commands.append(command)

    def on_entry_end(self) -> None:
        """Apply the commands of an entry, which come after its messages."""
        commands, self._commands = self._commands, []
        for command in commands:
            if isinstance(command, ExpireMessages):
                for _, queue_id, first in command.rows:
                    self._expire(queue_id, min(first, self.ledger.end(self.topic, queue_id)))
            elif command.name == self.topic:
                self.counts["deletions"] += 1
                self._exists = False
                self.ledger.delete_topic(self.topic, continued=command.continued)
                self._newest.clear()
                if not command.continued:
                    self._begins.clear()
                    self._read_to.clear()

    def _expire(self, queue_id: int, first: int) -> None:
        for place, newest in [*self._newest.items()]:
            if place[0] == queue_id and newest.offset < first:
                age_ms = self.cluster.true_ms() - newest.sent_ms
                if not newest.is_tombstone or age_ms < _TOMBSTONE_MS - 4 * self.cluster.plan.wall_skew_ms:
                    raise Violation(f"lost value: queue {queue_id} begins at {first}, behind {newest} of {place[1]}")
                self.counts["tombstones gone"] += 1
                del self._newest[place]
        before = self._begins.get(queue_id, 0)
        self.counts["expired"] += max(first - before, 0)
        self._begins[queue_id] = max(first, before)

    # -- reading -------------------------------------------------------------------------------------------------------

    def _check_records(self, queue_id: int, offset: int, response: ClientResponse) -> None:
        if offset != self._read_to[queue_id]:
            return  # the topic was deleted meanwhile
        if response.code == ResponseCode.PULL_OFFSET_MOVED:
            next_offset = int(response.ext["nextBeginOffset"])
            self._check_gone(queue_id, offset, next_offset, "a reader")
        super()._check_records(queue_id, offset, response)

    def check_next(self, topic: str, queue_id: int, offset: int, record: Any) -> None:
        """Check the next record of a reader. The topic may have been deleted while the response was in flight."""
        if record.queue_offset != offset:
            raise Violation(f"poll-skip: {record.queue_offset} was read where {offset} was asked for")
        queue = self.ledger.queues.get((topic, queue_id), [])
        if offset < len(queue) and queue[offset] is not OF_DELETED_TOPIC:
            self.ledger.read(topic, queue_id, record)

    def _check_gone(self, queue_id: int, low: int, high: int, who: str) -> None:
        """Raise Violation if a deleted message is the newest of its key and no expired tombstone."""
        for place, newest in self._newest.items():
            if place[0] == queue_id and low <= newest.offset < high:
                raise Violation(f"lost value: {who} goes on at {queue_id}/{high}, behind {newest} of {place[1]}")

    # -- the end -------------------------------------------------------------------------------------------------------

    @property
    def has_read_all(self) -> bool:
        """Whether readers are at the ends that queues had when clients stopped; True for a deleted topic."""
        return not self._exists or all(self._read_to[each] >= end for each, end in self._ends.items())

    def pending_count(self) -> int:
        """Return how many messages that were stored before clients stopped have not expired."""
        if not self._exists:
            return 0
        first = {
            each: max(self._begins.get(each, 0), self.ledger.begins.get((self.topic, each), 0)) for each in self._ends
        }
        return sum(max(end - first[each], 0) for each, end in self._ends.items())

    def check_replicas(self, processes: list[BrokerProcess]) -> None:
        """Check also that each replica has the newest message of each key."""
        super().check_replicas(processes)
        for process in processes:
            for queue_id in range(self.queues):
                queue = process.queues.get(self.topic, queue_id)
                if self._exists and queue is not None:
                    self._check_gone(queue_id, 0, queue.min_offset, process.node_id)


@contextmanager
def _quick() -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in _QUICK.items():
            stack.enter_context(override(topic_compaction, name, value))
        yield
