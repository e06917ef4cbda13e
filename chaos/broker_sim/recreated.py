"""The workload "recreated": a topic is deleted, and created again or restored, while stock clients read it.

A reader of each queue keeps its position, whatever happens to the topic. It commits positions, some of them late, and
at times begins anew at the stored offset of its group.

What must hold, once the group is at the format level with which offsets continue: queue offsets of the topic's name are
never used twice, and no reader skips a message of a topic that it has read before, or of a topic that replaced it. A
restored topic has every message that it had, and those that came while it was deleted, behind them. A delayed message
that waited when a topic was created never comes into it, whatever the clocks of the leaders say, except for one that
becomes due in that moment, which may follow the creation in the log.
"""

from __future__ import annotations

from typing import Any, ClassVar

from chaos.broker_sim.clients import ClientResponse, ResponseOrLoss
from chaos.broker_sim.log_oracle import OF_DELETED_TOPIC, CommittedRecord
from chaos.broker_sim.process import BrokerProcess
from chaos.broker_sim.workload import SimulatedBrokers, Workload
from chaos.violation import Violation
from checkers import Checker
from mq.broker.state.commands import DeleteTopic, ForgetTopic, PutTopic, RestoreTopic
from mq.broker.state.format_level import (
    LEVEL_OF_CONTINUED_OFFSETS,
    LEVEL_OF_DELETED_TOPICS,
    LEVEL_OF_TOPIC_BIRTHS,
    RaiseLevel,
)
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.names import SCHEDULE_TOPIC

_GROUP = "RG"
_DELETE, _REPEAT = 0.02, 0.5
"""The share of operations that delete the topic, and of next ones that delete it once more."""
_BACK = 0.3
"""The share of operations that restore or create a topic that does not exist."""
_DELAYED = 0.2
"""The share of messages that are delayed, by level 1 or 2: for 1 or 5 seconds."""
_LATE_SECONDS = 2.0
_IN_FLIGHT_SECONDS = 0.5
"""The seconds within which entries that are in flight together are committed."""


class RecreatedTopic(Workload):
    checkers: ClassVar[tuple[Checker, ...]] = ()
    """None: checkers know neither restored topics nor readers that begin at the stored offset."""
    name = "recreated"

    def __init__(self, cluster: SimulatedBrokers) -> None:
        super().__init__(cluster)
        self._level = 1
        self._exists = False
        self._commands: list[DeleteTopic | PutTopic | RestoreTopic | ForgetTopic] = []
        """The commands about the topic in the present entry, whose messages come first."""
        self._restorable: _DeletedTopicQueues | None = None
        self._read_positions: set[int] = set()
        """Physical offsets of records that the reader got."""
        self._waited_from: dict[int, int] = {}
        """The physical offset of the last record of each waiting message, by value."""
        self._latest = self._before_entry = self._born_after = -1
        """Physical offsets: of the last record, of the last one before this entry, and before that which created the
        topic.
        """
        self._born_at = 0.0

    # -- what clients do -----------------------------------------------------------------------------------------------

    def run_operation(self) -> None:
        chance = self.rng.random()
        if chance < _DELETE and self._level >= LEVEL_OF_CONTINUED_OFFSETS:
            self._delete()
        elif not self._exists and self._level >= LEVEL_OF_DELETED_TOPICS and self.rng.random() < _BACK:
            self._recreate()
        elif chance < 0.1:
            self._commit_late(self.rng.randrange(self.queues))
        elif chance < 0.14:
            self._restart_reader(self.rng.randrange(self.queues))
        elif self.rng.random() < _DELAYED:
            self.send(self.new("delayed", {props.DELAY: str(self.rng.randint(1, 2))}))
        else:
            self.send(self.new("plain", {}))

    def _delete(self) -> None:
        self.counts["deletions asked for"] += 1
        code, ext = RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": self.topic, "restorable": "true"}
        self.clients[1].request(self.cluster.some_node(self.rng), code, ext, b"", None)
        if self.rng.random() < _REPEAT:
            self.cluster.at(self.cluster.now + self.rng.uniform(0.0, 1.0), self._delete)

    def _recreate(self) -> None:
        """Restore the topic or create it. Both requests may fail or take effect twice, or one after the other."""
        node = self.cluster.some_node(self.rng)
        if self.rng.random() < 0.6:
            self.counts["restores asked for"] += 1
            self.clients[1].request(node, RequestCode.RESTORE_TOPIC, {"topic": self.topic}, b"", None)
            return
        self.counts["creations asked for"] += 1
        ext = self.topic_fields(topicFilterType="SINGLE_TAG", topicSysFlag=0, order=False)
        self.clients[1].request(node, RequestCode.UPDATE_AND_CREATE_TOPIC, ext, b"", None)

    def _commit_late(self, queue_id: int) -> None:
        """Commit the current position later, when the topic may be another one."""
        offset = self._read_to[queue_id]
        self.cluster.at(self.cluster.now + self.rng.uniform(0.0, _LATE_SECONDS), self._commit, queue_id, offset)

    def _commit(self, queue_id: int, offset: int) -> None:
        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
                self.counts["commits"] += 1

        ext = self._place(queue_id) | {"commitOffset": offset, "forwardOnly": True}
        self._ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext, on_response)

    def _restart_reader(self, queue_id: int) -> None:
        """Restart the reader at the stored offset, as another process would begin."""

        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
                self.counts["starts at the stored offset"] += 1
                self._move_to(queue_id, int(response.ext["offset"]))

        self._ask(RequestCode.QUERY_CONSUMER_OFFSET, self._place(queue_id) | {"setZeroIfNotFound": False}, on_response)

    def _place(self, queue_id: int) -> dict[str, Any]:
        return {"consumerGroup": _GROUP, "topic": self.topic, "queueId": queue_id}

    def _ask(self, code: RequestCode, ext: dict[str, Any], on_response: Any) -> None:
        node = self.cluster.some_node(self.rng)
        self.clients[0].request(node, code, ext, b"", on_response, serialization=self.encoding(code))

    def _move_to(self, queue_id: int, offset: int) -> None:
        """Move the reader to ``offset``. Each message before must be read, of a deleted topic, or dropped."""
        for commit in self.ledger.queues.get((self.topic, queue_id), [])[self._read_to[queue_id] : offset]:
            if self._is_unread(commit):
                raise Violation(f"skipped: the reader of queue {queue_id} goes on at {offset}, behind {commit.place}")
        self._read_to[queue_id] = offset

    def _is_unread(self, commit: CommittedRecord) -> bool:
        if commit is OF_DELETED_TOPIC:
            return False
        position = commit.record.physical_offset
        return position not in self._read_positions and position >= self.cluster.dropped_pos

    def _check_records(self, queue_id: int, offset: int, response: ClientResponse) -> None:
        if offset != self._read_to[queue_id]:
            return  # it began anew in the meantime
        if response.code == ResponseCode.PULL_OFFSET_MOVED:
            next_offset = int(response.ext["nextBeginOffset"])
            if next_offset < offset:
                raise Violation(f"pull: {self.topic}/{queue_id} moved back from {offset} to {next_offset}: {response}")
            self.counts["moved to the first message"] += 1
            self._move_to(queue_id, next_offset)
            return
        super()._check_records(queue_id, offset, response)

    def check_next(self, topic: str, queue_id: int, offset: int, record: Any) -> None:
        """Check the next record of a reader. The topic may have been deleted while the response was in flight."""
        if record.queue_offset != offset:
            raise Violation(f"poll-skip: {record.queue_offset} was read where {offset} was asked for")
        commit = self.ledger.at_position.get(record.physical_offset)
        if commit is None or commit.record != record:
            raise Violation(f"read: {topic}/{queue_id}/{offset} is {commit}, but {record} was read")
        self._read_positions.add(record.physical_offset)

    # -- what is committed ---------------------------------------------------------------------------------------------

    def on_commit(self, commit: CommittedRecord) -> None:
        self._latest, record = commit.record.physical_offset, commit.record
        if record.topic == SCHEDULE_TOPIC:
            self._waited_from[commit.value] = self._latest
        elif record.topic == self.topic and (since := self._waited_from.get(commit.value)) is not None:
            self.counts["delayed messages delivered"] += 1
            is_in_flight = self.cluster.now < self._born_at + _IN_FLIGHT_SECONDS
            if since <= self._born_after and self._exists and not is_in_flight:
                raise Violation(f"of a deleted topic: {commit.place} waited from {since}, before the topic was created")

    def on_command(self, command: Any) -> None:
        match command:
            case RaiseLevel(level=level):
                self._level = level
            case PutTopic(config=config) if config.name == self.topic:
                self._commands.append(command)
            case DeleteTopic(name=name) | RestoreTopic(name=name) | ForgetTopic(name=name) if name == self.topic:
                self._commands.append(command)
            case _:
                pass

    def on_entry_end(self) -> None:
        """Apply the commands of an entry, which come after its messages."""
        commands, self._commands = self._commands, []
        before_entry, self._before_entry = self._before_entry, self._latest
        for command in commands:
            match command:
                case PutTopic():
                    if not self._exists:
                        self._exists, self._restorable = True, None
                        if self._level >= LEVEL_OF_TOPIC_BIRTHS:
                            self._born_after, self._born_at = before_entry, self.cluster.now
                case DeleteTopic():
                    self._on_delete(command)
                case RestoreTopic():
                    self._on_restore()
                case ForgetTopic(ends=ends):
                    if dict(ends) == {number: end for number in range(self.queues) if (end := self._end(number))}:
                        self.counts["forgotten"] += self._restorable is not None
                        self._restorable = None

    def _end(self, queue_id: int) -> int:
        return self.ledger.end(self.topic, queue_id)

    def _on_delete(self, command: DeleteTopic) -> None:
        self.counts["deletions"] += 1
        if self._exists and command.restorable:
            self._restorable = _DeletedTopicQueues(self.ledger.begins_of(self.topic), {})
        elif not command.restorable:
            self._restorable = None
        if self._restorable is not None:
            self._restorable.add_records(self.ledger.queues_of(self.topic))
        self._exists = False
        self.ledger.delete_topic(self.topic, continued=command.continued)
        if not command.continued:  # the leader had not applied the level yet
            self._read_to.clear()

    def _on_restore(self) -> None:
        former = self._restorable
        if self._exists or former is None:
            return
        self.counts["restores"] += 1
        former.add_records(self.ledger.queues_of(self.topic))
        self.ledger.restore_topic(self.topic, former.queues, former.begins)
        self._exists, self._restorable = True, None

    def check_replicas(self, processes: list[BrokerProcess]) -> None:
        """Check also that replicas have the queues of a deleted topic that can be restored."""
        former, ledger = self._restorable, self.ledger
        begins, queues = ledger.begins, dict(ledger.queues)
        if former is not None:
            former.add_records(ledger.queues_of(self.topic))
            ledger.restore_topic(self.topic, former.queues, former.begins)
        try:
            super().check_replicas(processes)
        finally:
            ledger.begins = begins
            ledger.queues.clear()
            ledger.queues.update(queues)

    # -- the end -------------------------------------------------------------------------------------------------------

    @property
    def has_read_all(self) -> bool:
        """Whether readers have read everything; True for a deleted topic, which cannot be read."""
        return not self._exists or super().has_read_all

    def check_end(self) -> None:
        for (topic, queue_id), queue in self.ledger.queues.items():
            if topic == self.topic and self._exists and any(map(self._is_unread, queue)):
                gap = next(commit for commit in queue if self._is_unread(commit))
                raise Violation(f"skipped: the reader of queue {queue_id} did not get {gap.place}")


class _DeletedTopicQueues:
    """The queues of a deleted topic: their first offsets and their records, with those stored after the deletion."""

    def __init__(self, begins: dict[int, int], queues: dict[int, list[CommittedRecord]]) -> None:
        self.begins, self.queues = begins, queues

    def add_records(self, queues: dict[int, list[CommittedRecord]]) -> None:
        """Add the records that come after the known ones."""
        for queue_id, records in queues.items():
            earlier = self.queues.setdefault(queue_id, [])
            earlier += records[len(earlier) :]
