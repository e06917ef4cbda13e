"""The synchronous `Admin`."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Concatenate, Generic, ParamSpec, TypeVar

from mq.client.admin import Admin
from mq.client.events import OnEvent
from mq.client.lite_topics import LiteTopics
from mq.client.net.client_core import RemotingSettings
from mq.client.removed_members import RemovedMembers
from mq.client.schedules import Schedules
from mq.client.sync.facade import Facade, run_without_event_loop, waits

P = ParamSpec("P")
R = TypeVar("R")
PartT = TypeVar("PartT")


class _AdminPart(Generic[PartT]):
    """A part of `Admin` for threads."""

    def __init__(self, admin: SyncAdmin, part: PartT) -> None:
        self._admin = admin
        self._part = part


def _asks(method: Callable[Concatenate[PartT, P], Awaitable[R]]) -> Callable[Concatenate[_AdminPart[PartT], P], R]:
    """Return the blocking method for a coroutine function of such a part."""

    @functools.wraps(method)
    def call(part: _AdminPart[PartT], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return part._admin._call(method, part._part, *args, **kwargs)

    return call


class SyncSchedules(_AdminPart[Schedules]):
    """`Schedules` for threads: `SyncAdmin.schedules`."""

    create = _asks(Schedules.create)
    update = _asks(Schedules.update)
    delete = _asks(Schedules.delete)
    get = _asks(Schedules.get)
    list = _asks(Schedules.list)
    pause = _asks(Schedules.pause)
    resume = _asks(Schedules.resume)
    trigger = _asks(Schedules.trigger)


class SyncLiteTopics(_AdminPart[LiteTopics]):
    """`LiteTopics` for threads: `SyncAdmin.lite`."""

    brokers = _asks(LiteTopics.brokers)
    parent = _asks(LiteTopics.parent)
    topic = _asks(LiteTopics.topic)
    client = _asks(LiteTopics.client)
    lag = _asks(LiteTopics.lag)
    dispatch = _asks(LiteTopics.dispatch)


class SyncRemovedMembers(_AdminPart[RemovedMembers]):
    """`RemovedMembers` for threads: `SyncAdmin.removed_members`."""

    remove = _asks(RemovedMembers.remove)
    let_in = _asks(RemovedMembers.let_in)
    kept_out = _asks(RemovedMembers.kept_out)


class SyncAdmin(Facade[Admin], of=Admin):
    """`Admin` for threads; takes the same arguments."""

    def __init__(
        self,
        namesrv: str | Sequence[str],
        *,
        ping: bool = False,
        on_event: OnEvent | None = None,
        remoting: RemotingSettings | None = None,
    ) -> None:
        super().__init__(run_without_event_loop(Admin, namesrv, ping=ping, on_event=on_event, remoting=remoting))

    @property
    def schedules(self) -> SyncSchedules:
        """The calls that administer schedules."""
        return SyncSchedules(self, self._client.schedules)

    @property
    def lite(self) -> SyncLiteTopics:
        """The calls that administer lite topics."""
        return SyncLiteTopics(self, self._client.lite)

    @property
    def removed_members(self) -> SyncRemovedMembers:
        """The calls that remove members from their consumer groups for a while."""
        return SyncRemovedMembers(self, self._client.removed_members)

    cluster_info = waits(Admin.cluster_info)
    broker_runtime = waits(Admin.broker_runtime)
    broker_settings = waits(Admin.broker_settings)
    manage_group = waits(Admin.manage_group)
    create_topic = waits(Admin.create_topic)
    delete_topic = waits(Admin.delete_topic)
    deleted_topics = waits(Admin.deleted_topics)
    restore_topic = waits(Admin.restore_topic)
    topics = waits(Admin.topics)
    route = waits(Admin.route)
    topic_config = waits(Admin.topic_config)
    topic_identities = waits(Admin.topic_identities)
    topic_stats = waits(Admin.topic_stats)
    figure = waits(Admin.figure)
    message_by_id = waits(Admin.message_by_id)
    messages_by_key = waits(Admin.messages_by_key)
    trace = waits(Admin.trace)
    consumer_groups = waits(Admin.consumer_groups)
    put_consumer_group = waits(Admin.put_consumer_group)
    delete_consumer_group = waits(Admin.delete_consumer_group)
    group_progress = waits(Admin.group_progress)
    all_progress = waits(Admin.all_progress)
    group_members = waits(Admin.group_members)
    member_queues = waits(Admin.member_queues)
    reset_group = waits(Admin.reset_group)
    skip_message = waits(Admin.skip_message)
    requeue_dead_letter = waits(Admin.requeue_dead_letter)
    min_offset = waits(Admin.min_offset)
    max_offset = waits(Admin.max_offset)
    offset = waits(Admin.offset)
    consumers = waits(Admin.consumers)
    group_offset = waits(Admin.group_offset)
