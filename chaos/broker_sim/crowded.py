"""The workload "crowded": clients ask for more topics, groups, offsets and queue locks than brokers keep.

SimulatedBrokers have the smallest limits. Clients create and delete topics and groups of many names, commit offsets of
each group in each topic, and lock queues for each group, while others send messages.

What must hold:

- A topic or group that was acknowledged as created existed, and a topic or group is refused as one too many only by
  brokers that were full once.
- No replica ever has more topics or groups than the limits allow, or more locks.
- When topics and groups were deleted and locks have expired, there is room for new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chaos.broker_sim.clients import ClientResponse, ResponseOrLoss
from chaos.broker_sim.process import BrokerProcess
from chaos.broker_sim.workload import SimulatedBrokers, Workload
from chaos.violation import Violation
from mq.broker.limits import TEST_MIN, BrokerLimits
from mq.broker.state.commands import DeleteGroup, DeleteTopic, PutGroup, PutTopic
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.clients import LockedQueues, QueueLocks
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from mq.protocol.wire.queue_tables import QueueRef

_NAMES = 40
"""Names of topics, and of groups: more than there is room for."""
_BROKER = "broker-a"
_PAUSE_SECONDS = 0.1
_NEVER = -1.0


class Names:
    """The topics or groups that exist according to the committed commands.

    Args:
        most: the largest number of them.
    """

    def __init__(self, what: str, most: int) -> None:
        self.what = what
        self.most = most
        self.there: set[str] = set()
        self.was_full = False
        self._gone_at: dict[str, float] = {}

    def put(self, name: str, *, has_room: bool = True) -> None:
        """Apply a command that puts a name. If there is no room, a new name is ignored."""
        if name not in self.there and has_room and len(self.there) < self.most:
            self.there.add(name)
        self.was_full |= len(self.there) == self.most

    def delete(self, name: str, now: float) -> None:
        """Apply a command that deletes a name."""
        if name in self.there:
            self.there.remove(name)
            self._gone_at[name] = now

    def was_there_since(self, name: str, begin: float) -> bool:
        """Whether a name exists, or did at any time since ``begin``."""
        return name in self.there or self._gone_at.get(name, _NEVER) >= begin


class CrowdedTables(Workload):
    name = "crowded"

    def __init__(self, cluster: SimulatedBrokers) -> None:
        super().__init__(cluster)
        self._topics = Names("topics", TEST_MIN.state.topics_max)
        self._groups = Names("groups", TEST_MIN.state.groups_max)
        self._to_do = [self._make_room, self._use_topic_room, self._use_group_room, self._use_lock_room]
        """The steps that are left at the end."""
        self._makes_room = False

    def limits(self, base_limits: BrokerLimits) -> BrokerLimits:
        least = TEST_MIN.state
        state = replace(
            base_limits.state,
            topics_max=least.topics_max,
            groups_max=least.groups_max,
            offset_tables_max=least.offset_tables_max,
        )
        consume = replace(
            base_limits.consume, locks_max=TEST_MIN.consume.locks_max, lock_seconds=TEST_MIN.consume.lock_seconds
        )
        return replace(base_limits, state=state, consume=consume)

    # -- what clients do -----------------------------------------------------------------------------------------------

    def run_operation(self) -> None:
        rng = self.rng
        topic, group = f"C{rng.randrange(_NAMES)}", f"CG{rng.randrange(_NAMES)}"
        chance = rng.random()
        if chance < 0.25:
            self._put_topic(topic)
        elif chance < 0.45:
            self._put_group(group)
        elif chance < 0.55:
            self._delete_topic(topic)
        elif chance < 0.6:
            self._delete_group(group)
        elif chance < 0.7:
            self._commit(group, rng.choice((self.topic, *sorted(self._topics.there))))
        elif chance < 0.8:
            self._lock(group, rng.randrange(self.queues))
        else:
            self.send(self.new("plain", {}))

    def _ask(
        self, code: RequestCode, ext: dict[str, Any] | None, body: bytes, then: Callable[[ClientResponse], None]
    ) -> None:
        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse):
                then(response)

        node = self.cluster.some_node(self.rng)
        self.rng.choice(self.clients).request(node, code, ext, body, on_response, serialization=self.encoding(code))

    def _put_topic(self, name: str, then: Callable[[], None] | None = None) -> None:
        ext = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        self._put(self._topics, name, RequestCode.UPDATE_AND_CREATE_TOPIC, ext, b"", then)

    def _put_group(self, name: str, then: Callable[[], None] | None = None) -> None:
        body = SubscriptionGroupConfig(group_name=name).encode()
        self._put(self._groups, name, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body, then)

    def _put(
        self,
        names: Names,
        name: str,
        code: RequestCode,
        ext: dict[str, Any] | None,
        body: bytes,
        then: Callable[[], None] | None,
    ) -> None:
        begin = self.cluster.now

        def on_response(response: ClientResponse) -> None:
            if response.code == ResponseCode.SUCCESS:
                if not names.was_there_since(name, begin):
                    raise Violation(f"limit: {name} was acknowledged, but is missing from the {names.what}")
                self.counts[f"{names.what} created"] += 1
                if then is not None:
                    then()
            elif "already; maximum" in (response.remark or ""):
                if not (names.was_full or self._topics.was_full):
                    raise Violation(
                        f"limit: {name} was refused, but there were never {names.most} {names.what}: {response}"
                    )
                self.counts[f"{names.what} refused"] += 1

        self._ask(code, ext, body, on_response)

    def _delete_topic(self, name: str) -> None:
        self._ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}, b"", lambda response: None)

    def _delete_group(self, name: str) -> None:
        ext = {"groupName": name, "cleanOffset": True}
        self._ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext, b"", lambda response: None)

    def _commit(self, group: str, topic: str) -> None:
        ext = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": 0}
        self._ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext, b"", lambda response: None)

    def _lock(self, group: str, queue_id: int, then: Callable[[], None] | None = None) -> None:
        def on_response(response: ClientResponse) -> None:
            if response.code != ResponseCode.SUCCESS:
                return
            if LockedQueues.decode(response.body).queues:
                self.counts["locks granted"] += 1
                if then is not None:
                    then()
            else:
                self.counts["locks not granted"] += 1

        locks = QueueLocks(client_id=f"L{group}", group=group, queues=[QueueRef(self.topic, _BROKER, queue_id)])
        self._ask(RequestCode.LOCK_BATCH_MQ, None, locks.encode(), on_response)

    # -- what is committed ---------------------------------------------------------------------------------------------

    def on_command(self, command: Any) -> None:
        match command:
            case PutTopic(config=config):
                self._topics.put(config.name)
            case DeleteTopic(name=name):
                self._topics.delete(name, self.cluster.now)
            case PutGroup(config=group):
                self._groups.put(group.name, has_room=len(self._topics.there) < self._topics.most)
            case DeleteGroup(name=name):
                self._groups.delete(name, self.cluster.now)
            case _:
                pass

    # -- the end -------------------------------------------------------------------------------------------------------

    def pending_count(self) -> int:
        """Return the number of final steps that are not done."""
        return len(self._to_do)

    def is_done(self) -> bool:
        """Return whether all final steps are done. The first call starts them."""
        if not self._makes_room:
            self._makes_room = True
            self._do_next()
        return super().is_done()

    def _do_next(self) -> None:
        """Repeat the next final step until it is done, because requests may get lost."""
        if self._to_do:
            self._to_do[0]()
            self.cluster.at(self.cluster.now + _PAUSE_SECONDS, self._do_next)

    def _step_remover(self, step: Callable[[], None]) -> Callable[[], None]:
        def remove() -> None:
            if self._to_do and self._to_do[0] == step:
                del self._to_do[0]

        return remove

    def _make_room(self) -> None:
        topics = sorted(name for name in self._topics.there if name.startswith("C"))
        groups = sorted(name for name in self._groups.there if name.startswith("CG"))
        if not topics and not groups:
            self._step_remover(self._make_room)()
        for topic in topics:
            self._delete_topic(topic)
        for group in groups:
            self._delete_group(group)

    def _use_topic_room(self) -> None:
        self._put_topic("C-again", self._step_remover(self._use_topic_room))

    def _use_group_room(self) -> None:
        self._put_group("CG-again", self._step_remover(self._use_group_room))

    def _use_lock_room(self) -> None:
        self._lock("CG-again", 0, self._step_remover(self._use_lock_room))

    def check_replicas(self, processes: list[BrokerProcess]) -> None:
        super().check_replicas(processes)
        for process in processes:
            for names, there in ((self._topics, process.metadata.topics), (self._groups, process.metadata.groups)):
                if names.there != there.keys():
                    other = sorted(names.there ^ there.keys())
                    raise Violation(f"limit: {process.node_id} and the log differ in {names.what} {other}")
