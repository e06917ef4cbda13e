"""Creates consumer groups, topics and users that the target lacks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol, TypeVar

import msgspec
import trio

from mq.cli.definitions import group_of
from mq.cli.errors import CommandFailed
from mq.cli.import_definitions import group_config
from mq.cli.mirror.clusters import ClusterAdmin
from mq.cli.mirror.plan import Choice, Extension, NewTopic, TargetUnusable, extend, own_names
from mq.cli.mirror.state import MirrorState
from mq.client.errors import BrokerError, ClientError
from mq.protocol.codes import ResponseCode
from mq.protocol.names import SYSTEM_GROUPS, NameRefused, check_group
from mq.protocol.requests.compaction_attributes import CLEANUP_POLICY, is_compacted
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from mq.protocol.requests.quota_attributes import ATTRIBUTES as QUOTAS
from mq.protocol.requests.retention_attributes import RESERVE_BYTES, RESERVE_TIME
from mq.protocol.requests.users import SUBJECT_PREFIX

_SYSTEM_GROUP_PREFIXES = ("CID_RMQ_SYS_", "CID_ONS", "CID_SYS_RMQ_TRANS", "GLOBAL_")

_ATTRIBUTES_REFUSED = frozenset({ResponseCode.INVALID_PARAMETER, ResponseCode.VERSION_NOT_SUPPORTED})
_LIMITS: Final = (RESERVE_TIME, RESERVE_BYTES, *QUOTAS)
"""Attributes without which a topic keeps or takes more messages, never fewer: it is mirrored without those that the
target refuses.
"""

AT_ONCE: Final = 16
"""Topics or groups that are being created at the target."""

T = TypeVar("T")
Say = Callable[[str], None]


class Groups(Protocol):
    """The methods of a cluster's admin that `create_groups` calls."""

    async def consumer_groups(self) -> dict[str, dict[str, SubscriptionGroupConfig]]: ...

    async def put_consumer_group(self, config: SubscriptionGroupConfig, *, cluster: str | None = None) -> None: ...


async def extend_mirror(
    source: ClusterAdmin, target: ClusterAdmin, state: MirrorState, choice: Choice, say: Say
) -> Extension:
    """Create the queues that the target lacks, and add them to the state.

    Raises CommandFailed, ClientError.
    """
    info = await source.cluster_info()
    there = await target.topic_configs()
    await create_groups(source, target, say)
    try:
        extension = extend(
            state.queues,
            await source.topic_configs(),
            there,
            target_brokers=sorted((await target.cluster_info()).brokers),
            own=own_names(info.clusters),
            choice=choice,
        )
    except TargetUnusable as error:
        raise CommandFailed(str(error)) from error
    reasons = await create_topics(target, extension.topics, say)
    extension = extension._replace(
        queues=[queue for queue in extension.queues if queue.target_topic not in reasons],
        refusals={**extension.refusals, **reasons},
    )
    state.queues.extend(extension.queues)
    return extension


async def create_topics(target: ClusterAdmin, topics: Iterable[NewTopic], say: Say) -> dict[str, str]:
    """Create topics at the target, several at a time, since each waits for the name servers. Raises ClientError.

    If one is refused, no further one is begun; those that were begun may be created or not. Returned are topics that
    the target does not compact, with what to do: there they would lose the newest messages of keys, so nothing is
    copied.
    """
    reasons: dict[str, str] = {}

    async def create(topic: NewTopic) -> None:
        config = topic.config
        try:
            await create_topic(target, topic, say)
        except BrokerError as error:
            if not is_compacted(config.attributes) or error.code not in _ATTRIBUTES_REFUSED:
                raise
            reasons[config.topic_name] = (
                f"the target refuses topic {config.topic_name} with {CLEANUP_POLICY}: {error.remark}. Upgrade the "
                "target, or create the topic there without it, or leave it out: raftmq mirror --exclude "
                f"{config.topic_name}"
            )
            return
        say(f"topic {config.topic_name} has {config.write_queue_nums} queues in {topic.broker} now")

    await _some_at_once(topics, create)
    return reasons


async def _some_at_once(items: Iterable[T], operation: Callable[[T], Awaitable[None]]) -> None:
    """Act on all items. Raises the first ClientError, after the others that were begun were cancelled."""
    rest = iter(items)
    fault: ClientError | None = None

    async def work() -> None:
        nonlocal fault
        for item in rest:
            try:
                await operation(item)
            except ClientError as error:
                fault = fault or error
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(work)
    if fault is not None:
        raise fault


async def create_topic(target: ClusterAdmin, topic: NewTopic, say: Say) -> None:
    """Create a topic at the target, without those of its limits that the target refuses. Raises ClientError."""
    attributes = topic.config.attributes
    limits = [name for name in _LIMITS if name in attributes]
    attempts = [(), *((name,) for name in limits), *([tuple(limits)] if len(limits) > 1 else [])]
    why: str | None = None
    for left_out in attempts:
        try:
            await _put_topic(target, topic, {name: each for name, each in attributes.items() if name not in left_out})
        except BrokerError as error:
            if left_out == attempts[-1] or error.code not in _ATTRIBUTES_REFUSED:
                raise
            why = error.remark
        else:
            if left_out:
                say(f"topic {topic.config.topic_name} is mirrored without {' and '.join(left_out)}: {why}")
            return


async def _put_topic(target: ClusterAdmin, topic: NewTopic, attributes: Mapping[str, str]) -> None:
    config = topic.config
    await target.create_topic(
        config.topic_name,
        read_queues=config.read_queue_nums,
        write_queues=config.write_queue_nums,
        perm=config.perm,
        order=config.order,
        filter_type=config.topic_filter_type,
        sys_flag=config.topic_sys_flag,
        attributes=attributes,
        broker=topic.broker,
    )


async def create_groups(source: Groups, target: Groups, say: Say) -> None:
    """Create the consumer groups that the target lacks, several at a time. Raises ClientError."""
    target_groups = await target.consumer_groups()
    new_configs: list[SubscriptionGroupConfig] = []
    for name, configs in sorted((await source.consumer_groups()).items()):
        if name in target_groups or is_system_group(name):
            continue
        try:
            check_group(name)
        except NameRefused as error:
            say(f"consumer group {name} is left out: {error}")
            continue
        new_configs.append(group_config(name, group_of(configs[min(configs)])))

    async def create(config: SubscriptionGroupConfig) -> None:
        name = config.group_name
        try:
            await target.put_consumer_group(config)
            say(f"created consumer group {name}")
        except BrokerError as error:
            if not config.attributes or error.code not in _ATTRIBUTES_REFUSED:
                raise
            await target.put_consumer_group(msgspec.structs.replace(config, attributes={}))
            say(f"created consumer group {name} without its attributes: {error.remark}")

    await _some_at_once(new_configs, create)


def is_system_group(name: str) -> bool:
    """Whether brokers or tools need the group for themselves."""
    return name in SYSTEM_GROUPS or name.startswith(_SYSTEM_GROUP_PREFIXES)


async def create_users(source: ClusterAdmin, target: ClusterAdmin, say: Say) -> None:
    """Create the users of RocketMQ 5 that the target lacks, with passwords and policies. Raises ClientError.

    A user that the target refuses is left out, and reported.
    """
    target_users = {user.name for users in (await target.users()).values() for user in users}
    users = {user.name: user for rows in (await source.users()).values() for user in rows}
    policies = {acl.subject: acl.policies for rows in (await source.policies()).values() for acl in rows}
    for name, user in sorted(users.items()):
        if name in target_users:
            continue
        if user.password is None:
            say(f"user {name} is left out: the source does not tell passwords. Create it with raftmq user create")
            continue
        try:
            await target.create_user(user)
            for policy in policies.get(f"{SUBJECT_PREFIX}{name}", ()):
                await target.put_policies(name, policy.entries, default=policy.policy_type == "Default")
        except BrokerError as error:
            say(f"user {name} is not complete: {error}")
        else:
            say(f"created user {name}")
