"""All topics, groups and offsets of a cluster, with one request per broker group, and changes of many of them at once.

One request for each topic takes minutes with 10,000 topics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from mq.client.errors import UnreadableAnswer
from mq.client.message import MessageQueue
from mq.client.net.leader_calls import Repeat, call_leader
from mq.client.net.replies import read_body
from mq.client.users import UserAdmin
from mq.protocol.codes import RequestCode
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig, SubscriptionGroupList
from mq.protocol.requests.offsets import UpdateConsumerOffsetExt
from mq.protocol.requests.topics import TopicConfig, TopicConfigList, TopicConfigTable
from mq.protocol.wire import fastjson

T = TypeVar("T")

TABLE_SECONDS: Final = 10.0
"""For an answer with all topics of a broker group: some megabytes."""
CHANGES_AT_ONCE: Final = 500
"""Topics or groups in one request; brokers accept 1,000."""
STORE_SECONDS: Final = 10.0


class CatalogueAdmin(UserAdmin):
    """An `Admin` for whole tables. All methods raise ClientError, and BrokerError without an administrator's account.

    Brokers of RocketMQ from 5.3 on know the requests, too.
    """

    async def topic_configs(self) -> dict[str, dict[str, TopicConfig]]:
        """The configuration of all topics, by name and broker group."""
        found: dict[str, dict[str, TopicConfig]] = {}
        for broker, address in (await self._leaders(None, None)).items():
            code = RequestCode.GET_ALL_TOPIC_CONFIG
            answer, body = await self._opened().call(address, code, timeout=TABLE_SECONDS)
            table = read_body(TopicConfigTable.decode, body).topics
            total = answer.ext.get("totalTopicNum", "")
            if total.isdecimal() and int(total) > len(table):
                raise UnreadableAnswer(f"{broker} has {total} topics, and its answer has only {len(table)}")
            for name, config in table.items():
                found.setdefault(name, {})[broker] = config
        return found

    async def group_offsets(self) -> dict[str, dict[MessageQueue, int]]:
        """The stored offsets of all groups, also of deleted ones, and in topics that were deleted."""
        found: dict[str, dict[MessageQueue, int]] = {}
        for broker, address in (await self._leaders(None, None)).items():
            _, body = await self._opened().call(address, RequestCode.GET_ALL_CONSUMER_OFFSET, timeout=TABLE_SECONDS)
            for key, offsets in read_body(parsed, body).get("offsetTable", {}).items():
                topic, _, group = key.partition("@")
                for queue_id, offset in offsets.items():
                    if group and isinstance(offset, int) and offset >= 0:
                        found.setdefault(group, {})[MessageQueue(topic, broker, int(queue_id))] = offset
        return found

    async def put_topics(self, broker: str, topics: Sequence[TopicConfig]) -> None:
        """Create or change topics in one broker group, all of them, or none. At most 1,000.

        Attributes are changes: ``+name`` sets one, ``-name`` removes it. Does not wait for the name servers.
        """
        request = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, TopicConfigList(topics).encode()
        await self._put(broker, (await self._leaders(None, broker))[broker], request, None)

    async def put_groups(self, groups: Sequence[SubscriptionGroupConfig]) -> None:
        """The same for consumer groups, in one broker group after the other."""
        request = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, SubscriptionGroupList(groups).encode()
        for broker, address in (await self._leaders(None, None)).items():
            await self._put(broker, address, request, None)

    async def store_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store the offset of a group, also a lower one than before."""
        ext = UpdateConsumerOffsetExt(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=QueueOffset(offset),
            forward_only=False,
        )
        await call_leader(
            self._opened(),
            queue.topic,
            queue.broker_name,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            ext.fields(),
            seconds=STORE_SECONDS,
            repeat=Repeat.ALWAYS,
        )


def parsed(body: bytes | memoryview) -> dict[str, Any]:
    """A trusted body of JSON as a table; empty if it is something else."""
    value = fastjson.parse(body, values_max=fastjson.TRUSTED_VALUES_MAX)
    return value if isinstance(value, dict) else {}


def portions(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """The items, as many at a time as one request takes."""
    for begin in range(0, len(items), CHANGES_AT_ONCE):
        yield items[begin : begin + CHANGES_AT_ONCE]
