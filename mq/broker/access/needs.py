"""The permissions that each request needs, one row per request. A request without a row is refused. Pure.

The permissions are those of RocketMQ's ACL 1.0. In addition, only administrators may read messages by physical offset,
reset offsets of other groups, and list all clients, which RocketMQ allows every account.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final

from mq.accounts import Permission
from mq.protocol import (
    admin_requests,
    bulk_requests,
    deleted_topic_requests,
    filter_requests,
    group_requests,
    lite_requests,
    operator_requests,
    pending_requests,
    pop_requests,
    reply_requests,
    requests,
    schedule_requests,
    user_requests,
)
from mq.protocol.bodies import HeartbeatOfProxy
from mq.protocol.errors import BodyError
from mq.protocol.group_bodies import QueueLocks
from mq.protocol.lite_bodies import LiteSubscriptionSet
from mq.protocol.names import retry_topic
from mq.protocol.operator_bodies import AssignmentQuery
from mq.protocol.receipts import BatchAck
from mq.protocol.transaction_sets import TransactionSet

Needs = Iterable[tuple[str, Permission]]
"""Topics, and what the request does to them. A consumer group is represented by its retry topic."""


class Role(enum.Enum):
    """The senders that a request is allowed for, independent of topics."""

    ANYBODY = "checked by the handler: replicas prove that they have the secret of their group"
    ACCOUNT = "any account"
    ADMIN = "administrators only"


Row = Role | Callable[[Any, bytes], Needs]
PUB, SUB, FILTER = Permission.PUB, Permission.SUB, Permission.FILTER


def _topic(permission: Permission, field: str = "ext.topic") -> Row:
    topic = attrgetter(field)
    return lambda request, body: ((topic(request), permission),)


def _group(field: str = "ext.consumer_group") -> Row:
    group = attrgetter(field)
    return lambda request, body: ((retry_topic(group(request)), SUB),)


def _consumption(request: Any, body: bytes) -> Needs:
    ext = request.ext
    return (ext.topic, SUB), (retry_topic(ext.consumer_group), SUB)


def _upload(request: Any, body: bytes) -> Needs:
    """Code for others to run is more than consumption."""
    return *_consumption(request, body), (retry_topic(request.ext.consumer_group), FILTER)


def _send(request: Any, body: bytes) -> Needs:
    """A message to a retry topic is sent back by a consumer, so the permission is that of a consumer."""
    topic = request.ext.topic
    return ((topic, SUB if topic.startswith("%RETRY%") else PUB),)


def _heartbeat(request: Any, body: bytes) -> Needs:
    try:
        heartbeat = HeartbeatOfProxy.decode(body)
    except BodyError:
        return ()  # the handler refuses this body
    groups = [*(each.group for each in heartbeat.consumers), *(each.group for each in heartbeat.behind)]
    needs = [(retry_topic(group), SUB) for group in groups]
    needs += [(each.topic, SUB) for consumer in heartbeat.consumers for each in consumer.subscriptions]
    return needs + [(topic, SUB) for client in heartbeat.behind for topic, _, _ in client.subscriptions]


def _has_consumers(body: bytes) -> bool:
    """Whether the sender of a heartbeat is a consumer itself: clients behind it are not meant."""
    try:
        return bool(HeartbeatOfProxy.decode(body).consumers)
    except BodyError:
        return False


def _locks(request: Any, body: bytes) -> Needs:
    try:
        return ((retry_topic(QueueLocks.decode(body).group), SUB),)
    except BodyError:
        return ()


def _assignment(request: Any, body: bytes) -> Needs:
    try:
        query = AssignmentQuery.decode(body)
    except BodyError:
        return ()
    return (query.topic, SUB), (retry_topic(query.consumer_group), SUB)


def _acks(request: Any, body: bytes) -> Needs:
    try:
        acks = BatchAck.decode(body).acks
    except BodyError:
        return ()
    return {(retry_topic(ack.group), SUB): None for ack in acks}


def _subscriptions(request: Any, body: bytes) -> Needs:
    try:
        wanted = LiteSubscriptionSet.decode(body).subscriptions
    except BodyError:
        return ()
    return dict.fromkeys(need for each in wanted for need in ((each.topic, SUB), (retry_topic(each.group), SUB)))


def _transaction(request: Any, body: bytes) -> Needs:
    try:
        messages, offsets = TransactionSet.decode(body)
    except BodyError:
        return ()
    consumed = [need for each in offsets for need in ((each.topic, SUB), (retry_topic(each.group), SUB))]
    return dict.fromkeys([*((message.topic, PUB) for message in messages), *consumed])


def _leaving(request: Any, body: bytes) -> Needs:
    group = request.ext.consumer_group
    return ((retry_topic(group), SUB),) if group else ()


def _rows(role: Role, *types: type[Any]) -> Mapping[type[Any], Row]:
    return dict.fromkeys(types, role)


ROWS: Final[Mapping[type[Any], Row]] = {
    requests.SendMessage: _send,
    requests.SendMessageV2: _send,
    requests.SendBatchMessage: _send,
    reply_requests.SendReplyMessage: _send,
    reply_requests.SendReplyMessageV2: _send,
    requests.RecallMessage: _topic(PUB),
    requests.StageTransaction: _transaction,
    requests.ConsumerSendMsgBack: _group("ext.group"),
    requests.PullMessage: _consumption,
    requests.LitePullMessage: _consumption,
    requests.QueryMessage: _topic(SUB),
    requests.QueryConsumerOffset: _consumption,
    requests.UpdateConsumerOffset: _consumption,
    requests.SearchOffsetByTimestamp: _topic(SUB),
    requests.GetMaxOffset: _topic(SUB),
    requests.GetMinOffset: _topic(SUB),
    requests.GetEarliestMsgStoretime: _topic(SUB),
    pop_requests.PopMessage: _consumption,
    pop_requests.AckMessage: _consumption,
    pop_requests.PeekMessage: _consumption,
    pop_requests.ChangeMessageInvisibleTime: _consumption,
    pop_requests.Notification: _consumption,
    pop_requests.PollingInfo: _consumption,
    pop_requests.BatchAckMessage: _acks,
    lite_requests.PopLiteMessage: _consumption,
    lite_requests.AckLiteMessage: _consumption,
    lite_requests.ControlLiteSubscriptions: _subscriptions,
    lite_requests.GetParentTopicInfo: _topic(SUB),
    lite_requests.GetLiteTopicInfo: _topic(SUB, "ext.parent_topic"),
    lite_requests.GetLiteClientInfo: _group("ext.group"),
    lite_requests.GetLiteGroupInfo: _group("ext.group"),
    lite_requests.TriggerLiteDispatch: _group("ext.group"),
    admin_requests.HeartBeat: _heartbeat,
    admin_requests.UnregisterClient: _leaving,
    admin_requests.GetConsumerListByGroup: _group(),
    admin_requests.LockBatchMq: _locks,
    admin_requests.UnlockBatchMq: _locks,
    admin_requests.QueryConsumeTimeSpan: _topic(SUB),
    admin_requests.QueryConsumeQueue: _topic(SUB),
    group_requests.GetConsumeStats: _group(),
    group_requests.QueryTopicConsumeByWho: _topic(SUB),
    group_requests.QueryTopicsByConsumer: _group("ext.group"),
    group_requests.QuerySubscriptionByConsumer: _group("ext.group"),
    group_requests.GetConsumerConnectionList: _group(),
    group_requests.QueryCorrectionOffset: _topic(SUB),
    operator_requests.QueryAssignment: _assignment,
    operator_requests.GetTopicStatsInfo: _topic(SUB),
    operator_requests.GetTopicConfig: _topic(SUB),
    operator_requests.GetSubscriptionGroupConfig: _group("ext.group"),
    filter_requests.RegisterMessageFilterClass: _upload,
    bulk_requests.PlanTopic: _topic(SUB),
    bulk_requests.BulkRead: _topic(SUB),
    **_rows(
        Role.ANYBODY,
        admin_requests.AuthenticateReplica,
        admin_requests.Forward,
        admin_requests.AnnounceReplica,
        admin_requests.ReportArchived,
        reply_requests.RelayReply,
    ),
    **_rows(
        Role.ACCOUNT,
        requests.EndTransaction,
        admin_requests.CheckClientConfig,
        admin_requests.GetBrokerRuntimeInfo,
        bulk_requests.HoldLog,
        bulk_requests.AskTopicEnds,
    ),
    **_rows(
        Role.ADMIN,
        requests.ViewMessageById,
        filter_requests.RegisterFilterServer,
        filter_requests.PutFilter,
        filter_requests.GetFilter,
        filter_requests.JudgeRequest,
        user_requests.CreateUser,
        user_requests.UpdateUser,
        user_requests.DeleteUser,
        user_requests.GetUser,
        user_requests.ListUsers,
        user_requests.CreateAcl,
        user_requests.UpdateAcl,
        user_requests.DeleteAcl,
        user_requests.GetAcl,
        user_requests.ListAcls,
        lite_requests.GetBrokerLiteInfo,
        pending_requests.AskPending,
        schedule_requests.PutSchedule,
        schedule_requests.DeleteSchedule,
        schedule_requests.ListSchedules,
        schedule_requests.SwitchSchedule,
        schedule_requests.TriggerSchedule,
        admin_requests.UpdateAndCreateTopic,
        admin_requests.DeleteTopicInBroker,
        deleted_topic_requests.ListDeletedTopics,
        deleted_topic_requests.RestoreTopic,
        admin_requests.GetAllTopicConfig,
        admin_requests.ManageGroup,
        operator_requests.UpdateAndCreateTopicList,
        operator_requests.GetSystemTopicListFromBroker,
        operator_requests.CleanExpiredConsumequeue,
        operator_requests.CleanUnusedTopic,
        operator_requests.DeleteExpiredCommitlog,
        operator_requests.ResumeCheckHalfMessage,
        operator_requests.UpdateAndCreateSubscriptionGroup,
        operator_requests.UpdateAndCreateSubscriptionGroupList,
        operator_requests.GetAllSubscriptionGroupConfig,
        operator_requests.DeleteSubscriptionGroup,
        operator_requests.GetAllConsumerOffset,
        operator_requests.GetAllDelayOffset,
        operator_requests.SetMessageRequestMode,
        operator_requests.GetAllMessageRequestMode,
        operator_requests.UpdateBrokerConfig,
        operator_requests.GetBrokerConfig,
        operator_requests.ViewBrokerStatsData,
        group_requests.GetProducerConnectionList,
        group_requests.GetAllProducerInfo,
        group_requests.UpdateAndGetGroupForbidden,
        group_requests.GetBrokerConsumeStats,
        group_requests.CloneGroupOffset,
        group_requests.InvokeBrokerToResetOffset,
        group_requests.SkipMessage,
        group_requests.InvokeBrokerToGetConsumerStatus,
        group_requests.GetConsumerRunningInfo,
        group_requests.ConsumeMessageDirectly,
    ),
}


OF_PROXIES: Final = frozenset(
    {
        admin_requests.HeartBeat,
        admin_requests.UnregisterClient,
        operator_requests.GetTopicConfig,
        operator_requests.GetSubscriptionGroupConfig,
    }
)
"""The requests that a proxy may make of its own accord; of the first two, only those of producers."""

THROUGH_PROXIES: Final = frozenset(
    {
        requests.SendMessage,
        requests.SendMessageV2,
        requests.RecallMessage,
        requests.EndTransaction,
        requests.ConsumerSendMsgBack,
        requests.PullMessage,
        requests.QueryConsumerOffset,
        requests.UpdateConsumerOffset,
        requests.SearchOffsetByTimestamp,
        requests.GetMaxOffset,
        requests.GetMinOffset,
        pop_requests.PopMessage,
        pop_requests.AckMessage,
        pop_requests.ChangeMessageInvisibleTime,
        operator_requests.GetTopicConfig,
        operator_requests.GetSubscriptionGroupConfig,
        lite_requests.PopLiteMessage,
        lite_requests.AckLiteMessage,
        lite_requests.ControlLiteSubscriptions,
        admin_requests.CheckClientConfig,
    }
)
"""The requests that a proxy may make for a user, also for an administrator."""


def _ending(request: Any, body: bytes) -> Needs:
    """Clients of proxies produce for a group with the name of the topic, and a broker compares it with the message."""
    return ((request.ext.producer_group, PUB),)


ROWS_THROUGH_PROXIES: Final[Mapping[type[Any], Row]] = {requests.EndTransaction: _ending}
"""What users need for a request through a proxy, where it is more than in `ROWS`."""

ANY_PERMISSION: Final = frozenset({operator_requests.GetTopicConfig})
"""The requests that a proxy may make for a user who has any permission for the topic: its producers see it, too."""


_UNKNOWN: Final = (OF_PROXIES | THROUGH_PROXIES) - ROWS.keys()
assert not _UNKNOWN, f"proxies may make requests that nobody may make: {_UNKNOWN}"
assert ROWS_THROUGH_PROXIES.keys() <= THROUGH_PROXIES, f"not through proxies: {ROWS_THROUGH_PROXIES.keys()}"
assert ANY_PERMISSION <= THROUGH_PROXIES, f"not through proxies: {ANY_PERMISSION - THROUGH_PROXIES}"


def is_of_consumers(request: Any, body: bytes) -> bool:
    """Whether a request that registers a client, or says that it leaves, is about a consumer group."""
    match request:
        case admin_requests.HeartBeat():
            return _has_consumers(body)
        case admin_requests.UnregisterClient():
            return any(True for _ in _leaving(request, body))
        case _:
            return False
