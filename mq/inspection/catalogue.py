"""Reads all topics, groups and offsets of a cluster, with one request per broker group, and changes many at once.

One request for each topic takes minutes with 10,000 topics.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import trio

from mq.client.errors import BrokerError, ClientError, UnreadableAnswer
from mq.client.message import MessageQueue
from mq.client.net.leader_calls import Repeat, call_leader
from mq.client.net.replies import read_body
from mq.client.users import UserAdmin
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig, SubscriptionGroupList
from mq.protocol.requests.many_queues import TOPICS_MAX, QueueQuestion, QueueQuestions, QueueSight, QueueSights
from mq.protocol.requests.members import GROUPS_MAX, GroupMember, MembersOfGroups, MembersQuestion
from mq.protocol.requests.offsets import UpdateConsumerOffsetExt
from mq.protocol.requests.settings_text import decode_properties
from mq.protocol.requests.topics import QueueEnds, TopicConfig, TopicConfigList, TopicConfigTable
from mq.protocol.wire.queue_tables import read_offset_rows

K = TypeVar("K")
T = TypeVar("T")

TABLE_SECONDS: Final = 10.0
"""Seconds for an answer with all topics of a broker group: some megabytes."""
CHANGES_AT_ONCE: Final = 500
"""Topics or groups in one request; brokers accept 1,000."""
STORE_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 2.0
"""Seconds for an answer about one of many keys."""
ASKED_AT_ONCE: Final = 16
"""Requests under way: a cluster with thousands of topics is not flooded."""


class GroupsOfMembers(NamedTuple):
    """The members of groups that have some; and for each group whose members' subscriptions differ, one member with
    each.
    """

    groups: dict[str, list[GroupMember]]
    differing: dict[str, list[GroupMember]]


class CatalogueAdmin(UserAdmin):
    """An `Admin` for whole tables. All methods raise ClientError, and BrokerError if the user is no administrator.

    Brokers of RocketMQ from 5.3 on know the requests, too.
    """

    async def name_server_settings(self) -> dict[str, str]:
        """Return the settings of a name server. Our own have the prefix `raftmq.`."""
        _, body = await self._ask(RequestCode.GET_NAMESRV_CONFIG)
        return read_body(decode_properties, body)

    async def topic_configs(self) -> dict[str, dict[str, TopicConfig]]:
        """Return the configuration of all topics, by name and broker group."""
        configs: dict[str, dict[str, TopicConfig]] = {}
        for broker, address in (await self._leaders(None, None)).items():
            code = RequestCode.GET_ALL_TOPIC_CONFIG
            response, body = await self._open_core().call(address, code, timeout=TABLE_SECONDS)
            table = read_body(TopicConfigTable.decode, body).topics
            total = response.ext.get("totalTopicNum", "")
            if total.isdecimal() and int(total) > len(table):
                raise UnreadableAnswer(f"expected {total} topics from {broker}, got {len(table)}")
            for name, config in table.items():
                configs.setdefault(name, {})[broker] = config
        return configs

    async def group_offsets(self) -> dict[str, dict[MessageQueue, int]]:
        """Return the stored offsets of all groups, also of deleted groups and in deleted topics."""
        offsets_by_group: dict[str, dict[MessageQueue, int]] = {}
        for broker, address in (await self._leaders(None, None)).items():
            _, body = await self._open_core().call(address, RequestCode.GET_ALL_CONSUMER_OFFSET, timeout=TABLE_SECONDS)
            for key, offsets in read_body(read_offset_rows, body).items():
                topic, _, group = key.partition("@")
                for queue_id, offset in offsets.items():
                    if group and isinstance(offset, int) and offset >= 0:
                        offsets_by_group.setdefault(group, {})[MessageQueue(topic, broker, int(queue_id))] = offset
        return offsets_by_group

    async def queue_ends(self, topics: Collection[str]) -> dict[MessageQueue, QueueEnds]:
        """Return the ends of all queues of those topics that exist, with one request per 500 topics and broker group.

        Brokers of Apache RocketMQ and of earlier releases are asked for each topic.
        """
        ends_by_queue: dict[MessageQueue, QueueEnds] = {}
        stock: list[str] = []
        for broker, address in (await self._leaders(None, None)).items():
            answers = await self._sights(address, [QueueQuestion(topic=topic) for topic in topics])
            if answers is None:
                stock.append(broker)
                continue
            for topic, sights in answers:
                for each in sights:
                    ends = QueueEnds(each.min_offset, each.max_offset, each.last_update_ms)
                    ends_by_queue[MessageQueue(topic, broker, each.queue_id)] = ends
        if stock:
            for ends_of_topic in (await each_of(topics, self.topic_stats)).values():
                ends_by_queue |= {queue: ends for queue, ends in ends_of_topic.items() if queue.broker_name in stock}
        return ends_by_queue

    async def offsets_at(self, times: Mapping[MessageQueue, dt.datetime]) -> dict[MessageQueue, int]:
        """Return the offset of each queue's first message stored at or after its time, or of its next message if there
        is none. One request per 500 topics and broker group.

        Queues that are left out in the answer, since the messages are in an archive or the broker is one of Apache
        RocketMQ, are asked for one by one; what is missing then does not exist, or cannot be read now.
        """
        offsets: dict[MessageQueue, int] = {}
        for broker, address in (await self._leaders(None, None)).items():
            questions: dict[str, dict[int, int]] = {}
            for queue, time in times.items():
                if queue.broker_name == broker:
                    questions.setdefault(queue.topic, {})[queue.queue_id] = int(time.timestamp() * 1000)
            query = [
                QueueQuestion(topic=topic, queues=[*queues], since_ms=[*queues.values()])
                for topic, queues in questions.items()
            ]
            for topic, sights in await self._sights(address, query) or ():
                for each in sights:
                    if each.since_offset is not None:
                        offsets[MessageQueue(topic, broker, each.queue_id)] = each.since_offset

        async def offset_of(queue: MessageQueue) -> int:
            return await self.offset(queue, times[queue])

        return offsets | await each_of([queue for queue in times if queue not in offsets], offset_of)

    async def offsets_behind(self, topics: Collection[str], positions: Mapping[str, int]) -> dict[MessageQueue, int]:
        """Return the offset of each queue's first message at or after a log position of its broker group. ``positions``
        has the groups to ask. Leaves out brokers that do not know the request.
        """
        offsets: dict[MessageQueue, int] = {}
        for broker, address in (await self._leaders(None, None)).items():
            if broker not in positions:
                continue
            position = PhysicalOffset(positions[broker])
            answers = await self._sights(address, [QueueQuestion(topic=each, position=position) for each in topics])
            for topic, sights in answers or ():
                for each in sights:
                    if each.position_offset is not None:
                        offsets[MessageQueue(topic, broker, each.queue_id)] = each.position_offset
        return offsets

    async def _sights(
        self, address: str, questions: Sequence[QueueQuestion]
    ) -> list[tuple[str, Sequence[QueueSight]]] | None:
        """Ask a broker about these queues; returns its answers by topic, or None if it does not know the request."""
        sights_by_topic: list[tuple[str, Sequence[QueueSight]]] = []
        rest = list(questions)
        while rest:
            body = QueueQuestions(topics=rest[:TOPICS_MAX]).encode()
            try:
                _, response = await self._open_core().call(
                    address, RequestCode.ASK_QUEUES, body=body, timeout=TABLE_SECONDS
                )
            except BrokerError as error:
                if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    return None
                raise
            topic_sights = read_body(QueueSights.decode, response).topics
            if not topic_sights or len(topic_sights) > len(rest):
                raise UnreadableAnswer(
                    f"the broker answered with queues of {len(topic_sights)} topics; {len(rest)} were requested"
                )
            sights_by_topic += [(each.topic, sights) for each, sights in zip(rest, topic_sights, strict=False)]
            rest = rest[len(topic_sights) :]
        return sights_by_topic

    async def members_of_groups(
        self, groups: Sequence[str], *, queues: bool = False, differing: bool = False
    ) -> GroupsOfMembers | None:
        """Return the members of groups, by client id, as all broker groups know them.

        With ``queues``, which goes with one group alone, also which queues they have. With ``differing`` also the
        groups whose members subscribe to different things. None if a broker does not know the request, as brokers of
        Apache RocketMQ and of earlier releases.
        """
        members: dict[str, dict[str, GroupMember]] = {}
        apart: dict[str, dict[str, GroupMember]] = {}
        for address in (await self._leaders(None, None)).values():
            for begin in range(0, max(1, len(groups)), GROUPS_MAX):
                some = groups[begin : begin + GROUPS_MAX]
                question = MembersQuestion(groups=some, queues=queues, differing=differing and begin == 0)
                try:
                    _, body = await self._open_core().call(
                        address, RequestCode.ASK_MEMBERS, body=question.encode(), timeout=TABLE_SECONDS
                    )
                except BrokerError as error:
                    if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                        return None
                    raise
                answer = read_body(MembersOfGroups.decode, body)
                _add_members(members, answer.groups)
                _add_members(apart, answer.differing)
        return GroupsOfMembers(_by_client_id(members), _by_client_id(apart))

    async def put_topics(self, broker: str, topics: Sequence[TopicConfig]) -> None:
        """Create or change up to 1,000 topics in one broker group: all of them, or none.

        Attributes are changes: ``+name`` sets one, ``-name`` removes it. Does not wait for the name servers.
        """
        request = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, TopicConfigList(topics).encode()
        await self._ask_leader(broker, (await self._leaders(None, broker))[broker], None, *request)

    async def put_groups(self, groups: Sequence[SubscriptionGroupConfig]) -> None:
        """Create or overwrite consumer groups, in one broker group after the other."""
        request = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, SubscriptionGroupList(groups).encode()
        for broker, address in (await self._leaders(None, None)).items():
            await self._ask_leader(broker, address, None, *request)

    async def store_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store the offset of a group, even if it is lower than before."""
        ext = UpdateConsumerOffsetExt(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=QueueOffset(offset),
            forward_only=False,
        )
        await call_leader(
            self._open_core(),
            queue.topic,
            queue.broker_name,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            ext.fields(),
            seconds=STORE_SECONDS,
            repeat=Repeat.ALWAYS,
        )


def portions(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Divide the items into portions that fit into one request."""
    for begin in range(0, len(items), CHANGES_AT_ONCE):
        yield items[begin : begin + CHANGES_AT_ONCE]


def _add_members(to: dict[str, dict[str, GroupMember]], groups: Mapping[str, Sequence[GroupMember]]) -> None:
    for group, members in groups.items():
        own = to.setdefault(group, {})
        for each in members:
            current = own.get(each.client.client_id)
            if current is None or current.running_info is None:
                own[each.client.client_id] = each


def _by_client_id(groups: dict[str, dict[str, GroupMember]]) -> dict[str, list[GroupMember]]:
    return {group: [own[client_id] for client_id in sorted(own)] for group, own in sorted(groups.items())}


async def each_of(keys: Collection[K], ask: Callable[[K], Awaitable[T]]) -> dict[K, T]:
    """Call ``ask`` for each key, several at once. Leaves out keys that vanished meanwhile, or whose answer is late."""
    results: dict[K, T] = {}
    limiter = trio.CapacityLimiter(ASKED_AT_ONCE)

    async def ask_one(key: K) -> None:
        async with limiter:
            with trio.move_on_after(ANSWER_SECONDS):
                try:
                    results[key] = await ask(key)
                except ClientError:
                    return

    async with trio.open_nursery() as nursery:
        for key in keys:
            nursery.start_soon(ask_one, key)
    return {key: results[key] for key in keys if key in results}
