"""The permissions that each request needs, one row per request. The broker refuses requests without a row. Pure.

The permissions are those of RocketMQ's ACL 1.0. In addition, only administrators may read messages by physical offset,
reset offsets of other groups, and list all clients, which RocketMQ allows every account.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final

from mq.accounts import Permission
from mq.protocol.errors import BodyError
from mq.protocol.messages.transaction_sets import TransactionSet
from mq.protocol.names import retry_topic
from mq.protocol.requests import (
    accounts,
    assignment,
    broker,
    bulk,
    clients,
    consumer_groups,
    deleted_topics,
    filters,
    group_progress,
    lite,
    many_queues,
    members,
    offsets,
    pending,
    pop,
    pull,
    queries,
    quotas,
    raft_group,
    relayed,
    removed_members,
    replicas,
    request_reply,
    schedules,
    send,
    topic_use,
    topics,
    transactions,
    users,
)
from mq.protocol.requests.assignment import AssignmentQuery
from mq.protocol.requests.clients import HeartbeatOfProxy, QueueLocks
from mq.protocol.requests.lite import LiteSubscriptionSet
from mq.protocol.requests.receipts import BatchAck

Needs = Iterable[tuple[str, Permission]]
"""Topics, and what the request does to them. A consumer group is represented by its retry topic."""


class Role(enum.Enum):
    """The role that a sender needs for a request, whatever its topic."""

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
    """Return the permissions for uploading a program: FILTER besides those of a consumer, since servers run it."""
    return *_consumption(request, body), (retry_topic(request.ext.consumer_group), FILTER)


def _send(request: Any, body: bytes) -> Needs:
    """Return the permission for a send: SUB for a retry topic, to which consumers send messages back, else PUB."""
    topic = request.ext.topic
    return ((topic, SUB if topic.startswith("%RETRY%") else PUB),)


def _heartbeat(request: Any, body: bytes) -> Needs:
    try:
        heartbeat = HeartbeatOfProxy.decode(body)
    except BodyError:
        return ()  # the handler refuses this body
    groups = [*(each.group for each in heartbeat.consumers), *(each.group for each in heartbeat.proxied_clients)]
    needs = [(retry_topic(group), SUB) for group in groups]
    needs += [(each.topic, SUB) for consumer in heartbeat.consumers for each in consumer.subscriptions]
    return needs + [(topic, SUB) for client in heartbeat.proxied_clients for topic, _, _ in client.subscriptions]


def _has_consumers(body: bytes) -> bool:
    """Return whether the sender of a heartbeat is a consumer itself, not only a proxy of consumers."""
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


def _queues(request: Any, body: bytes) -> Needs:
    try:
        topics = many_queues.QueueQuestions.decode(body).topics
    except BodyError:
        return ()
    return dict.fromkeys((each.topic, SUB) for each in topics)


def _subscriptions(request: Any, body: bytes) -> Needs:
    try:
        subscriptions = LiteSubscriptionSet.decode(body).subscriptions
    except BodyError:
        return ()
    return dict.fromkeys(need for each in subscriptions for need in ((each.topic, SUB), (retry_topic(each.group), SUB)))


def _transaction(request: Any, body: bytes) -> Needs:
    try:
        messages, offsets = TransactionSet.decode(body)
    except BodyError:
        return ()
    offset_needs = [need for each in offsets for need in ((each.topic, SUB), (retry_topic(each.group), SUB))]
    return dict.fromkeys([*((message.topic, PUB) for message in messages), *offset_needs])


def _unregister(request: Any, body: bytes) -> Needs:
    group = request.ext.consumer_group
    return ((retry_topic(group), SUB),) if group else ()


def _rows(role: Role, *types: type[Any]) -> Mapping[type[Any], Row]:
    return dict.fromkeys(types, role)


ROWS: Final[Mapping[type[Any], Row]] = {
    send.SendMessage: _send,
    send.SendMessageV2: _send,
    send.SendBatchMessage: _send,
    request_reply.SendReplyMessage: _send,
    request_reply.SendReplyMessageV2: _send,
    send.RecallMessage: _topic(PUB),
    transactions.StageTransaction: _transaction,
    send.ConsumerSendMsgBack: _group("ext.group"),
    pull.PullMessage: _consumption,
    pull.LitePullMessage: _consumption,
    queries.QueryMessage: _topic(SUB),
    offsets.QueryConsumerOffset: _consumption,
    offsets.UpdateConsumerOffset: _consumption,
    offsets.SearchOffsetByTimestamp: _topic(SUB),
    offsets.GetMaxOffset: _topic(SUB),
    offsets.GetMinOffset: _topic(SUB),
    offsets.GetEarliestMsgStoretime: _topic(SUB),
    pop.PopMessage: _consumption,
    pop.AckMessage: _consumption,
    pop.PeekMessage: _consumption,
    pop.ChangeMessageInvisibleTime: _consumption,
    pop.Notification: _consumption,
    pop.PollingInfo: _consumption,
    pop.BatchAckMessage: _acks,
    lite.PopLiteMessage: _consumption,
    lite.AckLiteMessage: _consumption,
    lite.ControlLiteSubscriptions: _subscriptions,
    lite.GetParentTopicInfo: _topic(SUB),
    lite.GetLiteTopicInfo: _topic(SUB, "ext.parent_topic"),
    lite.GetLiteClientInfo: _group("ext.group"),
    lite.GetLiteGroupInfo: _group("ext.group"),
    lite.TriggerLiteDispatch: _group("ext.group"),
    clients.HeartBeat: _heartbeat,
    clients.UnregisterClient: _unregister,
    clients.GetConsumerListByGroup: _group(),
    clients.LockBatchMq: _locks,
    clients.UnlockBatchMq: _locks,
    queries.QueryConsumeTimeSpan: _topic(SUB),
    many_queues.AskQueues: _queues,
    queries.QueryConsumeQueue: _topic(SUB),
    group_progress.GetConsumeStats: _group(),
    consumer_groups.QueryTopicConsumeByWho: _topic(SUB),
    consumer_groups.QueryTopicsByConsumer: _group("ext.group"),
    consumer_groups.QuerySubscriptionByConsumer: _group("ext.group"),
    consumer_groups.GetConsumerConnectionList: _group(),
    group_progress.QueryCorrectionOffset: _topic(SUB),
    assignment.QueryAssignment: _assignment,
    topics.GetTopicStatsInfo: _topic(SUB),
    topics.GetTopicConfig: _topic(SUB),
    consumer_groups.GetSubscriptionGroupConfig: _group("ext.group"),
    filters.RegisterMessageFilterClass: _upload,
    bulk.PlanTopic: _topic(SUB),
    bulk.BulkRead: _topic(SUB),
    **_rows(
        Role.ANYBODY,
        replicas.AuthenticateReplica,
        replicas.Forward,
        replicas.AnnounceReplica,
        replicas.ReportArchived,
        request_reply.RelayReply,
    ),
    **_rows(
        Role.ACCOUNT,
        transactions.EndTransaction,
        clients.CheckClientConfig,
        broker.GetBrokerRuntimeInfo,
        bulk.HoldLog,
        bulk.AskTopicEnds,
    ),
    **_rows(
        Role.ADMIN,
        queries.ViewMessageById,
        filters.RegisterFilterServer,
        filters.PutFilter,
        filters.GetFilter,
        filters.JudgeRequest,
        users.CreateUser,
        users.UpdateUser,
        users.DeleteUser,
        users.GetUser,
        users.ListUsers,
        users.CreateAcl,
        users.UpdateAcl,
        users.DeleteAcl,
        users.GetAcl,
        users.ListAcls,
        lite.GetBrokerLiteInfo,
        pending.AskPending,
        schedules.PutSchedule,
        schedules.DeleteSchedule,
        schedules.ListSchedules,
        schedules.SwitchSchedule,
        schedules.TriggerSchedule,
        topics.UpdateAndCreateTopic,
        topics.DeleteTopicInBroker,
        deleted_topics.ListDeletedTopics,
        deleted_topics.RestoreTopic,
        topics.GetAllTopicConfig,
        raft_group.ManageGroup,
        topics.UpdateAndCreateTopicList,
        topics.GetSystemTopicListFromBroker,
        broker.CleanExpiredConsumequeue,
        broker.CleanUnusedTopic,
        broker.DeleteExpiredCommitlog,
        transactions.ResumeCheckHalfMessage,
        consumer_groups.UpdateAndCreateSubscriptionGroup,
        consumer_groups.UpdateAndCreateSubscriptionGroupList,
        consumer_groups.GetAllSubscriptionGroupConfig,
        consumer_groups.DeleteSubscriptionGroup,
        group_progress.GetAllConsumerOffset,
        group_progress.GetAllDelayOffset,
        assignment.SetMessageRequestMode,
        assignment.GetAllMessageRequestMode,
        broker.UpdateBrokerConfig,
        broker.GetBrokerConfig,
        broker.ViewBrokerStatsData,
        consumer_groups.GetProducerConnectionList,
        consumer_groups.GetAllProducerInfo,
        consumer_groups.UpdateAndGetGroupForbidden,
        group_progress.GetBrokerConsumeStats,
        group_progress.CloneGroupOffset,
        group_progress.InvokeBrokerToResetOffset,
        group_progress.SkipMessage,
        removed_members.RemoveMember,
        removed_members.ListKeptOut,
        members.AskMembers,
        topic_use.AskTopicUse,
        relayed.InvokeBrokerToGetConsumerStatus,
        relayed.GetConsumerRunningInfo,
        relayed.ConsumeMessageDirectly,
        quotas.PutUserQuota,
        quotas.ListQuotas,
        accounts.ListAccounts,
        bulk.ListLeases,
    ),
}


OF_PROXIES: Final = frozenset(
    {
        clients.HeartBeat,
        clients.UnregisterClient,
        topics.GetTopicConfig,
        consumer_groups.GetSubscriptionGroupConfig,
    }
)
"""The requests that a proxy may make of its own accord; of the first two, only those of producers."""

THROUGH_PROXIES: Final = frozenset(
    {
        send.SendMessage,
        send.SendMessageV2,
        send.RecallMessage,
        transactions.EndTransaction,
        send.ConsumerSendMsgBack,
        pull.PullMessage,
        offsets.QueryConsumerOffset,
        offsets.UpdateConsumerOffset,
        offsets.SearchOffsetByTimestamp,
        offsets.GetMaxOffset,
        offsets.GetMinOffset,
        pop.PopMessage,
        pop.AckMessage,
        pop.ChangeMessageInvisibleTime,
        topics.GetTopicConfig,
        consumer_groups.GetSubscriptionGroupConfig,
        lite.PopLiteMessage,
        lite.AckLiteMessage,
        lite.ControlLiteSubscriptions,
        clients.CheckClientConfig,
    }
)
"""The requests that a proxy may make for a user, also for an administrator."""


def _end_transaction(request: Any, body: bytes) -> Needs:
    """Return the permission to end a transaction. Clients behind proxies use their topic as producer group."""
    return ((request.ext.producer_group, PUB),)


ROWS_THROUGH_PROXIES: Final[Mapping[type[Any], Row]] = {transactions.EndTransaction: _end_transaction}
"""The permissions that users need for requests through a proxy, where they differ from `ROWS`."""

ANY_PERMISSION: Final = frozenset({topics.GetTopicConfig})
"""The requests that a proxy may make for a user who has any permission for the topic: its producers see it, too."""


_UNKNOWN: Final = (OF_PROXIES | THROUGH_PROXIES) - ROWS.keys()
assert not _UNKNOWN, f"proxies may make requests that nobody may make: {_UNKNOWN}"
assert ROWS_THROUGH_PROXIES.keys() <= THROUGH_PROXIES, f"not through proxies: {ROWS_THROUGH_PROXIES.keys()}"
_OF_ADMINS: Final = {kind for kind, row in ROWS.items() if row is Role.ADMIN}
assert not _OF_ADMINS & (OF_PROXIES | THROUGH_PROXIES), "a proxy may make requests of administrators"
assert ANY_PERMISSION <= THROUGH_PROXIES, f"not through proxies: {ANY_PERMISSION - THROUGH_PROXIES}"


def is_of_consumers(request: Any, body: bytes) -> bool:
    """Return whether a request registers or unregisters members of a consumer group."""
    match request:
        case clients.HeartBeat():
            return _has_consumers(body)
        case clients.UnregisterClient():
            return any(True for _ in _unregister(request, body))
        case _:
            return False
