"""Deleted topics that can be restored; see `mq.client.admin.Admin`."""

from __future__ import annotations

from collections.abc import Mapping

from mq.client.errors import BrokerError, TopicNotFound
from mq.client.net.client_core import ClientCore
from mq.client.net.replies import read_body
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.deleted_topics import DeletedTopicInfo, DeletedTopicList
from mq.protocol.requests.topics import TopicExt

_NOT_THERE = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


async def deleted_topics(core: ClientCore, leaders: Mapping[str, str]) -> dict[str, dict[str, DeletedTopicInfo]]:
    """Ask the leaders at these addresses for deleted topics; by name and broker group. Raises BrokerError."""
    topics: dict[str, dict[str, DeletedTopicInfo]] = {}
    for broker, address in sorted(leaders.items()):
        try:
            _, body = await core.call(address, RequestCode.LIST_DELETED_TOPICS)
        except BrokerError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                continue
            raise
        for each in read_body(DeletedTopicList.decode, body).topics:
            topics.setdefault(each.topic, {})[broker] = each
    return {topic: topics[topic] for topic in sorted(topics)}


async def restore_topic(core: ClientCore, topic: str, leaders: Mapping[str, str]) -> list[str]:
    """Restore a topic in each broker group that can, and return the names of these groups.

    Raises TopicNotFound if none can, BrokerError if one has a topic of its name, and none can.
    """
    brokers: list[str] = []
    refusal: BrokerError | None = None
    for broker, address in sorted(leaders.items()):
        try:
            await core.call(address, RequestCode.RESTORE_TOPIC, TopicExt(topic=topic).fields())
        except BrokerError as error:
            if error.code == ResponseCode.ILLEGAL_OPERATION:
                refusal = error
            elif error.code not in _NOT_THERE:
                raise
        else:
            brokers.append(broker)
    if not brokers:
        raise refusal or TopicNotFound(topic)
    return brokers
