"""The workload "lite": clients send to some dozens of lite topics, and subscribe to, pop and acknowledge them in two
groups: members of one subscribe to some lite topics each, members of the other read all.

What must hold: the promises of "ordered-pop" about queues, for each lite topic and group. The queue of a lite topic
contains the messages that were sent to it, in the order of the log, on every replica. A lite topic ends only when its
last message is as old as the parent says, and begins again empty, also for the groups. A client that subscribes to a
lite topic gets its messages within a long poll, once no other client holds them and the brokers are well.

In half of the runs lite topics end some seconds after their last message: then a minute of theirs is shorter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Final

from chaos.broker_sim.clients import Client, ClientResponse, LostResponse, ResponseOrLoss
from chaos.broker_sim.cluster import BrokerCluster
from chaos.broker_sim.log_oracle import OF_DELETED_TOPIC, CommittedRecord
from chaos.broker_sim.ordered_pop import From, OrderedPop, with_count
from chaos.broker_sim.process import BrokerProcess
from chaos.broker_sim.workload import Workload
from chaos.faults import ClockJump
from chaos.limits import override
from chaos.violation import Violation
from checkers import Checker
from mq.broker.lite import expiry
from mq.broker.state.lite_offsets import ExpireLiteTopics
from mq.broker.state.pop_checkpoints import QueueOfGroup
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.records import RecordError, StoredMessage, decode_records
from mq.protocol.names import is_lite_queue, lite_queue, split_lite_queue
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from mq.protocol.requests.lite import Action, LiteSubscription, LiteSubscriptionSet
from mq.protocol.requests.lite_attributes import BIND_TOPIC, WILDCARD, expiration_ms
from mq.protocol.requests.receipts import NORMAL, ORDERED_REVIVE_QUEUE, Receipt
from raftlog import NodeId

_SOME, _ALL = "LG", "WG"
"""The groups: members subscribe to some lite topics, or read all."""
_MEMBERS: Final = {"M0": _SOME, "M1": _SOME, "M2": _SOME, "W0": _ALL, "W1": _ALL}
_TOPICS: Final = 36
_BUSY: Final = 6
_BUSY_SECONDS: Final = 3.0
"""Most messages go to a few lite topics, to others after a while."""
_EXPIRING: Final = 0.5
_MINUTE_MS: Final = 3000
_REPEAT_SECONDS: Final = 2.0
_POLL_MS: Final = 1000
_HIDDEN_SECONDS: Final = 30.0
"""A leader looks at all subscriptions every 15 s; the rest is for its backlog after the last fault."""


class Lite(OrderedPop):
    checkers: ClassVar[tuple[Checker, ...]] = Workload.checkers
    name = "lite"
    groups: ClassVar[tuple[str, ...]] = (_SOME, _ALL)

    def __init__(self, cluster: BrokerCluster) -> None:
        super().__init__(cluster)
        self._consumers = [Client(cluster, 100 + number) for number in range(len(_MEMBERS))]
        self._names = dict(zip(self._consumers, _MEMBERS, strict=True))
        self._subscriptions: dict[str, set[str]] = {name: set() for name in _MEMBERS}
        """The lite topics that members subscribe to, as they see it."""
        self._expires = self.rng.random() < _EXPIRING
        self._to_create = self._creations()
        self._expiry_rows: list[tuple[str, int]] = []
        self._former_ends: dict[str, int] = {}
        self._committed_ms: dict[str, int] = {}
        """The time at which the last message of a lite topic was committed, by a clock that is right."""
        self._unread_since: dict[QueueOfGroup, tuple[int, float]] = {}
        """The first unread offset of each queue, and the time since which it should be delivered."""
        self._leader: BrokerProcess | None = None

    def changed_limits(self) -> AbstractContextManager[None]:
        """Replace the expiry time of lite topics with a shorter one, if lite topics expire in this run."""
        return override(expiry, "expiration_ms", _shorter) if self._expires else nullcontext()

    # -- what clients do -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        super().begin()
        for member in self._consumers:
            self.cluster.at(self.rng.uniform(0.5, 1.5), self._repeat_subscriptions, member)
        self.cluster.at(1.0, self._check_hidden)

    def run_operation(self) -> None:
        if self._to_create:
            self._create_next()
        elif self.rng.random() < 0.05:
            self._change_subscriptions(self.rng.choice(self._consumers))
        else:
            self.send(self.new("plain", {props.LITE_TOPIC: self._some_topic()}))

    def _some_topic(self) -> str:
        if self.rng.random() < 0.2:
            return f"s{self.rng.randrange(_TOPICS)}"
        window = int(self.cluster.now / _BUSY_SECONDS)
        return f"s{(window * _BUSY + self.rng.randrange(_BUSY)) % _TOPICS}"

    def _creations(self) -> list[tuple[RequestCode, dict[str, Any] | None, bytes]]:
        """Return the requests that create the topic and the groups. The format level must allow lite topics first."""
        attributes = "+message.type=LITE" + (",+lite.topic.expiration=1" if self._expires else "")
        topic = self.topic_fields(topicFilterType="SINGLE_TAG", attributes=attributes)
        parent = {f"+{BIND_TOPIC}": self.topic}
        some = SubscriptionGroupConfig(group_name=_SOME, attributes=parent)
        every = SubscriptionGroupConfig(group_name=_ALL, attributes=parent | {f"+{WILDCARD}": "true"})
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        return [
            (RequestCode.UPDATE_AND_CREATE_TOPIC, topic, b""),
            (code, None, some.encode()),
            (code, None, every.encode()),
        ]

    def _create_next(self) -> None:
        request = self._to_create[0]

        def on_response(response: ResponseOrLoss) -> None:
            is_created = isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS
            if is_created and self._to_create[:1] == [request]:
                del self._to_create[0]

        self.clients[0].request(self.cluster.some_node(self.rng), *request, on_response)

    def _change_subscriptions(self, member: Client) -> None:
        """Subscribe a member to a few lite topics, or unsubscribe it."""
        name = self._names[member]
        if _MEMBERS[name] == _ALL:
            return
        adds = self.rng.random() < 0.7
        some = {f"s{self.rng.randrange(_TOPICS)}" for _ in range(self.rng.choice((1, 3, 12)))}
        self._subscriptions[name] = self._subscriptions[name] | some if adds else self._subscriptions[name] - some
        self._send_subscription(member, Action.PARTIAL_ADD if adds else Action.PARTIAL_REMOVE, some)

    def _repeat_subscriptions(self, member: Client) -> None:
        """Repeat a member's subscriptions, as clients do from time to time, since a new leader may not know them."""
        name = self._names[member]
        if self.stopped and _MEMBERS[name] == _SOME:
            self._subscriptions[name] = {f"s{number}" for number in range(_TOPICS)}
        self._send_subscription(member, Action.COMPLETE_ADD, self._subscriptions[name])
        self.cluster.at(self.cluster.now + _REPEAT_SECONDS, self._repeat_subscriptions, member)

    def _send_subscription(self, member: Client, action: Action, topics: set[str]) -> None:
        name = self._names[member]
        entry = LiteSubscription(
            action=action, client_id=name, group=_MEMBERS[name], topic=self.topic, lite_topics=sorted(topics)
        )
        body = LiteSubscriptionSet(subscriptions=[entry]).encode()
        node = self.cluster.some_node(self.rng)

        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
                self.counts["subscriptions"] += 1

        member.request(node, RequestCode.LITE_SUBSCRIPTION_CTL, None, body, on_response)

    def _pop_next(self, consumer: Client, again: str) -> None:
        attempt = again or self.rng.choice(("", f"A{next(self._attempts)}"))
        name = self._names[consumer]
        ext = {
            "clientId": name,
            "consumerGroup": _MEMBERS[name],
            "topic": self.topic,
            "maxMsgNum": 32 if self.stopped else self.rng.choice((1, 4, 32)),
            "invisibleTime": 3000 if self.stopped else self.rng.choice((200, 1000, 3000)),
            "pollTime": self.rng.choice((0, _POLL_MS)),
            "bornTime": self.cluster.true_ms(),
            "attemptId": attempt or None,
            "raftmqSaysSubscriptions": self.rng.random() < 0.5,
        }
        node = self.cluster.some_node(self.rng)

        def on_response(response: ResponseOrLoss) -> None:
            attempt_again = ""
            if isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
                self._check_received(consumer, node, _decode_lite_pop(_MEMBERS[name], response))
            else:
                self.counts[f"pops: {response.code if isinstance(response, ClientResponse) else response.name}"] += 1
                attempt_again = attempt if response is LostResponse.UNKNOWN else ""
                if isinstance(response, ClientResponse) and response.code == ResponseCode.SUBSCRIPTION_NOT_EXIST:
                    self._send_subscription(consumer, Action.COMPLETE_ADD, self._subscriptions[name])
            self.cluster.at(self.cluster.now + self.rng.uniform(0.0, 0.3), self._pop_next, consumer, attempt_again)

        self.counts["pops, the same attempt again" if again else "pops"] += 1
        consumer.request(node, RequestCode.POP_LITE_MESSAGE, ext, b"", on_response)

    def _request_fields(self, source: From, receipt: Receipt) -> dict[str, Any]:
        group, queue, _ = source.queue
        return {
            "consumerGroup": group,
            "topic": self.topic,
            "queueId": 0,
            "extraInfo": receipt.encode(),
            "offset": receipt.offset,
            "liteTopic": split_lite_queue(queue)[1],
        }

    # -- what is committed ---------------------------------------------------------------------------------------------

    def on_commit(self, commit: CommittedRecord) -> None:
        """Check a message of the parent topic. It must also be the next message of its lite topic."""
        record = commit.record
        if record.topic != self.topic:
            return
        queue, offset = record.properties[props.LITE_QUEUE], int(record.properties[props.LITE_OFFSET])
        if queue != lite_queue(self.topic, self.ledger.messages[commit.value].properties[props.LITE_TOPIC]):
            raise Violation(f"lite: {commit.place} is in the wrong queue {queue}")
        records = self.ledger.queues.get((queue, 0))
        if records is None:
            if offset not in (0, self._former_ends.get(queue)):
                raise Violation(f"lite: {queue} begins at {offset}, but the former one ended at {self._former_ends}")
            # A message that was on its way when its lite topic ended keeps its offset.
            self.ledger.begins[queue, 0] = offset
            records = self.ledger.queues[queue, 0] = [OF_DELETED_TOPIC] * offset
        if offset != len(records):
            raise Violation(f"lite: {queue} continues with {offset}; expected: {len(records)}")
        records.append(commit)
        self._committed_ms[queue] = self.cluster.true_ms()

    def on_command(self, command: Any) -> None:
        if isinstance(command, ExpireLiteTopics):
            self._expiry_rows += command.rows
        else:
            super().on_command(command)

    def on_entry_end(self) -> None:
        """End the lite topics that an entry expires, except those that got a message in the same entry."""
        rows, self._expiry_rows = self._expiry_rows, []
        for queue, end in rows:
            records = self.ledger.queues.get((queue, 0))
            if records is None or len(records) != end:
                self.counts["lite topics kept"] += 1
                continue
            self._check_old(queue, records[-1])
            self.counts["lite topics ended"] += 1
            del self.ledger.queues[queue, 0], self.ledger.begins[queue, 0]
            self._former_ends[queue] = end
            for group in self.groups:
                self._forget((group, queue, 0))

    def _check_old(self, queue: str, last: CommittedRecord) -> None:
        """Check that the last message of an ending lite topic is old enough, or is no longer in the log."""
        if not self._expires:
            raise Violation(f"alive: {queue} ended, but its topic does not allow that")
        if last.record.physical_offset < self.cluster.dropped_pos:
            return
        # A clock that was ahead may have written a time in the future; later records say then how old this one is.
        since_ms = min(last.record.store_timestamp_ms, self._committed_ms[queue])
        age_ms = self.cluster.true_ms() - since_ms
        if age_ms < _MINUTE_MS - 2 * self.cluster.plan.wall_skew_ms - self._jumped_ms():
            raise Violation(f"alive: {queue} ends {age_ms} ms after {last.place}")

    def _jumped_ms(self) -> float:
        """Return by how many milliseconds a broker's time may be ahead after jumps of its monotonic clock.

        After a jump, a broker takes its wall clock for wrong, and continues without it.
        """
        seconds: defaultdict[NodeId, float] = defaultdict(float)
        for at, fault in self.cluster.plan.faults:
            if isinstance(fault, ClockJump) and at <= self.cluster.now:
                seconds[fault.node] += fault.seconds
        return 1000 * max(seconds.values(), default=0.0)

    def _forget(self, key: QueueOfGroup) -> None:
        """Forget the open pops of a queue that has ended. A client may still get responses about them."""
        self._next_offsets.pop(key, None)
        if (pop := self._pops.pop(key, None)) is not None:
            self.counts["lite topics ended, popped from"] += 1
            self._acks.update((key, offset, pop.pop_time_ms) for offset in pop.open)
        places = [place for place in self._handed_out if place[0] == key]
        for place in places:
            del self._handed_out[place]
        self._orphans.update(places)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _keys(self) -> list[QueueOfGroup]:
        return [(group, queue, 0) for queue, _ in self.ledger.queues if is_lite_queue(queue) for group in self.groups]

    def _check_hidden(self) -> None:
        """Check at times, once all faults are over, that every unread message of a lite topic is delivered soon."""
        self.cluster.at(self.cluster.now + 0.5, self._check_hidden)
        processes = self.cluster.brokers()
        leader = next((process for process in processes if process.leads), None)
        if not self.stopped or leader is not self._leader or any(process.queues.has_damage for process in processes):
            self._leader = leader
            self._unread_since.clear()
            return
        visible_ms = self.cluster.true_ms() - 2 * self.cluster.plan.wall_skew_ms
        unread_since: dict[QueueOfGroup, tuple[int, float]] = {}
        for key, _ in self._unread():
            pop, offset = self._pops.get(key), self._next_offset(key)
            if pop is not None and pop.until_ms > visible_ms:
                continue
            before, since = self._unread_since.get(key, (offset, self.cluster.now))
            unread_since[key] = offset, since if before == offset else self.cluster.now
            if self.cluster.now - unread_since[key][1] > _HIDDEN_SECONDS:
                raise Violation(f"hidden: {key} delivers no message for {_HIDDEN_SECONDS} s; it is {self._state(key)}")
        self._unread_since = unread_since

    def check_replicas(self, processes: list[BrokerProcess]) -> None:
        super().check_replicas(processes)
        queues = {queue for queue, _ in self.ledger.queues if is_lite_queue(queue)}
        for process in processes:
            there = {queue for queue, _ in process.queues.all_keys() if is_lite_queue(queue)}
            if there != queues:
                raise Violation(f"queues: {process.node_id} and the log differ in {sorted(there ^ queues)}")


def _shorter(attributes: Mapping[str, str]) -> int | None:
    """Return the expiration of lite topics in milliseconds, with a shorter minute."""
    limit = expiration_ms(attributes)
    return None if limit is None else limit * _MINUTE_MS // 60_000


def _decode_lite_pop(group: str, response: ClientResponse) -> list[tuple[QueueOfGroup, StoredMessage, Receipt]]:
    """Return messages with their queues and receipts; none if the replica's disk has damaged one of them."""
    try:
        messages = decode_records(response.body)
    except RecordError:
        return []
    times = int(response.ext["popTime"]), int(response.ext["invisibleTime"])
    counts = response.ext["orderCountInfo"].split(";")
    rows = []
    for message, count in zip(messages, counts, strict=True):
        offset = QueueOffset(int(message.properties[props.LITE_OFFSET]))
        receipt = Receipt(offset, *times, ORDERED_REVIVE_QUEUE, NORMAL, "broker-a", 0, offset)
        rows.append(((group, message.properties[props.LITE_QUEUE], 0), with_count(message, int(count)), receipt))
    return rows
