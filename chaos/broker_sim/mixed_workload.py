"""The workload "mixed": producers of single messages, batches and one-way messages, and two groups of consumers.

One group balances the topic among its members, sends messages back until they are dead letters, and has its offsets
reset by operators; the other consumes in order, with locked queues. Members join, leave and sleep. What must hold: an
acknowledged message is stored, once per acknowledgement; a batch is stored as a whole; a message that was sent back is
redelivered after its delay, once for each time, and becomes a dead letter after the last attempt; messages sent in
order are first stored in order; and the promises of `chaos.broker_sim.offset_checker` about offsets and locks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from chaos.broker_sim.clients import ClientResponse, LostResponse, ResponseOrLoss
from chaos.broker_sim.cluster import BrokerCluster
from chaos.broker_sim.group_member import Member, MemberQueue
from chaos.broker_sim.log_oracle import CommittedRecord, SentMessage
from chaos.broker_sim.offset_checker import LOCK_SECONDS, GroupPlan, Key, OffsetChecker
from chaos.broker_sim.process import BrokerProcess
from chaos.broker_sim.workload import Workload
from chaos.values import value_of
from chaos.violation import Violation
from mq.broker.limits import BrokerLimits
from mq.broker.state.commands import AdvanceDelay
from mq.broker.state.completion_marks import CompleteEntries, SkipEntries
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.records import StoredMessage
from mq.protocol.names import SCHEDULE_TOPIC, dead_letter_topic, retry_topic
from mq.protocol.wire.queue_tables import read_offset_table

_SHARED, _ORDERED = "SG", "OG"
_ORDERED_TOPIC = "TO"
_ORDERED_QUEUES = 2
_ATTEMPTS_MAX = 2
"""The highest number of redeliveries, after which a message becomes a dead letter."""
_DIE_AT_ONCE = -1
_MEMBERS = 3
_DISTURBANCES = ("leaves", "vanishes", "sleeps", "is cut off", "is cut off", "loses connections", "reset", "reset")

_Copy = tuple[int, int]
"""A message and how often it was sent back."""


class MixedWorkload(Workload):
    name = "mixed"
    drawn_as = "everyday"

    def __init__(self, cluster: BrokerCluster) -> None:
        super().__init__(cluster)
        self._retry_topic, self._dead_topic = retry_topic(_SHARED), dead_letter_topic(_SHARED)
        shared_plan = GroupPlan(
            _SHARED, (*((self.topic, number) for number in range(self.queues)), (self._retry_topic, 0)), ordered=False
        )
        ordered_plan = GroupPlan(
            _ORDERED, tuple((_ORDERED_TOPIC, number) for number in range(_ORDERED_QUEUES)), ordered=True
        )
        self._plans = (shared_plan, ordered_plan)
        self._checker = OffsetChecker(self, self._plans, exact="clock" not in cluster.plan.kinds)
        self._members: dict[GroupPlan, list[Member]] = {plan: [] for plan in self._plans}
        self._join_count = 0
        self._due_in_order = [0] * _ORDERED_QUEUES
        """The number of messages of each queue that were stored for the first time."""
        self._batch_records: list[CommittedRecord] = []
        self._back_requests: Counter[_Copy] = Counter()
        self._dead_requests: set[_Copy] = set()
        self._back: Counter[_Copy] = Counter()
        self._delays: dict[tuple[int, int], _Copy] = {}
        """Messages that were sent back and are delayed, by level and offset."""
        self._levels: Counter[int] = Counter()
        self._done_singly: set[tuple[int, int]] = set()
        """Levels and offsets of messages delivered before earlier ones, one of which could not be read."""
        self._due: Counter[_Copy] = Counter()
        self._redeliveries: Counter[_Copy] = Counter()

    def limits(self, base_limits: BrokerLimits) -> BrokerLimits:
        """Make locks valid for as long as members expect."""
        return replace(base_limits, consume=replace(base_limits.consume, lock_seconds=LOCK_SECONDS))

    # -- producers -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        super().begin()
        for plan in self._plans:
            for _ in range(_MEMBERS):
                self.cluster.at(self.rng.uniform(0.0, 2.0), self._join, plan)
        for queue_id in range(_ORDERED_QUEUES):
            self.cluster.at(self.rng.uniform(0.0, 0.5), self._send_in_order, queue_id, 0)
        self.cluster.at(1.0, self._disturb)

    def run_operation(self) -> None:
        choice = self.rng.random()
        if choice < 0.5:
            self.send(self.new("single", {}))
        elif choice < 0.75:
            self._send_batch()
        elif choice < 0.9:
            self._send_oneway()
        else:
            self._ask_where(self.rng.choice(self.rng.choice(self._plans).keys))

    def _send_batch(self) -> None:
        values = range(len(self.ledger.messages) + 1, len(self.ledger.messages) + 1 + self.rng.randint(2, 4))
        batch = [self.new("batch", {}, batch=values) for _ in values]

        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
                ids, first = response.ext["msgId"].split(","), int(response.ext["queueOffset"])
                for number, (message, message_id) in enumerate(zip(batch, ids, strict=True)):
                    self.counts["acknowledged"] += 1
                    self.check_acknowledgement(message, first + number, int(message_id[16:32], 16))

        self.send_batch(batch, lambda message: message.properties, {}, on_response)

    def _send_oneway(self) -> None:
        message = self.new("one-way", {})
        message.unknown += 1
        self.begin_send(message)
        ext = self.send_fields(self.topic, {props.UNIQUE_KEY: f"U{message.value}", **message.properties})
        self.counts["sent one-way"] += 1
        self.request(RequestCode.SEND_MESSAGE_V2, ext, message.body, None)

    def _send_in_order(self, queue_id: int, number: int) -> None:
        """Send the next message of a queue. The one after it is sent once this one is acknowledged."""
        if self.stopped:
            return
        nbytes = self.rng.randint(8, 60)
        message = self.ledger.new(
            "in order", _ORDERED_TOPIC, nbytes, {}, self.cluster.now, queue_id=queue_id, number=number
        )
        self._try_in_order(message)

    def _try_in_order(self, message: SentMessage) -> None:
        queue_id, number = message.details["queue_id"], message.details["number"]
        message.unknown += 1

        def on_response(response: ResponseOrLoss) -> None:
            if response is not LostResponse.UNKNOWN:
                message.unknown -= 1
            if isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
                self.counts["acknowledged in order"] += 1
                self.check_acknowledgement(
                    message, int(response.ext["queueOffset"]), int(response.ext["msgId"][16:32], 16)
                )
                later = self.rng.choice((0.0, self.rng.uniform(0.0, 0.1)))
                self.cluster.at(self.cluster.now + later, self._send_in_order, queue_id, number + 1)
            elif not self.stopped:
                self.cluster.at(self.cluster.now + 0.2, self._try_in_order, message)

        own = {props.UNIQUE_KEY: f"U{message.value}", **message.properties}
        ext = self.send_fields(_ORDERED_TOPIC, own, default_topic_queue_nums=_ORDERED_QUEUES, queue_id=queue_id)
        self.request(RequestCode.SEND_MESSAGE_V2, ext, message.body, on_response)

    # -- consumers and operators ---------------------------------------------------------------------------------------

    def _join(self, plan: GroupPlan) -> None:
        self._join_count += 1
        number, backs = 100 + self._join_count, None if plan.ordered else self
        client_id = f"{plan.name}-{self._join_count:03d}"
        member = Member(self, self._checker, plan, number=number, client_id=client_id, backs=backs)
        self._members[plan].append(member)

    def _disturb(self) -> None:
        """Let a member leave or sleep for a while, or reset the offsets of a group."""
        if self.stopped:
            return
        plan = self.rng.choice(self._plans)
        what = self.rng.choice(_DISTURBANCES)
        members = self._members[plan]
        self.counts[f"members: {what}"] += 1
        if what == "reset":
            self._reset()
        elif members:
            member = self.rng.choice(members)
            self.cluster.trace_line(f"{member.client_id} {what}")
            if what in ("leaves", "vanishes"):
                members.remove(member)
                member.leave(politely=what == "leaves")
                self.cluster.at(self.cluster.now + self.rng.uniform(0.0, 3.0), self._join, plan)
            elif what == "sleeps":
                member.sleep(self.rng.uniform(0.5, 2.0))
            else:
                member.lose_connections()
                if what == "is cut off":  # others get its queues
                    member.sleep(self.rng.uniform(1.0, 1.6) * LOCK_SECONDS)
        self.cluster.at(self.cluster.now + self.rng.uniform(0.1, 1.2), self._disturb)

    def _reset(self) -> None:
        number = self.rng.randrange(self.queues)
        keys = [(_SHARED, self.topic, each) for each in range(self.queues)]
        counts = {key: len(self._checker.offsets[key]) for key in keys}
        ext: dict[str, Any] = {"topic": self.topic, "group": _SHARED, "isForce": self.rng.random() < 0.5}
        if self.rng.random() < 0.5:
            end = len(self.ledger.queues[self.topic, number])
            ext |= {"timestamp": 0, "queueId": number, "offset": self.rng.randint(0, end)}
        else:
            ext |= {"timestamp": self.cluster.true_ms() - self.rng.randint(0, 5000), "queueId": -1}

        def on_response(response: ResponseOrLoss) -> None:
            self.counts[
                f"resets: {response.name if isinstance(response, LostResponse) else ResponseCode(response.code).name}"
            ] += 1
            if not isinstance(response, ClientResponse) or response.code != ResponseCode.SUCCESS:
                return
            for ref, offset in read_offset_table(response.body).items():
                key = (_SHARED, ref.topic, ref.queue_id)
                since = self._checker.offsets[key][counts[key] - 1 :]
                if offset not in since:
                    raise Violation(f"reset: {key} was acknowledged at {offset}, but since the reset it was {since}")

        self.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext, b"", on_response)

    def _ask_where(self, key: Key) -> None:
        query = self._checker.begin_query(key)

        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse):
                self._checker.end_query(key, query, response)

        ext = {"consumerGroup": key[0], "topic": key[1], "queueId": key[2]}
        self.request(RequestCode.QUERY_CONSUMER_OFFSET, ext, b"", on_response)

    # -- sending back --------------------------------------------------------------------------------------------------

    def wants_to_give_back(self, record: StoredMessage) -> bool:
        """Decide at random whether to send a message back; redelivered ones more often, so some become dead letters."""
        return not self.stopped and self.rng.random() < (0.5 if record.reconsume_times else 0.1)

    def give_back(self, member: Member, queue: MemberQueue, offset: int, record: StoredMessage) -> None:
        copy: _Copy = (value_of(record.body), record.reconsume_times)
        # Pending messages keep the log from being dropped.
        level = 1 if "retention" in self.cluster.plan.kinds else self.rng.choice((1, 1, 1, 2))
        if self.rng.random() < 0.05:
            level = _DIE_AT_ONCE
            self._dead_requests.add(copy)
        self._back_requests[copy] += 1
        round_number, before = queue.round, self._back[copy]

        def on_response(response: ResponseOrLoss) -> None:
            is_stored = isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS
            if is_stored:
                self.counts["given back"] += 1
                if self._back[copy] == before:
                    raise Violation(f"lost: {copy} was acknowledged as sent back, but is not stored")
                self._checker.check_handling(member.client_id, queue.key, offset)
            else:
                self.counts["not given back"] += 1
                self._back_requests[copy] -= response is not LostResponse.UNKNOWN
            member.on_give_back(queue, offset, round_number, is_stored=is_stored)

        ext = {
            "offset": record.physical_offset,
            "group": _SHARED,
            "delayLevel": level,
            "originMsgId": record.offset_message_id,
            "originTopic": record.topic,
            "unitMode": False,
            "maxReconsumeTimes": _ATTEMPTS_MAX,
        }
        member.ask_to_take_back(ext, on_response)

    def _check_back(self, commit: CommittedRecord, *, dead: bool) -> _Copy:
        """Check a message that was sent back and is now stored, for redelivery or as a dead letter."""
        copy: _Copy = (commit.value, commit.record.reconsume_times - 1)
        self._back[copy] += 1
        if self._back[copy] > self._back_requests[copy]:
            raise Violation(
                f"duplicate: {copy} was given back {self._back_requests[copy]} times, {commit.place} is one more"
            )
        last = copy[1] >= _ATTEMPTS_MAX
        if dead != last and not (dead and copy in self._dead_requests):
            raise Violation(
                f"attempts: {copy} of {_ATTEMPTS_MAX} is {'dead' if dead else 'to come again'}: {commit.place}"
            )
        return copy

    # -- what is committed ---------------------------------------------------------------------------------------------

    def on_commit(self, commit: CommittedRecord) -> None:
        record = commit.record
        if record.topic == SCHEDULE_TOPIC:
            self._delays[record.queue_id + 1, record.queue_offset] = self._check_back(commit, dead=False)
        elif record.topic == self._dead_topic:
            self.counts["dead"] += 1
            self._check_back(commit, dead=True)
        elif record.topic == self._retry_topic:
            self._redeliveries[commit.value, record.reconsume_times - 1] += 1
        elif record.topic == _ORDERED_TOPIC:
            self._stored_in_order(commit)
        elif self.ledger.messages[commit.value].kind == "batch":
            self._batch_records.append(commit)

    def _stored_in_order(self, commit: CommittedRecord) -> None:
        queue_id, number = commit.record.queue_id, self.ledger.messages[commit.value].details["number"]
        if number > self._due_in_order[queue_id]:
            raise Violation(
                f"order: {number} is at {commit.place}, but {self._due_in_order[queue_id]} is missing before it"
            )
        self._due_in_order[queue_id] += number == self._due_in_order[queue_id]

    def on_command(self, command: Any) -> None:
        self._checker.on_command(command)
        if isinstance(command, AdvanceDelay):
            for offset in range(self._levels[command.level], command.offset):
                if (command.level, offset) not in self._done_singly:
                    self._due[self._delays.pop((command.level, offset))] += 1
            self._levels[command.level] = max(self._levels[command.level], command.offset)
        elif isinstance(command, CompleteEntries) and command.topic == SCHEDULE_TOPIC:
            for offset in command.offsets:
                self._due[self._delays.pop((command.queue_id + 1, offset))] += 1
                self._done_singly.add((command.queue_id + 1, offset))
        elif isinstance(command, SkipEntries) and command.topic == SCHEDULE_TOPIC:
            level = command.queue_id + 1
            if skipped_places := [each for each in self._delays if each[0] == level and each[1] < command.offset]:
                raise Violation(f"lost: {command}, but {min(skipped_places)} still waits")

    def on_entry_end(self) -> None:
        """Check that batches are whole, and that done delayed messages are in the retry topic."""
        if self._due != self._redeliveries:
            raise Violation(f"retry: {self._due} were due, but {self._redeliveries} were redelivered")
        self._due.clear()
        self._redeliveries.clear()
        messages, self._batch_records = self._batch_records, []
        while messages:
            values = self.ledger.messages[messages[0].value].details["batch"]
            first, batch, messages = messages[0].record, messages[: len(values)], messages[len(values) :]
            places = [(each.value, each.record.queue_id, each.record.queue_offset) for each in batch]
            if places != [(value, first.queue_id, first.queue_offset + n) for n, value in enumerate(values)]:
                raise Violation(f"batch: {values} were sent together, but an entry has {places}")

    # -- the end -------------------------------------------------------------------------------------------------------

    def needed_from(self) -> int:
        """Return the position of the first message that is delayed or not consumed."""
        positions = [
            self.ledger.queues[SCHEDULE_TOPIC, level - 1][offset].record.physical_offset
            for level, offset in self._delays
        ]
        for key in self._keys():
            positions += [commit.record.physical_offset for commit in self._unread(key)[:1]]
        return min(positions, default=1 << 62)

    def _keys(self) -> Iterable[Key]:
        return (key for plan in self._plans for key in plan.keys)

    def _unread(self, key: Key) -> list[CommittedRecord]:
        return self.ledger.queues[key[1:]][max(0, self._checker.offset(key)) :]

    def pending_count(self) -> int:
        """Return the number of delayed messages, plus the number of messages that groups have not consumed."""
        return len(self._delays) + sum(len(self._unread(key)) for key in self._keys())

    def check_replicas(self, processes: list[BrokerProcess]) -> None:
        super().check_replicas(processes)
        for process in processes:
            for key in self._keys():
                offset = process.metadata.consumer_offsets.get(key[:2], {}).get(key[2], -1)
                if offset != self._checker.offset(key):
                    raise Violation(f"offset: {key} is {offset} at {process.node_id}, not {self._checker.offset(key)}")
