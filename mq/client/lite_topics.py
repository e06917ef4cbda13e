"""Administers lite topics.

    async with Admin("127.0.0.1:9876") as admin:
        for broker, lag in (await admin.lite.lag("agents", top=10)).items():
            print(broker, lag.lag, [each.lite_topic for each in lag.longest or []])

Each broker group has lite topics of its own: answers are by its name.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from mq.client.errors import BrokerError, TopicNotFound
from mq.client.net.client_core import ClientCore
from mq.client.net.replies import read_body
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from mq.protocol.requests.lite import (
    BrokerLiteInfo,
    LiteClientExt,
    LiteClientInfo,
    LiteDispatchExt,
    LiteGroupExt,
    LiteGroupInfo,
    LiteTopicExt,
    LiteTopicInfo,
    ParentTopicExt,
    ParentTopicInfo,
)
from mq.protocol.wire.json_body import Body
from mq.protocol.wire.request import Ext

BodyT = TypeVar("BodyT", bound=Body)


class LiteTopicCalls(Protocol):
    """The methods of `Admin` that `LiteTopics` calls."""

    def _open_core(self) -> ClientCore: ...

    async def _leaders(self, cluster: str | None, broker: str | None) -> dict[str, str]: ...

    async def _leaders_of(self, topic: str) -> dict[str, str]: ...

    async def consumer_groups(self) -> dict[str, dict[str, SubscriptionGroupConfig]]: ...


class LiteTopics:
    """The calls that administer lite topics: `Admin.lite`.

    All methods raise as those of `Admin`, and BrokerError with code INVALID_PARAMETER (29) for a topic without
    lite topics, or a group that is not bound to one. What clients subscribe to is in the memory of the leaders: for
    some seconds after a change of leader, subscriptions are missing.
    """

    def __init__(self, admin: LiteTopicCalls) -> None:
        self._admin = admin

    async def brokers(self) -> dict[str, BrokerLiteInfo]:
        """Return figures of all lite topics, and the topics that have some, by broker group (request code 200074)."""
        infos: dict[str, BrokerLiteInfo] = {}
        for broker, address in (await self._admin._leaders(None, None)).items():
            infos[broker] = await self._ask(address, RequestCode.GET_BROKER_LITE_INFO, None, BrokerLiteInfo)
        return infos

    async def parent(self, topic: str) -> dict[str, ParentTopicInfo]:
        """Return how many lite topics a topic has, by broker group (request code 200075). Raises TopicNotFound."""
        ext = ParentTopicExt(topic=topic)
        return await self._of_topic(topic, RequestCode.GET_PARENT_TOPIC_INFO, ext, ParentTopicInfo)

    async def topic(self, parent: str, lite_topic: str) -> dict[str, LiteTopicInfo]:
        """Return the offsets and subscribers of a lite topic, by broker group (request code 200076).

        A broker group without messages of the lite topic answers with `is_there` False. Raises TopicNotFound.
        """
        ext = LiteTopicExt(parent_topic=parent, lite_topic=lite_topic)
        return await self._of_topic(parent, RequestCode.GET_LITE_TOPIC_INFO, ext, LiteTopicInfo)

    async def client(self, parent: str, group: str, client_id: str, *, most: int = 1000) -> dict[str, LiteClientInfo]:
        """Return at most `most` (1 to 10,000) subscriptions of a client, by broker group (request code 200077).

        `topic_count` is -1 where the client has not said it. Raises TopicNotFound.
        """
        ext = LiteClientExt(parent_topic=parent, group=group, client_id=client_id, max_count=most)
        return await self._of_topic(parent, RequestCode.GET_LITE_CLIENT_INFO, ext, LiteClientInfo)

    async def lag(self, group: str, lite_topic: str | None = None, *, top: int = 20) -> dict[str, LiteGroupInfo]:
        """Return a group's lag in messages, in one lite topic or in all, by broker group (request code 200078).

        For all: with the `top` lite topics in which it is behind most, 0 to 10,000 of them.
        """
        ext = LiteGroupExt(group=group, lite_topic=lite_topic, top_count=top)
        infos: dict[str, LiteGroupInfo] = {}
        for broker, address in (await self._leaders_of_group(group)).items():
            infos[broker] = await self._ask(address, RequestCode.GET_LITE_GROUP_INFO, ext, LiteGroupInfo)
        return infos

    async def dispatch(self, group: str, client_id: str | None = None, *, broker: str | None = None) -> list[str]:
        """Let brokers check now all lite topics to which the clients of a group subscribe (request code 200079).

        They do that by themselves every 15 s. Returns the names of the broker groups. Raises BrokerError with code
        SUBSCRIPTION_NOT_EXIST (24) if `client_id` has not sent its subscriptions.
        """
        ext = LiteDispatchExt(group=group, client_id=client_id)
        leaders = await self._leaders_of_group(group) if broker is None else await self._admin._leaders(None, broker)
        for address in leaders.values():
            await self._admin._open_core().call(address, RequestCode.TRIGGER_LITE_DISPATCH, ext.fields())
        return sorted(leaders)

    async def _leaders_of_group(self, group: str) -> dict[str, str]:
        """Return the leaders of the broker groups that know this group; if none does, all leaders, which answer so."""
        leaders = await self._admin._leaders(None, None)
        groups = (await self._admin.consumer_groups()).get(group, {})
        return {broker: at for broker, at in leaders.items() if broker in groups} or leaders

    async def _of_topic(self, topic: str, code: RequestCode, ext: Ext, kind: type[BodyT]) -> dict[str, BodyT]:
        try:
            return {
                broker: await self._ask(address, code, ext, kind)
                for broker, address in (await self._admin._leaders_of(topic)).items()
            }
        except BrokerError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise TopicNotFound(topic) from error
            raise

    async def _ask(self, address: str, code: RequestCode, ext: Ext | None, kind: type[BodyT]) -> BodyT:
        fields = None if ext is None else ext.fields()
        _, body = await self._admin._open_core().call(address, code, fields)
        return read_body(kind.decode, body)
