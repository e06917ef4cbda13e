"""Knows which header fields each kind of signed request may have, and whether it may have a body.

The signature of a RocketMQ client covers one text, and not where a value ends and the next begins. An attacker who
recorded a request could move bytes from a value, or from the body, into a field that is never read. So a broker refuses
fields that the request does not have in any client, bodies of changes that have none, and the name of another broker.
Requests that say how they are divided (`mq.protocol.access.signing.LENGTHS`) need no such check.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Any, Final, cast

import msgspec

from mq.protocol.access.signing import ACCESS_KEY, ADDED_LATER, LENGTHS, SIGNATURE, SIGNED_CODE
from mq.protocol.codes import RequestCode
from mq.protocol.requests import offsets, schedules, send, transactions, users
from mq.protocol.requests.clients import UnregisterClient
from mq.protocol.requests.consumer_groups import DeleteSubscriptionGroup, UpdateAndGetGroupForbidden
from mq.protocol.requests.group_progress import CloneGroupOffset, InvokeBrokerToResetOffset
from mq.protocol.requests.lite import AckLiteMessage, TriggerLiteDispatch
from mq.protocol.requests.pop import AckMessage, ChangeMessageInvisibleTime
from mq.protocol.requests.topics import DeleteTopicInBroker, UpdateAndCreateTopic

_OF_ANY: Final = frozenset(
    {
        *(ACCESS_KEY, SIGNATURE, SIGNED_CODE, LENGTHS, ADDED_LATER),
        *("SecurityToken", "OnsChannel"),  # beside the access key, of clients in clouds
        *("ns", "nsd", "bname", "oway", "lo"),  # RpcRequestHeader and TopicRequestHeader
        *("__ZONE_NAME", "__ZONE_MODE", "ReqT", "brokerAddr"),  # hooks of clients and of the proxy
    }
)
"""Fields that RocketMQ's clients add to requests of all kinds."""

_IGNORED: Final[Mapping[int, frozenset[str]]] = {
    RequestCode.PULL_MESSAGE: frozenset({"liteTopic", "proxyFrowardClientId", "requestSource"}),
    RequestCode.LITE_PULL_MESSAGE: frozenset({"liteTopic", "proxyFrowardClientId", "requestSource"}),
    RequestCode.QUERY_MESSAGE: frozenset({"indexType", "lastKey"}),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: frozenset({"liteTopic"}),
    RequestCode.NOTIFICATION: frozenset({"exp", "expType", "isLiteConsumer"}),
    RequestCode.UPDATE_AND_CREATE_TOPIC: frozenset({"force"}),
    RequestCode.GET_ALL_TOPIC_CONFIG: frozenset({"dataVersion", "maxTopicNum", "topicSeq", "totalTopicNum"}),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: frozenset(
        {"dataVersion", "groupSeq", "maxGroupNum", "totalGroupNum"}
    ),
    RequestCode.GET_MAX_OFFSET: frozenset({"committed"}),
}
"""Fields of RocketMQ 5 that this broker does not read."""

_WITHOUT_BODY: Final[frozenset[type[Any]]] = frozenset(
    {
        AckLiteMessage,
        AckMessage,
        ChangeMessageInvisibleTime,
        CloneGroupOffset,
        DeleteSubscriptionGroup,
        DeleteTopicInBroker,
        InvokeBrokerToResetOffset,
        TriggerLiteDispatch,
        UnregisterClient,
        UpdateAndCreateTopic,
        UpdateAndGetGroupForbidden,
        send.ConsumerSendMsgBack,
        transactions.EndTransaction,
        send.RecallMessage,
        offsets.UpdateConsumerOffset,
        schedules.DeleteSchedule,
        schedules.SwitchSchedule,
        schedules.TriggerSchedule,
        users.DeleteAcl,
        users.DeleteUser,
    }
)


_BROKER_NAMES: Final = {
    RequestCode.SEND_MESSAGE_V2: "n",
    RequestCode.SEND_BATCH_MESSAGE: "n",
    RequestCode.SEND_REPLY_MESSAGE_V2: "n",
}
"""The field with the name of the broker, where it is not ``bname``; it would take bytes of the body."""


def unexpected_part(request: Any, fields: Mapping[str, str], body: bytes, broker_name: str | None) -> str | None:
    """Name a field or body that a signed request has and that no request of its kind has; None if there is none.

    Clients of RocketMQ 5 name the broker to which they send; nothing reads that.
    """
    kind = type(request)
    broker = fields.get(_BROKER_NAMES.get(request.code, "bname"))
    if broker and broker_name is not None and broker != broker_name:
        return f"the name of another broker, {broker[:64]!r}"
    if body and kind in _WITHOUT_BODY:
        return f"a body of {len(body)} bytes"
    name = _unexpected_field(cast("Hashable", kind), request.code, tuple(fields))
    return None if name is None else f"the field {name[:64]!r}"


@lru_cache(maxsize=1024)
def _unexpected_field(kind: Hashable, code: int, names: tuple[str, ...]) -> str | None:
    allowed_names = _OF_ANY | _IGNORED.get(code, frozenset())
    assert isinstance(kind, type), kind
    for member in msgspec.structs.fields(kind):
        if member.encode_name == "extFields":
            allowed_names |= frozenset(getattr(member.type, "__struct_encode_fields__", ()))
    return next((name for name in names if name not in allowed_names), None)
